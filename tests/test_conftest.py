"""The rules that conftest.py adds to pytest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SKIPS = """
import pytest

def test_one():
    pytest.skip({reason!r})
"""


@pytest.mark.parametrize(
    ("reason", "ci", "code"),
    [
        pytest.param("needs qemu: apt-get install qemu-user-static", "1", 1, id="apt in CI"),
        pytest.param("needs qemu: apt-get install qemu-user-static", "0", 0, id="apt elsewhere"),
        pytest.param("no CUDA device", "1", 0, id="hardware in CI"),
    ],
)
def test_in_ci_only_a_missing_debian_package_may_not_skip(tmp_path, reason, ci, code):
    file = tmp_path / "test_it.py"
    file.write_text(SKIPS.format(reason=reason))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider"]
    env = os.environ | {"MLC_COMPILE_CI": ci, "PYTHONPATH": str(TESTS)}
    env.pop("PYTEST_XDIST_WORKER", None)
    ran = subprocess.run([*command, str(file)], cwd=tmp_path, env=env, check=False)
    assert ran.returncode == code
