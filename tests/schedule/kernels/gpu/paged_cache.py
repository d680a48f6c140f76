"""A paged KV cache in numpy, and attention in float64 over what it holds."""

from dataclasses import dataclass

import numpy as np

from mlc_compile.ops import Attention

PAGE = 16
FREE = 2  # pages that belong to nobody
POISON = 3e4  # in pages and slots that nobody may read; finite in float16


def attention(h_q: int, h_kv: int, d: int) -> Attention:
    """Of a model with theta 1e6."""
    inv_freq = tuple(float(1e6 ** (-2 * i / d)) for i in range(d // 2))
    return Attention(0, h_q, h_kv, d, 1e-6, 1.0, inv_freq)


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, causal: bool
) -> tuple[np.ndarray, np.ndarray]:
    """q[m, h_q, d], k and v [n, h_kv, d] -> o, and log2 of the sum of 2**score: [m, h_q].

    The last query is at the last key.
    """
    m, h_q, d = q.shape
    n, h_kv, _ = k.shape
    k, v = (np.repeat(x.astype(np.float64), h_q // h_kv, axis=1) for x in (k, v))
    scores = np.einsum("mhd,nhd->mhn", q.astype(np.float64), k) * d**-0.5
    if causal:
        hidden = np.arange(n)[None, :] > np.arange(m)[:, None] + n - m
        scores = np.where(hidden[:, None, :], -np.inf, scores)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - top)
    mass = weights.sum(axis=-1, keepdims=True)
    o = np.einsum("mhn,nhd->mhd", weights / mass, v)
    with np.errstate(divide="ignore"):  # of no keys
        return o, (top + np.log(mass))[..., 0] / np.log(2)


@dataclass(frozen=True)
class Cache:
    """Random keys and values of sequences of given lengths, in pages in random order."""

    pages: np.ndarray
    indptr: np.ndarray
    values: np.ndarray
    last_page: np.ndarray
    kept: list[tuple[np.ndarray, np.ndarray]]  # keys and values of each sequence

    @classmethod
    def random(cls, a: Attention, dtype: str, lengths: list[int], seed: int = 0) -> "Cache":
        generator = np.random.default_rng(seed)
        counts = [-(-n // PAGE) for n in lengths]
        total = sum(counts) + FREE
        pages = np.full((total, 2, a.h_kv, PAGE, a.d), POISON, dtype)
        values = generator.permutation(total)[: sum(counts)].astype(np.int32)
        indptr = np.cumsum([0, *counts]).astype(np.int32)
        kept = []
        for s, n in enumerate(lengths):
            both = generator.standard_normal((2, n, a.h_kv, a.d)).astype(dtype)
            for token in range(n):
                page = values[indptr[s] + token // PAGE]
                pages[page, :, :, token % PAGE] = both[:, token]
            kept.append((both[0], both[1]))
        last = [n - (count - 1) * PAGE for n, count in zip(lengths, counts, strict=True)]
        return cls(pages, indptr, values, np.array(last, np.int32), kept)

    def arguments(self) -> list[np.ndarray]:
        """As kernels take them."""
        return [self.pages, self.indptr, self.values, self.last_page]


def near(dtype: str) -> dict[str, float]:
    """How far an output of attention may be off.

    A float32 sum of d products, of at most 4096 weights and of d values, each near 1, is off by
    some dozen eps; exp2 of a score near 10 by 10 eps more. float16 rounds the output to 2**-11,
    and on tensor cores each weight too, which averages out over the keys.
    """
    return {"float32": {"atol": 3e-6, "rtol": 3e-6}, "float16": {"atol": 1e-3, "rtol": 1e-3}}[dtype]
