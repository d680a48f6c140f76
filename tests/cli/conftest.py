"""Commands with a cache of their own, run from a copy of the package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    """A copy of the package that runs in its place: nobody edits its code, which is in the keys."""
    root = Path(__file__).parents[2]
    copy = tmp_path_factory.mktemp("package")
    for name in ("mlc_compile", "configs"):
        shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="session")
def run(package, cli):
    """`run(cache, "build", ...)`: a command with that cache."""

    def command(cache, *arguments, env=os.environ, cwd=package):
        path = {"PYTHONPATH": str(package), "MLC_COMPILE_CACHE": str(cache)}
        return cli(*arguments, env={**env, **path}, cwd=cwd)

    return command


@pytest.fixture
def manage(here):
    """`manage(cache, "stats", ...)`: `cache stats` of that cache, in this process."""

    def command(cache, *arguments, env=os.environ, cwd=None):
        return here("cache", *arguments, env={**env, "MLC_COMPILE_CACHE": str(cache)}, cwd=cwd)

    return command


@pytest.fixture(scope="session")
def first(run, once, nano_checkpoint):
    """A cache, and the output of the build that filled it: to be read, or copied."""

    def fill(base):
        ran = run(base / "cache", "build", nano_checkpoint, "-o", base / "out")
        assert ran.code == 0, ran.err

    base = once("first", fill)
    return base / "cache", base / "out"


@pytest.fixture(scope="session")
def loaded(package, tmp_path_factory):
    """`loaded("build", ...)`: its exit code, and what it imported of all that is slow to import."""
    cwd = tmp_path_factory.mktemp("loaded")

    def command(*arguments):
        code = (
            "import sys\nfrom mlc_compile.cli.app import invoke\n"
            f"code = invoke({[*map(str, arguments), '-q']!r})\n"
            "print(code, sorted({'tvm', 'tvm_ffi', 'transformers', 'torch'} & set(sys.modules)))"
        )
        env = {**os.environ, "PYTHONPATH": str(package)}
        words = [sys.executable, "-c", code]
        ran = subprocess.run(words, env=env, cwd=cwd, capture_output=True, text=True, check=True)
        return ran.stdout.splitlines()[-1]

    return command
