"""What pyproject.toml promises: the pins, and what travels in the wheel."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from mlc_compile.tvm_version import PINS

ROOT = Path(__file__).parent.parent


def test_pip_installs_the_tvm_that_the_gate_accepts():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = {f"{name}=={version}" for name, version in PINS.items()}
    assert pins <= set(project["dependencies"])


def test_the_wheel_carries_presets_and_the_demo_checkpoint(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    presets = {f"mlc_compile/{p.relative_to(ROOT)}" for p in (ROOT / "configs").rglob("*.toml")}
    assert presets
    assert presets <= names
    assert "mlc_compile/data/tiny-qwen3/model.safetensors" in names
    assert not [name for name in names if name.startswith(("tests/", "configs/", "scripts/"))]
