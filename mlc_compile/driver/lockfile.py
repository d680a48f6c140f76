"""`mlc-compile.lock`: what a build was made from, so that the same can be made elsewhere.

    {"format": 1, "builds": [{"model", "quant", "target", "checkpoint", "decisions", "records",
                              "tools", "results"}]}

One entry for each model, scheme and target, each a table from a name to a digest, a version or
a value. The file goes into version control: its order is stable, and it holds no path and no
time. Compilers and wheels stand there by version, since their files differ between platforms;
whether they gave the same bytes all the same, `results` tells once the build is done.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from mlc_compile import __version__
from mlc_compile.artifact import PACKED_WEIGHTS, TENSOR_CACHE, Manifest, Struct, pretty_json
from mlc_compile.driver.job import Job
from mlc_compile.driver.keys import RECORDS, Keys, answers, decisions
from mlc_compile.driver.reuse import Reuse
from mlc_compile.errors import ConfigError, DamageError, listing
from mlc_compile.staging import replaced
from mlc_compile.tvm_version import installed

NAME: Final = "mlc-compile.lock"
FORMAT: Final = 1
LONGEST: Final = 40  # characters of a value that a message shows

Table = dict[str, str]


class Locked(Struct, frozen=True):
    """One build: where each of its tables differs, the library may."""

    model: str
    quant: str
    target: str
    checkpoint: Table  # file -> sha256
    decisions: Table  # options and what follows from them; the target's row as one digest
    records: Table  # library and kernel -> digest of the tuning record that decides about it
    tools: Table  # distribution or program -> version
    results: Table  # file -> sha256, and the digest of the neutral weights

    @property
    def name(self) -> tuple[str, str, str]:
        """What an entry is found by."""
        return self.model, self.quant, self.target

    @property
    def facts(self) -> dict[str, str]:
        """All tables as one: `tools.apache-tvm` -> its version."""
        tables = {name: getattr(self, name) for name in TABLES}
        return {f"{name}.{key}": table[key] for name, table in tables.items() for key in table}


TABLES: Final = ("checkpoint", "decisions", "records", "tools", "results")


class _File(Struct, frozen=True):
    format: int
    builds: tuple[Locked, ...]


@dataclass(slots=True)
class Lock:
    """A lock file in the hand of one build.

    `frozen`: a build without an entry is an error. `update`: entries are written anew, whatever
    they say.
    """

    path: Path
    frozen: bool = False
    update: bool = False
    _now: dict[tuple[str, str, str], Locked] = field(default_factory=dict)
    _inputs: Sequence[Path] = ()  # what `_now` has digests of

    def check(self, jobs: Sequence[Job], reuse: Reuse) -> None:
        """Compare what the jobs are made from with what is locked, before anything is made.

        Tuning records of which it is not known yet whether they count are left to `settle`.
        DamageError that names what differs, or what has no entry in a frozen file; ConfigError
        where `path` can be no lock file.
        """
        known = _read(self.path)
        keys = Keys(reuse.stamps)
        for job in jobs:
            now = _inputs(job, keys)
            self._now[now.name] = now
            locked = known.get(now.name)
            if locked is None and self.frozen:
                raise DamageError(
                    f"--locked, but {self.path} has no entry for {_told(now)}",
                    hint="build once without --locked, which adds it",
                )
            if locked is not None and not self.update:
                records = locked.records if job.is_settled else now.records
                same = msgspec.structs.replace(locked, records=records, results={})
                _require_equal(self.path, same, now)
        self._inputs = keys.inputs

    def settle(self, made: Sequence[tuple[Job, Manifest]], reuse: Reuse) -> bool:
        """Compare the results too, then leave the new entries in the file; whether it changed.

        DamageError where other bytes came out of what is locked, ConfigError where there is
        something to write and an input is no longer what it was made of.
        """
        with reuse.output(self.path):
            before = _read(self.path)
            after = dict(before)
            for job, manifest in made:
                name = (manifest.model, manifest.quant, manifest.target)
                now = msgspec.structs.replace(
                    self._now[name], records=_records(job), results=_results(manifest)
                )
                if name in before and not self.update:
                    _require_equal(self.path, before[name], now)
                after[name] = now
            if after != before:
                self._require_unchanged(reuse)
                _write(self.path, after)
        return after != before

    def _require_unchanged(self, reuse: Reuse) -> None:
        changed = reuse.stamps.changed(self._inputs)
        if changed is not None:
            raise ConfigError(
                f"{changed} changed during the build: nothing is locked", hint="build again"
            )


def _inputs(job: Job, keys: Keys) -> Locked:
    """The entry of a job that was not carried out yet."""
    library, weights = keys.library(job).parts, keys.weights(job.subject, job.quant).parts
    decided = decisions(job)
    row = {name: value for name, value in decided.items() if name.startswith("target.")}
    apart = {*row, *answers(job), "device_compiler", "quant"}
    return Locked(
        model=job.subject.name,
        quant=job.quant,
        target=job.target.name,
        checkpoint=_sorted({**dict(_without("text.", library)), **_checkpoint(weights)}),
        decisions=_sorted(
            {
                **{name: value for name, value in decided.items() if name not in apart},
                "target": _digest(row),
                "tied": library["tied"],
            }
        ),
        records=_records(job),
        tools=_sorted(_tools(job, {**weights, **library})),
        results={},
    )


def _records(job: Job) -> Table:
    return _sorted(dict(_without(f"{RECORDS}.", answers(job))))


def _checkpoint(weights: Mapping[str, str]) -> Table:
    return dict(_without("checkpoint.", weights))


def _tools(job: Job, parts: Mapping[str, str]) -> Table:
    """Versions of all that writes: ours with the digest of its code, wheels, linker, compiler."""
    wheels = {name: installed(name) or "absent" for name, _ in _without("wheel.", parts)}
    linker = {
        f"linker.{name}": value
        for name, value in _without("linker.", parts)
        if name not in NOT_LOCKED and value not in EMPTY
    }
    device = {"device_compiler": job.device_compiler} if job.device_compiler else {}
    ours = {"mlc-compile": __version__, "mlc-compile.code": parts["code"]}
    return {**wheels, **linker, **device, **ours}


def _results(manifest: Manifest) -> Table:
    weights = {PACKED_WEIGHTS, TENSOR_CACHE}  # the latter lists shards with their digests
    wanted = {*weights, *(library.path for library in manifest.libraries)}
    files = {file.path: file.sha256 for file in manifest.files if file.path in wanted}
    return _sorted({**files, "weights": manifest.weights_digest or ""})


def _require_equal(path: Path, locked: Locked, now: Locked) -> None:
    """DamageError that names what differs and shows the first."""
    one, other = locked.facts, now.facts
    names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    if not names:
        return
    first = names[0]
    raise DamageError(
        f"{_told(now)} is not as {path} locks it: {listing(names)} "
        f"{'differs' if len(names) == 1 else 'differ'} "
        f"({first}: locked {_short(one.get(first))}, here {_short(other.get(first))})",
        hint="go back to what is locked, or accept what is here with --update-lock",
    )


def _read(path: Path) -> dict[tuple[str, str, str], Locked]:
    """The entries of a lock file; none where there is no file yet.

    DamageError for what is no lock file of this format, ConfigError for no file at all.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):  # whose end may never come
        raise ConfigError(f"{path} is no regular file", hint=_FOR_EXAMPLE)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if path.parent.is_dir():
            return {}
        raise ConfigError(
            f"{path.parent}, where the lock file goes, is no directory", hint="make it first"
        ) from None
    except IsADirectoryError as e:
        raise ConfigError(f"{path} is a directory, a lock file is a file", hint=_FOR_EXAMPLE) from e
    try:
        found = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, RecursionError) as e:
        raise DamageError(f"{path} is no lock file: {e}", hint=_ANEW) from e
    if found.format != FORMAT:
        raise DamageError(f"{path} has format {found.format}, ours is {FORMAT}", hint=_ANEW)
    return {one.name: one for one in found.builds}


def _write(path: Path, entries: Mapping[tuple[str, str, str], Locked]) -> None:
    """Replace the file, or what it links to, as a whole."""
    builds = tuple(entries[name] for name in sorted(entries))
    with replaced(path) as file:
        file.write(pretty_json(_File(format=FORMAT, builds=builds)))


def _without(prefix: str, parts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in parts.items():
        if name.startswith(prefix):
            yield name.removeprefix(prefix), value


def _sorted(table: Mapping[str, str]) -> Table:
    return dict(sorted(table.items()))


def _digest(table: Mapping[str, str]) -> str:
    return hashlib.sha256(msgspec.json.encode(table, order="sorted")).hexdigest()


def _told(entry: Locked) -> str:
    return f"{entry.model} ({entry.quant}) for {entry.target}"


def _short(value: str | None) -> str:
    """A value in a message; of a digest its beginning is enough."""
    if value is None:
        return "nothing"
    return value if len(value) <= LONGEST else f"{value[:12]}..."


NOT_LOCKED: Final = ("program",)  # the linker's file: its version is locked
EMPTY: Final = ("", "[]", "null")
_FOR_EXAMPLE: Final = f"for example --lockfile {NAME}"
_ANEW: Final = "remove it, and build again to write it anew"
