"""What this machine can make for each target, and run: asked before any work, without TVM.

Nothing here raises: what is missing is an answer, with the command that mends it.
"""

import shutil
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from mlc_compile.emit.backend import EMITTERS, require_ingredients
from mlc_compile.emit.cuda import toolchain
from mlc_compile.emit.link.linker import C_COMPILERS, Linker, find_linker, zig_program
from mlc_compile.emit.tool import first_line
from mlc_compile.emit.vulkan import devices as vulkan
from mlc_compile.errors import TargetError, listing
from mlc_compile.target import Backend, Target, missing_features, triple_mismatch
from mlc_compile.tvm_version import installed

CROSS: Final = "pip install 'mlc_compile[cross]'"


class Missing(msgspec.Struct, frozen=True):
    """Something that is not here, and the command that brings it; "" where none does."""

    what: str
    fix: str = ""


class Ability(msgspec.Struct, frozen=True):
    """What can be had for one target on this machine.

    `emit`: its library; or the source of its kernels alone, where a linker or the device's
    compiler is missing; or nothing.
    """

    target: str
    emit: Literal["library", "source", "nothing"]
    tools: tuple[str, ...]  # what makes the library: "zig 0.17.1"
    to_emit: tuple[Missing, ...]  # for a library
    to_run: tuple[Missing, ...]  # empty: it runs here

    @property
    def runs(self) -> bool:
        """Whether this machine can load the library and run it."""
        return not self.to_run


class Tool(msgspec.Struct, frozen=True):
    """A program or package that makes libraries, or checks them."""

    name: str
    version: str  # "": absent
    purpose: str
    fix: str  # what brings it


def tools() -> tuple[Tool, ...]:
    """The programs and packages that link and check libraries, in order of need."""
    zig = "" if zig_program() is None else installed("ziglang") or ""
    return (
        Tool("cc", _compiler(), "links for this machine", "apt-get install gcc"),
        Tool("ziglang", zig, "links for every machine", CROSS),
        Tool("lief", installed("lief") or "", "checks what was linked", "pip install lief"),
    )


def ability(target: Target) -> Ability:
    """What can be emitted for `target`, and whether that runs here."""
    found: list[str] = []
    to_emit: list[Missing] = []
    if target.backend not in EMITTERS:
        other = f"name another target: {listing(list(EMITTERS))} have one"
        absent = (Missing(f"this version emits no {target.backend} libraries", other),)
        return Ability(target.name, "nothing", (), absent, absent)
    try:
        found.append(linker_version(find_linker(target)))
        require_ingredients(target)
    except TargetError as e:
        to_emit.append(Missing(str(e), e.hint))
    to_run = [*_not_this_machine(target)]
    look = DEVICES.get(target.backend)
    if look is not None:
        look(target, found, to_emit, to_run)
    emit: Literal["library", "source", "nothing"] = "library"
    if to_emit:
        emit = "source" if target.device is not None else "nothing"
    return Ability(target.name, emit, tuple(found), tuple(to_emit), tuple(to_run))


def linker_version(linker: Linker) -> str:
    """What the linker calls itself: the first line of its `--version`, its name if it has none."""
    if linker.name == "zig":
        return f"zig {installed('ziglang')}"
    return first_line([linker.command[0], "--version"]) or linker.name


def _not_this_machine(target: Target) -> list[Missing]:
    """Why the host's code would not run here."""
    reason = triple_mismatch(target.triple)
    if reason is not None:
        return [Missing(reason)]
    lacks = missing_features(target.requires)
    return [Missing(f"this CPU lacks {listing(lacks, 3)}")] if lacks else []


def _cuda(target: Target, found: list[str], to_emit: list[Missing], to_run: list[Missing]) -> None:
    assert target.device is not None
    seen = toolchain.probe(target.device.archs)
    if seen.compiler is not None:
        found.append(seen.compiler)
    else:
        to_emit.append(Missing(seen.emit_missing, seen.emit_fix))
    if seen.run_missing:
        to_run.append(Missing(seen.run_missing, seen.run_fix))


def _vulkan(
    target: Target, _found: list[str], _to_emit: list[Missing], to_run: list[Missing]
) -> None:
    """We write the kernels ourselves, so only running them needs more; drivers of this machine
    are not asked about another's.
    """
    if to_run:
        return
    assert target.device is not None
    lack = vulkan.lacking(target.device)
    if lack is not None:
        to_run.append(Missing(lack.what, lack.fix))


# Backends whose devices need more than a linker and the host's CPU; each adds to the lists.
# Metal needs nothing: its source is compiled by the system of the device, which is the host's.
DeviceProbe = Callable[[Target, list[str], list[Missing], list[Missing]], None]
DEVICES: Final[dict[Backend, DeviceProbe]] = {"cuda": _cuda, "vulkan": _vulkan}


def _compiler() -> str:
    name = next((c for c in C_COMPILERS if shutil.which(c)), None)
    return "" if name is None else first_line([name, "--version"]) or name
