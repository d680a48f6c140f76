"""A fat binary is taken only if all is in it that was asked for."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlc_compile.emit.cuda.fatbin import MACHINE_CODE, PTX, check, entries
from mlc_compile.errors import TargetError
from tests.emit.cuda.fatbins import entry, fatbin, whole

ARCHS = ("sm_80", "sm_100")
KERNELS = ("one", "two")
WHOLE = whole(ARCHS, KERNELS)


def refusal(made):
    with pytest.raises(TargetError) as error:
        check("nvcc 1.0", made, ARCHS, KERNELS)
    assert error.value.exit_code == 4
    assert error.value.hint
    return str(error.value).removeprefix("nvcc 1.0 ended without an error, but ")


def test_all_that_was_asked_for_is_enough_in_any_order():
    check("nvcc 1.0", WHOLE, ARCHS, KERNELS)
    assert entries(WHOLE.code) == ((MACHINE_CODE, 80), (MACHINE_CODE, 100), (PTX, 100))
    turned = fatbin(entry(PTX, 100), entry(MACHINE_CODE, 100), entry(MACHINE_CODE, 80))
    check("nvcc 1.0", replace(WHOLE, code=turned), ARCHS, KERNELS)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (b"", "what it wrote is no fat binary: it is too short"),
        (b"garbage, and more of it", "what it wrote is no fat binary: its header is not one"),
        (WHOLE.code[:-1], "what it wrote is no fat binary: its header is not one"),
        (WHOLE.code + b"\0", "what it wrote is no fat binary: its header is not one"),
        (fatbin(entry(MACHINE_CODE, 80)[:20]), "no fat binary: its last entry is cut off"),
        (fatbin(entry(MACHINE_CODE, 80, b"")), "no fat binary: an entry is empty or cut off"),
        (fatbin(entry(MACHINE_CODE, 80)[:-1]), "no fat binary: an entry is empty or cut off"),
        (fatbin(), "it wrote no machine code for sm_80, sm_100"),
        (fatbin(entry(MACHINE_CODE, 80), entry(PTX, 100)), "it wrote no machine code for sm_100"),
        (
            fatbin(entry(MACHINE_CODE, 80), entry(MACHINE_CODE, 100), entry(PTX, 80)),
            "it wrote no PTX of sm_100",
        ),
    ],
)
def test_code_that_is_not_whole_is_refused(code, fault):
    assert refusal(replace(WHOLE, code=code)).endswith(fault)


def test_a_kernel_of_which_nothing_is_told_is_named_with_its_architecture():
    silent = replace(WHOLE, resources=WHOLE.resources[:-1])
    assert refusal(silent) == "it does not tell what is taken by two on sm_100"
    assert refusal(replace(WHOLE, resources=())).endswith("one on sm_100, two on sm_80 and 1 more")


@given(st.binary(max_size=200))
def test_whatever_the_bytes_are_they_are_read_or_refused(body):
    try:
        found = entries(fatbin(body))
    except ValueError:
        return
    assert len(found) <= len(body) // 32
