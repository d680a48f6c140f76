"""The KV cache of one sequence, as a library takes it: a class for each kind of `Target.kv`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from mlc_compile.artifact import Manifest
from mlc_compile.runtime.cache import allocate
from mlc_compile.target import KVKind

if TYPE_CHECKING:
    from tvm.runtime import Device, Tensor
    from tvm.runtime.vm import VirtualMachine

CREATE: Final = "create_tir_paged_kv_cache"
SEQUENCE: Final = 0  # the one sequence of a paged cache, by its number


class State(Protocol):
    """`argument` is what prefill, decode and score take; `pages` its tensors, where it has any."""

    argument: Any
    pages: "list[Tensor]"

    def begin(self, position: int, tokens: int) -> None:
        """Forget what lies past `position`, and make room for `tokens` more."""

    def end(self) -> None:
        """The call that `begin` announced is over."""


class Flat:
    """Tensors that the library writes: see `artifact.FlatKV`."""

    def __init__(self, _vm: "VirtualMachine", manifest: Manifest, device: "Device") -> None:
        import tvm

        del device  # the host's memory
        cache = allocate(manifest.kv, manifest.limits.context)
        self.argument = [tvm.runtime.from_dlpack(array) for array in cache.arrays()]
        self.pages = self.argument[:2]
        self._length = cache.length

    def begin(self, position: int, tokens: int) -> None:
        del tokens  # the pages for the whole context are there
        self._length[0] = position

    def end(self) -> None:
        """Nothing is open between calls."""


class Paged:
    """An object of TVM's runtime, made by the library; it counts its tokens itself."""

    def __init__(self, vm: "VirtualMachine", manifest: Manifest, device: "Device") -> None:
        import tvm

        del device  # the library's
        limits = manifest.limits
        sizes = (1, limits.context, limits.prefill_chunk, manifest.kv.page, 0)
        self.argument = vm[CREATE](*(tvm.runtime.ShapeTuple([size]) for size in sizes))
        self.pages: list[Tensor] = []
        self._call = {
            name: tvm.get_global_func(f"vm.builtin.{name}")
            for name in (
                "kv_state_add_sequence",
                "kv_state_popn",
                "kv_state_begin_forward",
                "kv_state_end_forward",
            )
        }
        self._shape = tvm.runtime.ShapeTuple
        self._length = 0
        self._call["kv_state_add_sequence"](self.argument, SEQUENCE)

    def begin(self, position: int, tokens: int) -> None:
        if position < self._length:
            self._call["kv_state_popn"](self.argument, SEQUENCE, self._length - position)
        self._call["kv_state_begin_forward"](
            self.argument, self._shape([SEQUENCE]), self._shape([tokens])
        )
        self._length = position + tokens

    def end(self) -> None:
        self._call["kv_state_end_forward"](self.argument)


STATES: Final[dict[KVKind, Callable[["VirtualMachine", Manifest, "Device"], State]]] = {
    "flat": Flat,
    "tvm_paged": Paged,
}
