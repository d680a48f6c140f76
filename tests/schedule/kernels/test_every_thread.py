"""What each thread of the pool does once, with any number of threads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def told_by(program, threads):
    """What a program of this directory says that it found, with so many threads."""
    env = {**os.environ, "TVM_NUM_THREADS": str(threads)}
    command = [sys.executable, Path(__file__).with_name(program)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


@pytest.mark.parametrize("threads", [1, 2])
def test_every_task_runs_once_after_its_thread_s_preparation(threads):
    told = told_by("every_thread.py", threads)
    assert told["threads"] == min(threads, os.cpu_count() or 1)
    assert set(told["wrong"].values()) == {0}


@pytest.mark.parametrize("threads", [1, 2])
def test_shares_have_everything_once_and_are_as_even_as_they_can_be(threads):
    """As many as threads, or as there is to share; one after the other."""
    told = told_by("thread_shares.py", threads)
    assert told["pool"] == min(threads, os.cpu_count() or 1)
    for one in told["found"]:
        shares = one["shares"]
        assert sum(shares) == one["count"], one
        assert len(shares) == min(one["threads"], one["count"]), one
        assert max(shares) - min(shares) <= 1, one
