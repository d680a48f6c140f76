"""Agreement of two engines: what is compared, and what counts as different."""

import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mlc_compile.artifact import Limits
from mlc_compile.bench.agreement import Agreement, Difference, compare, compare_engines
from mlc_compile.bench.child import Failure
from mlc_compile.runtime.engine import Engine

VOCAB = 11
SHARE = 0.01


class Table:
    """Logits that depend on a token and its position; `off` is added where tokens are decoded."""

    def __init__(self, off: float = 0.0) -> None:
        self.table = np.random.default_rng(4).standard_normal((64, VOCAB, VOCAB))
        self.off = off

    def score(self, ids, position):
        return self.table[np.arange(position, position + len(ids)), ids].astype(np.float32)

    def prefill(self, ids, position):
        return self.score(ids, position)[-1]

    def decode(self, token, position):
        return self.score([token], position)[0] + np.float32(self.off)


def engine(off: float = 0.0, context: int = 32) -> Engine:
    return Engine(Table(off), Limits(context=context, prefill_chunk=5), VOCAB)


def rows(*lines: tuple[float, ...]) -> np.ndarray:
    return np.array(lines, np.float32)


def test_a_model_agrees_with_itself_on_the_prompt_and_what_the_cpu_adds() -> None:
    got = compare_engines(engine(), engine(), [1, 2, 3], SHARE, tokens=8)
    assert (got.tokens, got.agree) == (11, True)
    assert got.prompt == got.decode
    assert got.prompt.max_abs_error == 0
    assert 0 < got.prompt.same == got.prompt.decided <= 11


def test_the_bound_is_the_share_of_the_largest_logit_of_the_cpu() -> None:
    got = compare_engines(engine(), engine(), [1, 2, 3], SHARE, tokens=0)
    largest = np.abs(Table().score([1, 2, 3], 0)).max()
    assert got.bound == pytest.approx(SHARE * largest, rel=1e-6)


def test_kernels_of_decoding_alone_can_be_at_fault() -> None:
    got = compare_engines(engine(off=0.5), engine(), [1, 2, 3], SHARE, tokens=8)
    assert not got.agree
    assert got.prompt.max_abs_error == 0
    assert got.decode.max_abs_error == pytest.approx(0.5, rel=1e-6)


def test_the_shorter_context_ends_the_text() -> None:
    got = compare_engines(engine(context=6), engine(), [1, 2, 3], SHARE, tokens=8)
    assert (got.tokens, got.agree) == (6, True)
    assert compare_engines(engine(context=2), engine(), [1, 2, 3], SHARE).tokens == 2


def test_a_token_counts_only_where_the_best_leads_by_more_than_both_may_be_off() -> None:
    expected = rows((0.0, 1.0), (0.0, 0.15), (3.0, 0.0))
    got = rows((0.0, 0.95), (0.1, 0.05), (3.0, 0.0))
    assert compare(got, expected, 0.1) == Difference(
        max_abs_error=pytest.approx(0.1), decided=2, same=2
    )


def test_another_token_where_it_is_decided_is_a_difference_within_any_bound() -> None:
    found = compare(rows((1.0, 0.0)), rows((0.0, 1.0)), 0.1)
    assert (found.decided, found.same) == (1, 0)
    assert not found.within(2.0)
    assert Difference(max_abs_error=0.1, decided=1, same=1).within(0.1)
    assert not Difference(max_abs_error=0.2, decided=1, same=1).within(0.1)


def run(*artifacts: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "mlc_compile.bench.agreement", *map(str, artifacts)]
    return subprocess.run(command, capture_output=True, check=False)


def test_two_libraries_of_one_checkpoint_agree(build_nano: object, nano_artifact: Path) -> None:
    other = build_nano("q4f16_1", "--activations", "float32")
    ran = run(other, nano_artifact)
    assert ran.returncode == 0, ran.stderr
    got = msgspec.json.decode(ran.stdout, type=Agreement)
    assert got.agree
    assert got.tokens > 128
    assert got.copy_bytes_s is not None
    assert got.copy_bytes_s > 0


def test_artifacts_of_two_schemes_are_refused(build_nano: object, nano_artifact: Path) -> None:
    ran = run(build_nano("q0f32"), nano_artifact)
    assert ran.returncode == 2
    said = msgspec.json.decode(ran.stderr.splitlines()[-1], type=Failure)
    assert said.error.endswith("are not of one model and scheme")
    assert "--target" in said.hint


def test_one_artifact_alone_is_refused(nano_artifact: Path) -> None:
    ran = run(nano_artifact)
    assert ran.returncode == 2
    assert b"two artifacts are needed" in ran.stderr


def test_bandwidth_counts_what_is_read_and_what_is_written() -> None:
    code = (
        "from mlc_compile.runtime.vm import start_tvm; start_tvm()\n"
        "from mlc_compile.bench import device_bandwidth as d\n"
        "times = iter([0, 9, 10, 12, 20, 24])\n"
        "d.perf_counter = lambda: next(times)\n"
        "print(d.copy_bandwidth('cpu', 1000, repeats=2))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == 2 * 1000 / 2
