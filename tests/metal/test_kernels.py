"""Our GPU kernels as MSL: every text is well typed, and those without barriers compute.

Kernels whose threads wait for each other are run by the SIMT interpreter, from the same IR.
"""

import msgspec
import numpy as np
import pytest

from mlc_compile.ops import Attention
from mlc_compile.quant import SCHEMES
from mlc_compile.schedule.kernels.gpu import (
    activation,
    attention_pages,
    embedding,
    gemm,
    gemv,
    norm,
)
from mlc_compile.schedule.kernels.gpu.weights import codec_of
from mlc_compile.target import find_target

from .model import msl

DEVICE = find_target("metal").device
NARROW = msgspec.structs.replace(DEVICE, threads=64)
PAGE = 16
PAGES = (4, 2, 2, PAGE, 32)  # pages, sides, heads, tokens, dimension
OP = Attention(0, 4, 2, 32, 1e-6, 1.0, tuple(10000.0 ** (-i / 16) for i in range(16)))

WAITING = {
    "rms_norm": lambda: norm.rms_norm(64, 1e-6, None, DEVICE),
    "qk_norm": lambda: norm.qk_norm(OP, "float16", None, DEVICE),
    **{
        f"gemv {scheme}": lambda scheme=scheme: gemv.gemv(codec_of(scheme, 40, 96), 40, DEVICE)
        for scheme in SCHEMES
    },
    **{
        f"gemm {compute}": lambda compute=compute: gemm.gemm(
            codec_of("q4f16_1", 70, 96), 70, DEVICE, compute=compute, swiglu=True
        )
        for compute in ("float16", "float32")
    },
}


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


@pytest.mark.parametrize("name", WAITING)
def test_kernels_whose_threads_wait_are_well_typed(type_errors, name):
    for kernel in msl(WAITING[name]()):
        assert kernel.waits
        assert type_errors(kernel.source) == ""


@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize("device", [DEVICE, NARROW], ids=["1024 threads", "64 threads"])
def test_swiglu_computes(run_kernel, rows, device):
    (kernel,) = msl(activation.swiglu(96, None, device))
    x = np.random.default_rng(0).standard_normal((1, rows, 192)).astype(np.float32)
    x[0, 0, :3] = -200, 0, 200  # exp of 200 is infinite in float32
    y = np.full((1, rows, 96), np.nan, np.float32)
    run_kernel(kernel, {"gate_up": x, "y": y}, m=rows)
    gate, up = x[..., :96].astype(float), x[..., 96:].astype(float)
    # Four roundings and exp; below -87 what remains is less than the smallest product of use.
    np.testing.assert_allclose(y, gate / (1 + np.exp(-gate)) * up, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_embeddings_are_the_scheme_s_values(run_kernel, scheme):
    (kernel,) = msl(embedding.take(codec_of(scheme, 50, 64), DEVICE))
    w = np.random.default_rng(1).standard_normal((50, 64)).astype(np.float32)
    parts = SCHEMES[scheme].encode(w)
    ids = np.array([0, 49, 7, 7, 31], np.int32)
    y = np.full((5, 64), np.nan, np.float32)
    run_kernel(kernel, {"ids": ids, **parts, "y": y}, m=5)
    # A code times a scale: one rounding of the product, one more where codes are shifted.
    np.testing.assert_allclose(y, SCHEMES[scheme].decode(parts)[ids], rtol=3e-7)


def test_rope_turns_by_the_exact_angle_far_into_a_text(run_kernel):
    """Metal's generator prints seven digits of a constant, and π/2 in parts needs nine."""
    (kernel,) = msl(attention_pages.rotate(OP, "float32", DEVICE))
    random = np.random.default_rng(2)
    positions = np.array([0, 1, 511, 4095, 8191], np.int32)
    qkv = random.standard_normal((5, 8, 32)).astype(np.float32)
    q, k, v = (np.full((5, heads, 32), np.nan, np.float32) for heads in (4, 2, 2))
    arrays = {"qkv": qkv, "positions": positions, "q": q, "k": k, "v": v}
    run_kernel(kernel, arrays, m=5, positions_start=0, turn=1)
    angle = (positions[:, None] * np.array(OP.inv_freq))[:, None]
    x = qkv.astype(float)
    low, high = x[..., :16], x[..., 16:]
    turned = [
        low * np.cos(angle) - high * np.sin(angle),
        high * np.cos(angle) + low * np.sin(angle),
    ]
    exact = np.concatenate(turned, axis=-1)
    # float32 holds an angle below 8192 to 5e-4; frequencies add a few roundings of that size.
    bound = 4 * np.finfo(np.float32).eps * positions[:, None, None] + 4e-6
    assert (np.abs(q - exact[:, :4]) <= bound).all()
    assert (np.abs(k - exact[:, 4:6]) <= bound).all()
    np.testing.assert_array_equal(v, qkv[:, 6:])


def test_appended_tokens_land_in_their_slots(run_kernel):
    (kernel,) = msl(attention_pages.append(OP, "float16", PAGE, DEVICE))
    k, v = (numbers(seed, 3, 2, 32) for seed in (3, 4))
    pages = np.zeros(PAGES, np.float16)
    slots = np.array([2 * 16 + 5, -1, 0], np.int32)
    run_kernel(kernel, {"k": k, "v": v, "pages": pages, "slots": slots}, m=3, slots_start=0)
    expected = np.zeros_like(pages)
    for token, slot in ((0, 37), (2, 0)):
        expected[slot // 16, 0, :, slot % 16] = k[token]
        expected[slot // 16, 1, :, slot % 16] = v[token]
    np.testing.assert_array_equal(pages, expected)


def test_a_page_s_first_tokens_are_copied(run_kernel):
    (kernel,) = msl(attention_pages.copy_page(OP, "float16", PAGE, DEVICE))
    pages = numbers(5, *PAGES)
    expected = pages.copy()
    expected[1, :, :, :7] = pages[3, :, :, :7]
    run_kernel(kernel, {"pages": pages}, source=3, sink=1, count=7)
    np.testing.assert_array_equal(pages, expected)


def test_moves_of_a_sequence_happen_in_order(run_kernel):
    """Token 18 goes to 5, then 40 to 18: the second must not be seen by the first."""
    (kernel,) = msl(attention_pages.compact(OP, "float16", PAGE, DEVICE))
    pages = numbers(6, *PAGES)
    moves = np.array([[18, 40, 60], [5, 18, 0]], np.int32)
    indptr = np.array([0, 2, 3], np.int32)
    expected = pages.copy()
    for source, sink in moves.T:
        expected[sink // 16, :, :, sink % 16] = expected[source // 16, :, :, source % 16]
    arrays = {"pages": pages, "indptr": indptr, "moves": moves}
    run_kernel(kernel, arrays, batch=2, moved=3, indptr_start=0, moves_start=0)
    np.testing.assert_array_equal(pages, expected)


def test_tokens_are_read_back_from_their_slots(run_kernel):
    (kernel,) = msl(attention_pages.read_back(OP, 3, "float16", PAGE, DEVICE))
    pages, slots = numbers(7, *PAGES), np.array([37, 0], np.int32)
    k, v = np.zeros((2, 3, 2, 2, 32), np.float16)
    arrays = {"pages": pages, "slots": slots, "k": k, "v": v}
    run_kernel(kernel, arrays, m=2, slots_start=0, layer=1)
    for side, sink in enumerate((k, v)):
        assert not sink[[0, 2]].any()
        np.testing.assert_array_equal(sink[1], pages[[2, 0], side, :, [5, 0]])
