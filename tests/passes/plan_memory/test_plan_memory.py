"""Allocations of kernels  ->  places in one arena; results and what escapes stay as they are."""

import numpy as np
import pytest
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from mlc_compile import ops
from mlc_compile.passes import events
from mlc_compile.passes.bound_tokens import BoundTokens
from mlc_compile.passes.plan_memory import ATTRIBUTE, PlanMemory, read
from mlc_compile.passes.plan_memory.results import BoundResults
from mlc_compile.passes.rewrite import bindings_of, relax_functions

ALLOC = "relax.builtin.alloc_tensor"
PLACED = "relax.memory.alloc_tensor"
STORAGE = "relax.memory.alloc_storage"


@I.ir_module
class Reversals:
    @T.prim_func(private=True, s_tir=True)
    def reverse(x: T.Buffer((T.int64(256),), "float32"), y: T.Buffer((T.int64(256),), "float32")):
        for i in range(T.int64(256)):
            with T.sblock("y"):
                v = T.axis.spatial(T.int64(256), i)
                y[v] = x[T.int64(255) - v]

    @R.function(pure=False)
    def main(x: R.Tensor((256,), "float32")) -> R.Tensor((256,), "float32"):
        cls = Reversals
        a = R.builtin.alloc_tensor(R.shape([256]), R.dtype("float32"), 0, "global")
        cls.reverse(x, a)
        b = R.builtin.alloc_tensor(R.shape([256]), R.dtype("float32"), 0, "global")
        cls.reverse(a, b)
        c = R.builtin.alloc_tensor(R.shape([256]), R.dtype("float32"), 0, "global")
        cls.reverse(b, c)
        d = R.builtin.alloc_tensor(R.shape([256]), R.dtype("float32"), 0, "global")
        cls.reverse(c, d)
        return d


@I.ir_module
class InAnArena:
    @T.prim_func(private=True, s_tir=True)
    def reverse(x: T.Buffer((T.int64(256),), "float32"), y: T.Buffer((T.int64(256),), "float32")):
        for i in range(T.int64(256)):
            with T.sblock("y"):
                v = T.axis.spatial(T.int64(256), i)
                y[v] = x[T.int64(255) - v]

    @R.function(pure=False)
    def main(x: R.Tensor((256,), "float32")) -> R.Tensor((256,), "float32"):
        cls = InAnArena
        s = R.memory.alloc_storage(R.shape([2048]), 0, "global", R.dtype("uint8"))
        a = R.memory.alloc_tensor(s, 0, R.shape([256]), R.dtype("float32"), 0)
        cls.reverse(x, a)
        b = R.memory.alloc_tensor(s, 1024, R.shape([256]), R.dtype("float32"), 0)
        cls.reverse(a, b)
        c = R.memory.alloc_tensor(s, 0, R.shape([256]), R.dtype("float32"), 0)
        cls.reverse(b, c)
        d = R.builtin.alloc_tensor(R.shape([256]), R.dtype("float32"), 0, "global")
        cls.reverse(c, d)
        return d


@I.ir_module
class InSlots:
    @T.prim_func(private=True, s_tir=True)
    def reverse(x: T.Buffer((T.int64(256),), "float32"), y: T.Buffer((T.int64(256),), "float32")):
        for i in range(T.int64(256)):
            with T.sblock("y"):
                v = T.axis.spatial(T.int64(256), i)
                y[v] = x[T.int64(255) - v]

    @R.function(pure=False)
    def main(x: R.Tensor((256,), "float32")) -> R.Tensor((256,), "float32"):
        cls = InSlots
        s = R.memory.alloc_storage(R.shape([1024]), 0, "global", R.dtype("uint8"))
        t = R.memory.alloc_storage(R.shape([1024]), 0, "global", R.dtype("uint8"))
        a = R.memory.alloc_tensor(s, 0, R.shape([256]), R.dtype("float32"), 0)
        cls.reverse(x, a)
        b = R.memory.alloc_tensor(t, 0, R.shape([256]), R.dtype("float32"), 0)
        cls.reverse(a, b)
        c = R.memory.alloc_tensor(s, 0, R.shape([256]), R.dtype("float32"), 0)
        cls.reverse(b, c)
        d = R.builtin.alloc_tensor(R.shape([256]), R.dtype("float32"), 0, "global")
        cls.reverse(c, d)
        return d


@pytest.mark.parametrize(("arena", "expected"), [(True, InAnArena), (False, InSlots)])
def test_allocations_become_places_and_the_result_stays(arena, expected):
    got = PlanMemory(arena)(Reversals)
    got.update_func(got.get_global_var("reverse"), Reversals["reverse"])  # see the next test
    plain = got.without_attr(ATTRIBUTE).without_attr(events.ATTRIBUTE)
    tvm.ir.assert_structural_equal(plain, expected)


def test_a_kernel_that_is_given_a_start_takes_one_and_otherwise_stays():
    in_arena, in_slots = PlanMemory(True)(Reversals), PlanMemory(False)(Reversals)
    tvm.ir.assert_structural_equal(in_slots["reverse"], Reversals["reverse"])
    starts = [p.ty.elem_offset for p in in_arena["reverse"].params]
    assert all(isinstance(start, tvm.ir.Var) for start in starts)


@pytest.mark.parametrize("arena", [True, False])
def test_a_second_run_changes_nothing(stays, arena):
    stays(PlanMemory(arena), PlanMemory(arena)(Reversals))


def test_the_plan_and_an_event_tell_of_it():
    planned = PlanMemory(True)(Reversals)
    (main,) = read(planned)
    assert (main.name, main.naive_bytes, main.result_bytes) == ("main", 3072, 1024)
    assert main.planned_bytes == main.lower_bound_bytes == main.static_plan_bytes == 2048
    assert [step.live_bytes for step in main.steps] == [1024, 2048, 2048, 1024]
    assert [(t.offset, t.first, t.last) for t in main.tensors] == [
        (0, 0, 1),
        (1024, 1, 2),
        (0, 2, 3),
    ]
    assert {step.kernel for step in main.steps} == {t.name for t in main.tensors} == {"reverse"}
    assert [(e.source, e.subject) for e in events.read(planned)] == [("PlanMemory", "main")]


def lowered(mod, chunk=64):
    """Up to where memory is planned."""
    for step in (
        relax.transform.LegalizeOps(skip_ops=["relax.reshape"]),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        BoundTokens(chunk),
    ):
        mod = step(mod)
    return mod


def bound_to(func, op):
    return [var for var, value in bindings_of(func).items() if ops.is_call(value, op)]


def plan(graph, inputs, body, **choices):
    planned = PlanMemory(True)(lowered(graph(inputs, body, **choices)))
    return planned["main"], read(planned)[0]


def test_a_function_of_one_kernel_has_nothing_to_plan(graph):
    func, memory = plan(graph, {"x": (1, "n", 8)}, lambda emit, x: emit(relax.op.abs(x)))
    assert bound_to(func, STORAGE) == bound_to(func, PLACED) == []
    assert (memory.planned_bytes, memory.lower_bound_bytes, memory.storages) == (0, 0, 0)
    assert memory.result_bytes == 64 * 8 * 4


def test_sizes_are_those_of_the_largest_call(graph):
    def body(emit, x):
        return emit(relax.op.sum(emit(relax.op.permute_dims(x, [0, 2, 1]))))

    inputs = {"x": (1, "n", 8)}
    for chunk in (64, 128):
        (memory,) = read(PlanMemory(True)(lowered(graph(inputs, body), chunk)))
        assert memory.planned_bytes == chunk * 8 * 4


def test_what_nothing_bounds_is_left_alone(graph):
    def body(emit, x):
        return emit(relax.op.sum(emit(relax.op.permute_dims(x, [1, 0]))))

    mod = lowered(graph({"x": ("pages", 8)}, body))
    planned = PlanMemory(True)(mod)
    tvm.ir.assert_structural_equal(planned["main"], mod["main"])
    assert [(e.subject, e.outcome) for e in events.read(planned)][1:] == [("main", "refused")]


def test_a_tensor_behind_a_view_lives_as_long_as_the_view(graph):
    def body(emit, x):
        a = emit(relax.op.permute_dims(x, [1, 0]))
        view = emit(relax.op.reshape(a, (128,)))
        b = emit(relax.op.permute_dims(x, [1, 0]))
        return emit(relax.op.add(emit(relax.op.sum(b)), emit(relax.op.sum(view))))

    _, memory = plan(graph, {"x": (8, 16)}, body)
    a, b, *_ = memory.tensors
    assert (a.first, a.last, b.first) == (0, 3, 1)
    assert abs(a.offset - b.offset) >= a.nbytes == b.nbytes


def test_fields_of_a_tuple_live_each_for_itself(graph):
    def body(emit, x):
        parts = emit(relax.op.split(x, 2, axis=0))
        one, other = (emit(relax.TupleGetItem(parts, i)) for i in range(2))
        first = emit(relax.op.sum(one))
        return emit(relax.op.add(first, emit(relax.op.sum(other))))

    _, memory = plan(graph, {"x": (8, 16)}, body)
    assert [(t.first, t.last) for t in memory.tensors[:2]] == [(0, 1), (0, 2)]
    assert len({t.name for t in memory.tensors[:2]}) == 2


def test_a_result_inside_a_tuple_or_behind_a_view_is_not_planned(graph):
    def body(emit, x):
        a = emit(relax.op.permute_dims(x, [1, 0]))
        b = emit(relax.op.permute_dims(x, [1, 0]))
        return emit(relax.Tuple([a, emit(relax.op.reshape(b, (128,)))]))

    func, memory = plan(graph, {"x": (8, 16)}, body)
    assert len(bound_to(func, ALLOC)) == 2
    assert (memory.planned_bytes, memory.result_bytes) == (0, 2 * 512)


def test_what_a_runtime_function_is_given_begins_a_storage_of_its_own(graph):
    """Only kernels of ours take a start."""

    def body(emit, x):
        a = emit(relax.op.permute_dims(x, [1, 0]))
        b = emit(relax.call_dps_packed("outside", [a], relax.TensorType((16, 8), "float32")))
        c = emit(relax.op.permute_dims(x, [1, 0]))
        return emit(relax.op.sum(emit(relax.op.add(b, c))))

    func, memory = plan(graph, {"x": (8, 16)}, body)
    bound = bindings_of(func)
    (outside,) = (v for v in bound.values() if isinstance(getattr(v, "op", None), relax.ExternFunc))
    for arg in outside.args:
        var = bound[arg] if isinstance(bound[arg], relax.Var) else arg
        assert int(bound[var].args[1].value) == 0
        others = [p for p in bound_to(func, PLACED) if bound[p].args[0] == bound[var].args[0]]
        assert others == [var]
    assert memory.storages == 3
    assert [step.kernel for step in memory.steps][1] == "outside"


def test_what_an_unknown_function_returns_may_hold_its_arguments(graph):
    def body(emit, x):
        a = emit(relax.op.permute_dims(x, [1, 0]))
        kept = emit(
            relax.call_pure_packed("keep", a, ty_args=[relax.TensorType((16, 8), "float32")])
        )
        b = emit(relax.op.permute_dims(x, [1, 0]))
        return emit(relax.op.add(emit(relax.op.sum(kept)), emit(relax.op.sum(b))))

    func, memory = plan(graph, {"x": (8, 16)}, body)
    first, *_ = bound_to(func, ALLOC)
    assert bindings_of(func)[first].ty.shape.values[0] == 16
    assert "transpose" not in [t.name for t in memory.tensors if t.first == 0]


def elementwise(emit, x):
    a = emit(relax.op.permute_dims(x, [1, 0]))
    b = emit(relax.op.add(a, relax.const(np.ones((16, 8), np.float32))))
    return emit(relax.op.sum(emit(relax.op.abs(b))))


def test_a_dying_argument_of_an_elementwise_kernel_is_overwritten(graph):
    mod = lowered(graph({"x": (8, 16)}, elementwise))
    planned = PlanMemory(True)(mod)
    (memory,) = read(planned)
    assert memory.planned_bytes == memory.lower_bound_bytes == 512
    assert memory.naive_bytes == 3 * 512
    assert memory.static_plan_bytes == 2 * 512
    promise = "tirx.noalias"  # a compiler may trust it
    for kernel, overwriting in [("transpose", False), ("add", True), ("tir_abs", True)]:
        assert promise in mod[kernel].attrs
        assert (promise not in planned[kernel].attrs) == overwriting
    told = [(e.subject, e.outcome) for e in events.read(planned)]
    assert told == [("main", "done"), ("add", "done"), ("tir_abs", "done")]


def test_nothing_is_overwritten_where_the_device_forbids_it(graph):
    mod = lowered(graph({"x": (8, 16)}, elementwise))
    planned = PlanMemory(arena=False, in_place=False)(mod)
    (memory,) = read(planned)
    assert memory.planned_bytes == 2 * 512
    tvm.ir.assert_structural_equal(planned["add"], mod["add"])
    assert [e.subject for e in events.read(planned)] == ["main"]


def test_an_argument_that_is_read_later_is_not_overwritten(graph):
    def body(emit, x):
        a = emit(relax.op.permute_dims(x, [1, 0]))
        b = emit(relax.op.add(a, relax.const(np.ones((16, 8), np.float32))))
        return emit(relax.op.sum(emit(relax.op.multiply(a, b))))

    _, memory = plan(graph, {"x": (8, 16)}, body)
    assert memory.planned_bytes == 2 * 512


@pytest.mark.parametrize("arena", [True, False])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_programs_need_no_more_than_tvm_s_planner_gives_them(graph, arena, data):
    shapes = st.sampled_from([(1,), (3, 5), (16, 16), (64, 3), (7, 64)])
    wanted = data.draw(st.lists(shapes, min_size=1, max_size=12))

    def body(emit, x):
        made = [x]
        for shape in wanted:
            source = made[data.draw(st.integers(0, len(made) - 1))]
            total = emit(relax.op.sum(source))
            other = emit(relax.op.broadcast_to(total, shape))
            made.append(emit(relax.op.permute_dims(other)))
        return emit(relax.op.add(emit(relax.op.sum(made[-1])), emit(relax.op.sum(made[0]))))

    (memory,) = read(PlanMemory(arena)(lowered(graph({"x": (4, 4)}, body))))
    assert memory.lower_bound_bytes <= memory.planned_bytes <= memory.static_plan_bytes
    assert memory.static_plan_bytes <= memory.naive_bytes


def test_results_get_storages_of_one_size(graph):
    def body(emit, x):
        return emit(relax.op.abs(x))

    mod = BoundResults()(PlanMemory(True)(lowered(graph({"x": (1, "n", 8)}, body))))
    bound = bindings_of(mod["main"])
    (storage,) = bound_to(mod["main"], STORAGE)
    (result,) = bound_to(mod["main"], PLACED)
    assert int(bound[storage].args[0].values[0]) == 64 * 8 * 4
    assert bound[result].args[0].same_as(storage)
    assert bound_to(mod["main"], ALLOC) == []


@pytest.mark.parametrize(
    "inputs", [{"x": ("pages", 8)}, {"x": ("n", 1 << 18)}], ids=["no bound", "64 MiB at the bound"]
)
def test_results_without_a_bound_or_beyond_reason_are_sized_by_the_call(graph, stays, inputs):
    stays(BoundResults(), lowered(graph(inputs, lambda emit, x: emit(relax.op.abs(x)))))


def test_modules_without_kernels_stay(graph, stays):
    mod = lowered(graph({"x": (4,)}, lambda emit, x: emit(relax.Tuple([x, x]))))
    stays(PlanMemory(True), mod)
    assert ATTRIBUTE not in (mod.attrs or {})
    assert len(relax_functions(mod)) == 1
