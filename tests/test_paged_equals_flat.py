"""TVM's paged KV cache and our flat one are two ways to the same logits."""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tvm
from tvm import relax

from mlc_compile.artifact import PACKED_WEIGHTS, FlatKV, Limits, WeightPlan
from mlc_compile.checkpoint import TensorCache
from mlc_compile.driver.convert import convert
from mlc_compile.driver.job import Options, choose_kv
from mlc_compile.driver.pack import pack_weights
from mlc_compile.driver.subject import read_subject
from mlc_compile.emit.cpu import build, tvm_target
from mlc_compile.model.qwen3 import export
from mlc_compile.passes.bind_weights import read_plan
from mlc_compile.pipeline import Plan, phases
from mlc_compile.progress import SILENT
from mlc_compile.runtime.cache import allocate
from mlc_compile.target import host_target

LIMITS = Limits(context=128, prefill_chunk=96)
PAGE = 16  # tokens of a page of the paged cache, as web-llm asks for

# By scheme, on logits of magnitude 19.
# q0f32: both sides do the same float32 arithmetic on the same weights. They differ in the order
#   of sums, in how softmax is put together from pieces and in the last bits of exp, sin and cos:
#   8e-6 here. A theta that is 1 % off gives 1e-2, a softmax scale 1 % off 7e-2.
# q0f16: both keep K and V in float16, but TVM's kernels take and give q and the output in
#   float16 too, each rounded by up to 2^-11: 7e-3 here. Another position, page or head is whole
#   units off.
TOLERANCES = {"q0f32": 1e-4, "q0f16": 3e-2}

DECODE = [("decode", 1)] * 8
CALLS = {
    # 70 tokens end in the third page of the flat cache and in the fifth of the paged one.
    "at once": [("prefill", 70), *DECODE],
    # The second chunk attends to what the first left in the cache and to itself.
    "in chunks": [("score", 41), ("score", 29), *DECODE],
}


class Compiled:
    """The nano checkpoint compiled in this process with one kind of KV cache."""

    def __init__(self, checkpoint: Path, scheme: str, kv: str) -> None:
        subject = read_subject(checkpoint)
        mod, names = export(subject.config, tied=subject.config.tie_word_embeddings)
        target = msgspec.structs.replace(host_target(), kv=kv)
        self.kv: FlatKV = choose_kv(subject.config, target, scheme, Options())
        plan = Plan(target, scheme, self.kv, LIMITS, names, subject.config.rope)
        with tvm_target(target):
            for phase in phases(plan):
                for step in phase.passes:
                    mod = step(mod)
        self.module = mod
        self.weights: WeightPlan = read_plan(mod)
        self.vm = relax.VirtualMachine(build(mod, target), tvm.cpu())

    def call(self, name: str, ids: np.ndarray, kv: object, params: list[object]) -> np.ndarray:
        """Logits [n or 1, vocab]."""
        embeds = self.vm["embed"](tvm.runtime.tensor(ids), params)
        logits, _ = self.vm[name](embeds._create_view((1, *embeds.shape)), kv, params)
        return logits.numpy()[0]


@dataclass(frozen=True)
class Pair:
    """The same checkpoint in both forms, and the weights that both take."""

    flat: Compiled
    paged: Compiled
    params: list[object]
    tolerance: float


@pytest.fixture(scope="module", params=TOLERANCES)
def pair(request, nano_checkpoint, tmp_path_factory):
    scheme = request.param
    flat, paged = (Compiled(nano_checkpoint, scheme, kv) for kv in ("flat", "tvm_paged"))
    directory = tmp_path_factory.mktemp(scheme)
    convert(nano_checkpoint, scheme, directory / "weights", SILENT)
    pack_weights(flat.weights, TensorCache(directory / "weights"), directory, SILENT)
    packed = np.fromfile(directory / PACKED_WEIGHTS, np.uint8)
    parts = [part for tensor in flat.weights.tensors for part in tensor.parts]
    params = [
        tvm.runtime.tensor(packed[p.offset :][: p.nbytes].view(p.dtype).reshape(p.shape))
        for p in parts
    ]
    return Pair(flat, paged, params, TOLERANCES[scheme])


def test_the_weight_plan_does_not_depend_on_the_cache(pair):
    assert pair.flat.weights == pair.paged.weights


def test_reshapes_cost_nothing(pair):
    kernels = [gv.name_hint for gv in pair.paged.module.functions]
    assert not [k for k in kernels if "reshape" in k]


@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
def test_logits_agree(pair, calls):
    total = sum(n for _, n in calls)
    ids = np.random.default_rng(11).integers(0, 500, total).astype(np.int32)
    expected = run_flat(pair.flat, pair.params, ids, calls)
    actual = run_paged(pair.paged, pair.params, ids, calls)
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() < pair.tolerance


def run_flat(model, params, ids, calls):
    cache = allocate(model.kv, LIMITS.context)
    kv = [tvm.runtime.from_dlpack(a) for a in cache.arrays()]
    rows = []
    for name, chunk in chunks(ids, calls):
        rows.append(model.call(name, chunk, kv, params))
        cache.length[0] += chunk.size
    return np.concatenate(rows)


def run_paged(model, params, ids, calls):
    sizes = (1, LIMITS.context, LIMITS.prefill_chunk, PAGE, 0)
    kv = model.vm["create_tir_paged_kv_cache"](*(tvm.runtime.ShapeTuple([s]) for s in sizes))
    builtin = {
        name: tvm.get_global_func(f"vm.builtin.kv_state_{name}")
        for name in ("add_sequence", "begin_forward", "end_forward")
    }
    builtin["add_sequence"](kv, 0)
    rows = []
    for name, chunk in chunks(ids, calls):
        sequence, appended = (tvm.runtime.ShapeTuple([x]) for x in (0, chunk.size))
        builtin["begin_forward"](kv, sequence, appended)
        rows.append(model.call(name, chunk, kv, params))
        builtin["end_forward"](kv)
    return np.concatenate(rows)


def chunks(ids, calls):
    start = 0
    for name, n in calls:
        yield name, ids[start : start + n]
        start += n
