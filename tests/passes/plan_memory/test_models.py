"""Plans of published shapes, held against a bound that is worked out again from the planned IR."""

import tomllib

import pytest
from tvm import relax, tirx

from mlc_compile import ops
from mlc_compile.artifact import Limits
from mlc_compile.driver.job import Options, choose_activations, choose_kv
from mlc_compile.emit.backend import emitter_of
from mlc_compile.model import load_config
from mlc_compile.model.qwen3 import export
from mlc_compile.passes import plan_memory
from mlc_compile.passes.plan_memory import PlanMemory
from mlc_compile.pipeline import Plan, phases
from mlc_compile.target import config_dir, find_target

CHUNK = 512
PLACED = "relax.memory.alloc_tensor"
MODELS = ["qwen3-0.6b", "qwen3-4b"]  # of 28 and 36 layers
GENERATING = ("prefill", "decode", "score")


def shape_of(name):
    """A published shape as a config."""
    table = tomllib.loads((config_dir() / "models" / f"{name}.toml").read_text())
    fixed = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_act": "silu"}
    return load_config({**fixed, **table}, f"{name}.toml")


@pytest.fixture(scope="module", params=MODELS)
def planned(request):
    """A whole model, planned with and without an arena."""
    return plans(request.param, "cpu")


@pytest.fixture(scope="module")
def planned_for_cuda():
    """A whole model as a GPU gets it: no arena. One will do: what differs is the target."""
    mod, step = unplanned("qwen3-0.6b", "cuda-sm80")
    return step(mod)


def plans(name, target):
    """As the target's pipeline plans it, and without an arena."""
    mod, step = unplanned(name, target)
    return step(mod), PlanMemory(arena=False)(mod)


def unplanned(name, target):
    """The model where its memory is to be planned, and the target's pass that does so."""
    config, row, scheme = shape_of(name), find_target(target), "q4f16_1"
    mod, names = export(config, tied=True)
    plan = Plan(
        target=row,
        scheme=scheme,
        kv=choose_kv(config, row, scheme, Options()),
        limits=Limits(context=4096, prefill_chunk=CHUNK),
        weight_names=names,
        rope=config.rope,
        activations=choose_activations(row, scheme, Options()),
    )
    with emitter_of(row).tvm_target(row):
        for phase in phases(plan):
            for step in phase.passes:
                if isinstance(step, PlanMemory):
                    return mod, step
                mod = step(mod)
    raise AssertionError("no memory phase")


def by_name(memory):
    return {one.name: one for one in memory}


def test_an_arena_is_within_a_twentieth_of_what_is_alive_at_once(planned):
    functions = by_name(plan_memory.read(planned[0]))
    for name in GENERATING:
        one = functions[name]
        assert 0 < one.lower_bound_bytes <= one.planned_bytes <= 1.05 * one.lower_bound_bytes
        assert one.planned_bytes <= one.static_plan_bytes < one.naive_bytes
        assert max(step.live_bytes for step in one.steps) == one.lower_bound_bytes


def test_slots_of_a_gpu_are_within_a_twentieth_too(planned_for_cuda):
    functions = by_name(plan_memory.read(planned_for_cuda))
    for name in GENERATING:
        one = functions[name]
        assert 0 < one.lower_bound_bytes <= one.planned_bytes <= 1.05 * one.lower_bound_bytes
        assert one.planned_bytes <= one.static_plan_bytes < one.naive_bytes


def test_slots_need_no_more_than_tvm_s(planned):
    functions = by_name(plan_memory.read(planned[1]))
    for name in GENERATING:
        one = functions[name]
        assert one.lower_bound_bytes <= one.planned_bytes <= one.static_plan_bytes


@pytest.mark.parametrize("arena", [True, False])
def test_the_bound_and_the_plan_are_those_of_the_ir(planned, arena):
    mod = planned[0] if arena else planned[1]
    for one in plan_memory.read(mod):
        used, bound = by_brute_force(mod[one.name])
        assert (one.planned_bytes, one.lower_bound_bytes) == (used, bound)


def test_no_kernel_for_webgpu_is_given_one_buffer_twice(nano_plan):
    """A dispatch may not read a buffer that it writes; unfused, a sum could go over its term."""
    mod, plan = nano_plan("webgpu", "q4f32_1", disabled=("FuseResidual",))
    with emitter_of(plan.target).tvm_target(plan.target):
        for step in (step for phase in phases(plan)[:-1] for step in phase.passes):
            mod = step(mod)
    assert any(gv.name_hint == "add" for gv in mod.functions)
    for name in GENERATING:
        for storages in storages_of_calls(mod[name]):
            assert len(set(storages)) == len(storages)


def storages_of_calls(func):
    """Of each kernel call, the storages in which its arguments lie."""
    values = {b.var: b.value for block in func.body.blocks for b in block.bindings}
    for value in values.values():
        if isinstance(value, relax.Call) and isinstance(value.op, relax.GlobalVar):
            found = {v for v in (origin(arg, values) for arg in value.args) if v in values}
            yield [values[v].args[0] for v in found if ops.is_call(values[v], PLACED)]


def by_brute_force(func):
    """Bytes of all storages, and the most distinct bytes that are alive in one kernel call.

    AssertionError if two tensors that a later call still reads share a byte.
    """
    storages, tensors, calls, values = {}, {}, [], {}
    for binding in (b for block in func.body.blocks for b in block.bindings):
        var, value = binding.var, binding.value
        values[var] = value
        if ops.is_call(value, "relax.memory.alloc_storage"):
            storages[var] = int(value.args[0].values[0])
        elif ops.is_call(value, PLACED):
            storage, offset = value.args[0], int(value.args[1].value)
            tensors[var] = (storage, offset, offset + largest(value.args[2], value.ty.dtype))
        elif isinstance(value, relax.Call) and isinstance(value.op, relax.GlobalVar):
            found = [origin(arg, values) for arg in value.args]
            calls.append({var for var in found if isinstance(var, relax.Var)})
    uses = {t: [i for i, args in enumerate(calls) if t in args] for t in tensors}
    most = 0
    for i in range(len(calls)):
        alive = [t for t, at in uses.items() if at[0] <= i <= at[-1]]
        most = max(most, distinct_bytes(tensors[t] for t in alive))
        lasting = [t for t in alive if uses[t][-1] > i]
        total = sum(tensors[t][2] - tensors[t][1] for t in lasting)
        assert distinct_bytes(tensors[t] for t in lasting) == total
    return sum(storages.values()), most


def origin(expr, values):
    """What `expr` is, through renamings and tuples: an allocation's variable, or something else."""
    while True:
        if isinstance(expr, relax.Var) and isinstance(values.get(expr), VALUES):
            expr = values[expr]
        elif isinstance(expr, relax.TupleGetItem):
            whole = origin(expr.tuple_value, values)
            if not isinstance(whole, relax.Tuple):
                return expr
            expr = whole.fields[expr.index]
        else:
            return expr


VALUES = (relax.Var, relax.Tuple, relax.TupleGetItem)


def largest(shape, dtype):
    """Bytes of a tensor whose symbolic size is CHUNK."""
    total = {"float32": 4, "int32": 4}[str(dtype)]
    for size in shape.values:
        total *= int(size) if isinstance(size, tirx.IntImm) else CHUNK
    return total


def distinct_bytes(ranges):
    """Bytes that are in at least one of the ranges (storage, start, end)."""
    total, top = 0, {}
    for storage, start, end in sorted(ranges, key=lambda r: r[1]):
        begin = max(start, top.get(storage, 0))
        total += max(0, end - begin)
        top[storage] = max(top.get(storage, 0), end)
    return total
