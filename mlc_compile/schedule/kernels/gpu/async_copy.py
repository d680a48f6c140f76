"""Copies from global to shared memory that go on while a thread computes: PTX's cp.async (sm_80).

What a thread begins to copy until it ends a group arrives together. Nobody may touch the place
before the block has waited for it.
"""

from typing import Final

from tvm.script import tirx as script
from tvm.tirx.script import builder as T

from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.vector import Buffer, Expr

BYTES: Final = 16  # of a copy; both of its ends begin at a multiple


def copy(source: g.Place, to: Buffer, at: Expr) -> None:
    """Begin to copy `BYTES` from `source` to an element of shared memory."""
    buffer, index = source
    ends = T.address_of(to[at]), T.address_of(buffer[index])
    T.evaluate(script.ptx["cp.async.cg.shared.global"](*ends, BYTES))


def end_group() -> None:
    """What the thread began to copy since the last time is a group, if it is nothing too."""
    T.evaluate(script.ptx["cp.async.commit_group"]())


def wait(groups: int = 0) -> None:
    """For all groups of all threads of the block, but the last `groups` of each."""
    T.evaluate(script.ptx["cp.async.wait_group"](groups))
    g.barrier()
