"""`mlc-compile inspect`: what an artifact holds, needs and costs, and what the passes decided."""

from typing import TYPE_CHECKING

import msgspec

from mlc_compile.cli.console import Output, output_options
from mlc_compile.cli.options import Artifact

if TYPE_CHECKING:
    from mlc_compile.artifact import Manifest
    from mlc_compile.runtime.memory import Memory


class Decision(msgspec.Struct, frozen=True):
    """What a pass did or left, and why."""

    source: str
    subject: str
    outcome: str
    reason: str


class Decisions(msgspec.Struct, frozen=True):
    """What is read of report.json."""

    events: tuple[Decision, ...] = ()


@output_options
def inspect(output: Output, artifact: Artifact) -> None:
    """Show what is inside the artifact in DIR and what it needs."""
    from mlc_compile.artifact import REPORT, Manifest, read_manifest
    from mlc_compile.errors import DamageError
    from mlc_compile.runtime.defaults import read_fields
    from mlc_compile.runtime.memory import bytes_by_role, memory_of

    manifest = read_manifest(artifact, Manifest)
    roles, memory = bytes_by_role(manifest.plan), memory_of(manifest)
    if not (artifact / REPORT).is_file():
        raise DamageError(f"{artifact} has no {REPORT}", hint="rebuild the artifact")
    events = read_fields(artifact, REPORT, Decisions).events
    value = {"manifest": manifest, "bytes_by_role": roles, "memory": memory, "events": events}
    output.result(value, "\n".join([*_facts(manifest), *_costs(roles, memory), *_events(events)]))


def _facts(manifest: "Manifest") -> list[str]:
    from mlc_compile.errors import listing

    m = manifest
    facts = {
        "model": f"{m.model}, {m.quant}, vocabulary {m.vocab_size}",
        "target": f"{m.target} ({m.triple}), linked by {m.linker}",
        "built by": f"mlc-compile {m.versions.mlc_compile}, tvm {m.versions.tvm}, "
        f"tvm-ffi {m.versions.tvm_ffi}",
        "limits": f"context {m.limits.context}, prefill chunk {m.limits.prefill_chunk} tokens",
        "KV cache": f"flat, {m.kv.dtype}, pages of {m.kv.page} tokens",
        "activations": m.activations,
        "proof": m.check.told(),
    }
    libraries = [
        f"{'library':<12}{library.path}, requires {listing(library.requires, 40) or 'nothing'}"
        for library in m.libraries
    ]
    return [f"{name:<12}{fact}" for name, fact in facts.items()] + libraries


def _costs(roles: dict[str, int], memory: "Memory") -> list[str]:
    parts = {"weights": memory.weights, "KV": memory.kv, "activations": memory.activations}
    terms = " + ".join(f"{name} {_mib(size)}" for name, size in parts.items())
    by_role = ", ".join(f"{role} {_mib(size)}" for role, size in roles.items())
    return [f"{'memory':<12}{terms} = {_mib(memory.total)}", f"{'weights':<12}{by_role}"]


def _events(events: tuple[Decision, ...]) -> list[str]:
    return [f"{e.source:<24}{e.outcome:<9}{e.subject} {e.reason}".rstrip() for e in events]


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"
