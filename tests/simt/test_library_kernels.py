"""Kernels that TVM ships, with shuffles, shared tiles, vectors and while loops, against numpy."""

import numpy as np
import pytest
import tvm
from tvm.relax.frontend.nn.llm import _decode_kernels as decode_kernels
from tvm.relax.frontend.nn.llm import _prefill_kernels as prefill_kernels

from tests.simt import run

H_KV, H_Q, D, PAGE = 2, 4, 64, 16
SCALE = D**-0.5
ROPE = (0, 1.0, 1e4, SCALE)  # no rotation here
TOLERANCE = {"rtol": 2e-3, "atol": 2e-3}  # float16 results, float16 probabilities on the way


@pytest.fixture(params=["cuda", "vulkan"])
def target(request):
    return tvm.target.Target({"kind": request.param}, host={"kind": "llvm"})


def attention(q, k, v, mask):
    """Softmax attention in float32; q [n, h_q, d], k and v [m, h_kv, d], mask [n, m]."""
    k, v = (np.repeat(x.astype("float32"), H_Q // H_KV, axis=1) for x in (k, v))
    scores = np.einsum("nhd,mhd->hnm", q.astype("float32"), k) * SCALE
    scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hnm,mhd->nhd", weights, v)


def test_paged_decode_attention(target):
    rng = np.random.default_rng(3)
    lengths, tables = [21, 5], [[2, 0], [1]]
    q = rng.standard_normal((2, H_Q, D)).astype("float16")
    pages = rng.standard_normal((3, 2, H_KV, PAGE, D)).astype("float16")
    zeros = np.zeros(2, "int32")
    out, lse = np.zeros_like(q), np.zeros((2, H_Q), "float32")
    func = decode_kernels._attention_decode(H_KV, H_Q, D, "float16", False, {}, target)
    indptr, values = np.array([0, 2, 3], "int32"), np.array([2, 0, 1], "int32")
    last = np.array([5, 5], "int32")
    args = (q, pages, indptr, values, last, zeros, zeros, out, lse, *ROPE)
    # its threads write equal values to one place, which counts as a race
    run(func, *args, target=target, races=False)
    for i, (length, table) in enumerate(zip(lengths, tables, strict=True)):
        k, v = (
            np.concatenate([pages[p, part] for p in table], axis=1).transpose(1, 0, 2)[:length]
            for part in (0, 1)
        )
        expected = attention(q[i : i + 1], k, v, np.ones((1, length), bool))
        np.testing.assert_allclose(out[i], expected[0], **TOLERANCE)


def test_causal_prefill_attention_has_no_race(target):
    rng, n = np.random.default_rng(4), 40
    q = rng.standard_normal((n, H_Q, D)).astype("float16")
    k, v = rng.standard_normal((2, n, H_KV, D)).astype("float16")
    out, lse = np.zeros_like(q), np.zeros((n, H_Q), "float32")
    func = prefill_kernels._attention_prefill_ragged(H_KV, H_Q, D, D, "float16", {}, target)
    indptr, positions = np.array([0, n], "int32"), np.arange(n, dtype="int32")
    offset, causal = np.zeros(1, "int32"), 1
    args = (q, indptr, k, v, indptr, positions, offset, out, lse, causal, *ROPE)
    run(func, *args, target=target)
    np.testing.assert_allclose(out, attention(q, k, v, np.tri(n, dtype=bool)), **TOLERANCE)
