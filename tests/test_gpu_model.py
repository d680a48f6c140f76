"""A whole model on GPU kernels, without a GPU: its logits are the reference's.

The nano checkpoint goes through the compiler for a GPU, and TVM's virtual machine and paged
KV cache then run on the CPU with every kernel interpreted (`tests.simt`): prefill, chunks
that attend to earlier ones, decoding.
"""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import tvm
from tvm import relax

from mlc_compile.artifact import PACKED_WEIGHTS, PROOF, Limits
from mlc_compile.bench.verify import BOUNDS, read_proof
from mlc_compile.checkpoint import TensorCache
from mlc_compile.driver import proof
from mlc_compile.driver.convert import convert
from mlc_compile.driver.job import Options, choose_kv
from mlc_compile.driver.pack import pack_weights
from mlc_compile.driver.subject import read_subject
from mlc_compile.emit.backend import emitter_of
from mlc_compile.errors import DamageError
from mlc_compile.model.qwen3 import export
from mlc_compile.passes.bind_weights import read_plan
from mlc_compile.pipeline import Plan, phases
from mlc_compile.progress import SILENT
from mlc_compile.runtime import vm as runtime
from mlc_compile.runtime.engine import Engine
from mlc_compile.runtime.sampler import GREEDY, Sampler, Sampling
from mlc_compile.target import Target, find_target, host_target
from tests.simt.model import interpreted

LIMITS = Limits(context=96, prefill_chunk=64)
PROMPT_TOKENS = 40  # over two pages
CASES = [
    ("cuda-sm80", "q4f16_1"),
    ("metal", "q4f16_1"),
    ("vulkan", "q4f32_1"),
    ("webgpu", "q4f32_1"),
    ("cuda-sm80", "q0f32"),
]


def tvm_target(row: Target) -> tvm.target.Target:
    """As the row's emitter describes its device, with this machine for a host."""
    host = {name: getattr(host_target(), name) for name in ("triple", "mcpu", "mattr")}
    return emitter_of(row).tvm_target(msgspec.structs.replace(row, **host))


@dataclass(frozen=True)
class Model:
    """A compiled module, its weights on the host, and what it must compute."""

    vm: relax.VirtualMachine
    params: list[object]
    page: int
    prompt: np.ndarray
    expected: np.ndarray  # f32[n, vocab]
    bound: float

    def logits(self, calls: list[tuple[str, int]]) -> np.ndarray:
        """The rows of `calls` (function, tokens), over the prompt in order."""
        sizes = (1, LIMITS.context, LIMITS.prefill_chunk, self.page, 0)
        kv = self.vm["create_tir_paged_kv_cache"](*(tvm.runtime.ShapeTuple([s]) for s in sizes))
        state = {
            name: tvm.get_global_func(f"vm.builtin.kv_state_{name}")
            for name in ("add_sequence", "begin_forward", "end_forward")
        }
        state["add_sequence"](kv, 0)
        rows, start = [], 0
        for name, n in calls:
            ids = tvm.runtime.tensor(self.prompt[start : start + n])
            state["begin_forward"](kv, *(tvm.runtime.ShapeTuple([x]) for x in (0, n)))
            embeds = self.vm["embed"](ids, self.params)
            out, _ = self.vm[name](embeds._create_view((1, *embeds.shape)), kv, self.params)
            state["end_forward"](kv)
            rows.append(out.numpy()[0])
            start += n
        return np.concatenate(rows)


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def model(request, nano_checkpoint, tmp_path_factory) -> Model:
    name, scheme = request.param
    row, directory = find_target(name), tmp_path_factory.mktemp(name)
    subject = read_subject(nano_checkpoint)
    mod, names = export(subject.config, tied=subject.config.tie_word_embeddings)
    kv = choose_kv(subject.config, row, scheme, Options())
    plan = Plan(row, scheme, kv, LIMITS, names, subject.config.rope)
    target = tvm_target(row)
    with target:
        for phase in phases(plan):
            for step in phase.passes:
                mod = step(mod)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof, "PROMPT_TOKENS", PROMPT_TOKENS)
        convert(nano_checkpoint, scheme, directory / "weights", SILENT)
    prompt, expected = read_proof(directory / "weights" / PROOF)
    return Model(
        vm=interpreted(mod, target),
        params=packed(mod, directory),
        page=kv.page,
        prompt=np.asarray(prompt, np.int32),
        expected=expected,
        bound=BOUNDS[kv.dtype] * float(np.abs(expected).max()),
    )


def packed(mod: tvm.IRModule, directory: Path) -> list[object]:
    plan = read_plan(mod)
    pack_weights(plan, TensorCache(directory / "weights"), directory, SILENT)
    raw = np.fromfile(directory / PACKED_WEIGHTS, np.uint8)
    return [
        tvm.runtime.tensor(raw[p.offset :][: p.nbytes].view(p.dtype).reshape(p.shape))
        for tensor in plan.tensors
        for p in tensor.parts
    ]


def test_chunks_then_single_tokens(model):
    """The first chunk is over two pages, and its last tile is ragged."""
    got = model.logits([("score", 33), ("score", 4), *[("decode", 1)] * 3])
    assert np.abs(got - model.expected).max() < model.bound


def test_a_prompt_at_once_gives_its_last_position(model):
    (got,) = model.logits([("prefill", model.prompt.size)])
    assert np.abs(got - model.expected[-1]).max() < model.bound


def loaded(model, monkeypatch, params) -> Engine:
    """The runtime over the module, with the host's memory for a device's."""
    monkeypatch.setattr(runtime, "_load_machine", lambda _path, _device: model.vm)
    monkeypatch.setattr(runtime, "open_device", lambda *_asked: tvm.cpu())
    monkeypatch.setattr(runtime, "map_weights", lambda _directory, _manifest: params)
    manifest = SimpleNamespace(
        backend="cuda",
        on_host=False,
        kv_kind="tvm_paged",
        kv=SimpleNamespace(page=model.page),
        limits=LIMITS,
        vocab_size=model.expected.shape[1],
    )
    library = SimpleNamespace(path="lib.so", device=None)
    loadable = SimpleNamespace(directory=Path(), manifest=manifest, library=library)
    return Engine(runtime.CompiledModel(loadable), LIMITS, manifest.vocab_size)


one_case = pytest.mark.parametrize("model", CASES[:1], indirect=True, ids="-".join)


@one_case
def test_the_text_is_the_one_by_logits_when_the_device_chooses(model, monkeypatch):
    engine, sampler = loaded(model, monkeypatch, model.params), Sampler(GREEDY)
    first = int(engine.prefill(model.prompt[:3].tolist()).argmax())
    by_logits, by_device = [first], [first]
    for _ in range(2):
        by_logits.append(int(engine.decode(by_logits[-1]).argmax()))
    engine.rewind(3)
    for _ in range(2):
        by_device.append(engine.next_token(by_device[-1], sampler))
    assert by_device == by_logits


@one_case
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, seed=0)], ids=["greedy", "random"])
def test_what_is_not_finite_is_told_without_logits(model, monkeypatch, sampling):
    params = [nan_like(p) if len(p.shape) == 1 else p for p in model.params]  # all norms
    engine = loaded(model, monkeypatch, params)
    with pytest.raises(DamageError, match="not finite"):
        engine.next_token(1, Sampler(sampling))


def nan_like(tensor):
    return tvm.runtime.tensor(np.full_like(tensor.numpy(), np.nan))
