"""concat(split(x)[0], .., split(x)[-1])  ->  x."""

import pytest
from tvm import relax

from mlc_compile.passes.cancel_split_concat import CancelSplitConcat

X = {"x": (1, "n", 12), "z": (1, "n", 12)}


def joined(emit, x, *, sections=(4, 10), order=(0, 1, 2), axis=-1, split_axis=-1):
    parts = emit(relax.op.split(x, list(sections), axis=split_axis))
    pieces = [emit(relax.TupleGetItem(parts, i)) for i in order]
    return emit(relax.op.concat(pieces, axis=axis))


@pytest.mark.parametrize(("split_axis", "axis"), [(-1, -1), (2, -1), (-1, 2)])
def test_pieces_put_together_in_order_are_the_whole(graph, same, told, split_axis, axis):
    def before(emit, x, z):
        return emit(relax.op.abs(joined(emit, x, axis=axis, split_axis=split_axis)))

    got = CancelSplitConcat()(graph(X, before))
    same(got, graph(X, lambda emit, x, z: emit(relax.op.abs(x))))
    assert told(got, "CancelSplitConcat") == [("relax.concat", "done", "")]


def test_other_readers_of_a_piece_keep_the_split(graph, same):
    def before(emit, x, z):
        parts = emit(relax.op.split(x, 2, axis=-1))
        pieces = [emit(relax.TupleGetItem(parts, i)) for i in range(2)]
        whole = emit(relax.op.concat(pieces, axis=-1))
        return emit(relax.Tuple([emit(relax.op.abs(whole)), emit(relax.op.abs(pieces[1]))]))

    def after(emit, x, z):
        parts = emit(relax.op.split(x, 2, axis=-1))
        piece = emit(relax.TupleGetItem(parts, 1))
        return emit(relax.Tuple([emit(relax.op.abs(x)), emit(relax.op.abs(piece))]))

    same(CancelSplitConcat()(graph(X, before)), graph(X, after))


def of_two_tensors(emit, x, z):
    one, other = (emit(relax.op.split(t, 2, axis=-1)) for t in (x, z))
    pieces = [emit(relax.TupleGetItem(one, 0)), emit(relax.TupleGetItem(other, 1))]
    return emit(relax.op.concat(pieces, axis=-1))


def of_one_tensor_split_twice(emit, x, z):
    return of_two_tensors(emit, x, x)


def with_a_stranger(emit, x, z):
    parts = emit(relax.op.split(x, 2, axis=-1))
    pieces = [emit(relax.TupleGetItem(parts, i)) for i in range(2)]
    return emit(relax.op.concat([*pieces, z], axis=-1))


def of_tensors(emit, x, z):
    return emit(relax.op.concat([x, z], axis=-1))


def of_changed_pieces(emit, x, z):
    parts = emit(relax.op.split(x, 2, axis=-1))
    pieces = [emit(relax.op.abs(emit(relax.TupleGetItem(parts, i)))) for i in range(2)]
    return emit(relax.op.concat(pieces, axis=-1))


PIECES = "it joins other pieces than the split's, or in another order"
AXIS = "it joins along another axis than the split's"
REFUSED = {
    "another order": (PIECES, lambda emit, x, z: joined(emit, x, order=(1, 0, 2))),
    "the last piece missing": (PIECES, lambda emit, x, z: joined(emit, x, order=(0, 1))),
    "the first piece missing": (PIECES, lambda emit, x, z: joined(emit, x, order=(1, 2))),
    "a piece twice": (PIECES, lambda emit, x, z: joined(emit, x, order=(0, 1, 2, 2))),
    "another axis": (AXIS, lambda emit, x, z: joined(emit, x, sections=(4, 8), axis=1)),
}
NEAR_MISSES = {
    "pieces of two tensors": of_two_tensors,
    "two splits of one tensor": of_one_tensor_split_twice,
    "a stranger among them": with_a_stranger,
    "no split at all": of_tensors,
    "pieces changed in between": of_changed_pieces,
}


@pytest.mark.parametrize("case", REFUSED)
def test_pieces_that_moved_stay_and_an_event_says_why(graph, refused, case):
    reason, body = REFUSED[case]
    assert refused(CancelSplitConcat(), graph(X, body)) == [reason]


@pytest.mark.parametrize("near_miss", NEAR_MISSES)
def test_anything_else_stays(graph, stays, near_miss):
    stays(CancelSplitConcat(), graph(X, NEAR_MISSES[near_miss]))


def test_a_second_run_changes_nothing(graph, stays):
    def before(emit, x, z):
        return emit(relax.op.add(joined(emit, x), joined(emit, z, order=(2, 1, 0))))

    once = CancelSplitConcat()(graph({"x": (1, "n", 12), "z": (1, "n", 12)}, before))
    stays(CancelSplitConcat(), once)
