"""What runs of bench_rivals.py recorded, as Markdown: speeds, ratios, the share of the memory.

    python scripts/bench_table.py qwen3-0.6b.json qwen3-1.7b.json > all.md

Runs of one model are joined: their rounds count together, their columns stand side by side.
"""

import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

try:
    from mlc_compile.bench.paired import CONFIDENCE, median_interval
except ModuleNotFoundError as e:
    sys.exit(
        f"error: {e.name} is not installed for {sys.executable}\n"
        " hint: use the environment that has mlc_compile: PYTHON=.venv/bin/python"
    )

Figures = dict[str, float]  # "pp512 t2" -> tok/s


@dataclass(frozen=True, slots=True)
class Turn:
    """Every contender measured once, one after the other, with one number of threads."""

    round: int
    threads: int
    figures: Mapping[str, Figures]  # by contender
    reads: Mapping[str, Sequence[float]]  # by reader: bytes a second, measured in this turn


@dataclass(frozen=True, slots=True)
class Run:
    """One run of bench_rivals.py, as its JSON file has it."""

    model: str
    machine: str
    ours: str  # the contender that the others are compared with
    weights_bytes: Mapping[str, int]  # by contender, in the order of the table
    bytes_per_token: Mapping[str, int]  # what ours reads for a token, by column of decoding
    left_out: Mapping[str, str]  # by contender or engine: why it was not measured (any more)
    turns: Sequence[Turn]

    def to_json(self) -> str:
        """Indented; what can be worked out of the turns is not in it."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Run":
        """The inverse; KeyError, TypeError or ValueError for what is no such file."""
        raw = json.loads(text)
        return cls(**{**raw, "turns": [Turn(**turn) for turn in raw["turns"]]})

    @property
    def columns(self) -> list[str]:
        """All that was measured, in the order of the turns."""
        of_turns = (figures for turn in self.turns for figures in turn.figures.values())
        return list(dict.fromkeys(column for figures in of_turns for column in figures))


def main() -> int:
    """Print the tables of the runs in the files named; the exit code."""
    if len(sys.argv) < 2 or sys.argv[1] in {"-h", "--help"}:
        print(f"usage: {Path(sys.argv[0]).name} RUN.json...", file=sys.stderr)
        return 0 if len(sys.argv) > 1 else 2
    runs = []
    for name in sys.argv[1:]:
        try:
            runs.append(Run.from_json(Path(name).read_text()))
        except OSError as e:
            print(f"error: {name}: {(e.strerror or str(e)).lower()}", file=sys.stderr)
            return 2
        except (KeyError, TypeError, ValueError):
            print(f"error: {name} is not a run of bench_rivals.py", file=sys.stderr)
            return 2
    print("\n".join(markdown(join(runs))))
    return 0


def join(runs: Iterable[Run]) -> list[Run]:
    """One run for each model and artifact of ours, in the order of their first."""
    joined: dict[tuple[str, str], Run] = {}
    for run in runs:
        before = joined.get((run.model, run.ours))
        joined[run.model, run.ours] = run if before is None else _both(before, run)
    return list(joined.values())


def _both(a: Run, b: Run) -> Run:
    """An engine that one of them measured is not left out of both."""
    weights = {**a.weights_bytes, **b.weights_bytes}
    missing = {**a.left_out, **b.left_out}
    for engine in {name.partition(" ")[0] for name in weights}:
        missing.pop(engine, None)
    return Run(
        model=a.model,
        machine=a.machine,
        ours=a.ours,
        weights_bytes=weights,
        bytes_per_token={**a.bytes_per_token, **b.bytes_per_token},
        left_out=missing,
        turns=[*a.turns, *b.turns],
    )


def ratios(run: Run, rival: str, column: str) -> list[float]:
    """Our speed over theirs, a ratio for each turn in which both were measured."""
    pairs = ((t.figures.get(run.ours, {}), t.figures.get(rival, {})) for t in run.turns)
    return [
        ours[column] / theirs[column]
        for ours, theirs in pairs
        if column in ours and column in theirs
    ]


def speeds(run: Run, contender: str, column: str) -> list[float]:
    """Tokens a second, turn by turn."""
    figures = (turn.figures.get(contender, {}) for turn in run.turns)
    return [one[column] for one in figures if column in one]


def readings(run: Run) -> dict[int, dict[str, list[float]]]:
    """Bytes a second by number of threads and reader, all turns together."""
    table: dict[int, dict[str, list[float]]] = {}
    for turn in run.turns:
        for reader, values in turn.reads.items():
            table.setdefault(turn.threads, {}).setdefault(reader, []).extend(values)
    return table


def shares(run: Run, column: str) -> list[float]:
    """Which part of the memory's speed our decoding reaches, turn by turn.

    The speed is what the faster reader (by its median over all turns) read in that turn.
    """
    found, table = [], readings(run)
    for turn in run.turns:
        speed = turn.figures.get(run.ours, {}).get(column)
        if speed is None or not turn.reads:
            continue
        fastest = _fastest(table[turn.threads])
        if turn.reads.get(fastest):
            memory = statistics.median(turn.reads[fastest])
            found.append(speed * run.bytes_per_token[column] / memory)
    return found


def _fastest(readers: Mapping[str, Sequence[float]]) -> str:
    return max(readers, key=lambda reader: statistics.median(readers[reader]))


def markdown(runs: Sequence[Run]) -> Iterator[str]:
    """Lines: for each model its speeds, ratios and share of the memory; then what they mean."""
    for run in runs:
        yield from (f"{run.model}, on {run.machine}", "")
        yield from (*_speed_table(run), "", *_ratio_table(run))
        yield from _share_table(run)
        yield from (f"- {left_out(name, why)}" for name, why in run.left_out.items())
        if run.left_out:
            yield ""
    yield _legend(runs)


def _speed_table(run: Run) -> Iterator[str]:
    def cell(contender: str, column: str) -> str:
        values = speeds(run, contender, column)
        return _speed(statistics.median(values)) if values else ""

    rows = [
        [name, _mebibytes(nbytes), *(cell(name, column) for column in run.columns)]
        for name, nbytes in run.weights_bytes.items()
    ]
    return table(["tok/s", "weights MiB", *run.columns], rows)


def _ratio_table(run: Run) -> Iterator[str]:
    def cell(rival: str, column: str) -> str:
        values = ratios(run, rival, column)
        return _median(values, ".2f") if values else ""

    rows = [
        [name, _mebibytes(nbytes), *(cell(name, column) for column in run.columns)]
        for name, nbytes in run.weights_bytes.items()
        if name != run.ours
    ]
    if rows:
        yield from (*table(["ours / theirs", "weights MiB", *run.columns], rows), "")


def _share_table(run: Run) -> Iterator[str]:
    rows = [
        [column, f"{run.bytes_per_token[column] / 1e6:.0f}", _median(found, ".0%")]
        for column in run.bytes_per_token
        if (found := shares(run, column))
    ]
    if not rows:
        return
    yield from (*table(["we decode", "MB a token", "of the memory's speed"], rows), "")
    for threads, readers in sorted(readings(run).items()):
        told = (f"{name} {_readings(values)}" for name, values in readers.items())
        yield f"- memory, {threads} thread{'s' * (threads > 1)}: {'; '.join(told)}"
    yield ""


def _readings(values: Sequence[float]) -> str:
    low, median, high = (v / 1e9 for v in (min(values), statistics.median(values), max(values)))
    return f"{median:.1f} GB/s ({low:.1f} to {high:.1f}, {len(values)} times)"


def left_out(name: str, why: str) -> str:
    """The sentence about what is not measured."""
    return f"{name} is left out: {why}."


def _legend(runs: Sequence[Run]) -> str:
    rounds = len({turn.round for run in runs for turn in run.turns})
    if rounds == 1:
        return "One round."
    return (
        f"Medians of {rounds} interleaved rounds; a ratio is the median of the rounds' own. In "
        f"parentheses its {CONFIDENCE:.0%} confidence interval, or in brackets the least and the "
        "largest, where the rounds are too few for one."
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A Markdown table, line by line."""
    for cells in (heads, ["---"] * len(heads), *rows):
        yield "| " + " | ".join(cells) + " |"


def _median(values: Sequence[float], form: str) -> str:
    """`2.44 (2.40 to 2.51)`, `2.44 [2.31 to 2.60]`, or of one value itself."""
    median, interval = format(statistics.median(values), form), median_interval(values)
    if len(values) == 1:
        return median
    low, high = (format(v, form) for v in interval or (min(values), max(values)))
    return f"{median} ({low} to {high})" if interval else f"{median} [{low} to {high}]"


def _speed(tok_s: float) -> str:
    return f"{tok_s:.0f}" if tok_s >= 100 else f"{tok_s:.3g}"


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes / 2**20:.0f}"


if __name__ == "__main__":
    sys.exit(main())
