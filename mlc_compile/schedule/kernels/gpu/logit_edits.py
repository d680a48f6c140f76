"""Change logits in place, before they are sampled: biases, penalties, tokens that are forbidden.

The page calls these with logits[b, vocab] and what concerns tokens in lists of length n, of which
entry i is about token `tokens[i]` of row `rows[i]`; a token is at most once in a row's list.
"""

from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.target import Device

THREADS: Final = 256
WORD: Final = 32  # tokens of a word of a mask
I32: Final = "int32"


def add_bias(vocab: int, device: Device) -> tirx.PrimFunc:
    """logits[rows[i], tokens[i]] += bias[i]."""
    b, n = v.size("b"), v.size("n")
    with v.kernel() as builder:
        logits = v.argument("logits", (b, vocab))
        rows, tokens = (v.argument(name, (n,), I32) for name in ("rows", "tokens"))
        bias = v.argument("bias", (n,))
        with g.each_item(n, device, threads=_threads(device)) as i:
            at = (T.bind(rows[i]), T.bind(tokens[i]))
            v.put(logits[at] + bias[i], logits, *at)
    return builder.get()


def penalize(vocab: int, device: Device) -> tirx.PrimFunc:
    """Presence, frequency and repetition, of penalties[s, 3] in this order.

    `positions[i]` is s; the row is sequences[s], and the token was seen counts[i] times:
    x -= presence + count · frequency, then x /= repetition if x > 0, else x *= repetition.
    """
    b, n, s = v.size("b"), v.size("n"), v.size("s")
    with v.kernel() as builder:
        logits = v.argument("logits", (b, vocab))
        sequences = v.argument("sequences", (s,), I32)
        positions, tokens, counts = (
            v.argument(name, (n,), I32) for name in ("positions", "tokens", "counts")
        )
        penalties = v.argument("penalties", (s, 3))
        with g.each_item(n, device, threads=_threads(device)) as i:
            of = T.bind(positions[i])
            at = (T.bind(sequences[of]), T.bind(tokens[i]))
            presence, frequency, repetition = (penalties[of, j] for j in range(3))
            x = T.bind(logits[at] - presence - v.cast_f32(counts[i]) * frequency)
            v.put(tirx.Select(x > v.const(0.0), x / repetition, x * repetition), logits, *at)
    return builder.get()


def forbid(vocab: int, device: Device) -> tirx.PrimFunc:
    """Of row sequences[i], tokens whose bit is 0 in mask i32[b, vocab / 32] get the least logit."""
    b, s = v.size("b"), v.size("s")
    with v.kernel() as builder:
        logits = v.argument("logits", (b, vocab))
        sequences = v.argument("sequences", (s,), I32)
        mask = v.argument("mask", (b, -(-vocab // WORD)), I32)
        with g.each_item(s * vocab, device, threads=_threads(device)) as item:
            row, token = T.bind(sequences[item // vocab]), T.bind(item % vocab)
            bit = (mask[row, token // WORD] >> tirx.Cast(I32, token % WORD)) & v.int32(1)
            with T.If(bit == 0), T.Then():
                v.put(v.const(g.LOWEST), logits, row, token)
    return builder.get()


def _threads(device: Device) -> int:
    return min(THREADS, device.threads)
