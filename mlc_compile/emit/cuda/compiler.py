"""What every compiler of CUDA source is and how it refuses: nvcc and NVRTC share this page.

Both make one fat binary: machine code for each architecture, and PTX of the newest, which
a driver compiles for architectures that came later. Options, for both:

no fast math   it would round sin, cos and exp to some 20 bits and flush subnormals: rotary
               angles grow with the position, and we promise the CPU's logits within a bound
fmad           stays on, as by default: one rounding less in every multiply-add
c++17          what TVM writes its source in; older toolkits would assume less
-Xptxas -v     the compiler tells what each kernel takes; it does not change the code
no line info   it would write the path of the source into the library
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from mlc_compile.emit.cuda.resources import Resources
from mlc_compile.errors import MlcError, TargetError, last_line, near_matches

SOURCE: Final = "kernels.cu"  # compilers write the name into what they make
PIP_HINT: Final = (
    "pip install 'mlc_compile[cuda]' brings NVRTC, which needs no toolkit; "
    "or install a CUDA toolkit and name it in CUDA_HOME"
)

# The first release that compiles for an architecture: its release notes.
FIRST_RELEASE: Final[Mapping[str, tuple[int, int]]] = {
    "sm_80": (11, 0),
    "sm_86": (11, 1),
    "sm_89": (11, 8),
    "sm_90": (11, 8),
    "sm_100": (12, 8),
    "sm_120": (12, 8),
}


@dataclass(frozen=True, slots=True)
class Fatbin:
    """Code for every architecture, and what each kernel takes of each."""

    code: bytes
    resources: tuple[Resources, ...]


class CudaCompiler(Protocol):
    """What compiles; `name`, version included, goes into the manifest."""

    @property
    def name(self) -> str:
        """Such as "nvcc 13.0.88"."""
        ...

    def missing(self, archs: Sequence[str]) -> MlcError | None:
        """Why it cannot compile for `archs` here, if so."""
        ...

    def compile(self, source: str, archs: Sequence[str]) -> Fatbin:
        """Compile CUDA source; TargetError with the compiler's words if it fails.

        A full disk is an OSError, as where we write ourselves.
        """
        ...

    def programs(self) -> Mapping[str, Path]:
        """The files that decide what it makes, by name, but for those of wheels."""
        ...


def unknown_arch(
    name: str, release: tuple[int, int], known: Sequence[str], archs: Sequence[str]
) -> TargetError | None:
    """The first of `archs` that a compiler does not list, told with the release it needs."""
    absent = next((arch for arch in archs if arch not in known), None)
    if absent is None:
        return None
    first = FIRST_RELEASE.get(absent, (0, 0))
    if release < first:
        needed = ".".join(map(str, first))
        return TargetError(
            f"{name} cannot compile for {absent}: CUDA {needed} or later is needed",
            hint=PIP_HINT,
        )
    return TargetError(f"{name} knows no architecture {absent!r}", hint=near_matches(absent, known))


def first_error(said: str, otherwise: str) -> str:
    """The first error that a compiler told, else its last line, else `otherwise`."""
    errors = (line.strip() for line in said.splitlines() if re.search(r"\b(error|fatal)\b", line))
    return next(errors, "") or last_line(said, otherwise)
