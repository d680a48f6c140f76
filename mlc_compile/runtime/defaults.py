"""What the model's own files say about generating: where to stop, how to sample."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from mlc_compile.artifact import CHAT_CONFIG
from mlc_compile.errors import DamageError
from mlc_compile.runtime.ranges import RANGES
from mlc_compile.runtime.sampler import Sampling

GENERATION_CONFIG: Final = "generation_config.json"
CONFIG: Final = "config.json"

T = TypeVar("T")


class Stops(msgspec.Struct, frozen=True):
    """Of a config file, what ends a text; null is as good as absent."""

    eos_token_id: int | tuple[int, ...] | None = None


class Advice(msgspec.Struct, frozen=True):
    """Of generation_config.json, how to sample; the defaults are transformers' own."""

    do_sample: bool | None = None
    temperature: Annotated[float, RANGES["temperature"].meta] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None  # -1: all, as vLLM has it
    top_p: Annotated[float, RANGES["top_p"].meta] | None = None
    min_p: Annotated[float, RANGES["min_p"].meta] | None = None
    repetition_penalty: Annotated[float, RANGES["repetition_penalty"].meta] | None = None
    # Not transformers' fields, but MLC reads them here.
    presence_penalty: Annotated[float, RANGES["presence_penalty"].meta] | None = None
    frequency_penalty: Annotated[float, RANGES["frequency_penalty"].meta] | None = None

    def sampling(self) -> Sampling:
        """Greedy unless the authors advise to sample; penalties hold either way."""
        penalized = Sampling(
            presence_penalty=_or(self.presence_penalty, 0.0),
            frequency_penalty=_or(self.frequency_penalty, 0.0),
            repetition_penalty=_or(self.repetition_penalty, 1.0),
        )
        if not self.do_sample:
            return penalized
        return replace(
            penalized,
            temperature=_or(self.temperature, 1.0),
            top_k=max(_or(self.top_k, 50), 0),
            top_p=_or(self.top_p, 1.0),
            min_p=_or(self.min_p, 0.0),
        )


def stop_tokens(directory: Path) -> frozenset[int]:
    """Ids that end a text: of the first file that names any, as transformers does."""
    for name in (GENERATION_CONFIG, CONFIG, CHAT_CONFIG):
        ids = read_fields(directory, name, Stops).eos_token_id
        if ids is not None:
            return frozenset((ids,) if isinstance(ids, int) else ids)
    return frozenset()


def model_sampling(directory: Path) -> Sampling:
    """The sampling that the model's authors advise; greedy where they say nothing."""
    return read_fields(directory, GENERATION_CONFIG, Advice).sampling()


def read_json(directory: Path, name: str) -> dict[str, Any]:
    """The object in `directory/name`, {} without that file; DamageError if it is not one."""
    return read_fields(directory, name, dict[str, Any])


def read_fields(directory: Path, name: str, kind: type[T]) -> T:
    """The file's fields as `kind` has them, all at their defaults without that file.

    DamageError, with the field's name, for a value of another type.
    """
    path = directory / name
    if not path.is_file():
        return kind()
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.DecodeError, RecursionError) as e:  # its subclass ValidationError included
        raise DamageError(f"{path} is damaged: {e}", hint="rebuild the artifact") from e


def _or(value: T | None, default: T) -> T:
    return default if value is None else value
