"""The nano model in arenas computes the bits that it computed in TVM's storages, and holds less."""

import ctypes
import gc

import numpy as np
import pytest
import tvm
from tvm import relax

from mlc_compile.artifact import PACKED_WEIGHTS
from mlc_compile.checkpoint import TensorCache
from mlc_compile.driver.convert import convert
from mlc_compile.driver.pack import pack_weights
from mlc_compile.emit.cpu import build, tvm_target
from mlc_compile.passes import plan_memory
from mlc_compile.passes.bind_weights import read_plan
from mlc_compile.pipeline import phases
from mlc_compile.progress import SILENT
from mlc_compile.runtime.cache import allocate

CONTEXT = 256
CHUNK = 64  # nano_plan's
CALLS = [("prefill", 64), ("prefill", 37), ("decode", 1), ("decode", 1), ("score", 20)]

# Beside tensors, what a call leaves with malloc: a few objects of a hundred bytes each.
SLACK = 16 << 10
ALLOCATOR_PAGE = 4096  # TVM's allocator rounds a storage up to this


class Model:
    """One library over its weights and an empty cache."""

    def __init__(self, mod, plan, params):
        self.memory = {one.name: one for one in plan_memory.read(mod)}
        self.vm = relax.VirtualMachine(build(mod, plan.target), tvm.cpu())
        self.params = params
        self.cache = allocate(plan.kv, CONTEXT)
        self.kv = [tvm.runtime.from_dlpack(a) for a in self.cache.arrays()]

    def call(self, name, ids):
        embeds = self.vm["embed"](tvm.runtime.tensor(ids), self.params)
        batch = embeds._create_view((1, *embeds.shape))
        logits, _ = self.vm[name](batch, self.kv, self.params)
        self.cache.length[0] += ids.size
        return logits.numpy()[0]


def lowered(mod, plan, planner):
    """The nano model after all phases, its memory planned by `planner` if there is one."""
    with tvm_target(plan.target):
        for phase in phases(plan):
            for step in phase.passes:
                named = str(step.info.name)
                swapped = planner is not None and named == "PlanMemory"
                mod = planner(mod) if swapped else step(mod)
    return mod


@pytest.fixture(scope="module", autouse=True)
def what_was_before_is_no_garbage():
    """So a collection looks at what a call left behind, not at all that was ever imported."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module", params=["q4f16_1", "q0f32"])
def models(request, nano_plan, nano_checkpoint, tmp_path_factory):
    """The model as we plan it, and as TVM does."""
    scheme = request.param
    mod, plan = nano_plan("cpu", scheme)
    ours = lowered(mod, plan, None)
    tvms = lowered(mod, plan, relax.transform.StaticPlanBlockMemory())
    directory = tmp_path_factory.mktemp(scheme)
    convert(nano_checkpoint, scheme, directory / "weights", SILENT)
    pack_weights(read_plan(ours), TensorCache(directory / "weights"), directory, SILENT)
    packed = np.fromfile(directory / PACKED_WEIGHTS, np.uint8)
    parts = [part for tensor in read_plan(ours).tensors for part in tensor.parts]
    params = [
        tvm.runtime.tensor(packed[p.offset :][: p.nbytes].view(p.dtype).reshape(p.shape))
        for p in parts
    ]
    assert plan_memory.read(ours)
    assert not plan_memory.read(tvms)
    return Model(ours, plan, params), Model(tvms, plan, params)


def test_the_bits_are_those_of_tvm_s_plan(models):
    ours, tvms = models
    for model in models:
        model.cache.length[0] = 0
    for i, (name, n) in enumerate(CALLS):
        ids = np.random.default_rng(i).integers(0, 500, n).astype(np.int32)
        logits = ours.call(name, ids)
        assert np.isfinite(logits).all()
        np.testing.assert_array_equal(logits, tvms.call(name, ids))


class Mallinfo2(ctypes.Structure):
    """What glibc's mallinfo2 returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def allocated():
    """Bytes that malloc has given out."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        pytest.skip("no mallinfo2: another C library than glibc 2.33 or later")
    libc.mallinfo2.restype = Mallinfo2
    gc.collect()
    now = libc.mallinfo2()
    return now.uordblks + now.hblkhd


def held_after(model, name, ids):
    """Bytes that TVM's allocator holds when one call ends: its peak, for it gives nothing back."""
    model.cache.length[0] = 0
    embeds = model.vm["embed"](tvm.runtime.tensor(ids), model.params)
    batch = embeds._create_view((1, *embeds.shape))
    model.vm[name](batch, model.kv, model.params)  # threads, and their workspaces, are made
    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    before = allocated()
    logits = model.vm[name](batch, model.kv, model.params)
    del logits
    return allocated() - before


@pytest.mark.parametrize(("name", "n"), [("prefill", CHUNK), ("decode", 1), ("score", CHUNK)])
def test_the_allocator_s_peak_is_what_was_planned(models, name, n):
    ours, tvms = models
    ids = np.arange(n, dtype=np.int32)
    memory = ours.memory[name]
    planned = memory.planned_bytes + memory.result_bytes
    held = held_after(ours, name, ids)
    assert planned - SLACK <= held <= planned + (memory.storages + 1) * ALLOCATOR_PAGE + SLACK
    assert held <= held_after(tvms, name, ids) + SLACK


def test_short_calls_leave_nothing_more_behind(models):
    """Each prompt length would else keep a storage of its own."""
    model, _ = models
    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    held = []
    for n in (CHUNK, 1, 17, 33, 49):  # 4, 8 and 12 KiB of embeddings were 24 KiB more
        model.cache.length[0] = 0
        model.call("prefill", np.arange(n, dtype=np.int32))
        held.append(allocated())
    assert held[-1] - held[0] < SLACK
