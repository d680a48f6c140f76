"""Shorter expressions that are equal to the last bit."""

import numpy as np
import pytest
from tvm import relax

from mlc_compile.passes.algebra import RULES, Node, holds_all
from mlc_compile.passes.simplify_algebra import SimplifyAlgebra
from tests.passes.expressions import (
    SEEDS,
    assert_equal_to_the_bit,
    expression,
    plain_results,
    results,
)

op = relax.op
X = {"x": (1, "n", 4)}
NAME = "SimplifyAlgebra"


def const(number, dtype="float32", shape=()):
    return relax.const(np.full(shape, number, dtype), dtype)


def of(dtype, shape=(1, "n", 4)):
    """Inputs for `graph`: one tensor of that type."""
    return {"inputs": {"x": shape}, "dtypes": {"x": dtype}}


def n_of(x):
    return x.ty.shape.values[1]


def read(emit, x):
    """Something that reads x, so that a result is never the parameter itself."""
    return emit(op.abs(x))


def cast(emit, x, *dtypes):
    for dtype in dtypes:
        x = emit(op.astype(x, dtype))
    return x


def permuted(emit, x, *orders):
    for axes in orders:
        x = emit(op.permute_dims(x, axes))
    return x


def reshaped(emit, x, *shapes):
    for shape in shapes:
        x = emit(op.reshape(x, shape))
    return x


def zeros(emit, x):
    return emit(op.zeros(x.ty.shape, x.ty.dtype))


def unchanged(_, x):
    return x


# Rule -> the graph's input, what is simplified, what it becomes.
FIRES = {
    "x * 0 -> 0": [
        (of("int32"), lambda e, x: e(op.multiply(x, const(0, "int32"))), zeros),
        (of("int8"), lambda e, x: e(op.multiply(const(0, "int8", (4,)), x)), zeros),
        (of("int32"), lambda e, x: e(op.multiply(x, e(op.zeros((4,), "int32")))), zeros),
    ],
    "x * 1 -> x": [
        (of("float32"), lambda e, x: e(op.multiply(x, const(1.0))), unchanged),
        (of("float16"), lambda e, x: e(op.multiply(const(1.0, "float16", (4,)), x)), unchanged),
        (of("float32"), lambda e, x: e(op.multiply(e(op.ones((4,), "float32")), x)), unchanged),
    ],
    "x / 1 -> x": [(of("float32"), lambda e, x: e(op.divide(x, const(1.0))), unchanged)],
    "x + 0 -> x": [
        (of("int32"), lambda e, x: e(op.add(x, const(0, "int32"))), unchanged),
        (of("float32"), lambda e, x: e(op.add(const(-0.0), x)), unchanged),
        (
            of("float32"),
            lambda e, x: e(op.add(x, e(op.full((4,), const(-0.0), "float32")))),
            unchanged,
        ),
    ],
    "x - 0 -> x": [
        (of("float32"), lambda e, x: e(op.subtract(x, const(0.0))), unchanged),
        (of("int32"), lambda e, x: e(op.subtract(x, const(0, "int32"))), unchanged),
    ],
    "cast to x's own type -> x": [
        (of("float16"), lambda e, x: cast(e, x, "float16"), unchanged),
    ],
    "cast and back -> x": [
        (of("float16"), lambda e, x: cast(e, x, "float32", "float16"), unchanged),
        (of("bfloat16"), lambda e, x: cast(e, x, "float32", "bfloat16"), unchanged),
        (of("uint8"), lambda e, x: cast(e, x, "float16", "uint8"), unchanged),
        (of("int32"), lambda e, x: cast(e, x, "float64", "int32"), unchanged),
        (of("float16"), lambda e, x: cast(e, x, "float32", "float64", "float16"), unchanged),
    ],
    "cast twice -> cast": [
        (
            of("float16"),
            lambda e, x: cast(e, x, "float32", "float64"),
            lambda e, x: cast(e, x, "float64"),
        ),
        (
            of("int8"),
            lambda e, x: cast(e, x, "int16", "int64"),
            lambda e, x: cast(e, x, "int64"),
        ),
    ],
    "permute nothing -> x": [
        (of("float32"), lambda e, x: permuted(e, x, (0, 1, 2)), unchanged),
        (of("float32"), lambda e, x: permuted(e, x, (0, -2, -1)), unchanged),
    ],
    "permute twice -> permute": [
        (of("float32"), lambda e, x: permuted(e, x, None, None), unchanged),
        (
            of("float32"),
            lambda e, x: permuted(e, x, (1, 2, 0), (1, 2, 0)),
            lambda e, x: permuted(e, x, (2, 0, 1)),
        ),
        (
            of("float32", (2, 3, 4, 5)),
            lambda e, x: permuted(e, x, (2, 0, 3, 1), (3, 2, 0, 1), (3, 2, 1, 0)),
            lambda e, x: permuted(e, x, (0, 2, 3, 1)),
        ),
    ],
    "transpose of the identity -> x": [
        (
            of("float32", (4, 4)),
            lambda e, x: e(op.matmul(x, e(op.permute_dims(e(op.eye(4)))))),
            lambda e, x: e(op.matmul(x, e(op.eye(4)))),
        ),
    ],
    "reshape to x's own shape -> x": [
        (of("float32"), lambda e, x: reshaped(e, x, (1, n_of(x), 4)), unchanged),
    ],
    "reshape twice -> reshape": [
        (
            of("float32"),
            lambda e, x: reshaped(e, x, (n_of(x), 4), (n_of(x) * 4,), (2, n_of(x) * 2)),
            lambda e, x: reshaped(e, x, (2, n_of(x) * 2)),
        ),
        (
            of("float32"),
            lambda e, x: reshaped(e, x, (n_of(x), 4), (1, n_of(x), 4)),
            unchanged,
        ),
    ],
}
CASES = [
    pytest.param(name, *case, id=f"{name} {number}")
    for name, cases in FIRES.items()
    for number, case in enumerate(cases)
]


def both(graph, inputs, before, after):
    def made(make):
        return graph(**inputs, body=lambda emit, x: read(emit, make(emit, x)))

    return made(before), made(after)


def test_every_rule_has_its_examples():
    assert set(FIRES) == {rule.name for rule in RULES}


@pytest.mark.parametrize(("name", "inputs", "before", "after"), CASES)
def test_a_rule_fires_and_says_so(graph, same, told, name, inputs, before, after):
    wordy, short = both(graph, inputs, before, after)
    got = SimplifyAlgebra()(wordy)
    same(got, short)
    assert (name, "done", "") in told(got, NAME)


@pytest.mark.parametrize(("name", "inputs", "before", "after"), CASES)
def test_a_second_run_changes_nothing(graph, stays, name, inputs, before, after):
    wordy, _ = both(graph, inputs, before, after)
    stays(SimplifyAlgebra(), SimplifyAlgebra()(wordy))


def operators(pattern):
    return 1 + sum(map(operators, pattern.args)) if isinstance(pattern, Node) else 0


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_right_side_is_shorter_or_computes_nothing(rule):
    """So every chain of rewrites ends."""
    fills = isinstance(rule.right, Node) and not rule.right.args
    assert fills or operators(rule.right) < operators(rule.left)


NAN = "a float that is NaN or infinite times 0 is NaN"
ROUNDS = "the first cast may round"
SHAPE = "it may also give x another shape or type"
REFUSED = {
    "0 times NaN": (NAN, of("float32"), lambda e, x: e(op.multiply(x, const(0.0)))),
    "0 in front": (NAN, of("float16"), lambda e, x: e(op.multiply(const(0.0, "float16"), x))),
    "0 plus -0": ("-0 + 0 is 0, not -0", of("float32"), lambda e, x: e(op.add(x, const(0.0)))),
    "-0 minus -0": (
        "-0 - -0 is 0, not -0",
        of("float32"),
        lambda e, x: e(op.subtract(x, const(-0.0))),
    ),
    "narrowed and back": (ROUNDS, of("float32"), lambda e, x: cast(e, x, "float16", "float32")),
    "other 16 bits": (ROUNDS, of("float16"), lambda e, x: cast(e, x, "bfloat16", "float16")),
    "too many bits": (ROUNDS, of("int32"), lambda e, x: cast(e, x, "float32", "int32")),
    "no sign": (ROUNDS, of("int8"), lambda e, x: cast(e, x, "uint16", "int8")),
    "no integer": (ROUNDS, of("float16"), lambda e, x: cast(e, x, "int32", "float16")),
    "1 of more rows": (
        SHAPE,
        of("float32", (1, 4)),
        lambda e, x: e(op.multiply(x, const(1.0, shape=(3, 4)))),
    ),
    "0 of more dimensions": (
        SHAPE,
        of("int32", (4,)),
        lambda e, x: e(op.add(x, const(0, "int32", (1, 4)))),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_only_looks_equal_stays_and_an_event_says_why(graph, refused, case):
    reason, inputs, body = REFUSED[case]
    assert refused(SimplifyAlgebra(), graph(**inputs, body=body)) == [reason]


UNKNOWN = relax.TensorType(dtype="float32", ndim=2)  # of [3, 1], say


def test_a_tensor_of_unknown_shape_may_be_broadcast_and_stays(refused):
    x = relax.Var("x", UNKNOWN)
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(op.multiply(x, const(1.0, shape=(1, 4))))
        builder.emit_func_output(out)
    assert refused(SimplifyAlgebra(), builder.get()) == [SHAPE]


NEAR_MISSES = {
    "1 not everywhere": lambda e, x: e(op.multiply(x, relax.const(np.float32([1, 1, 1, 2])))),
    "0 minus x": lambda e, x: e(op.subtract(const(0.0), x)),
    "1 over x": lambda e, x: e(op.divide(const(1.0), x)),
    "x times NaN": lambda e, x: e(op.multiply(x, const(np.nan))),
    "x times x": lambda e, x: e(op.multiply(x, x)),
    "one narrowing cast": lambda e, x: cast(e, x, "float16"),
    "narrowed, then wider": lambda e, x: cast(e, x, "float16", "float64"),
    "by way of an integer": lambda e, x: cast(e, x, "int32", "int64"),
    "one permutation": lambda e, x: permuted(e, x, (0, 2, 1)),
    "one reshape": lambda e, x: reshaped(e, x, (n_of(x), 4)),
    "a permutation between": lambda e, x: reshaped(
        e, permuted(e, reshaped(e, x, (n_of(x), 4)), (1, 0)), (1, n_of(x), 4)
    ),
}


@pytest.mark.parametrize("near_miss", NEAR_MISSES)
def test_anything_else_stays(graph, stays, near_miss):
    stays(SimplifyAlgebra(), graph(X, NEAR_MISSES[near_miss]))


def test_other_readers_keep_what_they_read(graph, same):
    def before(emit, x):
        flat = emit(op.reshape(x, (n_of(x) * 4,)))
        again = emit(op.reshape(flat, (2, n_of(x) * 2)))
        return emit(relax.Tuple([emit(op.abs(flat)), emit(op.abs(again))]))

    def after(emit, x):
        flat = emit(op.reshape(x, (n_of(x) * 4,)))
        again = emit(op.reshape(x, (2, n_of(x) * 2)))
        return emit(relax.Tuple([emit(op.abs(flat)), emit(op.abs(again))]))

    same(SimplifyAlgebra()(graph(X, before)), graph(X, after))


def test_what_ended_with_another_block_is_not_brought_back():
    x = relax.Var("x", relax.TensorType((4, 6), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            own = builder.emit(op.abs(x))
            out = builder.emit_output(op.reshape(own, (24,)))
        with builder.dataflow():
            back = builder.emit_output(op.reshape(out, (6, 4)))
        builder.emit_func_output(back)
    got = SimplifyAlgebra()(builder.get())  # the IR's check after each pass would find it
    shapes = [binding.value for block in got["main"].body.blocks for binding in block.bindings]
    assert sum(isinstance(v, relax.Call) and v.op.name == "relax.reshape" for v in shapes) == 2


NUMPY = ["float16", "float32", "float64", "int8", "int16", "int32", "uint8", "uint16", "uint32"]


@pytest.mark.parametrize("wide", NUMPY)
@pytest.mark.parametrize("narrow", NUMPY)
def test_a_type_that_holds_another_is_what_numpy_casts_to_safely(wide, narrow):
    assert holds_all(wide, narrow) == np.can_cast(narrow, wide, "safe")


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graphs_compute_the_same_to_the_bit(seed, told):
    simple = SimplifyAlgebra()(expression(seed))
    assert {outcome for _, outcome, _ in told(simple, NAME)} >= {"done"}
    assert_equal_to_the_bit(results(simple, seed), plain_results(seed))
