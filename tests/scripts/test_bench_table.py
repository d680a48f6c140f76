"""scripts/bench_table.py: runs of several models and depths in one page, from recorded JSON."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"


@pytest.fixture
def table(monkeypatch):
    """The module."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_table

    return bench_table


def make_run(table, model, *turns, **more):
    """A run in which ours and one rival decode; `turns` are (column, threads, ours, theirs)."""
    played = [
        table.Turn(number, threads, {"ours": {column: a}, "rival": {column: b}}, {"bench": [20e9]})
        for number, (column, threads, a, b) in enumerate(turns)
    ]
    fields = {
        "machine": "a CPU, 2 cores",
        "ours": "ours",
        "weights_bytes": {"ours": 320 << 20, "rival": 326 << 20},
        "bytes_per_token": {column: 10**8 for column, *_ in turns},
        "left_out": {},
    }
    return table.Run(model=model, turns=played, **{**fields, **more})


def test_a_run_survives_its_file(table):
    run = make_run(table, "m", ("tg8 t1", 1, 90.0, 60.0), left_out={"x": "it is not here"})
    assert table.Run.from_json(run.to_json()) == run


def test_ratios_pair_the_figures_of_one_turn_and_skip_turns_that_lack_one(table):
    run = make_run(table, "m", ("tg8 t1", 1, 90.0, 60.0), ("tg8 t1", 1, 10.0, 20.0))
    alone = table.Turn(2, 1, {"ours": {"tg8 t1": 5.0}}, {})
    assert table.ratios(
        table.Run(**{**fields(run), "turns": [*run.turns, alone]}), "rival", "tg8 t1"
    ) == [
        1.5,
        0.5,
    ]
    assert table.ratios(run, "rival", "tg8 t2") == []


def test_runs_of_one_model_are_joined_and_those_of_another_are_not(table):
    shallow = make_run(table, "small", ("tg8 t1", 1, 90.0, 60.0))
    deep = make_run(table, "small", ("tg8 d64 t1", 1, 80.0, 20.0))
    again = make_run(table, "small", ("tg8 t1", 1, 90.0, 30.0))
    large = make_run(table, "large", ("tg8 t1", 1, 30.0, 20.0))
    small, other = table.join([shallow, large, deep, again])
    assert other == large
    assert small.columns == ["tg8 t1", "tg8 d64 t1"]
    assert table.ratios(small, "rival", "tg8 t1") == [1.5, 3.0]


def test_an_engine_that_one_run_measured_is_not_left_out_of_the_page(table):
    sizes = {"ours": 1, "llama.cpp q4": 1}
    shallow = make_run(table, "m", left_out={"OpenVINO": "a"}, weights_bytes=sizes)
    deep = make_run(table, "m", left_out={"llama.cpp": "b", "llama.cpp q8": "c"})
    (both,) = table.join([shallow, deep])
    assert both.left_out == {"OpenVINO": "a", "llama.cpp q8": "c"}
    assert "- OpenVINO is left out: a." in table.markdown([both])


def test_the_share_is_of_the_faster_reader_in_the_same_turn(table):
    figures = {"ours": {"tg8 t1": 100.0}}
    turns = [
        table.Turn(0, 1, figures, {"bench": [10e9], "C": [20e9]}),
        table.Turn(1, 1, figures, {"bench": [30e9], "C": [40e9]}),
        table.Turn(1, 2, {}, {"bench": [99e9], "C": [1e9]}),  # other threads, another matter
    ]
    run = table.Run(**{**fields(make_run(table, "m", ("tg8 t1", 1, 1.0, 1.0))), "turns": turns})
    assert table.shares(run, "tg8 t1") == [0.5, 0.25]  # 100 tok/s of 0.1 GB


def fields(run):
    return {name: getattr(run, name) for name in run.__dataclass_fields__}


def test_the_page_has_each_model_with_its_rows(table, tmp_path):
    files = []
    for model in ("small", "large"):
        files.append(tmp_path / f"{model}.json")
        files[-1].write_text(make_run(table, model, ("tg8 t1", 1, 90.0, 60.0)).to_json())
    made = subprocess.run(
        [sys.executable, SCRIPTS / "bench_table.py", *files],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = made.stdout.splitlines()
    assert [line for line in lines if line.endswith("a CPU, 2 cores")] == [
        "small, on a CPU, 2 cores",
        "large, on a CPU, 2 cores",
    ]
    assert lines.count("| rival | 326 | 1.50 |") == 2
    assert lines.count("| tg8 t1 | 100 | 45% |") == 2  # 9 GB/s of 20
    assert lines.count("- memory, 1 thread: bench 20.0 GB/s (20.0 to 20.0, 1 times)") == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no such file or directory"),
        ("{", "is not a run of bench_rivals.py"),
        ("[]", "is not a run of bench_rivals.py"),
        ('{"turns": []}', "is not a run of bench_rivals.py"),
    ],
)
def test_what_is_no_run_is_told_in_a_sentence(tmp_path, text, said):
    if text is not None:
        (tmp_path / "x.json").write_text(text)
    command = [sys.executable, SCRIPTS / "bench_table.py", tmp_path / "x.json"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 2
    assert said in made.stderr
    assert len(made.stderr.splitlines()) == 1
