"""Which linker turns objects into a library for a target, and how it is called.

The system's C compiler links for this machine; `python -m ziglang` (the `cross` extra)
links for every target, this machine included. Both are asked for output that depends on
the objects alone: no build id, no timestamp, no path.
"""

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlc_compile.emit.link.binary import can_read, read_objects, undefined
from mlc_compile.emit.link.stand_ins import STAND_INS
from mlc_compile.emit.tool import run_tool
from mlc_compile.emit.wasm.abi import FUNCTIONS
from mlc_compile.errors import TargetError
from mlc_compile.target import System, Target, triple_mismatch
from mlc_compile.tvm_version import installed

CROSS_HINT: Final = "pip install 'mlc_compile[cross]' brings zig, which links for every target"
C_COMPILERS: Final = ("cc", "gcc", "clang")
ZIG: Final = (sys.executable, "-m", "ziglang")
ZIG_PROGRAMS: Final = ("zig", "zig.exe")
OLDEST_ZIG: Final = (0, 15)  # older ones refuse /Brepro
NAME: Final = "{name}"  # in a flag: the file name of the library


@dataclass(frozen=True, slots=True)
class Way:
    """How libraries of a system are made: the flags, and what follows the objects."""

    flags: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    tool: str = "cc"  # zig's
    output: tuple[str, ...] = ("-o",)  # before the name of the library


_MACHO: Final = ("-shared", "-Wl,-undefined,dynamic_lookup", f"-Wl,-install_name,@rpath/{NAME}")

# Where undefined functions of TVM come from: on Linux and macOS a library may have such, and
# finds them among what is loaded; Windows and Android want to be told which library has them.
NATIVE: Final[dict[System, Way]] = {
    "linux": Way(("-shared", "-fPIC", "-s", "-Wl,--build-id=none"), ("-lm",)),
    "macos": Way(_MACHO),
}
CROSS: Final[dict[System, Way]] = {
    "linux": Way(("-shared", "-s")),
    "macos": Way((*_MACHO, "-s")),
    "ios": Way(("--format=darwin", "rcsD"), tool="ar", output=()),
    "windows": Way(("-shared", "-s", "-Wl,/Brepro")),  # the hash of the file for its time
    "android": Way(
        # Pages of 16 KiB: what Android 15 asks of native libraries.
        ("-shared", "-nostdlib", "-s", f"-Wl,-soname,{NAME}", "-Wl,-z,max-page-size=16384")
    ),
    "web": Way(
        (
            "-O3",
            "-s",
            "-mexec-model=reactor",  # a library: its constructors run when the page says so
            "-Wl,--import-symbols",  # what nobody has the check of imports names
            "-Wl,--initial-memory=167772160",
            "-Wl,-z,stack-size=8388608",
            *(f"-Wl,--export={name}" for name in FUNCTIONS),
        ),
        tool="c++",
    ),
}

# What zig builds before the first link for a system, and keeps: told before, lest we seem to hang.
FIRST_LINK: Final[dict[System, str]] = {
    "linux": "some seconds",
    "macos": "a quarter of a minute",
    "windows": "a minute",
    "web": "a minute",
}


@dataclass(frozen=True, slots=True)
class Linker:
    """A command that ends before the output, the objects and `libraries`.

    `name` goes into the manifest. `stands_in` is the system that wants files in place of the
    libraries that only it has.
    """

    name: str
    command: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    output: tuple[str, ...] = ("-o",)
    stands_in: System | None = None
    first: str = ""  # what to tell before this may take long; "": it does not
    mark: Path | None = None  # a file that is there once it has linked

    def link(self, objects: Sequence[str], out: Path) -> None:
        """Write the library `out`; TargetError with the linker's words if it fails.

        A full disk is an OSError, as where we write ourselves.
        """
        # A room of its own: some linkers leave more than the library beside it.
        with tempfile.TemporaryDirectory(prefix=".link-", dir=out.absolute().parent) as place:
            room = Path(place)
            command = [
                *(word.replace(NAME, out.name) for word in self.command),
                *self.output,
                out.name,
                *(str(Path(o).absolute()) for o in objects),
                *self._stand_ins(objects, room),
                *self.libraries,
            ]
            run_tool(command, room, out, f"{self.name} could not link {out.name}", CROSS_HINT)
            (room / out.name).replace(out)
        if self.mark is not None:
            with suppress(OSError):  # a cache that cannot be written is told again, no more
                self.mark.parent.mkdir(parents=True, exist_ok=True)
                self.mark.touch()

    def slow_start(self) -> str:
        """What to tell before the first link, which takes long; "" once there was one."""
        return "" if self.mark is None or self.mark.exists() else self.first

    def _stand_ins(self, objects: Sequence[str], room: Path) -> list[str]:
        if self.stands_in is None:
            return []
        asked = undefined(read_objects(objects))
        return STAND_INS[self.stands_in](ZIG, asked, room)


def find_linker(target: Target) -> Linker:
    """The first linker that can do `target` on this machine.

    TargetError if there is none, if zig is too old or not whole, or if what it makes for
    another machine could not be checked.
    """
    for candidate in (_system_compiler, _zig):
        linker = candidate(target)
        if linker is not None:
            return linker
    need = "a C compiler or zig" if is_native(target) else "zig"
    raise TargetError(f"no linker for {target.name}: {need} is needed", hint=CROSS_HINT)


def is_native(target: Target) -> bool:
    """Whether the target's libraries have the format and instruction set of this machine."""
    return triple_mismatch(target.triple) is None


def zig_program() -> Path | None:
    """The program inside the `ziglang` package, None where one of both is not here."""
    spec = importlib.util.find_spec("ziglang")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    paths = (Path(place) / name for place in places for name in ZIG_PROGRAMS)
    return next((path for path in paths if path.is_file() and os.access(path, os.X_OK)), None)


def zig_version() -> tuple[int, ...] | None:
    """The installed zig's version, None where there is none."""
    found = installed("ziglang")
    if found is None or importlib.util.find_spec("ziglang") is None:
        return None
    digits = (part for part in found.split(".")[:3] if part.isdigit())
    return tuple(int(part) for part in digits)


def _system_compiler(target: Target) -> Linker | None:
    if not is_native(target) or target.system not in NATIVE:
        return None
    found = next((c for c in C_COMPILERS if shutil.which(c)), None)
    if found is None:
        return None
    way = NATIVE[target.system]
    return Linker(found, (found, *way.flags), way.libraries)


def _zig(target: Target) -> Linker | None:
    version = zig_version()
    if version is None or target.system not in CROSS:
        return None
    if zig_program() is None:
        raise TargetError(
            f"no linker for {target.name}: the package ziglang is without its program",
            hint="pip install --force-reinstall --no-deps ziglang",
        )
    if version < OLDEST_ZIG:
        raise TargetError(
            f"zig {_dotted(version)} is too old to link for {target.name}: "
            f"{_dotted(OLDEST_ZIG)} or newer is needed",
            hint=f"pip install 'ziglang>={_dotted(OLDEST_ZIG)}'",
        )
    if not is_native(target) and not can_read():
        raise TargetError(
            f"a library for {target.name} could not be checked: lief is needed",
            hint="pip install 'mlc_compile[cross]' brings lief",
        )
    way, system = CROSS[target.system], target.system
    choice = () if way.tool == "ar" else ("-target", target.zig)
    slow = FIRST_LINK.get(system)
    return Linker(
        "zig",
        (*ZIG, way.tool, *choice, *way.flags),
        way.libraries,
        output=way.output,
        stands_in=system if system in STAND_INS else None,
        first=f"linking for {target.zig} takes {slow} the first time" if slow else "",
        mark=zig_cache() / "mlc_compile" / f"{_dotted(version)}-{target.zig}" if slow else None,
    )


def zig_cache() -> Path:
    """Where zig keeps what it builds, unless its own rules for this system differ."""
    given = os.environ.get("ZIG_GLOBAL_CACHE_DIR")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base or os.path.expanduser("~/.cache")) / "zig"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def as_tvm_callback(linker: Linker, out: Path) -> Callable[..., None]:
    """`fcompile` for export_library: TVM hands over its objects, we link them to `out`."""

    def fcompile(_output: str, objects: Sequence[str], **_options: object) -> None:
        linker.link(objects, out)

    return fcompile
