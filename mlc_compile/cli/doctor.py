"""`mlc-compile doctor`: what this machine can emit and run, and what would mend the rest.

TVM is asked in a process of its own: with a wrong tvm-ffi it dies without an exception, and
then this command is the one that must survive and say so.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from mlc_compile.cli.console import Output, output_options, plain_table
from mlc_compile.cli.targets import usable_targets
from mlc_compile.errors import last_line
from mlc_compile.tvm_version import PINS, install_hint, installed

if TYPE_CHECKING:
    from rich.table import Table

    from mlc_compile.emit.probe import Ability
    from mlc_compile.target import Backend, Target

OPTIONAL: Final = {  # distribution -> what it is for, and the command that brings it
    "ziglang": ("links for other machines", "pip install 'mlc_compile[cross]'"),
    "lief": ("checks what was linked", "pip install lief"),
    "torch": ("live comparison with transformers", "pip install 'mlc_compile[hf]'"),
}
EMITS: Final = {"source": "the kernels' source only", "nothing": "nothing"}  # Ability.emit
PACKAGING: Final = re.compile(r" \([^)]*\)")  # in what a compiler calls itself: (Debian 12.2.0-14)
LOW_DISK: Final = 8 << 30  # bytes: a 4B checkpoint's weights, twice, as `build` needs them

# Reads [[name, mcpu, triple], ...] on stdin; prints the names whose CPU this LLVM knows.
PROBE: Final = """
import json, sys
from mlc_compile.tvm_version import import_compiler
import_compiler()
from tvm.target import codegen
rows = json.load(sys.stdin)
print(json.dumps([name for name, cpu, triple in rows if codegen.llvm_is_valid_cpu(cpu, triple)]))
"""


class Finding(msgspec.Struct, frozen=True):
    """One thing looked at; `fix` is the command that mends it, when it is not well."""

    area: Literal["package", "emit", "run", "machine"]
    subject: str
    status: Literal["ok", "note", "problem"]  # a problem keeps this machine from its own work
    detail: str
    fix: str = ""


@output_options
def doctor(output: Output) -> None:
    """Report what this machine can build and run; exit 4 if it cannot build for itself."""
    from mlc_compile.errors import TargetError

    output.story("asking TVM, which takes a few seconds")
    found = [*packages(), *targets_here(usable_targets()), *machine(output.cache_dir)]
    output.result(found, as_table(found))
    problems = [f for f in found if f.status == "problem"]
    if problems:
        subjects = ", ".join(f"{f.area} {f.subject}" for f in problems)
        raise TargetError(f"this machine cannot build for itself: {subjects}", hint=problems[0].fix)


def packages() -> Iterator[Finding]:
    """The pinned packages and the optional ones."""
    for name, pin in PINS.items():
        version = installed(name)
        if version == pin:
            yield Finding("package", name, "ok", pin)
        else:
            detail = f"must be {pin}, found {version or 'none'}"
            yield Finding("package", name, "problem", detail, install_hint())
    for name, (purpose, command) in OPTIONAL.items():
        version = installed(name)
        if version:
            yield Finding("package", name, "ok", version)
        else:
            yield Finding("package", name, "note", f"absent; {purpose}", command)


def targets_here(rows: "Sequence[Target]") -> Iterator[Finding]:
    """For each target: what can be emitted, and whether it runs. Only `cpu` must pass."""
    from mlc_compile.emit.probe import ability
    from mlc_compile.target import HOST

    known = emittable(rows)
    for row in rows:
        able = ability(row)
        yield emit_finding(row, able, known, own=row.name == HOST)
        yield run_finding(able, devices_of(row))


def emit_finding(
    row: "Target", able: "Ability", known: frozenset[str] | str, *, own: bool
) -> Finding:
    """Whether there are code generator and tools; a text in `known` is why TVM won't say."""
    bad: Literal["problem", "note"] = "problem" if own else "note"
    if isinstance(known, str):
        return Finding("emit", row.name, bad, f"TVM does not start: {known}", install_hint())
    if row.name not in known:
        detail = f"this LLVM has no {row.mcpu} on {row.arch}"
        return Finding("emit", row.name, bad, detail, install_hint())
    if able.emit == "library":
        tools = " and ".join(PACKAGING.sub("", tool) for tool in able.tools)
        return Finding("emit", row.name, "ok", f"can build ({tools})")
    detail = "; ".join(missing.what for missing in able.to_emit)
    fix = next((missing.fix for missing in able.to_emit if missing.fix), "")
    return Finding("emit", row.name, bad, f"{EMITS[able.emit]}: {detail}", fix)


def vulkan_devices() -> str:
    """Their names; "" where there is none to ask."""
    from mlc_compile.emit.vulkan.devices import devices, missing

    found = devices() if missing() is None else ""
    return "" if isinstance(found, str) else ", ".join(one.name for one in found)


# Backends whose drivers tell what this machine has.
DEVICES: "Final[dict[Backend, Callable[[], str]]]" = {"vulkan": vulkan_devices}


def devices_of(row: "Target") -> str:
    """The names of this machine's devices for a backend whose drivers can be asked; else ""."""
    look = DEVICES.get(row.backend)
    return "" if look is None else look()


def run_finding(able: "Ability", devices: str = "") -> Finding:
    """Whether this machine can load what is emitted, and run it, and on which of `devices`."""
    if able.runs:
        on = f" ({devices})" if devices else ""
        return Finding("run", able.target, "ok", f"can run{on}")
    detail = "; ".join(missing.what for missing in able.to_run)
    fix = next((missing.fix for missing in able.to_run if missing.fix), "")
    return Finding("run", able.target, "note", detail, fix)


def machine(cache_dir: Path) -> Iterator[Finding]:
    """Cores, memory, and room on the disks that we write to."""
    import psutil

    from mlc_compile.runtime.host import available_cores, cpu_name

    detail = f"kernels use {available_cores()} cores of {os.cpu_count()} logical CPUs, {cpu_name()}"
    yield Finding("machine", "cores", "ok", detail)
    memory = psutil.virtual_memory()
    detail = f"{memory.total / 2**30:.1f} GiB, {memory.available / 2**30:.1f} GiB free"
    yield Finding("machine", "memory", "ok", detail)
    yield disk_finding("working directory", Path.cwd(), "write to another disk: -o DIR")
    yield disk_finding("cache", cache_dir, "place it elsewhere: export MLC_COMPILE_CACHE=DIR")


def disk_finding(subject: str, directory: Path, fix: str) -> Finding:
    """Free space where `directory` is or will be, and whether we may write there."""
    base = next(p for p in (directory.absolute(), *directory.absolute().parents) if p.exists())
    free = shutil.disk_usage(base).free
    detail = f"{directory}: {free / 2**30:.1f} GiB free"
    if not os.access(base, os.W_OK):
        return Finding("machine", subject, "note", f"{detail}, not writable", fix)
    low = free < LOW_DISK
    return Finding("machine", subject, "note" if low else "ok", detail, fix if low else "")


def emittable(rows: "Sequence[Target]") -> frozenset[str] | str:
    """Names of the rows whose CPU the wheel's LLVM knows, or why TVM could not be asked."""
    question = msgspec.json.encode([(r.name, r.mcpu, r.triple) for r in rows])
    asked = subprocess.run(
        [sys.executable, "-P", "-c", PROBE], input=question, capture_output=True, check=False
    )
    if asked.returncode:
        said = asked.stderr.decode(errors="replace")
        return last_line(said, f"exit status {asked.returncode}")
    return frozenset(msgspec.json.decode(asked.stdout, type=list[str]))


def as_table(found: "Sequence[Finding]") -> "Table":
    """Findings as people read them."""
    table = plain_table("", "area", "subject", "detail", "fix", folding=("detail", "fix"))
    marks = {"ok": "ok", "note": "-", "problem": "!!"}
    for f in found:
        table.add_row(marks[f.status], f.area, f.subject, f.detail, f.fix)
    return table
