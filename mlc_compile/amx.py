"""Leave to use AMX's tile registers, which Linux gives to a process that asks.

Without it the first tile instruction ends the process with SIGILL. It holds for all threads,
and over fork; a program that exec starts has to ask again. Source: "Using XSTATE features in
user space applications", Documentation/arch/x86/xstate.rst of the kernel.
"""

import ctypes
import platform
from functools import cache
from typing import Final

ARCH_PRCTL: Final = 158  # the system call's number on x86-64
REQUEST: Final = 0x1023  # ARCH_REQ_XCOMP_PERM
TILE_DATA: Final = 18  # XFEATURE_XTILEDATA


@cache
def tiles_granted() -> bool:
    """Ask, once a process. False where the CPU has no tiles, or the kernel does not give them."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return False
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    return bool(call(*map(ctypes.c_long, (ARCH_PRCTL, REQUEST, TILE_DATA))) == 0)
