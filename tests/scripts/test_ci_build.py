"""scripts/ci_build.sh: a matrix over one cache, a locked second time, a bundle between machines."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "ci_build.sh"


@pytest.fixture(scope="module")
def ci(tmp_path_factory, nano_checkpoint):
    """`ci("-t", "cpu")`: run it on the nano checkpoint, over one cache unless another is named."""
    home = tmp_path_factory.mktemp("ci")
    command = f"{sys.executable} -m mlc_compile"

    def run(*options, cache="cache", out="dist"):
        shared = ["-c", str(home / cache), "-o", str(home / out)]
        return subprocess.run(
            [SCRIPT, *shared, *map(str, options), nano_checkpoint],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "MLC_COMPILE": command, "PYTHON": sys.executable},
        )

    run.home = home
    return run


def outcomes(ran):
    """Target -> what was said of it."""
    rows = [line.split("\t") for line in ran.stdout.splitlines()]
    return {Path(row[0]).name: row[1:] for row in rows}


def test_the_second_time_everything_is_there(ci):
    first = ci("-t", "cpu,cpu-x86-64-v2")
    assert first.returncode == 0, first.stderr
    assert set(outcomes(first)) == {"cpu", "cpu-x86-64-v2"}
    assert all("library built" in told for told in outcomes(first).values())
    again = ci("-l", "-t", "cpu,cpu-x86-64-v2", out="elsewhere")
    assert again.returncode == 0, again.stderr
    for told in outcomes(again).values():
        assert told[:-1] == ["weights cached", "library cached", "packed cached", "proof cached"]
        assert told[-1] == "pass"


def test_locked_fails_on_what_was_never_built_and_builds_the_rest(ci):
    assert ci("-t", "cpu").returncode == 0
    ran = ci("-l", "-t", "cpu-x86-64-v3", "-t", "cpu")
    assert ran.returncode == 6
    assert "cpu-x86-64-v3: failed with exit code 6" in ran.stderr
    assert set(outcomes(ran)) == {"cpu"}


def test_a_bundle_carries_the_cache_to_another_machine(ci):
    bundle = ci.home / "bundle"
    assert ci("-t", "cpu", "-e", bundle).returncode == 0
    fresh = ci("-l", "-t", "cpu", "-i", bundle, cache="other", out="other-dist")
    assert fresh.returncode == 0, fresh.stderr
    assert "library cached" in outcomes(fresh)["cpu"]


def test_a_lock_file_is_written_kept_and_obeyed(ci):
    lock = ci.home / "mlc-compile.lock"
    assert ci("-t", "cpu,cpu-x86-64-v2", "-f", lock).returncode == 0
    text = lock.read_text()
    assert text.count('"target": "cpu') == 2
    assert ci("-l", "-t", "cpu", "-f", lock).returncode == 0
    assert lock.read_text() == text
    lock.write_text(text.replace('"limits.context": "512"', '"limits.context": "99"'))
    ran = ci("-t", "cpu", "-f", lock)
    assert ran.returncode == 6
    assert "decisions.limits.context: locked 99, here 512" in ran.stderr
    assert ci("-u", "-t", "cpu,cpu-x86-64-v2", "-f", lock).returncode == 0
    assert lock.read_text() == text


def stood_in(directory, *words, code=1):
    """Run it where `mlc-compile` only exits with `code`; and the models that it was asked for."""
    program = directory / "mlc-compile"
    program.write_text(f'#!/bin/sh\necho "$2" >>asked\nexit {code}\n')
    program.chmod(0o755)
    (directory / "asked").write_text("")
    ran = subprocess.run(
        [SCRIPT, "-t", "cpu", *words],
        cwd=directory,
        env=os.environ | {"MLC_COMPILE": str(program), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran, (directory / "asked").read_text().splitlines()


def test_an_interrupt_ends_it_and_starts_no_other_build(tmp_path):
    ran, asked = stood_in(tmp_path, "one", "two", code=130)
    assert (ran.returncode, asked) == (130, ["one"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a/m", "b/m"], "a/m and b/m are both called m"),
        (["demo", "a/tiny-qwen3"], "demo and a/tiny-qwen3 are both called tiny-qwen3"),
        (["a/m", "models--org--m/snapshots/1"], "are both called m"),
        (["-e", "none/bundle", "a/m"], "none, where the bundle goes, is no directory"),
    ],
)
def test_what_would_be_lost_is_refused_before_anything_is_built(tmp_path, words, said):
    ran, asked = stood_in(tmp_path, *words)
    assert (ran.returncode, asked) == (2, [])
    assert said in ran.stderr
    assert "\n hint: " in ran.stderr


def test_one_model_under_two_paths_is_no_clash(tmp_path):
    _, asked = stood_in(tmp_path, "a/m", "a/../a/m/")
    assert asked == ["a/m", "a/../a/m/"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "no target given"),
        (["-t"], "-t needs a value"),
        (["-z"], "unknown option -z"),
        (["-t", "cpu", "model", "-l"], "options go before MODEL: -l"),
        (["-c", "", "-t", "cpu", "model"], "-c must be a directory, got ''"),
    ],
)
def test_misuse_is_told_with_the_usage(options, said):
    ran = subprocess.run([SCRIPT, *options], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert "usage: ci_build.sh" in ran.stderr
