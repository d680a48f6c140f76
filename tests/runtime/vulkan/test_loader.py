"""Finding a GPU: what is missing is said in a sentence, and what is there is enabled."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlc_compile.errors import TargetError
from mlc_compile.runtime.vulkan import loader

pytestmark = pytest.mark.vulkan

OPEN = "from mlc_compile.runtime.vulkan.loader import describe; print(describe())"


def stand_in(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`import vulkan` finds the one in `directory`, and after the test none or the one before."""
    monkeypatch.syspath_prepend(directory)
    monkeypatch.setitem(sys.modules, "vulkan", None)  # or what was not there would not be undone
    monkeypatch.delitem(sys.modules, "vulkan")


def test_without_the_package_the_hint_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vulkan", None)
    with pytest.raises(TargetError, match="package vulkan is not installed") as caught:
        loader.import_vulkan()
    assert caught.value.hint == "pip install 'mlc_compile[vulkan]'"


def test_without_the_loader_the_hint_names_a_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # What the package does where it finds no libvulkan.
    (tmp_path / "vulkan.py").write_text("raise OSError('Cannot find Vulkan SDK version.')")
    stand_in(tmp_path, monkeypatch)
    with pytest.raises(TargetError, match="no Vulkan loader") as caught:
        loader.import_vulkan()
    assert "mesa-vulkan-drivers" in caught.value.hint


def test_another_package_of_this_name_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "vulkan.py").write_text("")
    stand_in(tmp_path, monkeypatch)
    with pytest.raises(TargetError, match=r"package vulkan is another: .*vulkan\.py") as caught:
        loader.import_vulkan()
    assert caught.value.hint == "pip install 'mlc_compile[vulkan]'"


@pytest.mark.parametrize("told", [None, '{"damaged'])
def test_without_a_driver_that_is_said(gpu: loader.Gpu, tmp_path: Path, told: str | None) -> None:
    path = tmp_path / "icd.json"
    if told is not None:
        path.write_text(told)
    env = os.environ | {"VK_ICD_FILENAMES": str(path), "VK_DRIVER_FILES": str(path)}
    program = (
        "from mlc_compile.errors import TargetError\n"
        "from mlc_compile.runtime.vulkan.loader import open_gpu\n"
        "try: open_gpu()\n"
        "except TargetError as e: print(e, '|', e.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert "no driver" in done.stdout or "no Vulkan device" in done.stdout
    assert "mesa-vulkan-drivers" in done.stdout


def test_opening_says_nothing_on_stderr_and_leaves_the_environment(gpu: loader.Gpu) -> None:
    env = {k: v for k, v in os.environ.items() if k != "XDG_RUNTIME_DIR"}
    program = f"import os; {OPEN}; assert 'XDG_RUNTIME_DIR' not in os.environ"
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert gpu.name in done.stdout


@pytest.mark.parametrize(
    ("kinds", "chosen"),
    [
        (["cpu", "integrated", "discrete"], 2),
        (["cpu", "virtual"], 1),
        (["other", "cpu"], 1),
        (["integrated", "integrated"], 0),
    ],
)
def test_the_fastest_kind_of_device_is_opened(kinds: list[str], chosen: int) -> None:
    assert loader.best(kinds) == chosen


def test_only_one_device_is_opened(gpu: loader.Gpu) -> None:
    assert loader.open_gpu() is gpu


def test_what_the_device_has_is_enabled(gpu: loader.Gpu) -> None:
    """Against what Vulkan reports through its older structures, one for each extension."""
    core = gpu.vk.vkGetPhysicalDeviceFeatures(gpu.physical)
    assert ("Int64" in gpu.capabilities) == bool(core.shaderInt64)
    assert ("Int16" in gpu.capabilities) == bool(core.shaderInt16)
    assert "Shader" in gpu.capabilities
    assert gpu.limits.push_bytes >= 128  # Vulkan's least
    assert gpu.limits.threads >= 128


def test_a_library_for_the_cpu_loads_nothing_of_vulkan() -> None:
    program = (
        "import sys\n"
        "from mlc_compile.runtime.vm import start_tvm\n"
        "from mlc_compile.runtime.device import open_device, raise_failure\n"
        "start_tvm(); open_device('cpu'); raise_failure('cpu')\n"
        "print([m for m in sys.modules if m.startswith(('vulkan', 'mlc_compile.runtime.vulkan'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
