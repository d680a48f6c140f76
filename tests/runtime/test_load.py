"""What is refused before the library is touched, in which words, with which exit code."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from mlc_compile.artifact import Library, Manifest, Versions, read_manifest
from mlc_compile.errors import ConfigError, DamageError, TargetError
from mlc_compile.runtime.load import check_artifact, loadable_libraries

Change = Callable[..., Path]


def test_a_sound_artifact_is_accepted(toy_artifact: Path) -> None:
    assert check_artifact(toy_artifact).library.path == "lib.so"


def test_a_missing_cpu_feature_is_named(change: Change) -> None:
    directory = change(libraries=(Library(path="lib.so", requires=("avx9000", "sse2")),))
    with pytest.raises(TargetError, match="this CPU lacks avx9000") as e:
        check_artifact(directory)
    assert "--target cpu" in e.value.hint


def test_the_best_library_that_this_cpu_can_run_is_chosen(change: Change) -> None:
    libraries = (
        Library(path="plain.so", requires=(), priority=0),
        Library(path="lib.so", requires=(), priority=1),
        Library(path="future.so", requires=("avx9000",), priority=2),
    )
    directory = change(libraries=libraries)
    assert check_artifact(directory).library.path == "lib.so"
    able = loadable_libraries(read_manifest(directory, Manifest))
    assert [library.path for library in able] == ["lib.so", "plain.so"]


@pytest.mark.parametrize(
    ("triple", "said"),
    [
        ("riscv64-unknown-linux-gnu", "for riscv64 Linux"),
        ("x86_64-pc-windows-gnu", "for x86_64 Windows"),
        ("aarch64-linux-android", "for aarch64 Android"),
    ],
)
def test_another_machine_is_named(change: Change, triple: str, said: str) -> None:
    with pytest.raises(TargetError, match=said):
        check_artifact(change(triple=triple))


def test_what_a_browser_runs_is_not_sent_to_another_target(change: Change) -> None:
    with pytest.raises(TargetError, match="cannot run here") as e:
        check_artifact(change(triple="wasm32-unknown-unknown-wasm", backend="webgpu"))
    assert "mlc-compile web" in e.value.hint


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({"tvm": "0.26.0"}, "built by apache-tvm 0.26.0"),
        ({"tvm_ffi": "0.1.15"}, "built by apache-tvm-ffi 0.1.15"),
    ],
)
def test_another_tvm_is_named(
    toy_artifact: Path, change: Change, versions: dict[str, str], said: str
) -> None:
    built: Versions = read_manifest(toy_artifact, Manifest).versions
    with pytest.raises(TargetError, match=said):
        check_artifact(change(versions=msgspec.structs.replace(built, **versions)))


def test_a_library_without_weights_tells_how_to_get_them(change: Change) -> None:
    with pytest.raises(ConfigError, match="without weights") as e:
        check_artifact(change(weights_digest=None))
    assert "mlc-compile build" in e.value.hint


@pytest.mark.parametrize("name", ["weights.bin", "lib.so"])
def test_a_truncated_file_is_damage(toy_artifact: Path, name: str) -> None:
    path = toy_artifact / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamageError, match=f"{name} must have .* bytes, but has"):
        check_artifact(toy_artifact)


def test_missing_weights_are_damage(toy_artifact: Path) -> None:
    (toy_artifact / "weights.bin").unlink()
    with pytest.raises(DamageError, match=r"weights\.bin must have .* but is missing"):
        check_artifact(toy_artifact)


def test_an_edited_plan_is_damage(toy_artifact: Path, change: Change) -> None:
    plan = read_manifest(toy_artifact, Manifest).plan
    shorter = msgspec.structs.replace(plan, tensors=plan.tensors[:1])
    with pytest.raises(DamageError, match="digest"):
        check_artifact(change(plan=shorter))


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"offset": 4}, id="not aligned"),
        pytest.param({"offset": 1 << 20}, id="beyond the file"),
        pytest.param({"shape": (1, 8)}, id="shape against bytes"),
    ],
)
def test_a_plan_that_contradicts_itself_is_damage(
    toy_artifact: Path, change: Change, wrong: dict[str, object]
) -> None:
    plan = read_manifest(toy_artifact, Manifest).plan
    first = plan.tensors[0]
    part = msgspec.structs.replace(first.parts[0], **wrong)
    tensors = (msgspec.structs.replace(first, parts=(part,)), *plan.tensors[1:])
    plan = msgspec.structs.replace(plan, tensors=tensors)
    with pytest.raises(DamageError, match="contradicts itself"):
        check_artifact(change(plan=plan, plan_digest=plan.digest()))


def test_a_checkpoint_is_not_an_artifact(nano_checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="must be an artifact, but holds a model checkpoint"):
        check_artifact(nano_checkpoint)
