"""The compiled library, called through TVM over mapped weights."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlc_compile.errors import ConfigError, DamageError
from mlc_compile.runtime.engine import Engine, open_engine
from mlc_compile.runtime.load import check_artifact
from mlc_compile.runtime.sampler import GREEDY, Sampler, Sampling
from mlc_compile.runtime.vm import CompiledModel, map_weights, start_tvm

IDS = [3, 39, 0, 7, 7, 12, 25]  # a chunk of five and one of two


def expected_logits(directory: Path) -> np.ndarray:
    raw = np.fromfile(directory / "weights.bin", np.float32)
    table, head = raw[: 40 * 8].reshape(40, 8), raw[40 * 8 :].reshape(8, 40)
    return table[IDS] @ head


def test_prefill_decode_and_score_give_the_models_logits(toy_artifact: Path) -> None:
    engine = open_engine(toy_artifact)
    expected = expected_logits(toy_artifact)
    np.testing.assert_allclose(np.concatenate(list(engine.score(IDS))), expected, atol=1e-5)
    engine.rewind()
    np.testing.assert_allclose(engine.prefill(IDS[:6]), expected[5], atol=1e-5)
    np.testing.assert_allclose(engine.decode(IDS[6]), expected[6], atol=1e-5)


def test_a_library_for_the_host_chooses_nothing(toy_artifact: Path) -> None:
    start_tvm()
    assert not CompiledModel(check_artifact(toy_artifact)).chooses


@pytest.fixture
def choosing(toy_artifact: Path, choosing_library: Path) -> CompiledModel:
    """The toy with functions that choose a token."""
    start_tvm()
    loadable = check_artifact(toy_artifact)  # before it gets a library of another size
    (toy_artifact / "lib.so").write_bytes(choosing_library.read_bytes())
    return CompiledModel(loadable)


def test_greedily_the_library_chooses_the_largest(
    choosing: CompiledModel, toy_artifact: Path
) -> None:
    assert choosing.chooses
    best = expected_logits(toy_artifact).argmax(axis=1)
    got = [choosing.next_token(token, i, Sampler(GREEDY)) for i, token in enumerate(IDS)]
    assert got == best.tolist()


def test_the_library_samples_by_the_samplers_settings_and_random_stream(
    choosing: CompiledModel,
) -> None:
    for sampling in (Sampling(0.5, 3, 0.75, seed=4), Sampling(2.0, 0, 0.25, seed=5)):
        sampler, random = Sampler(sampling), np.random.default_rng(sampling.seed)
        got = [choosing.next_token(1, i, sampler) for i in range(3)]
        fixed = sampling.temperature + 10 * sampling.top_k + 100 * sampling.top_p
        expected = [1000 * (fixed + random.random()) for _ in range(3)]
        np.testing.assert_allclose(got, expected, atol=1.1)  # the toy cuts to whole numbers


def test_logits_outlive_the_next_call(toy_artifact: Path) -> None:
    engine = open_engine(toy_artifact)
    first = engine.prefill(IDS[:1])
    before = first.copy()
    for token in range(10):
        engine.decode(token)
    np.testing.assert_array_equal(first, before)


def test_weights_are_the_mapped_file_and_not_a_copy(toy_artifact: Path) -> None:
    start_tvm()
    manifest = check_artifact(toy_artifact).manifest
    table, _ = map_weights(toy_artifact, manifest)
    address = np.from_dlpack(table).ctypes.data
    with open("/proc/self/maps") as maps:
        spans = [line.split()[0].split("-") for line in maps if "toy/weights.bin" in line]
    assert any(int(a, 16) <= address < int(b, 16) for a, b in spans)


def test_a_library_that_is_none_is_damage(toy_artifact: Path) -> None:
    library = toy_artifact / "lib.so"
    library.write_bytes(bytes(library.stat().st_size))
    start_tvm()
    with pytest.raises(DamageError, match=r"lib\.so cannot be loaded"):
        CompiledModel(check_artifact(toy_artifact))


def test_threads_cannot_change_once_tvm_runs() -> None:
    running = start_tvm()
    assert start_tvm(running) == running
    with pytest.raises(ConfigError, match=f"already runs with {running} threads"):
        start_tvm(running + 1)


PROGRAM = """
import os
import sys
from pathlib import Path
from mlc_compile.runtime import host
from mlc_compile.runtime.engine import open_engine
from mlc_compile.runtime.vm import start_tvm
many = os.cpu_count() + 1  # TVM alone never starts more than there are CPUs of the fastest kind
host._allowed_cpus = lambda: frozenset(range(many))
engine = open_engine(Path(sys.argv[1]), many)
engine.prefill([1, 2, 3])
assert start_tvm() == many
assert "torch" not in sys.modules
assert "TVM_USE_RUNTIME_LIB" not in os.environ  # a child process may compile
modules = [m for m in sys.modules if m.startswith(("tvm.relax", "tvm.s_tir", "mlc_compile.driver"))]
assert not modules, modules
maps = Path("/proc/self/maps")
assert not maps.exists() or "libtvm_compiler" not in maps.read_text()
"""


def test_running_loads_no_compiler_and_takes_the_threads_asked_for(toy_artifact: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(toy_artifact)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


def test_engine_accepts_the_compiled_model_as_its_model(toy_artifact: Path) -> None:
    loadable = check_artifact(toy_artifact)
    engine = Engine(CompiledModel(loadable), loadable.manifest.limits, 40)
    assert engine.prefill([1]).shape == (40,)
