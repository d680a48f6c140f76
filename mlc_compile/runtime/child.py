"""How a process of one of our modules is started: its command, and the environment it gets."""

import os
import sys
from pathlib import Path
from typing import Final

PACKAGES: Final = Path(__file__).parents[2]  # where our package lies


def command(module: str, *arguments: str) -> list[str]:
    """Run `module` with this interpreter."""
    # -P: a file in the directory where we are called must not stand in for a module.
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(**more: str) -> dict[str, str]:
    """Ours, with the package that runs here found first, wherever it was imported from."""
    paths = [str(PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | more
