"""A Vulkan artifact, its library as it was linked, on this machine's device."""

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlc_compile.bench.agreement import compare
from mlc_compile.bench.verify import BOUNDS
from mlc_compile.runtime.engine import Engine, open_engine
from mlc_compile.runtime.vulkan.buffers import Buffer
from mlc_compile.runtime.vulkan.failure import VulkanFailure, no_room
from mlc_compile.runtime.vulkan.loader import Gpu
from mlc_compile.runtime.vulkan.machine import Machine

pytestmark = pytest.mark.vulkan

Cli = Callable[..., object]
Build = Callable[[Path], Path]
PROMPT = "The quick brown"
TOKENS = 16  # decoded after a prompt


@pytest.fixture(scope="session")
def build_vulkan(gpu: Gpu, cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """`build_vulkan(checkpoint)`: its artifact for Vulkan, INT4 weights; once a session."""

    @functools.cache
    def build(checkpoint: Path) -> Path:
        out = tmp_path_factory.mktemp("vulkan")
        ran = cli("build", checkpoint, "--target", "vulkan", "-o", out)
        assert ran.code == 0, ran.err
        return out / f"{checkpoint.name}-q4f16_1" / "vulkan"

    return build


@pytest.fixture(scope="session")
def artifact(build_vulkan: Build, nano_checkpoint: Path) -> Path:
    """The nano checkpoint for Vulkan."""
    return build_vulkan(nano_checkpoint)


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


@pytest.mark.parametrize("model", ["nano", pytest.param("tiny", marks=pytest.mark.slow)])
def test_a_prompt_and_tokens_after_it_are_as_on_the_cpu(
    request: pytest.FixtureRequest,
    build_vulkan: Build,
    build_model: Callable[..., Path],
    golden: Callable[[str], Any],
    model: str,
) -> None:
    """Both get the CPU's tokens, whatever Vulkan would have said (teacher forcing).

    Logits may be off by the proof's share of the largest, so a token may be another one only
    where the CPU puts it within twice that of its best.
    """
    checkpoint = request.getfixturevalue(f"{model}_checkpoint")
    exact = build_model(checkpoint, "q4f16_1", "--activations", "float32")
    ours, theirs = open_engine(build_vulkan(checkpoint)), open_engine(exact)
    prompt = golden(model).prompts[65].ids.tolist()
    tokens, expected = greedy_rows(theirs, prompt)
    got = np.stack([np.array(ours.prefill(prompt)), *(np.array(ours.decode(t)) for t in tokens)])
    bound = BOUNDS["float16"] * float(np.abs(expected).max())
    assert np.abs(got - expected).max() <= bound
    chosen = np.take_along_axis(expected, got.argmax(axis=1)[:, None], axis=1)[:, 0]
    assert (chosen >= expected.max(axis=1) - 2 * bound).all()
    agreement = compare(got, expected, bound)
    assert agreement.same == agreement.decided >= TOKENS // 2  # or ties would be all there is


def greedy_rows(engine: Engine, prompt: list[int]) -> tuple[list[int], np.ndarray]:
    """The TOKENS likeliest tokens after a prompt, and the logits before each and after the last."""
    tokens: list[int] = []
    rows = [np.array(engine.prefill(prompt))]
    for _ in range(TOKENS):
        tokens.append(int(rows[-1].argmax()))
        rows.append(np.array(engine.decode(tokens[-1])))
    return tokens, np.stack(rows)


def test_a_seed_gives_a_text_again(cli: Cli, artifact: Path) -> None:
    asked = ["--prompt", PROMPT, "--temperature", "0.9", "--seed", "7", "--max-tokens", "12"]
    first, again = (cli("run", artifact, *asked) for _ in "ab")
    assert first.code == 0, first.err
    assert first.out == again.out


def test_a_model_that_does_not_fit_is_one_clear_error(
    artifact: Path, installed_machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = installed_machine.heap.create
    installed_machine.wait()
    for spare in installed_machine.heap.take_kept():  # of earlier tests, large enough perhaps
        installed_machine.heap.destroy(spare)

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
