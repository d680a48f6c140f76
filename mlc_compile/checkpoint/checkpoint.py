"""A checkpoint's tensors by name, whether in one safetensors file or in shards with an index."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from mlc_compile.checkpoint.directory import read_config
from mlc_compile.checkpoint.safetensors_file import Floats, StoredTensor, read_header
from mlc_compile.errors import CheckpointError, listing

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"

# Formats that are not read, with the reason.
REFUSED: Final = {
    ".bin": "a pickle, which can run code when it is loaded",
    ".pt": "a pickle, which can run code when it is loaded",
    ".pth": "a pickle, which can run code when it is loaded",
    ".gguf": "a GGUF file, whose weights are already quantized",
}

# A causal language model's tensors begin with PREFIX; a bare backbone's, such as an
# embedding model's, with one of these instead.
PREFIX: Final = "model."
UNPREFIXED: Final = ("embed_tokens.", "layers.", "norm.")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Tensors under their full names. `prefix_added`: the files leave out `model.`."""

    directory: Path
    config: Mapping[str, object]
    tensors: Mapping[str, StoredTensor]
    prefix_added: bool

    @property
    def names(self) -> tuple[str, ...]:
        """All tensors, sorted."""
        return tuple(sorted(self.tensors))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape that the file states, checked against its size."""
        return self.tensors[name].shape

    def read(self, name: str) -> Floats:
        """A whole tensor as float32."""
        return self.tensors[name].read()

    def read_rows(self, name: str, start: int, stop: int) -> Floats:
        """Rows `start` to `stop` of a tensor as float32: f32[stop - start, ...]."""
        return self.tensors[name].read_rows(start, stop)


def open_checkpoint(directory: Path) -> Checkpoint:
    """Read config.json and all headers; no weight is loaded yet.

    Raises CheckpointError for whatever is missing, damaged or of a format we do not read.
    """
    config = read_config(directory)
    tensors = _read_tensors(directory)
    prefixed = _normalize(tensors, directory)
    return Checkpoint(directory, config, prefixed, prefix_added=prefixed.keys() != tensors.keys())


def _read_tensors(directory: Path) -> dict[str, StoredTensor]:
    if (directory / SINGLE).is_file():
        return read_header(directory / SINGLE)
    if (directory / INDEX).is_file():
        return _read_shards(directory)
    refused = sorted(p for p in directory.iterdir() if p.suffix in REFUSED)
    if refused:
        raise CheckpointError(
            f"{refused[0]} is {REFUSED[refused[0].suffix]}; weights must be .safetensors",
            hint="get the model's safetensors files, or save it with transformers' save_pretrained",
        )
    raise CheckpointError(
        f"{directory} has neither {SINGLE} nor {INDEX}", hint="download the model's weights"
    )


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


def _read_shards(directory: Path) -> dict[str, StoredTensor]:
    path = directory / INDEX
    try:
        listed = msgspec.json.decode(path.read_bytes(), type=_Index).weight_map
    except (msgspec.DecodeError, RecursionError) as e:
        raise CheckpointError(f"{path} is not an index: {e}", hint="download it again") from e
    files = sorted(set(listed.values()))
    _check_shards(directory, files)
    held = {(name, file): t for file in files for name, t in read_header(directory / file).items()}
    wrong = sorted(name for name, _file in held.keys() ^ listed.items())
    if wrong:
        raise CheckpointError(
            f"{path} and the shards disagree about {listing(dict.fromkeys(wrong))}",
            hint="download the index and the shards from one revision",
        )
    return {name: tensor for (name, _file), tensor in held.items()}


def _check_shards(directory: Path, files: list[str]) -> None:
    foreign = [f for f in files if Path(f).name != f or f in {"", ".", ".."} or "\\" in f]
    if foreign:
        raise CheckpointError(
            f"{directory / INDEX} names a file outside the directory: {foreign[0]!r}",
            hint="do not use this checkpoint: its index was tampered with or made by hand",
        )
    missing = [f for f in files if not (directory / f).is_file()]
    if missing:
        raise CheckpointError(
            f"{directory} lacks {len(missing)} of {len(files)} shards: {listing(missing)}",
            hint="download the missing files",
        )


def _normalize(tensors: dict[str, StoredTensor], directory: Path) -> dict[str, StoredTensor]:
    """Add `model.` where the files leave it out; some with and some without is an error."""
    bare = sorted(name for name in tensors if name.startswith(UNPREFIXED))
    full = sorted(name for name in tensors if name.startswith(PREFIX))
    if bare and full:
        raise CheckpointError(
            f"{directory} mixes names with and without {PREFIX!r}: {full[0]} and {bare[0]}",
            hint="two checkpoints may have been copied into one directory",
        )
    return {PREFIX + n if n.startswith(UNPREFIXED) else n: t for n, t in tensors.items()}
