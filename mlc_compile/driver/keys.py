"""What decides the bytes of each step of a build, as named components of a cache key.

Whatever can change a byte is here, and nothing else: no directory, locale, environment or
number of threads. The CPU and the C library are part of `weights`, since the proof's logits
are sums that numpy orders by CPU, of functions from libm; and of `proof`, which is about this
machine.
"""

import dataclasses
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from mlc_compile.artifact import Check, Manifest
from mlc_compile.cache import Key, Stamps
from mlc_compile.checkpoint.directory import CONFIG, GENERATION_CONFIG
from mlc_compile.driver.job import Job, Options
from mlc_compile.driver.subject import Subject
from mlc_compile.driver.wheels import DEVICE_WHEELS, PACKERS, TVM, WRITERS, ZIG, wheels
from mlc_compile.emit.backend import device_programs
from mlc_compile.emit.keeper import KernelSource
from mlc_compile.emit.link.linker import Linker
from mlc_compile.emit.tool import first_line
from mlc_compile.target import cpu_features

PACKAGE: Final = Path(__file__).parents[1]

# Our code by step, as paths of the package. Converting and packing know no compiler and no cache,
# so a changed pass leaves their results alone, which take longest to make.
CONVERTING: Final = (
    "__init__.py",  # the version, which is in the manifest
    "amx.py",
    "artifact.py",
    "checkpoint",
    "driver/__init__.py",
    "driver/chat_config.py",
    "driver/convert.py",
    "driver/limits.py",
    "driver/pack.py",
    "driver/proof.py",
    "driver/storage.py",
    "driver/subject.py",
    "driver/tensors.py",
    "driver/texts.py",
    "errors.py",
    "layout.py",
    "model",
    "progress.py",
    "quant",
    "runtime/host.py",
    "staging",
)
EMITTING: Final = ("emit/cpu.py", "emit/kernels.py")
EVERYTHING: Final = (".",)
# Python, presets, and the C++ of the runtime that libraries for browsers carry.
SOURCES: Final = frozenset({".py", ".toml", ".h", ".c", ".cc"})
NOT_CODE: Final = ("cli", "data", "configs")  # no byte of a result comes from them

NOT_OF_LINKING: Final = ("first", "mark")  # fields of a linker that only tell how long it takes
RECORDS: Final = "records"  # how the components begin that tuning records are
UNKNOWN: Final = "known once it is compiled"


Listings = dict[tuple[str, ...], tuple[tuple[str, Path], ...]]  # parts -> files and their names


@dataclasses.dataclass(frozen=True, slots=True)
class Keys:
    """Makes keys; digests of files come through `stamps`, and `inputs` lists the files.

    `listings` are the files of our own code, looked for once: a build makes dozens of keys.
    """

    stamps: Stamps
    listings: Listings = dataclasses.field(default_factory=dict)
    inputs: list[Path] = dataclasses.field(default_factory=list)

    def watch(self, model: Path) -> None:
        """Look at our code and at the model's files, before anything is made of them."""
        self.stamps.watch(path for _, path in self._listed(EVERYTHING))
        self.stamps.watch(model.glob("*"))

    def weights(self, subject: Subject, quant: str) -> Key:
        """Of the neutral weights, their texts and their proof."""
        checkpoint = sorted(subject.directory.glob("*.safetensors*"))
        return Key(
            level="weights",
            parts={
                **self._model(subject),
                **{f"checkpoint.{path.name}": self._digest(path) for path in checkpoint},
                "scheme": quant,
                "cpu": _cpu(),
                "c_library": _c_library(),
                "code": self._code(CONVERTING),
                **wheels(WRITERS),
            },
        )

    def limits(self, job: Job, options: Options) -> Key:
        """Of the limits that fit a memory budget; `job` is what was decided without it."""
        parts = {**self.library(job).parts, **dict(_flat("options", options))}
        return Key(level="limits", parts=parts)

    def library(self, job: Job) -> Key:
        """Of all that `compile` writes: libraries, plan, report, texts."""
        return Key(
            level="library",
            parts={
                **self._model(job.subject),
                **decisions(job),
                **self._linker(job.linker),
                **self._device_compiler(job),
                **wheels(DEVICE_WHEELS.get(job.target.backend, ())),
                "code": self._code(EVERYTHING),
                **wheels((*WRITERS, *TVM)),
            },
        )

    def packed(self, weights_digest: str, plan_digest: str) -> Key:
        """Of `weights.bin`, or of shards and `tensor-cache.json`."""
        return Key(
            level="packed",
            parts={
                "weights": weights_digest,
                "plan": plan_digest,
                "code": self._code(CONVERTING),
                **wheels(PACKERS),
            },
        )

    def proof(self, manifest: Manifest) -> Key:
        """Of the outcome of replaying the proof of a finished artifact on this machine."""
        unproven = msgspec.structs.replace(manifest, check=Check(status="not run"))
        return Key(
            level="proof",
            parts={
                "artifact": _sha256(msgspec.json.encode(unproven, order="deterministic")),
                "cpu": _cpu(),
                "c_library": _c_library(),
                "code": self._code(EVERYTHING),
                **wheels(("numpy", *TVM)),
            },
        )

    def kernel(self, kernel: KernelSource) -> Key:
        """Of one compiled kernel; its function says what our passes and rules made of it."""
        parts = {**dict(_flat("kernel", kernel)), "code": self._code(EMITTING), **wheels(TVM)}
        return Key(level="kernel", parts=parts)

    def _digest(self, path: Path) -> str:
        self.inputs.append(path)
        return self.stamps.digest(path)

    def _model(self, subject: Subject) -> dict[str, str]:
        """The model as texts: its name, config and tokenizer, whatever directory it lies in."""
        names = (CONFIG, GENERATION_CONFIG, *subject.tokenizer)
        paths = {name: subject.directory / name for name in names}
        texts = {f"text.{n}": self._digest(p) for n, p in paths.items() if p.is_file()}
        return {"model": subject.name, "tied": str(subject.config.tie_word_embeddings), **texts}

    def _code(self, parts: tuple[str, ...]) -> str:
        """The sources of `parts`; not the configs, whose every field is a component by itself."""
        digests = {name: self._digest_if_there(path) for name, path in self._listed(parts)}
        return _sha256(msgspec.json.encode(digests, order="sorted"))

    def _listed(self, parts: tuple[str, ...]) -> tuple[tuple[str, Path], ...]:
        if parts not in self.listings:
            files = _sources(PACKAGE, parts)
            self.listings[parts] = tuple((p.relative_to(PACKAGE).as_posix(), p) for p in files)
        return self.listings[parts]

    def _digest_if_there(self, path: Path) -> str:
        """Of a file that was deleted since it was listed "": it has changed, nothing is kept."""
        try:
            return self._digest(path)
        except FileNotFoundError:
            return ""

    def _linker(self, linker: Linker) -> dict[str, str]:
        """How it is called, and the program that answers; not where that lies."""
        fields = {f.name: getattr(linker, f.name) for f in dataclasses.fields(linker)}
        for name in ("command", *NOT_OF_LINKING):
            fields.pop(name, None)
        program, *arguments = linker.command
        parts = dict(_flat("linker", {**fields, "arguments": arguments}))
        if "ziglang" in arguments:
            return {**parts, **wheels(ZIG)}
        found = shutil.which(program)
        binary = self._digest(Path(found)) if found else ""
        return {
            **parts,
            **wheels(("lief",)),
            "linker.program": binary,
            "linker.version": _tool_version(program),
        }

    def _device_compiler(self, job: Job) -> dict[str, str]:
        """The programs behind its name: two that give the same version may not be the same."""
        if not job.device_compiler:
            return {}
        programs = device_programs(job.target)
        return {f"device_compiler.{name}": self._digest(path) for name, path in programs.items()}


def decisions(job: Job) -> dict[str, str]:
    """Everything decided about a job beside its model and its tools, one component per field.

    Read off the dataclass, so that a field added to it is part of the key.
    """
    fields = {f.name: getattr(job, f.name) for f in dataclasses.fields(job)}
    for name in ("subject", "linker", "records", "questions"):
        del fields[name]
    flat = dict(pair for name, value in fields.items() for pair in _flat(name, value))
    return {**flat, **answers(job)}


def answers(job: Job) -> dict[str, str]:
    """The tuning records that decide about a job: a digest for each library and workload.

    A workload without a record has no component. Where it is not known yet which records count,
    one component stands for them that no entry has.
    """
    if not job.is_settled:
        return {RECORDS: UNKNOWN}
    return {
        f"{RECORDS}.{row.name} {title}": digest
        for row in job.target.libraries
        for title, digest in job.counted(row).digests.items()
    }


def unanswered(key: Key) -> Key:
    """Of what making `key` asks of the tuning records, which no record decides."""
    return Key(level="questions", parts={"of": key.level, **_without_answers(key)})


def answered(key: Key, job: Job) -> Key:
    """`key` with the answers of `job` in place of those that it has."""
    return Key(level=key.level, parts={**_without_answers(key), **answers(job)})


def _without_answers(key: Key) -> dict[str, str]:
    parts = key.parts.items()
    return {name: value for name, value in parts if name.partition(".")[0] != RECORDS}


def _flat(name: str, value: object) -> Iterator[tuple[str, str]]:
    """`{"target": {"mcpu": "x"}}` -> `("target.mcpu", "x")`; what has no fields is JSON."""
    built = msgspec.to_builtins(value)
    if isinstance(built, Mapping):
        for field, inner in built.items():
            yield from _flat(f"{name}.{field}", inner)
    elif isinstance(built, list | tuple) and any(isinstance(item, Mapping) for item in built):
        for i, inner in enumerate(built):
            yield from _flat(f"{name}.{i}", inner)
    else:
        yield name, built if isinstance(built, str) else msgspec.json.encode(built).decode()


def _sources(root: Path, parts: tuple[str, ...]) -> Iterator[Path]:
    """The files of `parts` that are SOURCES, sorted."""
    for part in sorted(parts):
        place = root / part
        found = [place] if place.is_file() else sorted(place.rglob("*"))
        for path in found:
            inside = path.relative_to(root).parts
            if path.suffix in SOURCES and (root != PACKAGE or inside[0] not in NOT_CODE):
                yield path


@cache
def _tool_version(program: str) -> str:
    """What a compiler, and the linker that it calls, say of themselves, and the C library here."""
    linker = first_line((program, "-print-prog-name=ld")) or "ld"
    said = (first_line((program, "--version")), first_line((linker, "--version")))
    return "; ".join(filter(None, (*said, _c_library())))


def _c_library() -> str:
    """`glibc 2.36`: what is linked against, and computes; empty where there is no saying."""
    name = "CS_GNU_LIBC_VERSION"
    return (os.confstr(name) or "") if name in os.confstr_names else ""


@cache
def _cpu() -> str:
    return " ".join(sorted(cpu_features()))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
