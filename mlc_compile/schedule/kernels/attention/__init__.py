"""Attention over the flat KV cache of the CPU: append, then one pass with a running softmax.

Shapes: m tokens of this call, h_q query heads, h_kv key heads, d head size; the cache's own
are in cache.py.

    qkv      [1, m, (h_q + 2 h_kv) d]
    q        [1, m, h_q, d]    normalized and rotated
    o        [1, m, h_q d]

On tiles (`project`, `attend_tiles`) q is i32[1, m, h_q, d/2], pairs of bfloat16.
"""

from mlc_compile.schedule.kernels.attention.append import append
from mlc_compile.schedule.kernels.attention.attend import attend
from mlc_compile.schedule.kernels.attention.attend_tiles import Share, attend_tiles
from mlc_compile.schedule.kernels.attention.cache import Cache
from mlc_compile.schedule.kernels.attention.project import Heads, project
from mlc_compile.schedule.kernels.attention.step import step
from mlc_compile.schedule.kernels.attention.tile import TILES, Tile

__all__ = [
    "TILES",
    "Cache",
    "Heads",
    "Share",
    "Tile",
    "append",
    "attend",
    "attend_tiles",
    "project",
    "step",
]
