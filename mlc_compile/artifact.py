"""What `convert`, `compile` and `build` leave on disk, as data.

Two kinds of directory carry a `manifest.json`:

- **weights** (`WeightsManifest`): the neutral, quantized tensors and the proof;
- **artifact** (`Manifest`): a library for one target, its weight plan and, once `build`
  has packed them, the weights themselves.
"""

import hashlib
import math
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from mlc_compile.errors import ConfigError, DamageError
from mlc_compile.target import Backend, KVKind

FORMAT: Final = 1  # raised whenever an older reader would misread the directory
MANIFEST: Final = "manifest.json"
SEAL: Final = "seal"  # its key for the digest of the rest of it
ALIGNMENT: Final = 64  # bytes; every packed part starts at a multiple of it

PACKED_WEIGHTS: Final = "weights.bin"
PROOF: Final = "proof.safetensors"  # tensors `prompt` i32[n] and `logits` f32[n, vocab]
CHAT_CONFIG: Final = "mlc-chat-config.json"
TENSOR_CACHE: Final = "tensor-cache.json"
REPORT: Final = "report.json"
BUILD_LOG: Final = "build-log.json"


class Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all records: immutable, and an unknown key in a file is an error."""


class File(Struct, frozen=True):
    """A file of the directory, by its path relative to the manifest."""

    path: str
    nbytes: int
    sha256: str


class LibraryCheck(Struct, frozen=True):
    """What was read from a library and found to be as its target says."""

    format: str  # ELF, Mach-O, PE, or Mach-O archive
    arch: str
    oldest: str  # the system that loads it: "glibc 2.17", "macOS 13.0"; "": the file does not say
    needed: tuple[str, ...]  # libraries that are loaded with it
    imports: tuple[str, ...]  # functions that it leaves to them and to TVM's runtime
    prefix: str = ""  # of a static library: what TVM's `system_lib` is asked for


class DeviceNeeds(Struct, frozen=True):
    """What a GPU must offer to run every kernel of a library: the most that any of them takes.

    Sizes are in bytes. How much of one buffer a kernel sees is not in it: the weight plan and
    the limits say how large buffers are.
    """

    layout: str  # how the kernels lie in the library: the versions of TVM that read it
    capabilities: tuple[str, ...]  # SPIR-V's names, sorted
    threads: int  # in a block
    local_size: tuple[int, int, int]  # threads of a block along x, y and z
    shared_bytes: int  # of a block
    buffers: int  # arguments of a kernel


class Library(Struct, frozen=True):
    """A shared library and the CPU features without which it must not be loaded."""

    path: str
    requires: tuple[str, ...]
    priority: int = 0  # the highest whose requirements are met is loaded
    linked: LibraryCheck | None = None  # None: nothing here could read it
    device: DeviceNeeds | None = None  # None: there is no device, or its driver decides
    activations: "Activations | None" = None  # of one row, where not the manifest's
    prompts: "Activations | None" = None  # of many rows, where not as of one


class Part(Struct, frozen=True):
    """One parameter of the library: where its bytes lie in `weights.bin`."""

    name: str  # the parameter's name, e.g. "model.layers.0.mlp.gate_up_proj.q_weight"
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class PlannedTensor(Struct, frozen=True):
    """A weight as the library wants it: `sources` joined along rows, then packed."""

    name: str
    sources: tuple[str, ...]  # checkpoint names of the weights, in row order
    layout: str  # key of layout.LAYOUTS
    parts: tuple[Part, ...]


class WeightPlan(Struct, frozen=True):
    """How the neutral tensors become `weights.bin`; parts are in parameter order.

    `sharded`: they become MLC's container instead, `tensor-cache.json` and shards, which pages
    fetch; offsets in one file then mean nothing.
    """

    tensors: tuple[PlannedTensor, ...]
    nbytes: int
    sharded: bool = False

    def digest(self) -> str:
        """sha256 of the canonical encoding: equal plans, equal digests."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()


KVDtype = Literal["float16", "float32", "int8"]
SCALE_ROWS: Final = 8  # of int8: two float32 take as many bytes


class FlatKV(Struct, frozen=True):
    """A KV cache in pages of `page` tokens; the shapes are those of the flat kind, plain tensors.

    The block table i32[pages] maps a logical page to a physical one; length i32[1] counts
    tokens. In an int8 cache a number is code · scale, with a float32 scale for each key and
    each value of a token and head. Scales lie where the key's page ends: in its last
    SCALE_ROWS rows are the bytes of `page` scales of keys, then of `page` scales of values.
    """

    layers: int
    kv_heads: int
    head_dim: int
    page: int
    dtype: KVDtype

    @property
    def scaled(self) -> bool:
        """Whether numbers are codes, and their scales lie behind the keys."""
        return self.dtype == "int8"

    def pages(self, context: int) -> int:
        """Pages that hold `context` tokens."""
        return -(-context // self.page)

    def k_shape(self, pages: int) -> tuple[int, ...]:
        """Of the keys: transposed, so that scores vectorize over tokens."""
        rows = self.head_dim + SCALE_ROWS * self.scaled
        return self.layers, pages, self.kv_heads, rows, self.page

    def v_shape(self, pages: int) -> tuple[int, ...]:
        """Of the values."""
        return self.layers, pages, self.kv_heads, self.page, self.head_dim

    def nbytes(self, context: int) -> int:
        """Bytes of both page arrays for `context` tokens."""
        pages = self.pages(context)
        width = {"int8": 1, "float16": 2, "float32": 4}[self.dtype]
        return width * (math.prod(self.k_shape(pages)) + math.prod(self.v_shape(pages)))


# What matmuls with INT4 weights multiply by. bfloat16 is for the rows of a prompt, and for their
# attention, on CPUs with tiles for it: there one row is multiplied as int8, and elsewhere all are.
Activations = Literal["float32", "int8", "bfloat16"]


class Limits(Struct, frozen=True):
    """Tokens: the longest sequence, and the most that one prefill call takes."""

    context: int
    prefill_chunk: int


class Versions(Struct, frozen=True):
    """What made the directory; a library runs only under the TVM that built it.

    `web_llm`: of a library that a page runs, the version of the page's JavaScript.
    """

    mlc_compile: str
    tvm: str
    tvm_ffi: str
    web_llm: str = ""


class Check(Struct, frozen=True):
    """The outcome of replaying the proof on the target."""

    status: Literal["pass", "fail", "not run"]
    reason: str = ""
    max_abs_error: float | None = None
    bound: float | None = None

    @property
    def detail(self) -> str:
        """What is behind the status: the error, if one was measured, and the reason."""
        if self.max_abs_error is None:
            return self.reason
        error = f"largest error {self.max_abs_error:.3g} of {self.bound:.3g} allowed"
        return f"{error}; {self.reason}" if self.reason else error

    def told(self) -> str:
        """The outcome in a line for people."""
        return f"{self.status}: {self.detail}" if self.detail else self.status


class WeightsManifest(Struct, frozen=True, kw_only=True):
    """`manifest.json` of a weights directory."""

    format: int = FORMAT
    kind: Literal["weights"] = "weights"
    model: str  # the checkpoint directory's name
    quant: str
    mlc_compile: str
    tied: bool  # the head shares the embedding's tensor
    kept: tuple[str, ...]  # linear weights left unquantized, each with the reason
    notes: tuple[str, ...] = ()  # what was unusual about the checkpoint, and what was done
    digest: str  # sha256 over the names and digests of all tensors
    files: tuple[File, ...]


class Manifest(Struct, frozen=True, kw_only=True):
    """`manifest.json` of an artifact directory."""

    format: int = FORMAT
    kind: Literal["artifact"] = "artifact"
    model: str
    quant: str
    target: str
    backend: Backend = "cpu"
    triple: str
    linker: str
    device_compiler: str = ""  # what made the machine code of a GPU's kernels, if that was done
    versions: Versions
    libraries: tuple[Library, ...]
    limits: Limits
    activations: Activations = "float32"  # of one row, but where a library differs
    kv: FlatKV
    kv_kind: KVKind = "flat"
    vocab_size: int
    plan: WeightPlan
    plan_digest: str
    activation_bytes: int  # planned peak of intermediate storage, the largest function's
    weights_digest: str | None = None  # of the weights manifest that was packed; None: library only
    files: tuple[File, ...]
    check: Check

    @property
    def on_host(self) -> bool:
        """Whether the CPU that loads the library also computes."""
        return self.backend == "cpu"

    def activations_of(self, library: Library) -> Activations:
        """What that library multiplies the weights of one row by."""
        return library.activations or self.activations


AnyManifest = WeightsManifest | Manifest
M = TypeVar("M", WeightsManifest, Manifest)


def read_manifest(directory: Path, expected: type[M]) -> M:
    """The manifest of `directory`, which must be of the kind `expected`.

    Raises ConfigError when the directory is something else, DamageError when its manifest
    cannot be read.
    """
    path = directory / MANIFEST
    if not directory.is_dir():
        raise ConfigError(f"{directory} is not a directory", hint=_WHAT[expected])
    if not path.is_file():
        found = (
            "a model checkpoint" if (directory / "config.json").is_file() else "no manifest.json"
        )
        raise ConfigError(
            f"{directory} must be {_NAME[expected]}, but holds {found}", hint=_WHAT[expected]
        )
    try:
        raw = msgspec.json.decode(path.read_bytes())
        kind, version = raw["kind"], raw["format"]
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError) as e:
        raise DamageError(f"{path} is damaged: {e}", hint="rebuild the directory") from e
    if version != FORMAT:
        raise DamageError(
            f"{path} has format {version}, this version reads {FORMAT}",
            hint="rebuild the directory",
        )
    if kind != _KIND[expected]:
        raise ConfigError(
            f"{directory} must be {_NAME[expected]}, but is of kind {kind!r}", hint=_WHAT[expected]
        )
    if raw.pop(SEAL, None) != seal_of(raw):
        raise DamageError(f"{path} is not as mlc-compile wrote it", hint="rebuild the directory")
    try:
        return msgspec.convert(raw, expected)
    except msgspec.ValidationError as e:
        raise DamageError(f"{path} is damaged: {e}", hint="rebuild the directory") from e


def write_manifest(directory: Path, manifest: AnyManifest) -> None:
    """Write `manifest.json`, in a form that people can read and two builds share byte for byte."""
    raw = msgspec.to_builtins(manifest)
    (directory / MANIFEST).write_bytes(pretty_json({**raw, SEAL: seal_of(raw)}))


def seal_of(raw: dict[str, Any]) -> str:
    """sha256 over all else that a manifest says: one changed number could crash a library."""
    return hashlib.sha256(msgspec.json.encode(raw, order="sorted")).hexdigest()


def pretty_json(value: object) -> bytes:
    """Indented JSON with a final newline, keys in the order given."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def list_files(directory: Path) -> tuple[File, ...]:
    """Every file under `directory` with its digest, sorted by path; not manifest and build log."""
    paths = sorted(p for p in directory.rglob("*") if p.is_file())
    relative = ((p, p.relative_to(directory).as_posix()) for p in paths)
    return tuple(describe(p, name) for p, name in relative if name not in {MANIFEST, BUILD_LOG})


def describe(path: Path, name: str) -> File:
    """Size and sha256 of one file."""
    with path.open("rb") as f:
        digest = hashlib.file_digest(f, "sha256").hexdigest()
    return File(path=name, nbytes=path.stat().st_size, sha256=digest)


def is_ours(directory: Path) -> bool:
    """Whether there is a manifest of a kind that we write, damaged in other ways or not."""
    try:
        raw = msgspec.json.decode((directory / MANIFEST).read_bytes())
        return isinstance(raw, dict) and raw.get("kind") in _KIND.values() and SEAL in raw
    except (FileNotFoundError, msgspec.DecodeError, RecursionError):
        return False


_KIND: Final = {WeightsManifest: "weights", Manifest: "artifact"}
_NAME: Final = {WeightsManifest: "a weights directory", Manifest: "an artifact"}
_WHAT: Final = {
    WeightsManifest: "give a directory that `mlc-compile convert` wrote",
    Manifest: "give an artifact that `mlc-compile build` wrote: OUT/<model>-<quant>/<target>",
}
