"""y over x only where each x[i] is read for y[i] alone, once."""

import pytest
from tvm.script import tirx as T

from mlc_compile.passes.plan_memory.inplace import overwrites


@T.prim_func(private=True, s_tir=True)
def added(
    x: T.Buffer((T.int64(4), T.int64(32)), "float32"),
    b: T.Buffer((T.int64(4), T.int64(32)), "float32"),
    y: T.Buffer((T.int64(4), T.int64(32)), "float32"),
):
    for i in T.parallel(T.int64(4)):
        for j0 in range(T.int64(2)):
            for j1 in T.vectorized(T.int64(16)):
                with T.sblock("y"):
                    vi = T.axis.spatial(T.int64(4), i)
                    vj = T.axis.spatial(T.int64(32), j0 * T.int64(16) + j1)
                    y[vi, vj] = x[vi, vj] * x[vi, vj] + b[vi, vj]


@T.prim_func(private=True, s_tir=True)
def added_to_a_row(
    x: T.Buffer((T.int64(4), T.int64(4)), "float32"),
    b: T.Buffer((T.int64(4), T.int64(4)), "float32"),
    y: T.Buffer((T.int64(4), T.int64(4)), "float32"),
):
    for i, j in T.grid(T.int64(4), T.int64(4)):
        with T.sblock("y"):
            vi, vj = T.axis.remap("SS", [i, j])
            y[vi, vj] = x[vi, vj] + b[T.int64(0), vj]


@T.prim_func(private=True, s_tir=True)
def transposed(
    x: T.Buffer((T.int64(4), T.int64(4)), "float32"),
    y: T.Buffer((T.int64(4), T.int64(4)), "float32"),
):
    for i, j in T.grid(T.int64(4), T.int64(4)):
        with T.sblock("y"):
            vi, vj = T.axis.remap("SS", [i, j])
            y[vi, vj] = x[vj, vi]


@T.prim_func(private=True, s_tir=True)
def with_its_neighbor(x: T.Buffer((T.int64(8),), "float32"), y: T.Buffer((T.int64(8),), "float32")):
    for i in range(T.int64(8)):
        with T.sblock("y"):
            v = T.axis.spatial(T.int64(8), i)
            y[v] = x[v] + x[(v + T.int64(1)) % T.int64(8)]


@T.prim_func(private=True, s_tir=True)
def twice(x: T.Buffer((T.int64(8),), "float32"), y: T.Buffer((T.int64(8),), "float32")):
    for _, i in T.grid(T.int64(2), T.int64(8)):
        with T.sblock("y"):
            v = T.axis.spatial(T.int64(8), i)
            y[v] = x[v] + T.float32(1)


@T.prim_func(private=True, s_tir=True)
def summed(x: T.Buffer((T.int64(8),), "float32"), y: T.Buffer((T.int64(8),), "float32")):
    for i, k in T.grid(T.int64(8), T.int64(8)):
        with T.sblock("y"):
            v = T.axis.spatial(T.int64(8), i)
            r = T.axis.reduce(T.int64(8), k)
            with T.init():
                y[v] = T.float32(0)
            y[v] = y[v] + x[r]


@T.prim_func(private=True, s_tir=True)
def widened(x: T.Buffer((T.int64(8),), "float16"), y: T.Buffer((T.int64(8),), "float32")):
    for i in range(T.int64(8)):
        with T.sblock("y"):
            v = T.axis.spatial(T.int64(8), i)
            y[v] = T.cast(x[v], "float32")


@T.prim_func(private=True, s_tir=True)
def flattened(
    x: T.Buffer((T.int64(2), T.int64(4)), "float32"), y: T.Buffer((T.int64(8),), "float32")
):
    for i in range(T.int64(8)):
        with T.sblock("y"):
            v = T.axis.spatial(T.int64(8), i)
            y[v] = x[v // T.int64(4), v % T.int64(4)]


@T.prim_func(private=True, s_tir=True)
def in_two_blocks(x: T.Buffer((T.int64(8),), "float32"), y: T.Buffer((T.int64(8),), "float32")):
    for i in range(T.int64(8)):
        with T.sblock("y"):
            v = T.axis.spatial(T.int64(8), i)
            y[v] = x[v]
    for i in range(T.int64(8)):
        with T.sblock("again"):
            v = T.axis.spatial(T.int64(8), i)
            y[v] = x[v] + y[v]


@T.prim_func(private=True, s_tir=True)
def by_hand(x: T.Buffer((T.int64(8),), "float32"), y: T.Buffer((T.int64(8),), "float32")):
    for i in range(T.int64(8)):
        y[i] = x[i]


@T.prim_func(private=True, s_tir=True)
def until_large(x: T.Buffer((T.int64(8),), "float32"), y: T.Buffer((T.int64(8),), "float32")):
    for i in range(T.int64(8)):
        with T.sblock("y"):
            v = T.axis.spatial(T.int64(8), i)
            while x[v] < T.float32(3):
                y[v] = x[v] + T.float32(1)


@T.prim_func(private=True, s_tir=True)
def every_other(
    x: T.Buffer((T.int64(8),), "float32", strides=(T.int64(2),)),
    y: T.Buffer((T.int64(8),), "float32"),
):
    for i in range(T.int64(8)):
        with T.sblock("y"):
            v = T.axis.spatial(T.int64(8), i)
            y[v] = x[v] + T.float32(1)


@pytest.mark.parametrize("source", [0, 1])
def test_an_elementwise_result_may_lie_over_either_argument(source):
    assert overwrites(added, source, 2)


def test_what_is_read_by_rows_stays_and_the_other_argument_does_not():
    assert overwrites(added_to_a_row, 0, 2)
    assert not overwrites(added_to_a_row, 1, 2)


UNPROVEN = {
    "a transposed read": transposed,
    "a neighbor's read": with_its_neighbor,
    "two visits": twice,
    "a reduction": summed,
    "another type": widened,
    "another shape": flattened,
    "two blocks": in_two_blocks,
    "no blocks": by_hand,
    "a store in a while loop": until_large,
    "strides": every_other,
}


@pytest.mark.parametrize("case", UNPROVEN)
def test_what_is_not_proven_is_refused(case):
    assert not overwrites(UNPROVEN[case], 0, 1)


def test_an_argument_never_lies_over_a_result():
    assert not overwrites(added, 2, 0)
