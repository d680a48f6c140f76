"""The phases on the nano model: memory is planned, and nothing of ours is left unlowered."""

import pytest
import tvm
from tvm import relax, tirx

from mlc_compile import ops
from mlc_compile.artifact import FlatKV, Limits
from mlc_compile.checkpoint import read_config
from mlc_compile.driver.compile import Options, choose_activations
from mlc_compile.emit.cpu import tvm_target
from mlc_compile.model import load_config
from mlc_compile.model.qwen3 import export
from mlc_compile.passes import events
from mlc_compile.passes.bind_weights import read_plan
from mlc_compile.passes.rewrite import bindings_of, relax_functions
from mlc_compile.pipeline import Plan, phases, planned_bytes
from mlc_compile.quant import SCHEMES
from mlc_compile.schedule.lower_operators import RULES
from mlc_compile.target import Target, find_target

TARGETS = ["cpu", "cpu-x86-64-v3", "cpu-aarch64"]
FUNCTIONS = ("embed", "prefill", "decode", "score")


@pytest.fixture(scope="module")
def after(nano_checkpoint):
    """`after("memory", "cpu", "q4f16_1")`: the module when that phase has ended."""
    config = load_config(read_config(nano_checkpoint), "config.json")
    done = {}

    def run(name: str, target: str, scheme: str, chunk: int = 64, *, tied: bool = True):
        row = find_target(target)
        kept = done.setdefault((target, scheme, chunk, tied), {})
        if name not in kept:
            mod, names = export(config, tied=tied)
            plan = plan_of(config, row, scheme, chunk, names)
            with tvm_target(row):
                for phase in phases(plan):
                    for step in phase.passes:
                        mod = step(mod)
                    kept[phase.name] = mod
        return kept[name]

    return run


def plan_of(config, target: Target, scheme: str, chunk: int, names) -> Plan:
    dtype = SCHEMES[scheme].norm_dtype
    return Plan(
        target=target,
        scheme=scheme,
        kv=FlatKV(
            layers=config.num_hidden_layers,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            page=64,
            dtype=dtype,
        ),
        limits=Limits(context=256, prefill_chunk=chunk),
        weight_names=names,
        rope=config.rope,
        activations=choose_activations(target, scheme, Options()),
    )


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
def test_every_operator_that_outlives_the_graph_has_a_rule(after, target, scheme):
    left = mlc_operators(after("activations", target, scheme))
    assert left  # the walk sees something
    assert left <= set(RULES[find_target(target).backend])
    assert mlc_operators(after("kernels", target, scheme)) == set()


@pytest.mark.parametrize("target", TARGETS)
def test_every_rule_is_for_an_operator_that_exists(target):
    known = set(tvm.ir.Op.list_op_names())
    assert set(RULES[find_target(target).backend]) <= known


@pytest.mark.parametrize("scheme", ["q0f32", "q4f16_1"])
def test_layers_share_their_kernels(after, scheme):
    mod = after("kernels", "cpu", scheme)
    kernels = [gv.name_hint for gv, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)]
    attends = [k for k in kernels if k.startswith("flat_attend")]
    # nano has two layers; `prefill` and `score` take any number of tokens, `decode` one.
    assert len(attends) <= 2
    called = [
        call.args[0].name_hint
        for name in ("prefill", "score")
        for op in ("relax.call_tir", "relax.call_tir_inplace")
        for call in calls(mod[name], op).values()
    ]
    assert len([c for c in called if c.startswith("flat_attend")]) == 4  # 2 functions, 2 layers
    assert len({c for c in called if c.startswith("flat_attend")}) == 1


def test_every_kernel_is_scheduled(after):
    mod = after("kernels", "cpu", "q4f16_1")
    kernels = {gv.name_hint: f for gv, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
    assert [name for name, f in kernels.items() if "tirx.is_scheduled" not in f.attrs] == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_only_results_are_allocated_outside_the_planned_storage(after, scheme):
    mod = after("memory", "cpu", scheme)
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
def test_planned_storage_is_bounded_and_grows_with_the_chunk(after, scheme):
    small, large = (planned_bytes(after("memory", "cpu", scheme, chunk)) for chunk in (64, 128))
    assert set(FUNCTIONS) <= set(small)
    assert small["decode"] == large["decode"] > 0
    for name in ("prefill", "score"):
        # All of it but what one token needs is proportional to the chunk.
        assert 1.9 * small[name] < large[name] <= 2 * small[name]


def test_a_planned_byte_serves_more_than_one_tensor(after):
    mod = after("memory", "cpu", "q0f32")
    tensors = calls(mod["prefill"], "relax.memory.alloc_tensor")
    storages = calls(mod["prefill"], "relax.memory.alloc_storage")
    assert 0 < len(storages) < len(tensors)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_projections_are_merged_and_the_plan_says_so(after, scheme):
    mod = after("graph", "cpu", scheme)
    joined = {t.name: len(t.sources) for t in read_plan(mod).tensors}
    assert joined["model.layers.0.self_attn.q_proj+k_proj+v_proj"] == 3
    assert joined["model.layers.1.mlp.gate_proj+up_proj"] == 2
    assert mlc_operators(mod).isdisjoint({"mlc.weight", "mlc.linear", "mlc.attention"})
    subjects = [e.subject for e in events.read(mod) if e.source == "MergeProjections"]
    assert len(subjects) == 4  # two groups in each of two layers, told once


@pytest.mark.parametrize("tied", [True, False])
def test_the_plan_has_the_embedding_once_and_a_head_only_if_untied(after, tied):
    names = [t.name for t in read_plan(after("graph", "cpu", "q4f16_1", tied=tied)).tensors]
    assert ("lm_head" in names) is not tied
    assert names.count("model.embed_tokens") == 1
    assert len(names) == len(set(names))


def test_two_runs_give_equal_modules(nano_checkpoint, after):
    once = after("activations", "cpu", "q4f16_1")
    config = load_config(read_config(nano_checkpoint), "config.json")
    mod, names = export(config, tied=True)
    with tvm_target(find_target("cpu")):
        for phase in phases(plan_of(config, find_target("cpu"), "q4f16_1", 64, names))[:3]:
            for step in phase.passes:
                mod = step(mod)
    tvm.ir.assert_structural_equal(mod, once)


def test_an_interrupt_passes_through_tvm_as_what_it_is():
    @tvm.ir.transform.module_pass(opt_level=0, name="Interrupted")
    class Interrupted:
        def transform_module(self, _mod, _ctx):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Interrupted()(tvm.IRModule())
