"""What constants alone decide is computed while compiling, where there is one right answer."""

import numpy as np
import pytest
import tvm
from tvm import relax

from mlc_compile.passes.fold_constants import MOST_BYTES, FoldConstants
from mlc_compile.passes.values import array_of
from tests.passes.expressions import (
    SEEDS,
    SPECIAL,
    assert_equal_to_the_bit,
    expression,
    plain_results,
    results,
)

op = relax.op
X = {"x": (2, "n", 3)}
NAME = "FoldConstants"
A = np.float32([[1, -2, np.nan], [np.inf, -0.0, 0.5]])
B = np.float32([[3, 0.1, 1], [np.inf, 0.0, 2]])


def const(numbers, dtype=None):
    array = np.array(numbers, dtype)
    return relax.const(array, str(array.dtype))


FOLDS = {
    "add": (lambda e: op.add(const(A), const(B)), lambda: A + B),
    "subtract": (lambda e: op.subtract(const(A), const(B)), lambda: A - B),
    "multiply": (lambda e: op.multiply(const(A), const(B)), lambda: A * B),
    "divide by zero": (lambda e: op.divide(const(A), const(B)), lambda: A / B),
    "one number and many": (lambda e: op.multiply(const(np.float32(2)), const(A)), lambda: 2 * A),
    "overflow": (
        lambda e: op.add(const([60000.0], "float16"), const([60000.0], "float16")),
        lambda: np.array([np.inf], "float16"),
    ),
    "negative": (lambda e: op.negative(const(A)), lambda: -A),
    "abs": (lambda e: op.abs(const(A)), lambda: abs(A)),
    "sqrt": (lambda e: op.sqrt(const(A)), lambda: np.sqrt(A)),
    "narrower": (lambda e: op.astype(const(A), "float16"), lambda: A.astype("float16")),
    "wider": (lambda e: op.astype(const(A), "float64"), lambda: A.astype("float64")),
    "to integers": (
        lambda e: op.astype(const([2.9, -2.9, -128.7], "float32"), "int8"),
        lambda: np.array([2, -2, -128], "int8"),
    ),
    "integers": (
        lambda e: op.multiply(const([1, -3], "int32"), const([7, 5], "int32")),
        lambda: np.array([7, -15], "int32"),
    ),
    "reshape": (lambda e: op.reshape(const(A), (3, 2)), lambda: A.reshape(3, 2)),
    "permute": (lambda e: op.permute_dims(const(A)), lambda: A.T),
    "permute as told": (lambda e: op.permute_dims(const(A), (1, 0)), lambda: A.T),
    "broadcast": (
        lambda e: op.broadcast_to(const(A), (4, 2, 3)),
        lambda: np.broadcast_to(A, (4, 2, 3)),
    ),
    "concat": (
        lambda e: op.concat([const(A), const(B)], axis=1),
        lambda: np.concatenate([A, B], axis=1),
    ),
    "a chain": (
        lambda e: op.add(e(op.multiply(e(op.reshape(const(A), (3, 2))), const(B.T))), const(B.T)),
        lambda: A.reshape(3, 2) * B.T + B.T,
    ),
}


@pytest.mark.parametrize("case", FOLDS)
def test_constants_become_one(graph, told, case):
    make, oracle = FOLDS[case]
    got = FoldConstants()(graph(X, lambda emit, x: emit(relax.Tuple([x, emit(make(emit))]))))
    (binding,) = got["main"].body.blocks[0].bindings
    _, folded = binding.value.fields
    with np.errstate(all="ignore"):
        assert_equal_to_the_bit([array_of(folded)], [np.asarray(oracle())])
    assert {outcome for _, outcome, _ in told(got, NAME)} == {"done"}


@pytest.mark.parametrize("case", FOLDS)
def test_a_second_run_changes_nothing(graph, stays, case):
    make, _ = FOLDS[case]
    once = FoldConstants()(graph(X, lambda emit, x: emit(relax.Tuple([x, emit(make(emit))]))))
    stays(FoldConstants(), once)


def test_a_reader_gets_the_number(graph, same):
    def before(emit, x):
        return emit(op.multiply(x, emit(op.add(const(A[0]), const(B[0])))))

    def after(emit, x):
        return emit(op.multiply(x, const(A[0] + B[0])))

    same(FoldConstants()(graph(X, before)), graph(X, after))


WHOLE = [0, 1, -1, 3, 127, -128, 2**31 - 1, -(2**31)]
VALUES = {"float16": SPECIAL, "float32": SPECIAL, "float64": SPECIAL, "int8": WHOLE, "int32": WHOLE}


def arithmetic(x, y):
    """What is folded of numbers, not only moved."""
    yield from (op.add(x, y), op.subtract(x, y), op.multiply(x, y), op.negative(x), op.abs(x))
    yield from (op.astype(x, wider) for wider in ("float32", "float64"))
    if str(x.ty.dtype).startswith("float"):
        yield from (op.divide(x, y), op.sqrt(x), op.astype(x, "float16"))


@pytest.mark.parametrize("dtype", VALUES)
def test_a_kernel_computes_what_is_folded(graph, dtype):
    """Of numbers that come at run time, so that TVM cannot simplify anything."""
    with np.errstate(over="ignore"):
        numbers = np.array(VALUES[dtype]).astype(dtype)
    x, y = (side.ravel() for side in np.meshgrid(numbers, numbers))

    def module(*inputs):
        def body(emit, *given):
            return emit(relax.Tuple([emit(v) for v in arithmetic(*(inputs or given))]))

        return graph({"x": x.shape, "y": x.shape}, body, dtypes=dict.fromkeys("xy", dtype))

    (binding,) = FoldConstants()(module(const(x), const(y)))["main"].body.blocks[0].bindings
    executable = tvm.compile(module(), tvm.target.Target({"kind": "llvm"}))
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    computed = main(*map(tvm.runtime.tensor, (x, y)))
    folded = [array_of(field) for field in binding.value.fields]
    assert_equal_to_the_bit([c.numpy() for c in computed], folded)


LAST_BIT = "numpy and the target may differ in the last bit"
LARGE = MOST_BYTES // 4 + 1
REFUSED = {
    "exp": (LAST_BIT, lambda: op.exp(const(A))),
    "an operator of ours": (LAST_BIT, lambda: swiglu(const(np.float32([1, 2, 3, 4])))),
    "maximum, which targets give NaN or not": (
        LAST_BIT,
        lambda: op.maximum(const(A), const(B)),
    ),
    "bfloat16": (LAST_BIT, lambda: op.astype(const(A), "bfloat16")),
    "division that ends the process": (
        "integer division may meet a zero",
        lambda: op.divide(const([1, 2], "int32"), const([1, 0], "int32")),
    ),
    "NaN as an integer": ("a value is no int32", lambda: op.astype(const(A), "int32")),
    "one more than the largest": (
        "a value is no int8",
        lambda: op.astype(const([128.0], "float32"), "int8"),
    ),
    "2 to the 63": (
        "a value is no int64",
        lambda: op.astype(const([2.0**63], "float32"), "int64"),
    ),
    "a number that would become many": (
        f"it would store {LARGE * 4} bytes",
        lambda: op.broadcast_to(const(np.float32(1)), (LARGE,)),
    ),
    "100 MB": (
        "it would store 100000000 bytes",
        lambda: op.add(
            const(np.zeros((5000, 1), "float32")), const(np.zeros((1, 5000), "float32"))
        ),
    ),
}


def swiglu(x):
    from mlc_compile import ops

    return ops.swiglu(x)


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_one_answer_or_grows_stays_and_an_event_says_why(graph, refused, case):
    reason, make = REFUSED[case]
    mod = graph(X, lambda emit, x: emit(relax.Tuple([x, emit(make())])))
    assert refused(FoldConstants(), mod) == [reason]


def test_a_large_constant_may_become_another_of_its_size(graph):
    large = np.arange(2 * LARGE, dtype="float32").reshape(2, LARGE)
    mod = graph(X, lambda emit, x: emit(relax.Tuple([x, emit(op.permute_dims(const(large)))])))
    (binding,) = FoldConstants()(mod)["main"].body.blocks[0].bindings
    assert np.array_equal(array_of(binding.value.fields[1]), large.T)


NEAR_MISSES = {
    "a tensor that comes at run time": lambda e, x: e(op.multiply(x, const(A[0]))),
    "its shape": lambda e, x: e(op.reshape(x, (x.ty.shape.values[1] * 6,))),
    "what is made, not computed": lambda e, x: e(op.add(x, e(op.zeros((3,), "float32")))),
}


@pytest.mark.parametrize("near_miss", NEAR_MISSES)
def test_anything_else_stays(graph, stays, near_miss):
    stays(FoldConstants(), graph(X, NEAR_MISSES[near_miss]))


def test_a_size_that_is_not_known_stays(graph, refused):
    def body(emit, x):
        n = x.ty.shape.values[1]
        return emit(op.multiply(emit(op.broadcast_to(const(np.float32([1])), (2, n, 3))), x))

    assert refused(FoldConstants(), graph(X, body)) == ["its size is not known"]


def test_two_compilations_give_equal_modules(graph):
    first, second = (
        FoldConstants()(graph(X, lambda emit, x: emit(op.add(x, emit(op.sqrt(const(B[0])))))))
        for _ in range(2)
    )
    tvm.ir.assert_structural_equal(first, second)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graphs_compute_the_same_to_the_bit(seed):
    folded = FoldConstants()(expression(seed))
    assert_equal_to_the_bit(results(folded, seed), plain_results(seed))


def test_some_random_graph_has_what_to_fold(told):
    done = {s for seed in SEEDS for s, o, _ in told(FoldConstants()(expression(seed)), NAME)}
    assert {"relax.add", "relax.multiply", "relax.astype"} <= done
