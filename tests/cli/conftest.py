"""Commands with a cache of their own, run from a copy of the package."""

import os
import shutil
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
