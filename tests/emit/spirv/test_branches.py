"""Guarded loads are not made where the guard is false."""

import numpy as np
import pytest
from tvm import tirx

from mlc_compile.emit.spirv.opcodes import Op

from .reading import Code
from .writing import F16, F32, I32, THREADS, call, const, kernel, load, store

XY = {"x": F32, "y": F32}
FAR, MINUS_ONE = const(I32, 2**28), const(F32, -1)


def chosen(n, no=MINUS_ONE):
    value = call("prim.if_then_else", F32, n.thread < 5, load(n.x, n.thread), no)
    return [store(n.y, value, n.thread)]


def test_a_guarded_load_stands_in_a_block_of_its_own(emit):
    code = Code(emit(kernel(chosen, XY)).code)
    order = [i.op for i in code.instructions if i.op in (Op.BranchConditional, Op.Load, Op.Phi)]
    assert order == [Op.Load, Op.BranchConditional, Op.Load, Op.Phi]


def test_of_two_loads_of_halves_one_is_chosen(emit):
    """Halves that are only moved need no arithmetic, but a choice does."""

    def body(n):
        a, b = load(n.x, n.thread), load(n.x, n.thread + 1)
        yield store(n.y, call("prim.if_then_else", F16, n.thread < 5, a, b), n.thread)

    shader = emit(kernel(body, {"x": F16, "y": F16}))
    assert "Float16" in shader.capabilities


def test_what_may_be_computed_in_vain_is_selected(emit):
    def body(n):
        i = call("prim.if_then_else", I32, n.thread < 5, n.thread * 2, n.thread)
        return [store(n.y, load(n.x, i), n.thread)]

    code = Code(emit(kernel(body, XY)).code)
    assert (code.count(Op.Select), code.count(Op.Phi)) == (1, 0)


@pytest.mark.vulkan
def test_choices_nest_and_give_each_thread_its_side(run):
    def body(n):
        inner = call("prim.if_then_else", F32, n.thread < 20, const(F32, 7), load(n.x, n.thread))
        return chosen(n, inner)

    x = np.arange(THREADS, dtype=F32)
    y = np.zeros_like(x)
    run(kernel(body, XY), [x, y])
    t = np.arange(THREADS)
    np.testing.assert_array_equal(y, np.where((t < 5) | (t >= 20), x, 7))


@pytest.mark.vulkan
@pytest.mark.parametrize("lanes", [4, 8])
def test_a_choice_of_vectors(run, lanes):
    def body(n):
        at = n.thread * lanes
        yes, no = load(n.x, at, lanes), tirx.Broadcast(const(F32, 3), lanes)
        value = call("prim.if_then_else", f"float32x{lanes}", n.thread < 5, yes, no)
        return [store(n.y, value, at, lanes)]

    x = np.arange(THREADS * lanes, dtype=F32)
    y = np.zeros_like(x)
    run(kernel(body, XY, size=THREADS * lanes), [x, y])
    np.testing.assert_array_equal(y, np.where(np.arange(THREADS * lanes) < 5 * lanes, x, 3))


@pytest.mark.parametrize(("node", "inside"), [(tirx.And, "yes"), (tirx.Or, "no")])
def test_the_second_part_of_a_condition_loads_only_where_it_decides(emit, node, inside):
    def body(n):
        index = tirx.Select(n.thread < 5, n.thread, FAR)
        condition = node(n.thread < 5, load(n.x, index) > 0)
        return [tirx.IfThenElse(condition, store(n.y, const(F32, 1), n.thread), None)]

    code = Code(emit(kernel(body, XY)).code)
    assert code.count(Op.Phi) == 1
    assert code.count(Op.LogicalAnd, Op.LogicalOr) == 0
    branch, arm = code.all(Op.BranchConditional)[0], 1 if inside == "yes" else 2
    label = branch.operands[arm]
    after = [i for i in code.instructions if i.op in (Op.Label, Op.Load)]
    at = next(n for n, i in enumerate(after) if i.op is Op.Label and i.operands[0] == label)
    assert after[at + 1].op is Op.Load


@pytest.mark.vulkan
@pytest.mark.parametrize(
    ("node", "function"), [(tirx.And, np.logical_and), (tirx.Or, np.logical_or)]
)
def test_conditions_with_loads_have_the_value_of_both_parts(run, node, function):
    def body(n):
        condition = node(n.thread < 32, load(n.x, n.thread) > 0)
        return [store(n.y, tirx.Cast(F32, condition), n.thread)]

    x = np.random.default_rng(0).standard_normal(THREADS).astype(F32)
    y = np.zeros_like(x)
    run(kernel(body, XY), [x, y])
    np.testing.assert_array_equal(y, function(np.arange(THREADS) < 32, x > 0))


def test_a_division_by_what_may_be_zero_is_guarded_too(emit):
    def body(n):
        quotient = tirx.Div(n.thread, n.m)
        i = call("prim.if_then_else", I32, tirx.NE(n.m, const(I32, 0)), quotient, n.thread)
        return [store(n.y, load(n.x, i), n.thread)]

    assert Code(emit(kernel(body, XY, {"m": I32})).code).count(Op.Phi) == 1
