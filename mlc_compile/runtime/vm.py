"""The door to TVM: a compiled library over its weights and one KV cache.

This module, `device` and `state` alone import tvm, inside functions: TVM reads
TVM_USE_RUNTIME_LIB (leave the compiler out, which is most of its memory and of its start)
when it is imported, and TVM_NUM_THREADS when its threads start.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from mlc_compile.amx import tiles_granted
from mlc_compile.artifact import PACKED_WEIGHTS, Manifest
from mlc_compile.errors import ConfigError, DamageError
from mlc_compile.runtime.cache import aligned_zeros
from mlc_compile.runtime.device import open_device, raise_failure
from mlc_compile.runtime.host import available_cores, keep_to_fast_cores, require_threads
from mlc_compile.runtime.load import Loadable, plan_parts
from mlc_compile.runtime.sampler import Sampler, Sampling, device_settings
from mlc_compile.runtime.state import STATES
from mlc_compile.tvm_version import without_torch

if TYPE_CHECKING:
    from tvm.runtime import Device, Tensor
    from tvm.runtime.vm import VirtualMachine

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

Watcher = Callable[..., int]

FUNCTIONS: Final = ("embed", "prefill", "decode", "score")
CHOOSERS: Final = ("argmax", "sample")  # of a library for a device
BIG: Final = 1  # TVM's number of its default mode: threads for the fastest CPUs


def start_tvm(threads: int | None = None) -> int:
    """Import TVM's runtime with `threads` threads (default: the available cores).

    Returns the threads it runs with, which cannot change in a process that has already
    imported TVM: ConfigError if `threads` asks for another number, or for more than there are.
    They keep to the fast cores if those are enough for them.
    """
    tiles_granted()  # asked by each process that may load a library, needed or not
    if "tvm" not in sys.modules:
        require_threads(threads)
        _import_tvm(threads or available_cores())
    import tvm

    running = int(tvm.get_global_func("runtime.NumThreads")())
    if threads is not None and running != threads:
        raise ConfigError(
            f"TVM already runs with {running} threads in this process, {threads} were asked for",
            hint="use a fresh process for each number of threads",
        )
    return running


class CompiledModel:
    """An artifact's functions; positions count tokens already in the cache.

    It trusts its caller (the engine) with ids, chunk lengths and positions: the library
    itself checks no bounds.
    """

    def __init__(self, loadable: Loadable) -> None:
        manifest = loadable.manifest
        self._backend = manifest.backend
        self._device = open_device(manifest.backend, loadable.library.device)
        self._on_host = manifest.on_host
        self._vm = _load_machine(loadable.directory / loadable.library.path, self._device)
        self._functions = {name: self._vm[name] for name in FUNCTIONS}
        mapped = map_weights(loadable.directory, manifest)
        self._params = mapped if self._on_host else [t.copyto(self._device) for t in mapped]
        self._state = STATES[manifest.kv_kind](self._vm, manifest, self._device)
        self._choosers = {name: self._vm[name] for name in CHOOSERS if _has(self._vm, name)}
        self._settings: dict[Sampling, tuple[Tensor, ...]] = {}  # of the latest sampler
        self._vocab_size = manifest.vocab_size
        self._ids: Ints = aligned_zeros((manifest.limits.prefill_chunk,), "int32")
        raise_failure(self._backend)  # the first: to take the weights or the cache

    def prefill(self, ids: Ints, position: int) -> Floats:
        """Append `ids` i32[n]; logits f32[vocab] that follow the last of them."""
        last: Floats = self._call("prefill", ids, position)[0]
        return last

    def decode(self, token: int, position: int) -> Floats:
        """Append one token; logits f32[vocab] that follow it."""
        last: Floats = self._call("decode", np.array([token], np.int32), position)[0]
        return last

    def score(self, ids: Ints, position: int) -> Floats:
        """Append `ids` i32[n]; logits f32[n, vocab] that follow each of them."""
        return self._call("score", ids, position)

    @property
    def chooses(self) -> bool:
        """Whether the library has functions that choose a token, for `next_token`."""
        return len(self._choosers) == len(CHOOSERS)

    def next_token(self, token: int, position: int, sampler: Sampler) -> int:
        """Append one token; the one to follow it, chosen where the logits are.

        Below 0 if the logit of the chosen token is not finite.
        """
        logits = self._logits("decode", np.array([token], np.int32), position)
        if sampler.greedy:
            chosen = self._choosers["argmax"](logits)
        else:
            settings = self._settings_of(sampler.sampling)
            chosen = self._choosers["sample"](logits, *settings, self._copied(sampler.uniform()))
        token_id = int(chosen.numpy()[0])
        raise_failure(self._backend)
        return token_id

    def watch(self, watcher: Watcher | None) -> None:
        """Have every call that the virtual machine makes told to `watcher`; None ends it.

        It is called as `watcher(function, name, before, result, *arguments)` before and after
        each kernel and each builtin, and returns 0.
        """
        self._vm.set_instrument(watcher)

    @property
    def weights(self) -> "list[Tensor]":
        """Every plan part, in parameter order."""
        return self._params

    @property
    def pages(self) -> "list[Tensor]":
        """The key and the value pages of the cache; none if it is TVM's own object."""
        return self._state.pages

    def _call(self, name: str, ids: Ints, position: int) -> Floats:
        logits = self._logits(name, ids, position)
        if not self._on_host:
            logits = logits.copyto(_host())
            raise_failure(self._backend)
        rows: Floats = np.from_dlpack(logits)[0]  # [1, n or 1, vocab]; the tensor lives on in it
        return rows

    def _logits(self, name: str, ids: Ints, position: int) -> "Tensor":
        """f32[1, n or 1, vocab] on the device."""
        self._ids[: ids.size] = ids
        self._state.begin(position, ids.size)
        embeds = self._functions["embed"](self._placed(self._ids[: ids.size]), self._params)
        batch = embeds._create_view((1, *embeds.shape))
        logits, _ = self._functions[name](batch, self._state.argument, self._params)
        self._state.end()
        return logits

    def _settings_of(self, sampling: Sampling) -> "tuple[Tensor, ...]":
        """Copied once for a text, and not for each of its tokens."""
        if sampling not in self._settings:
            given = device_settings(sampling, self._vocab_size)
            self._settings = {sampling: tuple(map(self._copied, given))}
        return self._settings[sampling]

    def _copied(self, array: npt.NDArray[Any]) -> "Tensor":
        import tvm

        return tvm.runtime.tensor(array, self._device)

    def _placed(self, array: npt.NDArray[Any]) -> "Tensor":
        tensor = _tensor(array)
        return tensor if self._on_host else tensor.copyto(self._device)


def map_weights(directory: Path, manifest: Manifest) -> "list[Tensor]":
    """Every plan part as a tensor over the mapped file, in parameter order; nothing is copied."""
    # Mode "c": DLPack refuses read-only memory; nobody writes, so no page is ever copied.
    packed = np.memmap(directory / PACKED_WEIGHTS, np.uint8, mode="c")
    return [
        _tensor(packed[p.offset : p.offset + p.nbytes].view(p.dtype).reshape(p.shape))
        for p in plan_parts(manifest.plan)
    ]


def _import_tvm(threads: int) -> None:
    keep_to_fast_cores(threads)
    os.environ["TVM_NUM_THREADS"] = str(threads)
    # TVM pins its threads to CPUs 0, 1, ... whatever the process is allowed to use.
    os.environ["TVM_BIND_THREADS"] = "0"
    with _lean_import(), without_torch():
        tvm = importlib.import_module("tvm")
    # By itself TVM starts no more threads than there are CPUs of the highest frequency.
    tvm.get_global_func("runtime.config_threadpool")(BIG, threads)


@contextmanager
def _lean_import() -> Iterator[None]:
    """Import TVM without its compiler; the setting ends there: a child process may compile."""
    before = os.environ.get("TVM_USE_RUNTIME_LIB")
    os.environ["TVM_USE_RUNTIME_LIB"] = "1"
    try:
        yield
    finally:
        os.environ.pop("TVM_USE_RUNTIME_LIB")
        if before is not None:
            os.environ["TVM_USE_RUNTIME_LIB"] = before


def _load_machine(path: Path, device: "Device") -> "VirtualMachine":
    import tvm
    from tvm.runtime.vm import VirtualMachine

    try:
        vm = VirtualMachine(tvm.runtime.load_module(str(path.resolve())), device)
        for name in FUNCTIONS:
            vm[name]  # a library without it is not one of ours
        return vm
    except (RuntimeError, OSError, AttributeError) as e:
        raise DamageError(f"{path} cannot be loaded: {e}", hint="rebuild the artifact") from e


def _has(vm: "VirtualMachine", name: str) -> bool:
    return bool(vm.module.implements_function(name))


def _host() -> "Device":
    import tvm

    return tvm.cpu()


def _tensor(array: npt.NDArray[Any]) -> "Tensor":
    import tvm

    return tvm.runtime.from_dlpack(array)
