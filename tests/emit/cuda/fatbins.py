"""Fat binaries that no compiler made: the layout, with anything for code."""

import struct

from mlc_compile.emit.cuda.compiler import Fatbin
from mlc_compile.emit.cuda.fatbin import MACHINE_CODE, MAGIC, PTX
from mlc_compile.emit.cuda.resources import Resources, arch_number


def entry(kind, number, code=b"code"):
    """One entry: a header of 64 bytes, as nvcc's, and its code."""
    return struct.pack("<HHIQ12xI32x", kind, 0x101, 64, len(code), number) + code


def fatbin(*entries):
    """A fat binary of entries."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", MAGIC, 1, 16, len(body)) + body


def whole(archs, kernels, code=b"code"):
    """What a compiler gives that did all it was asked for."""
    numbers = [arch_number(arch) for arch in archs]
    machine = (entry(MACHINE_CODE, number, code) for number in numbers)
    taken = (
        Resources(
            kernel=kernel,
            arch=arch,
            threads=128,
            registers=32,
            shared_bytes=0,
            local_bytes=0,
            spill_store_bytes=0,
            spill_load_bytes=0,
            occupancy=1.0,
        )
        for kernel in kernels
        for arch in archs
    )
    return Fatbin(fatbin(*machine, entry(PTX, max(numbers))), tuple(taken))
