"""The rounds of bench_rivals.py: who is measured when, and what they answered."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

from bench_contenders import Answer, Contender, Failed, Setting
from bench_table import Figures, Run, Turn, left_out

Readers = Mapping[str, Callable[[int], float]]  # by name: number of threads -> bytes a second


@dataclass(frozen=True, slots=True)
class Match:
    """Who is measured at one setting, in how many rounds. The first are ours."""

    setting: Setting
    contenders: tuple[Contender, ...]
    rounds: int


@dataclass(frozen=True, slots=True)
class Head:
    """What a run is about; the fields are those of `Run`."""

    model: str
    machine: str
    ours: str


@dataclass(slots=True)
class Session:
    """A run as it grows: `play` adds rounds, `run` is what there is so far."""

    head: Head
    matches: Sequence[Match]
    readers: Readers
    left_out: dict[str, str]  # by contender: why
    turns: list[Turn] = field(default_factory=list)
    answers: dict[str, list[Answer]] = field(default_factory=dict)  # by contender

    def play(self, rounds: int, minutes: float | None, keep: Callable[[Run], None]) -> None:
        """Play `rounds` rounds, or as many as probably end within `minutes`; `keep` after each.

        Raises Failed if one of ours fails. A rival that does is left out from then on.
        """
        begin, longest = monotonic(), 0.0
        for number in range(rounds):
            start = monotonic()
            if minutes and number and start - begin + longest > 60 * minutes:
                print(f"{number} of {rounds} rounds fit into the time", file=sys.stderr)
                return
            for match in self.matches:
                if number < match.rounds:
                    self.turns.append(self._turn(match, number))
            seconds = monotonic() - start
            longest = max(longest, seconds)
            print(f"round {number + 1} of {rounds}: {seconds:.0f} s", file=sys.stderr)
            keep(self.run())

    def read_more(self, pairs: int) -> None:
        """Read the memory until each reader did so `pairs` times with each number of threads."""
        last = max(turn.round for turn in self.turns)
        for threads in dict.fromkeys(turn.threads for turn in self.turns):
            done = sum(bool(turn.reads) for turn in self.turns if turn.threads == threads)
            if done < pairs:
                reads = self._read(threads, pairs - done)
                self.turns.append(Turn(last, threads, {}, reads))

    def run(self) -> Run:
        """What was measured so far."""
        read = [answer.bytes_per_token for answer in self.answers[self.head.ours]]
        return Run(
            model=self.head.model,
            machine=self.head.machine,
            ours=self.head.ours,
            weights_bytes={name: all_[0].weights_bytes for name, all_ in self.answers.items()},
            bytes_per_token={column: n for one in read for column, n in one.items()},
            left_out=self.left_out,
            turns=self.turns,
        )

    def _turn(self, match: Match, number: int) -> Turn:
        """Everyone once; the memory is read right before our first runs."""
        order = match.contenders if number % 2 == 0 else tuple(reversed(match.contenders))
        figures: dict[str, Figures] = {}
        reads: dict[str, list[float]] = {}
        for contender in order:
            if contender.name == self.head.ours:
                reads = self._read(match.setting.threads, 1)
            if contender.name in self.left_out:  # it has failed
                continue
            answer = self._ask(contender, match.setting)
            if answer is not None:
                figures[contender.name] = answer.figures
                self.answers.setdefault(contender.name, []).append(answer)
        return Turn(number, match.setting.threads, figures, reads)

    def _ask(self, contender: Contender, setting: Setting) -> Answer | None:
        try:
            return contender.run(setting)
        except Failed as e:
            if contender.is_ours:
                raise
            leave_out(self.left_out, contender.name, e)
            return None

    def _read(self, threads: int, times: int) -> dict[str, list[float]]:
        """By turns, so that all readers meet the same machine."""
        reads: dict[str, list[float]] = {name: [] for name in self.readers}
        for _ in range(times):
            for name, read in self.readers.items():
                reads[name].append(read(threads))
        return reads


def leave_out(missing: dict[str, str], name: str, why: object) -> None:
    """Note and say on stderr that something is not measured."""
    missing[name] = str(why)
    print(left_out(name, str(why)), file=sys.stderr)
