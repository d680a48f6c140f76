"""What tests of this folder claim of interpreted kernels holds on this machine's Vulkan device.

Every kernel of a compiled model is among them. Each runs in a library of its own with guards
behind its arguments (see `on_device`), so that tiles which stick out are seen to write nothing
there: sizes are ragged.
"""

import functools
import itertools
import re
from collections.abc import Iterator

import numpy as np
import pytest
import tvm
from tvm import tirx

from mlc_compile.emit.vulkan.emitter import tvm_target
from mlc_compile.pipeline import phases
from mlc_compile.runtime.device import missing_device
from mlc_compile.runtime.vm import start_tvm
from mlc_compile.schedule.limits import launches_of
from tests.schedule.kernels.gpu import (
    on_device,
    test_activation,
    test_argmax,
    test_attention_decode,
    test_attention_pages,
    test_attention_prefill,
    test_embedding,
    test_gemm,
    test_gemv,
    test_merge,
    test_norm,
    test_sampler,
    test_softmax,
)
from tests.schedule.kernels.gpu.emission import simulate
from tests.schedule.kernels.gpu.place import INTERPRETED, at
from tests.simt import building as b

pytestmark = pytest.mark.vulkan

ROW = on_device.ROW
INT4 = ("q4f16_1", "q4f32_1")
TYPES = ("float32", "float16")  # of queries, keys and values
HEADS = ((4, 2, 80), (5, 1, 32))  # no power of two; a token in two tiles
ROWS = (1, 2, 5, 33)  # of x: gemm's kernel for a few rows, and the one for many
claim = functools.partial

# Kernel, as the model calls it -> tests that hold on the device.
CLAIMS = {
    "rms_norm": [
        claim(test_norm.test_a_row_is_normalized_whatever_its_width, ROW, 96, None),
        claim(test_norm.test_a_row_is_normalized_whatever_its_width, ROW, 2560, 1),
        claim(test_norm.test_extreme_rows_stay_finite_and_right, ROW, 1e15),
    ],
    "qk_norm": [
        claim(test_norm.test_heads_of_q_and_k_are_normalized_and_v_is_kept, ROW, dtype, (4, 2), 80)
        for dtype in TYPES
    ],
    "gemv": [
        *(
            claim(test_gemv.test_gemv_multiplies_by_the_stored_values, ROW, scheme, n, k)
            for scheme in INT4
            for n, k in [(33, 96), (60, 1056)]
        ),
        *(claim(test_gemv.test_a_residual_is_added, ROW, scheme) for scheme in INT4),
        claim(test_gemv.test_rms_norm_goes_before_the_product, ROW, "q4f16_1", None),
        claim(test_gemv.test_swiglu_joins_the_halves, ROW, "q4f16_1", None),
        claim(test_gemv.test_swiglu_of_large_gates_is_finite, ROW),
        claim(test_gemv.test_all_slots_at_once, ROW),
    ],
    "gemm": [
        *(
            claim(test_gemm.test_gemm_takes_any_number_of_rows, ROW, compute, m)
            for compute in TYPES
            for m in ROWS
        ),
        *(
            claim(test_gemm.test_gemm_multiplies_by_the_stored_values, ROW, "q4f32_1", "float32", m)
            for m in ROWS
        ),
        claim(test_gemm.test_a_residual_is_added, ROW, "float16", 40),
        claim(test_gemm.test_swiglu_joins_the_halves, ROW, "float16", 4),
        claim(test_gemm.test_swiglu_joins_the_halves, ROW, "float16", 40),
    ],
    "swiglu": [
        claim(test_activation.test_any_width_and_number_of_rows, ROW, 300, None),
        claim(test_activation.test_any_width_and_number_of_rows, ROW, 1, 1),
        claim(test_activation.test_extremes_neither_overflow_nor_change_sign, ROW),
    ],
    "take": [
        claim(test_embedding.test_rows_are_those_that_were_stored, ROW, scheme, 96)
        for scheme in (*INT4, "q0f16")
    ],
    "kv_attend_new": [
        *(
            claim(test_attention_prefill.test_tokens_attend_to_those_before_them, ROW, dtype, heads)
            for dtype in TYPES
            for heads in HEADS
        ),
        claim(test_attention_prefill.test_any_number_of_tokens, ROW, "float32", [1]),
        claim(test_attention_prefill.test_any_number_of_tokens, ROW, "float32", [3, 1, 40]),
    ],
    "kv_attend_pages": [
        *(
            claim(test_attention_prefill.test_tokens_attend_to_all_pages, ROW, dtype, heads)
            for dtype in TYPES
            for heads in HEADS
        ),
        claim(test_attention_prefill.test_pages_end_anywhere, ROW, "float32", [2, 33], [16, 49]),
    ],
    "kv_decode": [
        *(
            claim(test_attention_decode.test_a_token_attends_to_its_sequence, ROW, dtype, heads)
            for dtype in TYPES
            for heads in ((4, 2, 80), (10, 2, 32))
        ),
        claim(test_attention_decode.test_any_length_ends_where_it_ends, ROW, [240]),
        claim(test_attention_decode.test_any_length_ends_where_it_ends, ROW, [300, 5, 150]),
    ],
    "kv_merge": [
        *(
            claim(test_merge.test_the_parts_become_the_whole, ROW, dtype, 5, 16, 128)
            for dtype in TYPES
        ),
        claim(test_merge.test_a_part_without_keys_changes_nothing, ROW),
        claim(test_merge.test_far_apart_parts_do_not_overflow, ROW),
    ],
    "kv_rotate": [
        claim(test_attention_pages.test_q_and_k_are_turned_by_their_position, ROW, (4, 2, 80)),
        claim(
            test_attention_pages.test_late_positions_turn_as_the_rounding_of_a_frequency_allows, ROW
        ),
    ],
    "kv_append": [
        claim(
            test_attention_pages.test_pages_take_tokens_where_they_are_told_and_nowhere_else,
            ROW,
            (4, 2, 80),
        )
    ],
    "kv_copy_page": [
        claim(test_attention_pages.test_the_beginning_of_a_page_is_copied, ROW, count)
        for count in (1, 7, 16)
    ],
    "kv_compact": [claim(test_attention_pages.test_moves_of_a_sequence_happen_in_order, ROW)],
    "kv_read_back": [claim(test_attention_pages.test_tokens_can_be_read_back, ROW)],
    "argmax_kernel": [
        claim(test_argmax.test_the_largest_is_found_wherever_it_is, ROW, 70000),
        claim(test_argmax.test_of_equal_ones_the_first, ROW, (3, 259)),
    ],
    "sample_kernel": [
        *(
            claim(test_sampler.test_the_token_is_the_oracles, name)
            for name in test_sampler.SAMPLINGS
        ),
        claim(test_sampler.test_every_candidate_is_drawn_by_its_share),
        claim(test_sampler.test_of_ties_at_a_cut_the_first_stay_in, 0.5, 9),
    ],
    "softmax_with_temperature_kernel": [
        claim(test_softmax.test_rows_become_probabilities, ROW, vocab) for vocab in (300, 17000)
    ],
}


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """All kernels of these tests run on it."""
    start_tvm()
    lack = missing_device(ROW)
    if lack is not None:
        pytest.skip(f"needs Vulkan: apt-get install mesa-vulkan-drivers ({lack})")
    with at(on_device.DEVICE):
        yield


@pytest.fixture(scope="module")
def kernels(nano_plan) -> dict[str, tirx.PrimFunc]:
    """Those of the nano model that are launched, by name."""
    mod, plan = nano_plan(ROW, "q4f16_1")
    with tvm_target(plan.target):
        for step in itertools.chain.from_iterable(phase.passes for phase in phases(plan)):
            mod = step(mod)
    functions = {str(gv.name_hint): func for gv, func in mod.functions.items()}
    return {
        name: func
        for name, func in functions.items()
        if isinstance(func, tirx.PrimFunc) and launches_of(func)
    }


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(one, id="-".join([kernel, one.func.__name__, *map(str, one.args)]))
        for kernel, claims in CLAIMS.items()
        for one in claims
    ],
)
def test_the_claim_holds_on_the_device(held):
    held()


def last_position(func):
    x = np.random.default_rng(0).standard_normal((1, 7, 64)).astype(np.float32)
    y = np.full((1, 1, 64), np.nan, np.float32)
    simulate(func, ROW, x, y)
    np.testing.assert_array_equal(y, x[:, -1:])


def if_finite(func):
    """A token, or -1 where its logit is no number."""
    logits = np.zeros((1, 512), np.float32)
    logits[0, [3, 511]] = np.inf, np.nan
    for token, expected in ((0, 0), (510, 510), (3, -1), (511, -1)):
        out = np.full(1, -7, np.int32)
        simulate(func, ROW, np.array([token], np.int32), logits, out)
        assert out[0] == expected


def zeros(func):
    (out,) = func.params
    y = np.full([int(n) for n in out.ty.shape], np.nan, str(out.ty.dtype))
    simulate(func, ROW, y)
    assert (y == 0).all()


OF_TVM = {"last_position": last_position, "if_finite": if_finite, "zeros": zeros}


@pytest.mark.parametrize("name", OF_TVM)
def test_what_tvm_wrote_and_a_rule_scheduled_is_right(kernels, name):
    OF_TVM[name](kernels[name])


def test_every_kernel_of_a_model_is_here(kernels):
    """Its name without the number that tells kernels of a family apart."""
    families = {re.sub(r"\d+$", "", name) for name in kernels}
    assert len(families) > 15
    assert families - CLAIMS.keys() - OF_TVM.keys() == set()


def test_what_is_written_behind_an_argument_is_seen():
    with b.kernel() as builder:
        x = b.arg("x", (8,))
        with b.launch(1, 8) as (_, lane):
            b.put(x, lane + 1, b.f32(0.0))
    with pytest.raises(AssertionError, match="behind an argument"):
        simulate(builder.get(), ROW, np.zeros(8, np.float32))


@pytest.mark.parametrize("sequences", [0, 1])
def test_a_launch_for_no_rows_touches_nothing(kernels, sequences):
    """TVM's runtime launches one block where a grid has none; its threads must stay away.

    The interpreter faults at any access beyond an argument, reads too; on the device guards and
    arguments are as before.
    """
    sizes = {"count": 2, "batch": sequences}  # pages, and sequences without a new token
    for name, func in kernels.items():
        if not sizes_of(func) or name in ALWAYS_A_ROW:
            continue
        for where in (INTERPRETED, on_device.DEVICE):
            arguments = zeros_for(func, sizes)
            with at(where):
                simulate(func, ROW, *arguments)
            assert not any(np.any(a) for a in arguments if isinstance(a, np.ndarray)), name


ALWAYS_A_ROW = {"last_position"}  # of one token at least; its grid is constant


def sizes_of(func):
    """What a kernel learns from the shapes of its arguments."""
    shapes = [p.ty.shape for p in func.params if tirx.is_buffer_var(p)]
    return [extent for shape in shapes for extent in shape if isinstance(extent, tirx.Var)]


def zeros_for(func, sizes):
    """Arguments that are all 0, numbers too; extents are 0 where `sizes` has no other."""
    numbers = [p for p in func.params if not tirx.is_buffer_var(p)]
    analyzer = tvm.sym.Analyzer()
    for var in [*sizes_of(func), *(p for p in numbers if str(p.ty.dtype).startswith("int"))]:
        value = tirx.const(sizes.get(str(var.name), 0), str(var.ty.dtype))
        analyzer.bind(var, value, allow_override=True)
    return [
        np.zeros([int(analyzer.simplify(e)) for e in p.ty.shape], str(p.ty.dtype))
        if tirx.is_buffer_var(p)
        else sizes.get(str(p.name), 0)
        for p in func.params
    ]
