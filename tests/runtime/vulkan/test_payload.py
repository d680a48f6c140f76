"""The payload as the emitter writes it is read; what is damaged is said to be."""

import struct

import pytest

from mlc_compile.errors import DamageError
from mlc_compile.runtime.vulkan.payload import Kernel, read_payload

CODE = struct.pack("<5I", 0x07230203, 0x00010300, 0, 1, 0)
KERNELS = (
    Kernel("add", ((3, 64, 1), (0, 64, 1)), ("blockIdx.x", "threadIdx.x"), CODE, False),
    Kernel("scale", ((3, 64, 1),), (), CODE * 2, True),
)


def test_kernels_come_back(write_payload) -> None:
    assert read_payload(write_payload(*KERNELS)) == KERNELS


@pytest.mark.parametrize("cut", [0, 4, 20, 60, -1])
def test_a_payload_that_is_cut_off_is_damaged(write_payload, cut: int) -> None:
    with pytest.raises(DamageError, match="cannot be read"):
        read_payload(write_payload(*KERNELS)[:cut])


def test_bytes_after_the_end_are_damage(write_payload) -> None:
    with pytest.raises(DamageError, match="cannot be read"):
        read_payload(write_payload(*KERNELS) + b"\0")


def test_another_format_is_named(write_payload) -> None:
    with pytest.raises(DamageError, match="'metalx'"):
        read_payload(write_payload(*KERNELS).replace(b"vulkan", b"metalx"))
