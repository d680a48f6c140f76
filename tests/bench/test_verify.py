"""`verify` finds each kind of damage, and the proof is a real comparison."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mlc_compile.artifact import (
    PROOF,
    Activations,
    Check,
    KVDtype,
    Library,
    Manifest,
    describe,
    read_manifest,
    write_manifest,
)
from mlc_compile.bench.verify import (
    ATTENTION,
    BOUNDS,
    PROJECTIONS,
    Rounding,
    Verification,
    allowed_share,
    compare,
    replay_proof,
    summed_up,
    verify,
)
from mlc_compile.errors import ConfigError, DamageError

Edit = Callable[..., Path]


@pytest.fixture
def copy(nano_artifact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(nano_artifact, tmp_path / "copy"))


@pytest.fixture
def edit(copy: Path) -> Edit:
    """Rewrite fields of the copy's manifest; its list of files follows what is on disk."""

    def apply(**fields: object) -> Path:
        manifest = read_manifest(copy, Manifest)
        files = tuple(describe(copy / file.path, file.path) for file in manifest.files)
        write_manifest(copy, msgspec.structs.replace(manifest, **{"files": files, **fields}))
        return copy

    return apply


def status(verification: Verification) -> dict[str, str]:
    return {finding.name: finding.status for finding in verification.findings}


def test_a_fresh_artifact_passes_everything(nano_artifact: Path) -> None:
    got = verify(nano_artifact)
    assert status(got) == {"files": "pass", "versions": "pass", "proof": "pass"}
    assert got.failures == ()


@pytest.mark.parametrize("quant", ["q0f32", "q0f16", "q4f16_1", "q4f32_1"])
def test_the_proof_holds_with_room_for_every_scheme(
    build_nano: Callable[..., Path], quant: str
) -> None:
    check = replay_proof(build_nano(quant))
    assert check.status == "pass"
    # Ten times less than allowed: the bound is not drawn around what we happened to measure.
    assert 0 < check.max_abs_error < check.bound / 10


def test_a_context_shorter_than_the_proof_proves_its_start(
    build_nano: Callable[..., Path],
) -> None:
    artifact = build_nano("q0f32", "--context", "3", "--prefill-chunk", "2")
    assert read_manifest(artifact, Manifest).check.status == "pass"


def test_the_proof_can_be_replayed_in_a_process_of_its_own(nano_artifact: Path) -> None:
    command = [sys.executable, "-m", "mlc_compile.bench.verify", str(nano_artifact)]
    done = subprocess.run(command, capture_output=True, check=True)
    assert msgspec.json.decode(done.stdout, type=Check).status == "pass"


def test_a_process_that_cannot_try_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mlc_compile.bench.verify", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == ConfigError.exit_code
    assert "must be an artifact" in done.stderr


def test_one_flipped_bit_is_found(copy: Path) -> None:
    path = copy / "weights.bin"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    got = verify(copy)
    assert status(got)["weights.bin"] == "fail"
    assert got.check.status == "not run"


def test_a_missing_file_is_found(copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    assert [(f.name, f.detail) for f in verify(copy).failures] == [("tokenizer.json", "is missing")]


def test_other_weights_under_valid_digests_fail_the_proof(copy: Path, edit: Edit) -> None:
    path = copy / "weights.bin"
    content = np.fromfile(path, np.uint8)
    half = content.size // 2
    content[half : half + 4096] = content[half : half + 4096][::-1]
    content.tofile(path)
    got = verify(edit())
    assert status(got) == {"files": "pass", "versions": "pass", "proof": "fail"}


def test_an_artifact_for_another_machine_is_whole_but_not_run(edit: Edit) -> None:
    got = verify(edit(triple="riscv64-unknown-linux-gnu"))
    assert status(got) == {"files": "pass", "versions": "pass", "proof": "not run"}
    assert "riscv64" in got.check.reason
    assert got.failures == ()


def test_a_missing_feature_leaves_the_proof_not_run(edit: Edit, nano_artifact: Path) -> None:
    path = read_manifest(nano_artifact, Manifest).libraries[0].path
    check = replay_proof(edit(libraries=(Library(path=path, requires=("avx9000",)),)))
    assert (check.status, "avx9000" in check.reason) == ("not run", True)


def checked(error: float, bound: float = 1.0) -> Check:
    status = "pass" if error <= bound else "fail"
    return Check(status=status, max_abs_error=error, bound=bound)


def test_the_outcome_of_several_libraries_is_the_worst_of_them() -> None:
    assert summed_up({"a.so": checked(0.5), "b.so": checked(0.7)}, []) == checked(0.7)
    near = checked(0.09, bound=0.1)
    assert summed_up({"a.so": checked(0.5), "b.so": near}, []) == near
    wrong = summed_up({"a.so": checked(0.5), "b.so": checked(3), "c.so": checked(0.9)}, [])
    assert (wrong.status, wrong.max_abs_error) == ("fail", 3)
    assert wrong.reason.startswith("b.so")


def test_a_pass_names_the_libraries_that_it_does_not_speak_for(
    edit: Edit, nano_artifact: Path
) -> None:
    library = read_manifest(nano_artifact, Manifest).libraries[0]
    future = Library(path="future.so", requires=("avx9000",), priority=1)
    got = verify(edit(libraries=(library, future)))
    assert got.check.status == "pass"
    assert got.check.reason == "future.so was not run: this CPU lacks avx9000"
    assert "future.so" in got.findings[-1].detail


def test_a_library_alone_has_no_proof_to_run(edit: Edit) -> None:
    assert replay_proof(edit(weights_digest=None)).status == "not run"


def test_another_tvm_fails(edit: Edit, nano_artifact: Path) -> None:
    versions = read_manifest(nano_artifact, Manifest).versions
    got = verify(edit(versions=msgspec.structs.replace(versions, tvm="0.1")))
    assert [finding.name for finding in got.failures] == ["versions"]


def test_a_proof_that_cannot_be_read_is_damage(copy: Path, edit: Edit) -> None:
    (copy / PROOF).write_bytes(b"not safetensors")
    with pytest.raises(DamageError, match=r"proof\.safetensors cannot be read"):
        replay_proof(edit())


@pytest.mark.parametrize(
    ("error", "expected"), [(0.0, "pass"), (0.9e-3, "pass"), (1.1e-3, "fail"), (np.nan, "fail")]
)
def test_the_bound_is_a_share_of_the_largest_logit(error: float, expected: str) -> None:
    reference = np.array([[1.0, -10.0], [2.0, 3.0]], np.float32)
    got = reference.copy()
    got[1, 1] += error
    assert compare(got, reference, 1e-4).status == expected


def test_logits_of_another_shape_fail() -> None:
    check = compare(np.zeros((2, 3), np.float32), np.ones((2, 4), np.float32), BOUNDS["float32"])
    assert check.status == "fail"
    assert "(2, 4)" in check.reason


@pytest.mark.parametrize("one", [PROJECTIONS, ATTENTION])
def test_what_rounding_may_cost_grows_with_the_root_of_depth(one: Rounding) -> None:
    assert one.share(400) == pytest.approx(2 * one.share(100))


@pytest.mark.parametrize("one", [PROJECTIONS, ATTENTION])
def test_a_wrong_kernel_which_is_off_by_a_share_near_1_is_seen_at_any_depth(one: Rounding) -> None:
    assert one.share(128) < 0.5


@pytest.mark.parametrize(
    ("activations", "dtype", "expected"),
    [
        ("float32", "float32", BOUNDS["float32"]),
        ("float32", "float16", BOUNDS["float16"]),
        ("float32", "int8", ATTENTION.share(6)),
        ("int8", "float16", PROJECTIONS.share(6)),
        ("int8", "int8", PROJECTIONS.share(6)),
    ],
)
def test_the_coarsest_rounding_is_what_counts(
    nano_artifact: Path, activations: Activations, dtype: KVDtype, expected: float
) -> None:
    manifest = read_manifest(nano_artifact, Manifest)
    kv = msgspec.structs.replace(manifest.kv, dtype=dtype, layers=6)
    given = msgspec.structs.replace(manifest, kv=kv, activations=activations)
    assert allowed_share(given) == expected


def test_each_library_is_held_to_its_own_rounding(nano_artifact: Path) -> None:
    manifest = msgspec.structs.replace(read_manifest(nano_artifact, Manifest), activations="int8")
    (library,) = manifest.libraries
    exact = msgspec.structs.replace(library, activations="float32")
    assert allowed_share(manifest, library) == allowed_share(manifest)
    assert allowed_share(manifest, exact) == BOUNDS["float16"] < allowed_share(manifest)
