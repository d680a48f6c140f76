"""One artifact for Arm CPUs with the dot product and with matrix products, built from here."""

import platform

import numpy as np
import pytest

from mlc_compile.artifact import Manifest, read_manifest
from mlc_compile.target import find_target

pytest.importorskip("ziglang", reason="needs zig: pip install 'mlc_compile[cross]'")
lief = pytest.importorskip("lief", reason="needs lief: pip install 'mlc_compile[cross]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the other machine is this one"),
]

TARGET = "cpu-aarch64-dotprod+i8mm"
DOTPROD, I8MM = (row.library for row in find_target(TARGET).libraries)

# Instructions on vectors of 16 bytes: the bits that their registers leave, and those bits.
# Arm Architecture Reference Manual for A-profile, C7.2: SDOT (vector, by element), SMMLA.
SDOT = (0xFFE0FC00, 0x4E809400), (0xFFC0F400, 0x4F80E000)
SMMLA = ((0xFFE0FC00, 0x4E80A400),)


@pytest.fixture(scope="module")
def artifact(cli, nano_checkpoint, tmp_path_factory):
    out = tmp_path_factory.mktemp("arm")
    ran = cli("build", nano_checkpoint, "-t", TARGET, "-o", out)
    assert ran.code == 0, ran.err
    (manifest,) = out.glob(f"*/{TARGET}/manifest.json")
    return manifest.parent


def has(path, kinds):
    """Whether a library's code has an instruction of `kinds`."""
    code = bytes(lief.parse(str(path)).get_section(".text").content)
    words = np.frombuffer(code[: len(code) // 4 * 4], "<u4")
    return any(((words & mask) == bits).any() for mask, bits in kinds)


def test_a_cpu_loads_the_best_library_that_it_has_the_features_for(artifact):
    listed = read_manifest(artifact, Manifest).libraries
    assert [(one.path, one.priority) for one in listed] == [(DOTPROD, 0), (I8MM, 1)]
    assert "i8mm" in set(listed[1].requires) - set(listed[0].requires)


def test_only_the_better_one_multiplies_matrices_and_both_decode_alike(artifact):
    assert has(artifact / I8MM, SMMLA)
    assert not has(artifact / DOTPROD, SMMLA)
    assert has(artifact / I8MM, SDOT)
    assert has(artifact / DOTPROD, SDOT)


def test_they_are_not_said_to_have_run_here(artifact):
    assert read_manifest(artifact, Manifest).check.status == "not run"
