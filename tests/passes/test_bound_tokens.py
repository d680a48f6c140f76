"""f(x[1, n, ..])  ->  f with an upper bound of n, for the memory planner."""

import pytest
from tvm import relax

from mlc_compile.passes.bound_tokens import TOKENS, BoundTokens
from mlc_compile.passes.rewrite import relax_functions

X = {"x": (1, "n", 8)}


def doubled(emit, x):
    return emit(relax.op.add(x, x))


@pytest.mark.parametrize("chunk", [1, 64])
def test_every_function_learns_the_largest_chunk(graph, chunk):
    mod = graph(X, doubled, name="prefill", also=graph(X, doubled, name="score"))
    for _, func in relax_functions(BoundTokens(chunk)(mod)):
        assert dict(func.attrs["tir_var_upper_bound"]) == {TOKENS: chunk}


def test_storage_is_planned_for_that_many_tokens(graph):
    def twice(emit, x):
        return emit(relax.op.abs(emit(relax.op.add(x, x))))

    steps = (
        relax.transform.LegalizeOps(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        BoundTokens(64),
        relax.transform.StaticPlanBlockMemory(),
    )
    mod = graph(X, twice)
    for step in steps:
        mod = step(mod)
    assert f"R.shape([{64 * 8 * 4}])" in mod["main"].script()  # the sum's bytes


def test_bodies_stay(graph, same):
    mod = graph(X, doubled)
    got = BoundTokens(64)(mod)
    same(got.clone(), got)
    assert got["main"].body.same_as(mod["main"].body)


def test_a_second_run_changes_nothing(graph, stays):
    stays(BoundTokens(64), BoundTokens(64)(graph(X, doubled)))
