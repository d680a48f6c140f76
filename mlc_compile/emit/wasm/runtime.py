"""TVM's runtime for browsers, compiled from the sources that its wheels bring, and kept.

The wheels have the sources and not all headers; ours are in `include/`, written against what the
sources use. Everything is copied into one room, so that no path of this machine is in an object:
an assertion's file name is told relative to the room.

What is compiled lies in zig's cache, under a digest of the sources, the flags and zig's version.
"""

import hashlib
import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlc_compile.emit.link.linker import ZIG, zig_cache
from mlc_compile.emit.tool import run_tool
from mlc_compile.errors import TargetError
from mlc_compile.staging.lock import hold
from mlc_compile.tvm_version import distribution_of, install_hint, installed

HERE: Final = Path(__file__).parent
TRIPLE: Final = ("-target", "wasm32-wasi")
OPTIMIZED: Final = ("-O2", "-g0")
INCLUDES: Final = (
    ".",
    "include",
    "3rdparty/tvm-ffi/include",
    "3rdparty/tvm-ffi/3rdparty/dlpack/include",
)
CPP_FLAGS: Final = (
    "-std=c++17",
    "-DTVM_FFI_CMAKE_LITTLE_ENDIAN=1",
    "-Wno-everything",  # the sources are not ours to mend
    "-fignore-exceptions",  # see host.c
    "-include",
    "single_thread.h",
    *(f"-I{place}" for place in INCLUDES),
)

# TVM's own unit is one list of sources. Left out of it: what talks to other machines, tests,
# sorting on the host, and states of recurrent models.
PACK: Final = "web/emcc/wasm_runtime.cc"
LEFT_OUT: Final = ("/rpc/", "/testing/", "/sort/", "/rnn_state")


@dataclass(frozen=True, slots=True)
class Unit:
    """One object file of the runtime: what zig compiles, by which of its compilers."""

    name: str
    source: str  # in the room
    flags: tuple[str, ...] = CPP_FLAGS
    tool: str = "c++"


UNITS: Final = (  # the longest first
    Unit("runtime", "web/emcc/packed.cc"),
    Unit("webgpu", "web/emcc/webgpu_runtime.cc"),
    Unit("page", "page.cc"),
    Unit("host", "host.c", (), "cc"),
)

# (package, folder of it, place in the room)
TAKEN: Final = (
    ("tvm", "src/runtime", "src/runtime"),
    ("tvm", "include", "include"),
    ("tvm", "web/emcc", "web/emcc"),
    ("tvm_ffi", "src", "3rdparty/tvm-ffi/src"),
    ("tvm_ffi", "include", "3rdparty/tvm-ffi/include"),
    ("tvm_ffi", "3rdparty/dlpack/include", "3rdparty/tvm-ffi/3rdparty/dlpack/include"),
)
SUFFIXES: Final = frozenset({".c", ".cc", ".h"})
OTHER_ZIG: Final = "pip install 'ziglang==0.17.1', which is known to"


def runtime_objects() -> list[str]:
    """The object files of the runtime, compiled now if they are not kept from before.

    TargetError if the wheels do not bring the sources, or zig does not compile them.
    """
    sources = dict(_sources())
    kept = zig_cache() / "mlc_compile" / f"wasm-{_digest(sources)}"
    if not _is_whole(kept):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:  # builds at once wait for the first, where there are locks
            with suppress(OSError):
                held.enter_context(hold(kept.with_name(f"{kept.name}.lock")))
            if not _is_whole(kept):
                _make(sources, kept)
    return [str(kept / f"{unit.name}.o") for unit in UNITS]


def require_sources() -> None:
    """TargetError if an installed wheel lacks sources of the runtime."""
    for package, folder, _ in TAKEN:
        if not (_package(package) / folder).is_dir():
            raise _absent(package, folder)
    if not (_package("tvm") / PACK).is_file():
        raise _absent("tvm", PACK)


def _absent(package: str, what: str) -> TargetError:
    return TargetError(
        f"the installed {distribution_of(package)} has no sources of the WebAssembly runtime: "
        f"{what} is missing",
        hint=install_hint(),
    )


def _package(name: str) -> Path:
    """Where a package lies, without importing it."""
    spec = importlib.util.find_spec(name)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return Path(places[0]) if places else Path(name)


def _sources() -> Iterator[tuple[str, Path]]:
    """Place in the room -> file."""
    require_sources()
    for package, folder, place in TAKEN:
        yield from _files(_package(package) / folder, place)
    yield from _files(HERE / "include", ".")
    yield from _files(HERE / "sources", ".")


def _make(sources: dict[str, Path], kept: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".wasm-", dir=kept.parent) as place:
        room = Path(place) / "room"
        _furnish(room, sources)
        _compile(room, Path(place) / "objects")
        if not _keep(Path(place) / "objects", kept):
            raise TargetError(
                f"{kept} cannot be replaced by what was compiled",
                hint="remove it, or name another cache with ZIG_GLOBAL_CACHE_DIR",
            )


def _files(directory: Path, place: str) -> Iterator[tuple[str, Path]]:
    for path in sorted(directory.rglob("*")):
        if path.suffix in SUFFIXES and path.is_file():
            yield (Path(place) / path.relative_to(directory)).as_posix(), path


def _digest(sources: dict[str, Path]) -> str:
    parts = [repr((installed("ziglang"), TRIPLE, OPTIMIZED, UNITS, LEFT_OUT)).encode()]
    for place, path in sorted(sources.items()):
        parts += [place.encode(), hashlib.sha256(path.read_bytes()).digest()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _furnish(room: Path, sources: dict[str, Path]) -> None:
    for place, path in sources.items():
        target = room / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    lines = (room / PACK).read_text(encoding="utf-8").splitlines(keepends=True)
    kept = (line for line in lines if not _is_left_out(line))
    (room / UNITS[0].source).write_text("".join(kept), encoding="utf-8")


def _is_left_out(line: str) -> bool:
    return line.startswith("#include") and any(part in line for part in LEFT_OUT)


def _compile(room: Path, out: Path) -> None:
    out.mkdir()
    for unit in UNITS:
        target = room / f"{unit.name}.o"
        flags = (*TRIPLE, *OPTIMIZED, *unit.flags)
        command = [*ZIG, unit.tool, *flags, "-c", "-o", target.name, unit.source]
        failure = f"zig could not compile {unit.source} of the WebAssembly runtime"
        run_tool(command, room, target, failure, OTHER_ZIG)
        content = target.read_bytes()
        (out / target.name).write_bytes(content)
        (out / f"{target.name}.sha256").write_text(hashlib.sha256(content).hexdigest())


def _is_whole(directory: Path) -> bool:
    """Whether all objects are there as they were written."""
    with suppress(OSError):
        return all(_is_intact(directory / f"{unit.name}.o") for unit in UNITS)
    return False


def _is_intact(path: Path) -> bool:
    noted = path.with_name(f"{path.name}.sha256").read_text()
    return hashlib.sha256(path.read_bytes()).hexdigest() == noted


def _keep(made: Path, kept: Path) -> bool:
    """Put the objects in their place, unless another build was faster."""
    if kept.exists() and not _is_whole(kept):
        shutil.rmtree(kept, ignore_errors=True)
    with suppress(OSError):
        made.rename(kept)
    return _is_whole(kept)
