"""Each fusion is made below its threshold and refused, with the numbers, above it."""

import msgspec
import pytest

from mlc_compile import ops
from mlc_compile.passes import cost
from mlc_compile.passes.cost import Cost, Matmul
from mlc_compile.target import find_target

V2, V3, V4 = (find_target(f"cpu-x86-64-v{level}") for level in (2, 3, 4))
ARM, M1 = find_target("cpu-aarch64-dotprod"), find_target("cpu-apple-m1")
CPUS = (V2, V3, V4, ARM, M1)
WITH_DOT = (V3, V4, ARM, M1)

# Qwen3's matmuls as they are merged: (n, k) of q+k+v, o, gate+up, down and the head.
MODELS = {
    "0.6B": ((4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072), (151936, 1024)),
    "1.7B": ((4096, 2048), (2048, 2048), (12288, 2048), (2048, 6144), (151936, 2048)),
    "4B": ((6144, 2560), (2560, 4096), (19456, 2560), (2560, 9728), (151936, 2560)),
}
SHAPES = [shape for shapes in MODELS.values() for shape in shapes]


def of(n, k, rows=1):
    return Matmul(rows=rows, n=n, k=k)


def source(kind, k):
    return ops.Source(kind, k)


def edge(refusal, low, high):
    """The largest size from `low` on that is not refused; `high` is."""
    assert refusal(low) is None
    assert refusal(high) is not None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if refusal(middle) else (middle, high)
    return low


@pytest.mark.parametrize("target", CPUS, ids=lambda t: t.name)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_norm_before_one_row_is_fused_in_every_model(target, n, k):
    assert cost.norm_in_matmul(target, of(n, k)).refusal is None


@pytest.mark.parametrize("target", CPUS, ids=lambda t: t.name)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_weights_are_not_multiplied_by_gamma_in_any_model(target, n, k):
    reason = cost.norm_in_matmul(target, of(n, k, cost.FEW)).refusal
    assert reason is not None
    assert reason.startswith(f"gamma times each of {n} x {k} weights would take ")


@pytest.mark.parametrize("target", CPUS, ids=lambda t: t.name)
def test_there_may_be_no_rows(target):
    assert cost.norm_in_matmul(target, of(6144, 1024, rows=0)).refusal is not None


@pytest.mark.parametrize("target", WITH_DOT, ids=lambda t: t.name)
@pytest.mark.parametrize("kind", ops.SOURCES)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_one_row_is_quantized_in_every_thread_in_every_model(target, kind, n, k):
    assert cost.quantize_in_gemv(target, of(n, k), source(kind, k)).refusal is None


@pytest.mark.parametrize("target", WITH_DOT, ids=lambda t: t.name)
@pytest.mark.parametrize(("n", "k"), [shapes[2] for shapes in MODELS.values()])
def test_swiglu_of_one_row_is_fused_in_every_model(target, n, k):
    assert cost.swiglu_in_gemv(target, of(n, k)).refusal is None


def test_gamma_multiplies_weights_up_to_as_many_as_x_would_be_written():
    """16 values: 0.13 ns for a weight, 0.6 ns for a value of x; and a call takes 80 ns."""
    few = edge(lambda n: cost.norm_in_matmul(V4, of(n, 1024, cost.FEW)).refusal, 16, 8192)
    many = edge(lambda n: cost.norm_in_matmul(V4, of(n, 1024, 512)).refusal, 16, 8192)
    # n k / 16 / 16 cores · 0.13 = rows k / 16 / (as many cores as rows) · 0.6 + 80, k = 1024
    assert few == int((1024 / 16 * 0.6 + 80) / (1024 / 256 * 0.13))
    assert many == int((512 * 1024 / 256 * 0.6 + 80) / (1024 / 256 * 0.13))
    assert cost.norm_in_matmul(V4, of(4096, 1024, 512)).refusal == (
        "gamma times each of 4096 x 1024 weights would take 2.13 us to save 1.31 us"
    )


def test_a_norm_before_one_row_must_fit_the_cache_of_a_core():
    last = V4.l2_bytes // 4
    assert cost.norm_in_matmul(V4, of(4096, last)).refusal is None
    assert cost.norm_in_matmul(V4, of(4096, last + 1)).refusal == (
        "each core would keep 1048580 bytes for itself, more than its cache of 1048576"
    )


def test_a_row_is_quantized_in_every_thread_unless_it_is_long_and_the_matrix_narrow():
    """Of one block of rows the other kernel would waste little: a launch is what is saved."""

    def refusal(k):
        return cost.quantize_in_gemv(V4, of(16, k), source("plain", k)).refusal

    last = edge(lambda groups: refusal(32 * groups), 32, 4000) * 32
    assert refusal(last + 32) == (
        f"quantizing {last + 32} values in each of 16 cores would take 2.86 us to save 2.86 us"
    )
    assert cost.quantize_in_gemv(V4, of(64, last + 32), source("plain", last + 32)).refusal is None


def test_a_quantized_row_must_fit_the_cache_of_a_core():
    wide = 4096  # rows, so that time is no matter
    last = V3.l2_bytes // (32 + 8) * 32  # a byte a value and 8 for each 32
    assert cost.quantize_in_gemv(V3, of(wide, last), source("plain", last)).refusal is None
    refused = cost.quantize_in_gemv(V3, of(wide, last + 32), source("plain", last + 32)).refusal
    assert refused is not None
    assert refused.startswith("each core would keep")


def test_swiglu_is_not_fused_where_its_two_sums_would_spill():
    assert cost.swiglu_in_gemv(V3, of(6144, 1024)).registers == 12
    narrow = msgspec.structs.replace(V3, vector_bits=128)
    assert cost.swiglu_in_gemv(narrow, of(6144, 1024)).refusal == (
        "its sums would spill: they fill 24 vector registers of 16"
    )
    assert cost.swiglu_in_gemv(ARM, of(6144, 1024)).refusal is None  # 24 of 32


@pytest.mark.parametrize(("pairs", "fused"), [(7, False), (8, False), (9, True), (16, True)])
def test_swiglu_is_not_fused_where_half_the_tasks_are_too_few_for_the_cores(pairs, fused):
    """Up to 8 pairs of blocks, 16 cores take their halves at once."""
    refusal = cost.swiglu_in_gemv(V4, of(32 * pairs, 4096)).refusal
    if fused:
        assert refusal is None
    else:
        assert refusal is not None
        assert refusal.startswith(f"gate and up in one of {pairs} tasks for 16 cores would take ")


def test_few_tasks_are_still_worth_it_where_rows_are_short():
    """Of 8 pairs a core waits k / 32 · 1.8 ns, and 8 vectors of SwiGLU are not repeated."""
    last = edge(lambda groups: cost.swiglu_in_gemv(V4, of(256, 32 * groups)).refusal, 1, 1000)
    assert last == int((8 * 4.5 * 15 / 16 + 80) / 1.8)


def test_narrower_vectors_take_as_many_times_longer():
    wide, narrow = (cost.norm_in_matmul(t, of(4096, 1024, 512)) for t in (V4, ARM))
    assert narrow.repeated_ns == 4 * wide.repeated_ns


def test_a_cost_that_only_saves_is_no_reason():
    assert Cost("nothing", saved_ns=1).refusal is None
    assert Cost("nothing").refusal is None
    assert Cost("work", repeated_ns=1327104, saved_ns=2500).refusal == (
        "work would take 1327 us to save 2.5 us"
    )
    assert Cost("work", repeated_ns=1500, saved_ns=1400).refusal == (
        "work would take 1.5 us to save 1.4 us"
    )
