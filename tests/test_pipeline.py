"""The phases on the nano model: memory is planned, and nothing of ours is left unlowered."""

import pytest
import tvm
from tvm import relax, tirx

from mlc_compile import ops
from mlc_compile.emit.cpu import tvm_target
from mlc_compile.passes import events
from mlc_compile.passes.bind_weights import read_plan
from mlc_compile.passes.rewrite import bindings_of, relax_functions
from mlc_compile.pipeline import phases, planned_bytes
from mlc_compile.quant import SCHEMES
from mlc_compile.schedule.lower_operators import RULES
from mlc_compile.target import find_target

TARGETS = ["cpu", "cpu-x86-64-v3", "cpu-sapphirerapids", "cpu-aarch64"]
FUNCTIONS = ("embed", "prefill", "decode", "score")


def mlc_operators(mod):
    return {
        value.op.name
        for _, func in relax_functions(mod)
        for value in bindings_of(func).values()
        if isinstance(value, relax.Call)
        and isinstance(value.op, tvm.ir.Op)
        and value.op.name.startswith("mlc.")
    }


def calls(func, name):
    return {var: v for var, v in bindings_of(func).items() if ops.is_call(v, name)}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_operator_that_outlives_the_graph_has_a_rule(nano_after, target, scheme):
    left = mlc_operators(nano_after("activations", target, scheme))
    assert left  # the walk sees something
    assert left <= set(RULES[find_target(target).backend])
    assert mlc_operators(nano_after("kernels", target, scheme)) == set()


@pytest.mark.parametrize("target", TARGETS)
def test_every_rule_is_for_an_operator_that_exists(target):
    known = set(tvm.ir.Op.list_op_names())
    assert set(RULES[find_target(target).backend]) <= known


@pytest.mark.parametrize(
    ("target", "scheme", "attend"),
    [
        ("cpu-x86-64-v4", "q0f32", "flat_attend"),
        ("cpu-x86-64-v4", "q4f16_1", "flat_attend"),
        ("cpu-sapphirerapids", "q4f16_1", "tile_attend"),
    ],
)
def test_layers_share_their_kernels(nano_after, target, scheme, attend):
    mod = nano_after("kernels", target, scheme)
    kernels = [gv.name_hint for gv, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)]
    attends = [k for k in kernels if k.startswith(attend)]
    # nano has two layers; `prefill` and `score` take any number of tokens, `decode` one.
    assert len(attends) <= 2
    called = [
        call.args[0].name_hint
        for name in ("prefill", "score")
        for op in ("relax.call_tir", "relax.call_tir_inplace")
        for call in calls(mod[name], op).values()
    ]
    assert len([c for c in called if c.startswith(attend)]) == 4  # 2 functions, 2 layers
    assert len({c for c in called if c.startswith(attend)}) == 1


def test_every_kernel_is_scheduled(nano_after):
    mod = nano_after("kernels", "cpu", "q4f16_1")
    kernels = {gv.name_hint: f for gv, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
    assert [name for name, f in kernels.items() if "tirx.is_scheduled" not in f.attrs] == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_only_results_are_allocated_outside_the_planned_storage(nano_after, scheme):
    mod = nano_after("memory", "cpu", scheme)
    for name in FUNCTIONS:
        func = mod[name]
        results = reachable(func.body.body, bindings_of(func))
        fresh = set(calls(func, "relax.builtin.alloc_tensor"))
        assert fresh, name
        assert fresh <= results, name


def reachable(expr, bindings):
    """The variables that make up a function's result, through tuples and renamings."""
    if isinstance(expr, relax.Tuple):
        return set().union(*(reachable(f, bindings) for f in expr.fields))
    if not isinstance(expr, relax.Var):
        return set()
    bound = bindings.get(expr)
    return {expr} | (
        reachable(bound, bindings) if isinstance(bound, relax.Tuple | relax.Var) else set()
    )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_planned_storage_is_bounded_and_grows_with_the_chunk(nano_after, scheme):
    small, large = (
        planned_bytes(nano_after("memory", "cpu", scheme, chunk=chunk)) for chunk in (64, 128)
    )
    assert set(FUNCTIONS) <= set(small)
    assert small["decode"] == large["decode"] > 0
    for name in ("prefill", "score"):
        # All of it but what one token needs is proportional to the chunk.
        assert 1.9 * small[name] < large[name] <= 2 * small[name]


def test_a_planned_byte_serves_more_than_one_tensor(nano_after):
    mod = nano_after("memory", "cpu", "q0f32")
    tensors = calls(mod["prefill"], "relax.memory.alloc_tensor")
    storages = calls(mod["prefill"], "relax.memory.alloc_storage")
    assert 0 < len(storages) < len(tensors)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_projections_are_merged_and_the_plan_says_so(nano_after, scheme):
    mod = nano_after("graph", "cpu", scheme)
    joined = {t.name: len(t.sources) for t in read_plan(mod).tensors}
    assert joined["model.layers.0.self_attn.q_proj+k_proj+v_proj"] == 3
    assert joined["model.layers.1.mlp.gate_proj+up_proj"] == 2
    assert mlc_operators(mod).isdisjoint({"mlc.weight", "mlc.linear", "mlc.attention"})
    subjects = [e.subject for e in events.read(mod) if e.source == "MergeProjections"]
    assert len(subjects) == 4  # two groups in each of two layers, told once


@pytest.mark.parametrize("tied", [True, False])
def test_the_plan_has_the_embedding_once_and_a_head_only_if_untied(nano_after, tied):
    names = [t.name for t in read_plan(nano_after("graph", "cpu", "q4f16_1", tied=tied)).tensors]
    assert ("lm_head" in names) is not tied
    assert names.count("model.embed_tokens") == 1
    assert len(names) == len(set(names))


def test_two_runs_give_equal_modules(nano_plan, nano_after):
    once = nano_after("activations", "cpu", "q4f16_1")
    mod, plan = nano_plan("cpu", "q4f16_1")
    with tvm_target(plan.target):
        for phase in phases(plan)[:3]:
            for step in phase.passes:
                mod = step(mod)
    tvm.ir.assert_structural_equal(mod, once)


def test_every_fusion_says_what_it_did(nano_after):
    noted = events.read(nano_after("kernels", "cpu-x86-64-v3", "q4f16_1"))
    done = {e.source for e in noted if e.outcome == "done"}
    assert done == {
        "MergeProjections",
        "CancelSplitConcat",
        "FuseSwiGLU",
        "QuantizeActivations",
        "FuseQuantizeSource",
        "FuseResidual",
        "FuseQuantizeGemv",
        "FuseSwiGLUEpilogue",
        "LowerOperators",
        "ScheduleLeftovers",
    }
    # Prefill and score have many rows.
    refused = [(e.source, e.reason) for e in noted if e.outcome == "refused"]
    assert set(refused) == {
        ("FuseQuantizeGemv", "it has, or may have, several rows"),
        ("FuseSwiGLUEpilogue", "it has, or may have, several rows"),
    }


def test_tiles_say_what_they_do(nano_after):
    noted = events.read(nano_after("kernels", "cpu-sapphirerapids", "q4f16_1"))
    passes = ("MultiplyBF16Tiles", "FuseRounding", "FuseTileProjection")
    assert {(e.source, e.subject, e.outcome) for e in noted if e.source in passes} == {
        ("MultiplyBF16Tiles", "mlc.int8_matmul", "done"),
        ("MultiplyBF16Tiles", "mlc.flat_attend", "done"),
        ("FuseRounding", "mlc.round_act", "done"),
        ("FuseTileProjection", "mlc.tile_append", "done"),
    }


@pytest.mark.parametrize(
    ("target", "choice", "reason"),
    [
        ("cpu-x86-64-v2", {}, "cpu-x86-64-v2 has no int8 dot product"),
        ("cpu-x86-64-v3", {"activations": "float32"}, "float32 was asked for"),
    ],
)
def test_float_activations_of_int4_weights_are_told(nano_after, target, choice, reason):
    noted = events.read(nano_after("activations", target, "q4f16_1", **choice))
    refused = [(e.outcome, e.reason) for e in noted if e.source == "QuantizeActivations"]
    assert refused == [("refused", reason)]


def test_unquantized_weights_leave_nothing_to_tell(nano_after):
    noted = events.read(nano_after("activations", "cpu", "q0f16"))
    assert not [e for e in noted if e.source == "QuantizeActivations"]


def test_an_interrupt_passes_through_tvm_as_what_it_is():
    @tvm.ir.transform.module_pass(opt_level=0, name="Interrupted")
    class Interrupted:
        def transform_module(self, _mod, _ctx):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Interrupted()(tvm.IRModule())
