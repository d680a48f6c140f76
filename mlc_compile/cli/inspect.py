"""`mlc-compile inspect`: what an artifact holds, needs and costs, and what the passes decided."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from mlc_compile.cli.console import Output, output_options
from mlc_compile.cli.options import Artifact
from mlc_compile.cli.values import require_directory_of
from mlc_compile.errors import ConfigError

if TYPE_CHECKING:
    from mlc_compile.artifact import Library, Manifest
    from mlc_compile.runtime.memory import Memory

# Kernel.origin of the report, for people, in this order.
ORIGINS: Final = {
    "record": "by a tuning record",
    "rule": "by a rule",
    "default": "by the fallback",
    "runtime": "of TVM's runtime",
}
# Several alike events of a source, where their reason needs its subjects.
ALIKE: Final = {"LowerOperators": "{count} kernels, {reason} each"}
KV_KINDS: Final = {"flat": "flat", "tvm_paged": "TVM's paged"}  # Manifest.kv_kind, for people


class Decision(msgspec.Struct, frozen=True):
    """What a pass did or left, and why."""

    source: str
    subject: str
    outcome: str
    reason: str


class Made(msgspec.Struct, frozen=True):
    """A kernel of a function, and who decided how it is written."""

    function: str
    name: str
    origin: str
    how: str


class Decisions(msgspec.Struct, frozen=True):
    """What is read of report.json."""

    events: tuple[Decision, ...] = ()
    kernels: tuple[Made, ...] = ()


@output_options
def inspect(
    output: Output,
    artifact: Artifact,
    *,
    every_event: Annotated[
        bool,
        typer.Option(
            "--events", help="List every event; otherwise equal ones are counted in one line."
        ),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write the whole report to FILE as a web page."
        ),
    ] = None,
) -> None:
    """Show what is inside the artifact in DIR and what it needs."""
    from mlc_compile.artifact import REPORT, Manifest, read_manifest
    from mlc_compile.errors import DamageError
    from mlc_compile.runtime.defaults import read_fields
    from mlc_compile.runtime.memory import bytes_by_role, memory_of

    manifest = read_manifest(artifact, Manifest)
    roles, memory = bytes_by_role(manifest.plan), memory_of(manifest)
    if not (artifact / REPORT).is_file():
        raise DamageError(f"{artifact} has no {REPORT}", hint="rebuild the artifact")
    report = read_fields(artifact, REPORT, Decisions)
    events = report.events
    decided = [_line(e) for e in events] if every_event else list(_folded(events))
    value = {
        "manifest": manifest,
        "bytes_by_role": roles,
        "memory": memory,
        "kernels": report.kernels,
        "events": events,
    }
    if html is not None:
        _write_page(html, artifact, manifest)
        output.result({**value, "html": str(html)}, str(html))
        return
    facts = [*_facts(manifest), *_costs(roles, memory), *_kernels(report.kernels)]
    output.result(value, "\n".join([*facts, *decided]))


def _write_page(path: Path, artifact: Path, manifest: "Manifest") -> None:
    from mlc_compile.artifact import REPORT
    from mlc_compile.report.page import render
    from mlc_compile.report.schema import ReadReport
    from mlc_compile.report.weights import errors_of
    from mlc_compile.runtime.defaults import read_fields

    if path.is_dir():
        raise ConfigError(f"--html {path} is a directory", hint="name a file to write")
    require_directory_of(path, "--html")
    if path.resolve().parent == artifact.resolve():
        raise ConfigError(
            f"--html {path} lies in the artifact, whose files are listed with their digests",
            hint="write the page beside it",
        )
    report = read_fields(artifact, REPORT, ReadReport)
    page = render(manifest, report, errors_of(artifact, manifest))
    path.write_text(page, encoding="utf-8")


def _facts(manifest: "Manifest") -> list[str]:
    from mlc_compile.errors import listing

    m = manifest
    facts = {
        "model": f"{m.model}, {m.quant}, vocabulary {m.vocab_size}",
        "target": f"{m.target} ({m.triple}), linked by {m.linker}",
        "built by": f"mlc-compile {m.versions.mlc_compile}, tvm {m.versions.tvm}, "
        f"tvm-ffi {m.versions.tvm_ffi}",
        "limits": f"context {m.limits.context}, prefill chunk {m.limits.prefill_chunk} tokens",
        "KV cache": f"{KV_KINDS[m.kv_kind]}, {m.kv.dtype}, pages of {m.kv.page} tokens",
        "activations": m.activations,
        "proof": m.check.told(),
    }
    loads = _loading_here(m)
    libraries = [
        f"{'library':<12}{library.path}, "
        + (f"activations {library.activations}, " if library.activations else "")
        + (f"prompts in {library.prompts}, " if library.prompts else "")
        + f"requires {listing(library.requires, 40) or 'nothing'}"
        + (", loads here" if library is loads else "")
        for library in m.libraries
    ]
    return [f"{name:<12}{fact}" for name, fact in facts.items()] + libraries


def _loading_here(manifest: "Manifest") -> "Library | None":
    """Which of several libraries this machine would load; None if only one, or none, could."""
    from mlc_compile.errors import TargetError
    from mlc_compile.runtime.load import choose_library

    if len(manifest.libraries) == 1:
        return None
    try:
        return choose_library(manifest)
    except TargetError:
        return None


def _costs(roles: dict[str, int], memory: "Memory") -> list[str]:
    parts = {"weights": memory.weights, "KV": memory.kv, "activations": memory.activations}
    terms = " + ".join(f"{name} {_size(size)}" for name, size in parts.items())
    by_role = ", ".join(f"{role} {_size(size)}" for role, size in roles.items())
    return [f"{'memory':<12}{terms} = {_size(memory.total)}", f"{'weights':<12}{by_role}"]


def _kernels(made: tuple[Made, ...]) -> Iterator[str]:
    """How many each origin decided, and what each tuning record did."""
    origins = {one.name: one for one in made}
    if origins:
        counted = Counter(one.origin for one in origins.values())
        parts = [f"{counted[o]} {by}" for o, by in ORIGINS.items() if counted[o]]
        yield f"{'kernels':<12}{', '.join(parts)}"
    for one in origins.values():
        if one.origin == "record":
            yield f"{'':<12}{one.name}: {one.how}"


def _line(event: Decision) -> str:
    return f"{event.source:<24}{event.outcome:<9}{event.subject} {event.reason}".rstrip()


def _folded(events: tuple[Decision, ...]) -> Iterator[str]:
    """What a source did several times for one reason as one line that counts."""
    alike = defaultdict(list)
    for event in events:
        alike[event.source, event.outcome, event.reason].append(event)
    for (source, outcome, reason), same in alike.items():
        if len(same) == 1:
            yield _line(same[0])
            continue
        told = ALIKE.get(source, "{count} times: {reason}" if reason else "{count} times")
        yield f"{source:<24}{outcome:<9}{told.format(count=len(same), reason=reason)}"


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:.1f} KiB"
