"""Loops, conditions and barriers run as TIR says, and are structured as SPIR-V demands."""

import numpy as np
import pytest
from tvm import tirx

from mlc_compile.emit.spirv.opcodes import Op

from .reading import Code
from .writing import F32, I32, THREADS, barrier, const, kernel, load, local, on_axis, store

Y = {"y": I32}


def loop(extent, body, start=0, kind=tirx.ForKind.SERIAL, step=None, dtype=I32):
    i = tirx.Var("i", dtype)
    step = None if step is None else const(dtype, step)
    first = const(dtype, start) if isinstance(start, int) else start
    count = const(dtype, extent) if isinstance(extent, int) else extent
    return tirx.For(i, first, count, kind, body(i), step=step)


def counted(run, *loops):
    """What `loops(add)` add up in each thread; add(value) is a statement."""

    def body(n):
        total, allocation = local(I32, 1)
        zero = const(I32, 0)

        def add(value):
            return store(total, tirx.Add(load(total, zero), value), zero)

        made = [one(n, add) for one in loops]
        return [
            allocation,
            store(total, zero, zero),
            *made,
            store(n.y, load(total, zero), n.thread),
        ]

    y = np.zeros(THREADS, I32)
    run(kernel(body, Y), [y])
    return y


t = np.arange(THREADS)


@pytest.mark.vulkan
@pytest.mark.parametrize("kind", ["SERIAL", "PARALLEL", "VECTORIZED", "UNROLLED"])
def test_a_loop_runs_from_start_for_its_extent(run, kind):
    made = counted(run, lambda n, add: loop(5, add, start=3, kind=tirx.ForKind[kind]))
    np.testing.assert_array_equal(made, 3 + 4 + 5 + 6 + 7)


@pytest.mark.vulkan
def test_an_extent_may_differ_between_threads_and_be_zero(run):
    np.testing.assert_array_equal(
        counted(run, lambda n, add: loop(n.thread, add)), t * (t - 1) // 2
    )


@pytest.mark.vulkan
def test_a_step_leaves_values_out(run):
    made = counted(run, lambda n, add: loop(10, add, start=1, step=4))
    np.testing.assert_array_equal(made, 1 + 5 + 9)


@pytest.mark.vulkan
def test_loops_nest(run):
    def nested(n, add):
        return loop(3, lambda i: loop(i, lambda j: add(i * 10 + j)))

    np.testing.assert_array_equal(counted(run, nested), 10 + 20 + 21)


@pytest.mark.vulkan
def test_a_statement_may_stand_twice_with_its_variables(run):
    """TVM shares nodes: one For object, run twice, has one variable."""
    made = {}

    def shared(n, add):
        return made.setdefault("loop", loop(4, add))

    np.testing.assert_array_equal(counted(run, shared, shared), 12)


@pytest.mark.vulkan
def test_while_tests_before_each_round_with_loads_in_its_condition(run):
    def body(n):
        i, allocation = local(I32, 1)
        zero = const(I32, 0)
        here = load(i, zero)
        inside = tirx.And(here < THREADS, load(n.y, here) < n.thread)
        step = store(i, tirx.Add(here, const(I32, 1)), zero)
        return [
            allocation,
            store(i, zero, zero),
            tirx.While(inside, step),
            store(n.z, here, n.thread),
        ]

    y, z = np.arange(THREADS, dtype=I32), np.zeros(THREADS, I32)
    run(kernel(body, {"y": I32, "z": I32}), [y, z])
    np.testing.assert_array_equal(z, t)


@pytest.mark.vulkan
def test_if_and_else_run_in_their_threads(run):
    def branches(n, add):
        deeper = tirx.IfThenElse(n.thread > 50, add(const(I32, 3)), None)
        return tirx.IfThenElse(
            n.thread < 8, add(const(I32, 1)), tirx.SeqStmt([add(const(I32, 2)), deeper])
        )

    want = np.where(t < 8, 1, 2) + np.where(t > 50, 3, 0)
    np.testing.assert_array_equal(counted(run, branches), want)


def test_unrolled_loops_tell_the_device(emit):
    def code(kind):
        def body(n):
            return [loop(4, lambda i: store(n.y, i, i), kind=kind)]

        return Code(emit(kernel(body, Y)).code)

    assert code(tirx.ForKind.UNROLLED).one(Op.LoopMerge).operands[2] == 1
    assert code(tirx.ForKind.SERIAL).one(Op.LoopMerge).operands[2] == 0


@pytest.mark.vulkan
def test_a_barrier_shows_what_others_wrote(run):
    def body(n):
        held, allocation = local(F32, THREADS, "shared")
        mirrored = tirx.Sub(const(I32, THREADS - 1), n.thread)
        kept = store(held, load(n.x, n.thread), n.thread)
        return [allocation, kept, barrier(), store(n.x, load(held, mirrored), n.thread)]

    x = np.arange(THREADS, dtype=F32)
    run(kernel(body, {"x": F32}), [x])
    np.testing.assert_array_equal(x, t[::-1])


@pytest.mark.parametrize("scope", ["shared", "warp"])
def test_a_barrier_is_of_the_block_and_orders_its_memory(emit, scope):
    def body(n):
        return [barrier(scope), store(n.y, n.thread, n.thread)]

    code = Code(emit(kernel(body, Y)).code)
    assert [code.constant(w) for w in code.one(Op.ControlBarrier).operands] == [2, 2, 0x108]


def test_a_barrier_orders_buffers_where_threads_may_meet_in_one(emit):
    def body(n):
        put = store(n.y, n.thread, n.thread)
        return [put, barrier(), store(n.y, load(n.y, const(I32, 0)), n.thread)]

    code = Code(emit(kernel(body, Y)).code)
    assert code.constant(code.one(Op.ControlBarrier).operands[2]) == 0x148


def test_a_hint_for_cuda_is_passed_over(emit):
    def body(n):
        put = store(n.y, n.thread, n.thread)
        key = "tirx.launch_bounds_min_blocks_per_sm"
        return [tirx.AttrStmt(const(I32, 0), key, const(I32, 2), put)]

    assert Code(emit(kernel(body, Y)).code).count(Op.Store) == 1


@pytest.mark.vulkan
def test_blocks_and_threads_have_places_along_all_axes(run):
    def body(n):
        x, y, ty = (tirx.Var(name, I32) for name in ("bx", "by", "ty"))
        place = ((y * 3 + x) * 2 + ty) * 4 + n.thread
        put = store(n.y, place, place)
        for tag, variable, extent in (
            ("blockIdx.x", x, tirx.Var("any", I32)),
            ("blockIdx.y", y, 2),
            ("threadIdx.y", ty, 2),
        ):
            put = on_axis(tag, variable, extent, put)
        return [put]

    y = np.zeros(3 * 2 * 2 * 4, I32)
    run(kernel(body, Y, threads=4), [y], grid=(3, 2, 1))
    np.testing.assert_array_equal(y, np.arange(len(y)))
