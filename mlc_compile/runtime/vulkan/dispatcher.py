"""Run one shader on numpy arrays, without TVM: for tests and measurements."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc_compile.runtime.vulkan.machine import Machine, the_machine
from mlc_compile.runtime.vulkan.pipelines import Pipeline
from mlc_compile.runtime.vulkan.transfers import address_of


class Dispatcher:
    """Shaders by their code, compiled once; errors as for `loader.open_gpu`."""

    def __init__(self, machine: Machine | None = None) -> None:
        self.machine = the_machine() if machine is None else machine
        self._pipelines: dict[tuple[bytes, str, int, int, bool], Pipeline] = {}

    def run(
        self,
        code: bytes,
        entry: str,
        arrays: Sequence[npt.NDArray[Any]],
        pods: Sequence[np.generic] = (),
        grid: tuple[int, int, int] = (1, 1, 1),
        uniform_block: bool = False,
    ) -> None:
        """Launch `grid` blocks on `arrays`, C-contiguous, which are written back in place.

        `pods` are numpy scalars of at most 8 bytes: `np.int32(3)`.
        """
        machine = self.machine
        key = (code, entry, len(arrays), len(pods), uniform_block)
        if key not in self._pipelines:
            self._pipelines[key] = machine.pipelines.create(*key)
        for array in arrays:
            assert array.flags.c_contiguous, "a shader sees rows one after another"
        handles = [machine.allocate(array.nbytes) for array in arrays]
        for handle, array in zip(handles, arrays, strict=True):
            machine.write(handle, 0, address_of(array), array.nbytes)
        packed = machine.gpu.vk.ffi.from_buffer(b"".join(_packed(pod) for pod in pods))
        machine.launch(self._pipelines[key], tuple(handles), packed, grid)
        for handle, array in zip(handles, arrays, strict=True):
            machine.read(handle, 0, address_of(array), array.nbytes)
            machine.free(handle)


def _packed(pod: np.generic) -> bytes:
    return pod.tobytes().ljust(8, b"\0")
