"""The graph before and after the passes, short enough to read: repeated layers told once."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from mlc_compile.report.calls import Call
from mlc_compile.report.schema import Operator, Stretch

T = TypeVar("T")


def written(calls: Iterable[Call]) -> int:
    """Bytes of intermediates that the calls write."""
    return sum(call.written_bytes for call in calls if not call.is_result)


def told(calls: Iterable[Call]) -> tuple[Stretch, ...]:
    """The calls with what repeats told once."""
    operators = [
        Operator(
            name=call.name,
            weights=tuple(dict.fromkeys(w.family for w in call.weights)),
            written_bytes=call.written_bytes,
        )
        for call in calls
    ]
    return tuple(Stretch(times=n, operators=tuple(ops)) for n, ops in fold(operators))


def fold(items: Sequence[T]) -> list[tuple[int, Sequence[T]]]:
    """`a b c b c d` -> `1 x a, 2 x (b c), 1 x d`: the longest repetition, and what is around it."""
    start, period, times = _repetition(items)
    if times < 2:
        return [(1, items)] if items else []
    end = start + period * times
    pieces = [(1, items[:start]), (times, items[start : start + period]), (1, items[end:])]
    return [(n, piece) for n, piece in pieces if piece]


def _repetition(items: Sequence[T]) -> tuple[int, int, int]:
    """(start, period, times) of the repetition that covers most; of equals the shortest period."""
    best, covered = (0, 0, 0), 0
    for period in range(1, len(items) // 2 + 1):
        start = 0
        for i in range(period, len(items) + 1):
            if i < len(items) and items[i] == items[i - period]:
                continue
            times = (i - start) // period
            if times > 1 and times * period > covered:
                best, covered = (start, period, times), times * period
            start = i - period + 1
    return best
