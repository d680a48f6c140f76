"""One launch that each thread prepares for and all share, with any number of threads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("threads", [1, 2])
def test_every_task_runs_once_after_its_thread_s_preparation(threads):
    program = Path(__file__).with_name("every_thread.py")
    env = {**os.environ, "TVM_NUM_THREADS": str(threads)}
    ran = subprocess.run(
        [sys.executable, program], env=env, capture_output=True, text=True, check=True
    )
    told = json.loads(ran.stdout)
    assert told["threads"] == min(threads, os.cpu_count() or 1)
    assert set(told["wrong"].values()) == {0}
