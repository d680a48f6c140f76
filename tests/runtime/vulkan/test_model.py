"""A Vulkan artifact, its library as it was linked, on this machine's device."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mlc_compile.runtime.engine import open_engine
from mlc_compile.runtime.vulkan.buffers import Buffer
from mlc_compile.runtime.vulkan.failure import VulkanFailure, no_room
from mlc_compile.runtime.vulkan.loader import Gpu
from mlc_compile.runtime.vulkan.machine import Machine

pytestmark = pytest.mark.vulkan

Cli = Callable[..., object]
PROMPT = "The quick brown"


@pytest.fixture(scope="session")
def artifact(
    gpu: Gpu, cli: Cli, nano_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The nano checkpoint for Vulkan, INT4 weights."""
    out = tmp_path_factory.mktemp("vulkan")
    ran = cli("build", nano_checkpoint, "--target", "vulkan", "-o", out)
    assert ran.code == 0, ran.err
    return out / f"{nano_checkpoint.name}-q4f16_1" / "vulkan"


def test_the_proof_is_replayed_on_the_device(cli: Cli, artifact: Path) -> None:
    ran = cli("verify", artifact, "--json")
    assert ran.code == 0, ran.err
    outcome = {check["name"]: check["status"] for check in ran.json["findings"]}
    assert outcome["proof"] == "pass"


def test_the_text_is_that_of_the_cpu(cli: Cli, artifact: Path, build_nano: Callable) -> None:
    """Same INT4 weights and exact activations; a random text would leave it at the first token."""
    cpu = build_nano("q4f16_1", "--activations", "float32")
    asked = ["--prompt", PROMPT, "--temperature", "0", "--max-tokens", "24"]
    ours, theirs = (cli("run", path, *asked) for path in (artifact, cpu))
    assert ours.code == theirs.code == 0, ours.err + theirs.err
    assert ours.out == theirs.out


def test_a_seed_gives_a_text_again(cli: Cli, artifact: Path) -> None:
    asked = ["--prompt", PROMPT, "--temperature", "0.9", "--seed", "7", "--max-tokens", "12"]
    first, again = (cli("run", artifact, *asked) for _ in "ab")
    assert first.code == 0, first.err
    assert first.out == again.out


def test_a_model_that_does_not_fit_is_one_clear_error(
    artifact: Path, installed_machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = installed_machine.heap.create

    def small(nbytes: int, wishes: tuple[int, ...]) -> Buffer:
        if nbytes > 50_000:
            raise no_room(nbytes, "a small GPU", MemoryError())
        return create(nbytes, wishes)

    monkeypatch.setattr(installed_machine.heap, "create", small)
    with pytest.raises(VulkanFailure, match="a small GPU has no room for a buffer"):
        open_engine(artifact)
    monkeypatch.undo()
    assert np.isfinite(open_engine(artifact).prefill([1, 2, 3])).all()  # and the next one works


def test_two_artifacts_run_side_by_side(artifact: Path, installed_machine: Machine) -> None:
    first, second = open_engine(artifact), open_engine(artifact)
    alone = first.prefill([1, 2, 3])
    second.prefill([4, 5])
    np.testing.assert_array_equal(first.decode(6), _after(artifact, [1, 2, 3], 6))
    first.rewind()
    np.testing.assert_array_equal(first.prefill([1, 2, 3]), alone)


def _after(artifact: Path, ids: list[int], token: int) -> np.ndarray:
    engine = open_engine(artifact)
    engine.prefill(ids)
    return engine.decode(token)


def test_without_a_driver_run_says_what_is_missing(
    cli: Cli, artifact: Path, tmp_path: Path
) -> None:
    nowhere = str(tmp_path / "none.json")
    env = os.environ | {"VK_ICD_FILENAMES": nowhere, "VK_DRIVER_FILES": nowhere}
    ran = cli("run", artifact, "--prompt", PROMPT, env=env)
    assert ran.code == 4
    assert "needs a vulkan device" in ran.err
    assert "apt-get install libvulkan1 mesa-vulkan-drivers" in ran.err


def test_without_a_driver_verify_runs_the_rest(cli: Cli, artifact: Path, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "none.json")
    env = os.environ | {"VK_ICD_FILENAMES": nowhere, "VK_DRIVER_FILES": nowhere}
    ran = cli("verify", artifact, "--json", env=env)
    told = {check["name"]: check for check in json.loads(ran.out)["findings"]}
    assert told["proof"]["status"] == "not run"
    assert "Vulkan" in told["proof"]["detail"]
