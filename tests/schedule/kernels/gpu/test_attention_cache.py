"""TVM's own KV cache object calls our kernels, interpreted, and attends as numpy does."""

import numpy as np
import pytest
import tvm
from tvm.runtime import ShapeTuple

from mlc_compile.schedule.kernels.gpu.attention import paged_kv_kernels
from tests.schedule.kernels.gpu.emission import device_of, lowered
from tests.schedule.kernels.gpu.paged_cache import PAGE, attend, attention, near
from tests.simt.run import execute

ROW = "webgpu"  # the tightest limits
THETA = 1e6
LAYERS = 2
CHUNK = 32
SHAPE = attention(4, 2, 32)


def callback(func):
    """A kernel as a function of TVM's tensors that interprets it."""

    def call(*args):
        arrays = [np.from_dlpack(a) if isinstance(a, tvm.runtime.Tensor) else a for a in args]
        execute(lowered(func, ROW), *arrays, races=False)

    return tvm.runtime.convert(call)


@pytest.fixture(scope="module")
def kernels():
    return paged_kv_kernels(SHAPE, LAYERS, dtype="float32", page=PAGE, device=device_of(ROW))


@pytest.fixture
def cache(kernels):
    """The object, made by the builtin with the arguments that LowerPagedKVCache gives it."""
    a = SHAPE
    k = {name: callback(func) for name, func in kernels.items()}
    made = tvm.get_global_func("vm.builtin.paged_attention_kv_cache_create")(
        ShapeTuple([1, 128, CHUNK, PAGE, 0]),
        ShapeTuple([0, LAYERS]),
        *(a.h_q, a.h_kv, a.d, a.d),
        ShapeTuple([0] * LAYERS),
        *(False, 1, 1, THETA, 0),
        tvm.runtime.tensor(np.zeros((), np.float32)),
        *(k["kv_append"], 0),
        *(["tirx", k[f"kv_{name}"]] for name in ("attend_new", "attend_pages", "decode")),
        *[[]] * 5,
        [k["kv_merge"]],
        *(k[f"kv_{name}"] for name in ("rotate", "copy_page", "read_back", "compact")),
    )
    return a, made


def rotated(x, positions, a):
    """RoPE of x[m, heads, d]."""
    angle = positions[:, None] * np.array(a.inv_freq)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    first, second = np.split(x.astype(np.float64), 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def builtin(name):
    return tvm.get_global_func(f"vm.builtin.{name}")


class Layers:
    """What each layer of a sequence has seen, beside the cache that must remember it."""

    def __init__(self, a, kv):
        self.a, self.kv, self.random = a, kv, np.random.default_rng(0)
        self.seen = [[np.zeros((0, a.h_kv, a.d))] * 2 for _ in range(LAYERS)]

    def forward(self, sequence, tokens):
        """Attend with random queries, keys and values; checked against all that was seen."""
        a, heads = self.a, (self.a.h_q, self.a.h_kv, self.a.h_kv)
        position = self.seen[0][0].shape[0]
        builtin("kv_state_begin_forward")(self.kv, ShapeTuple([sequence]), ShapeTuple([tokens]))
        for layer in range(LAYERS):
            qkv = self.random.standard_normal((tokens, sum(heads), a.d)).astype(np.float32)
            o = tvm.runtime.tensor(np.full((tokens, a.h_q, a.d), np.nan, np.float32))
            builtin("attention_kv_cache_attention_with_fused_qkv")(
                self.kv, layer, a.d**-0.5, tvm.runtime.tensor(qkv), o
            )
            q, k, v = np.split(qkv, np.cumsum(heads)[:-1], axis=1)
            positions = np.arange(position, position + tokens)
            q, k = (rotated(x, positions, a) for x in (q, k))
            self.seen[layer] = [
                np.concatenate(x) for x in zip(self.seen[layer], (k, v), strict=True)
            ]
            expected, _ = attend(q, *self.seen[layer], causal=True)
            np.testing.assert_allclose(o.numpy(), expected, **near("float32"))
        builtin("kv_state_end_forward")(self.kv)

    def forget(self, tokens):
        self.seen = [[x[:-tokens] for x in layer] for layer in self.seen]


def test_prefill_chunks_and_decoding_attend_to_all_that_came_before(cache):
    a, kv = cache
    layers = Layers(a, kv)
    builtin("kv_state_add_sequence")(kv, 0)
    for tokens in (19, 6, 1):
        layers.forward(0, tokens)


def test_tokens_can_be_taken_back(cache):
    a, kv = cache
    layers = Layers(a, kv)
    builtin("kv_state_add_sequence")(kv, 0)
    layers.forward(0, 18)
    builtin("kv_state_popn")(kv, 0, 3)
    layers.forget(3)
    layers.forward(0, 1)


def test_a_fork_copies_the_page_that_both_write(cache):
    a, kv = cache
    layers = Layers(a, kv)
    builtin("kv_state_add_sequence")(kv, 0)
    layers.forward(0, 21)
    builtin("kv_state_fork_sequence")(kv, 0, 1, 18)
    layers.forget(3)
    layers.forward(1, 1)


def test_the_debugger_reads_back_what_was_kept(cache):
    a, kv = cache
    layers = Layers(a, kv)
    builtin("kv_state_add_sequence")(kv, 0)
    layers.forward(0, 18)
    k, v = (tvm.runtime.tensor(np.zeros((LAYERS, 18, a.h_kv, a.d), np.float32)) for _ in range(2))
    builtin("attention_kv_cache_debug_get_kv")(kv, 0, 0, 18, k, v)
    for got, side in ((k, 0), (v, 1)):
        expected = [layer[side] for layer in layers.seen]
        np.testing.assert_allclose(got.numpy(), expected, **near("float32"))
