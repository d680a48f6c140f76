"""The search for the cuts of top-k and top-p: without sorting, exact, in eight launches.

A key is a logit's bits, made so that larger logits have larger ones. A cut is the largest key
such that what lies at or above it is enough: counted for k, weighed for p. It is found a digit
of a key a launch. Every block makes a histogram of its part of the vocabulary over the next
digit, of the keys that begin with the digits found so far; every block of the next launch adds
up all histograms, so nothing is atomic and each sum has one order. A launch reads one workspace
and writes the other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tvm import tirx
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels import vector as v
from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.vector import Buffer, Expr

DIGIT: Final = 8  # bits
BINS: Final = 2**DIGIT  # of a histogram; a thread owns one
DIGITS: Final = 32 // DIGIT
LAUNCHES: Final = 2 * DIGITS  # for k, then for p
PARTS: Final = 128  # the most, of a vocabulary; at most BINS
STATE: Final = 0  # row of a workspace, after the histograms: what is known
PEAKS: Final = 1  # row after it: the largest logit of each part
HALF: Final = 16  # bits of a key that a float32 of the state holds exactly
ENOUGH: Final = 1e30  # more mass than there is
HIT: Final = 2 * BINS  # marks a bin that reaches what is needed


@dataclass(frozen=True, slots=True)
class Parts:
    """`count` parts of a vocabulary, of `size` tokens each but the last."""

    count: int
    size: int


def parts_of(vocab: int) -> Parts:
    """At most PARTS, of whole pieces of BINS tokens."""
    size = -(-vocab // (PARTS * BINS)) * BINS
    return Parts(count=-(-vocab // size), size=size)


def workspace_shape(vocab: int) -> tuple[int, int]:
    """Of each of the two float32 workspaces."""
    return (parts_of(vocab).count + 2, BINS)


def value_of(key: Expr) -> Expr:
    """The logit of a key."""
    positive = (key >> _bits(31)) == _bits(1)
    bits = tirx.Select(positive, key & _bits(2**31 - 1), tirx.bitwise_xor(key, _bits(2**32 - 1)))
    return tirx.reinterpret(v.F32, bits)


def inside(i: Expr, vocab: int) -> Expr:
    """Whether i is a token: the last part is rounded up."""
    return i < vocab


@dataclass(frozen=True, slots=True)
class Input:
    """What is sampled from, and how."""

    vocab: int
    logits: Buffer
    temperature: Buffer
    top_k: Buffer
    top_p: Buffer

    def read(self, i: Expr) -> tuple[Expr, Expr]:
        """The logit of token i, or of the last one, and its key; both zeros have one key."""
        x = T.bind(self.logits[0, tirx.min(i, self.vocab - 1)])
        x = T.bind(tirx.Select(x == v.const(0.0), v.const(0.0), x))
        bits = T.bind(tirx.reinterpret("uint32", x))
        negative = (bits >> _bits(31)) == _bits(1)
        flipped = tirx.bitwise_xor(bits, _bits(2**32 - 1))
        return x, T.bind(tirx.Select(negative, flipped, bits | _bits(2**31)))

    def weight(self, x: Expr, peak: Expr) -> Expr:
        """exp((x - peak) / temperature); a token whose weight underflows is never drawn."""
        temperature = tirx.Select(self._greedy(), v.const(1.0), self.temperature[0])
        return g.exp_or_zero((x - peak) / temperature)

    def wanted(self) -> Expr:
        """How many of the largest logits stay in."""
        k = tirx.Select(self._greedy(), v.int32(1), self.top_k[0])
        everything = tirx.any(k <= 0, k > self.vocab)
        return v.cast_f32(tirx.Select(everything, v.int32(self.vocab), k))

    def _greedy(self) -> Expr:
        return self.temperature[0] <= v.const(0.0)


@dataclass(frozen=True, slots=True)
class Known:
    """What the launches so far found out."""

    prefix: Expr  # uint32: the digits found of the cut that is searched
    need: Expr  # count or mass, still, of the keys that begin with them
    cut: Expr  # uint32: the key of the last of the k largest
    ties: Expr  # how many at it stay in
    peak: Expr  # the largest logit

    @classmethod
    def read(cls, before: Buffer, parts: int) -> "Known":
        """From the state row of a workspace."""
        words = [T.bind(before[parts + STATE, column]) for column in range(7)]
        prefix, cut = (T.bind(_joined(*words[i : i + 2])) for i in (0, 3))
        return cls(prefix, words[2], cut, words[5], words[6])

    def words(self) -> list[Expr]:
        """For the state row."""
        return [*_halves(self.prefix), self.need, *_halves(self.cut), self.ties, self.peak]


@dataclass(frozen=True, slots=True)
class Search:
    """Launch `number` as one thread of one block sees it."""

    given: Input
    number: int
    block: Expr
    thread: Expr

    def known(self, before: Buffer) -> Known:
        """What the launch before leads to; every block works it out for itself."""
        zero = tirx.const(0, "uint32")
        if self.number == 0:
            return Known(zero, T.bind(self.given.wanted()), zero, v.const(0.0), v.const(0.0))
        parts = parts_of(self.given.vocab).count
        scratch, sums = g.shared(BINS), g.shared(BINS)
        known = Known.read(before, parts)
        peak = known.peak if self.number > 1 else self._peak(before, parts, scratch)
        known = Known(known.prefix, known.need, known.cut, known.ties, peak)
        mine = T.bind(self._histogram(before, parts, known))
        self._sum_from_above(mine, sums)
        need = T.bind(self._needed(known, sums))
        digit = T.bind(self._digit(mine, sums, need, scratch))
        above = sums[tirx.min(digit + 1, BINS - 1)]
        rest = T.bind(need - tirx.Select(digit < BINS - 1, above, v.const(0.0)))
        shift = self._shift(self.number - 1)
        prefix = T.bind(known.prefix | (tirx.Cast("uint32", digit) << _bits(shift)))
        if self.number == DIGITS:  # the cut of k is found; from here on it is p's
            return Known(zero, v.const(0.0), prefix, rest, peak)
        return Known(prefix, rest, known.cut, known.ties, peak)

    def count(self, known: Known, after: Buffer) -> None:
        """The histogram of the block's part, and what is known, into `after`."""
        given, parts = self.given, parts_of(self.given.vocab)
        total, peak = g.registers(1), g.registers(1)
        digits, weights = g.shared(BINS), g.shared(BINS)
        v.put(v.const(0.0), total, 0)
        v.put(v.const(g.LOWEST), peak, 0)
        with self.each_piece() as i:
            x, key = given.read(i)
            v.put(tirx.max(peak[0], x), peak, 0)
            digit = (key >> _bits(self._shift(self.number))) & _bits(BINS - 1)
            belongs = self._belongs(i, key, known)
            number = v.cast_f32(tirx.Cast("int32", digit))
            v.put(tirx.Select(belongs, number, v.const(-1.0)), digits, self.thread)
            weighed = self.number >= DIGITS
            v.put(given.weight(x, known.peak) if weighed else v.const(1.0), weights, self.thread)
            g.barrier()
            self._add_piece(total, digits, weights)
            g.barrier()
        v.put(total[0], after, self.block, self.thread)
        if self.number == 0:
            scratch = g.shared(BINS)
            largest = g.block_max(peak[0], self.thread, BINS, scratch)
            with T.If(self.thread == 0), T.Then():
                v.put(largest, after, parts.count + PEAKS, self.block)
        self.write_state(known, after)

    @contextmanager
    def each_piece(self) -> Iterator[Expr]:
        """Walk the block's part, BINS tokens at a time; gives this thread's."""
        size = parts_of(self.given.vocab).size
        with T.serial(0, size // BINS) as piece:
            yield T.bind(self.block * size + piece * BINS + self.thread)

    def write_state(self, known: Known, after: Buffer) -> None:
        """By the first thread of all."""
        row = parts_of(self.given.vocab).count + STATE
        with T.If(tirx.all(self.block == 0, self.thread == 0)), T.Then():
            for column, word in enumerate(known.words()):
                v.put(word, after, row, column)

    def _shift(self, number: int) -> int:
        """Bits below the digit that launch `number` counts."""
        return 32 - DIGIT * (number % DIGITS + 1)

    def _begins(self, key: Expr, prefix: Expr, number: int) -> Expr:
        """Whether a key has the digits that were known in launch `number`."""
        if number % DIGITS == 0:
            return tirx.const(True)
        known = _bits(self._shift(number) + DIGIT)
        return (key >> known) == (prefix >> known)

    def _belongs(self, i: Expr, key: Expr, known: Known) -> Expr:
        """Whether a token goes into the histogram; ties at k's cut are added afterwards."""
        here = tirx.all(inside(i, self.given.vocab), self._begins(key, known.prefix, self.number))
        return tirx.all(here, key > known.cut) if self.number >= DIGITS else here

    def _add_piece(self, total: Buffer, digits: Buffer, weights: Buffer) -> None:
        """What of a piece falls into this thread's bin."""
        thread = v.cast_f32(tirx.Cast("int32", self.thread))
        with T.serial(0, BINS // g.VECTOR) as j:
            found, weight = (
                g.elements(T.bind(v.load(x, j * g.VECTOR, lanes=g.VECTOR)), g.VECTOR)
                for x in (digits, weights)
            )
            for lane in range(g.VECTOR):
                share = tirx.Select(found[lane] == thread, weight[lane], v.const(0.0))
                v.put(total[0] + share, total, 0)

    def _histogram(self, before: Buffer, parts: int, known: Known) -> Expr:
        """This thread's bin, of all parts."""
        before_this = self.number - 1
        total = g.registers(1)
        v.put(v.const(0.0), total, 0)
        with T.serial(0, parts) as part:
            v.put(total[0] + before[part, self.thread], total, 0)
        if before_this < DIGITS:
            return total[0]
        digit = (known.cut >> _bits(self._shift(before_this))) & _bits(BINS - 1)
        here = tirx.all(
            tirx.Cast("int32", digit) == tirx.Cast("int32", self.thread),
            self._begins(known.cut, known.prefix, before_this),
        )
        ties = known.ties * self.given.weight(value_of(known.cut), known.peak)
        return total[0] + tirx.Select(here, ties, v.const(0.0))

    def _peak(self, before: Buffer, parts: int, scratch: Buffer) -> Expr:
        """The largest logit, from those of all parts."""
        at = before[parts + PEAKS, tirx.min(self.thread, parts - 1)]
        largest = T.bind(g.block_max(at, self.thread, BINS, scratch))
        g.barrier()
        return largest

    def _sum_from_above(self, mine: Expr, sums: Buffer) -> None:
        """sums[bin]: all bins from it on (Hillis and Steele 1986)."""
        v.put(mine, sums, self.thread)
        g.barrier()
        step = 1
        while step < BINS:
            other = sums[tirx.min(self.thread + step, BINS - 1)]
            more = tirx.Select(self.thread + step < BINS, other, v.const(0.0))
            total = T.bind(sums[self.thread] + more)
            g.barrier()
            v.put(total, sums, self.thread)
            g.barrier()
            step *= 2

    def _needed(self, known: Known, sums: Buffer) -> Expr:
        """How much must lie at or above the cut."""
        if self.number - 1 != DIGITS:
            return known.need
        share = self.given.top_p[0]
        return tirx.Select(share >= v.const(1.0), v.const(ENOUGH), share * sums[0])

    def _digit(self, mine: Expr, sums: Buffer, need: Expr, scratch: Buffer) -> Expr:
        """The last bin with enough from it on; if rounding leaves none, the first with any."""
        thread = v.cast_f32(tirx.Cast("int32", self.thread))
        first = tirx.Select(mine > v.const(0.0), v.const(BINS - 1.0) - thread, v.const(-1.0))
        mark = tirx.Select(sums[self.thread] >= need, thread + v.const(float(HIT)), first)
        best = T.bind(g.block_max(mark, self.thread, BINS, scratch))
        hit = best >= v.const(float(HIT))
        found = tirx.Select(hit, best - v.const(float(HIT)), v.const(BINS - 1.0) - best)
        return tirx.Cast("int32", found)


def _bits(value: int) -> Expr:
    return tirx.const(value, "uint32")


def _halves(key: Expr) -> tuple[Expr, Expr]:
    """Two numbers that float32 holds exactly: bits as floats could be zeros or NaNs."""
    parts = (key >> _bits(HALF), key & _bits(2**HALF - 1))
    high, low = (v.cast_f32(tirx.Cast("int32", part)) for part in parts)
    return high, low


def _joined(high: Expr, low: Expr) -> Expr:
    parts = [tirx.Cast("uint32", tirx.Cast("int32", x)) for x in (high, low)]
    return (parts[0] << _bits(HALF)) | parts[1]
