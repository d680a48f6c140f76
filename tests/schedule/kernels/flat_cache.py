"""A flat KV cache as a call may find it, and what it stands for, in the order of tokens."""

import numpy as np

from mlc_compile.artifact import SCALE_ROWS

LAYER = 1  # the one of three that kernels are asked for; the others must not change


class Cache:
    """Pages under a permuted block table, every slot holding something finite."""

    def __init__(self, shape, tokens: int, seed: int = 0) -> None:
        self.shape = shape
        pages = -(-tokens // shape.page) + 2  # two that no token of ours is in
        self.k, self.v, self.table = shape.pages(pages, np.random.default_rng(seed))

    def arrays(self, length: int) -> tuple[np.ndarray, ...]:
        return self.k, self.v, self.table, np.array([length], np.int32)

    def keys(self, n: int) -> np.ndarray:
        """float64 [n, h_kv, d] in the order of tokens."""
        return self.shape.tokens(self.k[LAYER, self.table].transpose(0, 3, 1, 2))[:n]

    def values(self, n: int) -> np.ndarray:
        return self.shape.tokens(self.v[LAYER, self.table].transpose(0, 2, 1, 3))[:n]

    def tokens(self, n: int) -> list[np.ndarray]:
        """Both."""
        return [self.keys(n), self.values(n)]


class Pages:
    """Codes and scales under a permuted block table, every slot holding something."""

    def __init__(self, shape, tokens, seed=0):
        random = np.random.default_rng(seed)
        self.shape = shape
        count = -(-tokens // shape.page) + 2  # two that no token of ours is in
        self.k, self.v = (
            random.integers(-127, 128, of(count), np.int8)
            for of in (shape.kv.k_shape, shape.kv.v_shape)
        )
        self.scales[...] = random.uniform(0.005, 0.02, self.scales.shape)
        self.table = random.permutation(count).astype(np.int32)

    @property
    def scales(self):
        """float32 [layer, page, head, key or value, slot], in the bytes behind the keys."""
        flat = self.k.reshape(*self.k.shape[:3], -1)[..., self.shape.d * self.shape.page :]
        return flat.view(np.float32).reshape(*self.k.shape[:3], 2, self.shape.page)

    def arrays(self, length):
        return self.k, self.v, self.table, np.array([length], np.int32)

    def codes(self, n):
        """Of keys and of values, float64 [n, h_kv, d] in the order of tokens."""
        keys = self.k[LAYER, self.table][:, :, :-SCALE_ROWS].transpose(0, 3, 1, 2)
        values = self.v[LAYER, self.table].transpose(0, 2, 1, 3)
        return [self.shape.tokens(pages)[:n] for pages in (keys, values)]

    def scales_of(self, n):
        """Of keys and of values, float32 [n, h_kv, 1]."""
        scales = self.scales[LAYER, self.table]  # [page, head, side, slot]
        in_order = scales.transpose(2, 0, 3, 1).reshape(2, -1, self.shape.h_kv, 1)
        return [side[:n] for side in in_order]

    def tokens(self, n):
        """Keys and values as float64."""
        return [c * s for c, s in zip(self.codes(n), self.scales_of(n), strict=True)]


def attending(kernel, shape, unwritten, given=lambda q: q):
    """`run(q, cache, length)`: o like q[m, h_q, d], of a kernel that takes `given(q)`."""

    def run(q, cache, length):
        o = unwritten((1, q.shape[0], shape.h_q * shape.d))
        *_, o = kernel(given(q)[None], *cache.arrays(length), LAYER, o)
        return o.reshape(q.shape)

    return run


def _zero(pages):
    pages.k[..., :-SCALE_ROWS, :], pages.v[...], pages.scales[...] = 0, 0, 0


def _zero_rows(pages):
    pages.scales[..., ::3], pages.v[..., ::3, :] = 0, 0
    pages.k[..., :-SCALE_ROWS, ::3] = 0


def _largest_codes(pages):
    for codes in (pages.k[..., :-SCALE_ROWS, :], pages.v):
        codes[...] = np.where(codes < 0, -127, 127)


def _outlier(pages):
    pages.scales[LAYER, pages.table[0], :, :, 5] = 3.0  # a key and a value of token 5


def _tiny_scales(pages):
    pages.scales[...] = 1e-37


# Of an int8 cache.
EXTREMES = {f.__name__: f for f in (_zero, _zero_rows, _largest_codes, _outlier, _tiny_scales)}
