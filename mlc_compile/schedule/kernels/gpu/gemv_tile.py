"""How `gemv` shares its work over a block's threads, by device and shape."""

from dataclasses import dataclass
from typing import Final

from mlc_compile.schedule.kernels.gpu import words as g
from mlc_compile.schedule.kernels.gpu.weights import Codec
from mlc_compile.target import Device

THREADS: Final = 256  # of a block; more would share x further but wait for each other longer
BUSY: Final = 32768  # threads that keep a large GPU's memory system busy
TEAM: Final = 16  # threads along k where sums go through shared memory
BATCH_TEAM: Final = 8  # threads along k for several rows of x: fewer sums to join
ROWS: Final = 4  # the most outputs of a team: registers
HELD: Final = 32  # the most registers that a thread fetches w into: 16 or more warps an SM
STAGE_BYTES: Final = 24576  # of x in shared memory: two blocks or more run side by side


@dataclass(frozen=True, slots=True)
class Tile:
    """How a block shares its work: `teams` teams of `lanes` threads along k, `rows` outputs each.

    `depth` units of each row and thread lie between two barriers.
    """

    lanes: int
    teams: int
    rows: int
    depth: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.lanes * self.teams

    def pitch(self, codec: Codec) -> int:
        """Floats of a row of x between two barriers."""
        return self.depth * self.lanes * slot(codec)

    @classmethod
    def of(
        cls, device: Device, codec: Codec, outputs: int, *, batch: int = 1, per_output: int = 1
    ) -> "Tile":
        """Lanes divide the units of k if they can; rows as many as leave the GPU busy.

        `batch` is the number of rows of x, `per_output` that of rows of w for an output.
        """
        units = codec.k // codec.span
        lanes = _lanes(units, _widest(device, batch))
        teams = max(1, min(THREADS, device.threads) // lanes)
        rows = next(r for r in (ROWS, 2, 1) if r == 1 or outputs * lanes >= r * BUSY)
        rounds = -(-units // lanes)
        budget = min(device.shared_bytes // 2, STAGE_BYTES) // (4 * batch * lanes * slot(codec))
        registers = HELD // (codec.registers * rows * per_output)
        stages = -(-rounds // max(1, min(budget, registers)))
        return cls(lanes, teams, rows, -(-rounds // stages))


def slot(codec: Codec) -> int:
    """Floats from one unit of staged x to the next: padded where vectors would share banks."""
    return codec.span + (g.VECTOR if codec.span > g.VECTOR else 0)


def _lanes(units: int, widest: int) -> int:
    """Threads along k: the widest, or half of it, if that divides the work evenly."""
    even = [lanes for lanes in (widest, widest // 2) if lanes and units % lanes == 0]
    if even:
        return even[0]
    lanes = widest
    while lanes > units:
        lanes //= 2
    return lanes


def _widest(device: Device, batch: int) -> int:
    if batch > 1:
        return BATCH_TEAM
    return device.subgroup if device.subgroup > 1 else TEAM
