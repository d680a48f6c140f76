"""Finding a model directory, and its files other than weights."""

import re
from pathlib import Path
from typing import Final

import msgspec

from mlc_compile.artifact import is_ours
from mlc_compile.errors import CheckpointError, ConfigError

HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
DEMO: Final = "demo"  # stands for the checkpoint inside the package
CONFIG: Final = "config.json"
GENERATION_CONFIG: Final = "generation_config.json"

REQUIRED_TOKENIZER: Final = ("tokenizer.json", "tokenizer_config.json")
OPTIONAL_TOKENIZER: Final = (
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def find_model(argument: str) -> Path:
    """The model directory that a person named: a path, or `demo` for the one we ship.

    Raises ConfigError where there is no directory or it is one that we wrote,
    CheckpointError where it holds no config.json.
    """
    if argument == DEMO:
        return Path(__file__).parent.parent / "data" / "tiny-qwen3"
    path = Path(argument)
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError as e:
        raise ConfigError(
            f"the path {argument!r} is not UTF-8 text, which a manifest must be",
            hint="rename the directory",
        ) from e
    if not path.exists():
        raise ConfigError(f"no model directory {argument}", hint=_how_to_get(argument))
    if not path.is_dir():
        raise ConfigError(
            f"{argument} is a file, a model must be a directory",
            hint=f"give the directory that holds {CONFIG} and the .safetensors files",
        )
    if is_ours(path):
        raise ConfigError(
            f"{argument} must be a model directory, but mlc-compile wrote it",
            hint="give the Hugging Face directory that it was made from",
        )
    if not (path / CONFIG).is_file():
        raise CheckpointError(
            f"{argument} has no {CONFIG}", hint="give the directory of a Hugging Face checkpoint"
        )
    return path


def _how_to_get(argument: str) -> str:
    """The command that downloads what looks like a name on Hugging Face: `org/name`."""
    if HUB_NAME.fullmatch(argument):
        name = argument.partition("/")[2]
        return f"download it first: hf download {argument} --local-dir {name}"
    return "download the model first and give its directory, or `demo` for the example"


def read_config(model: Path) -> dict[str, object]:
    """The decoded config.json of a model directory, unchecked but for being an object."""
    return read_object(model / CONFIG)


def read_object(path: Path) -> dict[str, object]:
    """A JSON file that must hold an object; CheckpointError if it is missing or does not."""
    if not path.is_file():
        raise CheckpointError(f"{path.parent} has no {path.name}", hint="download the model again")
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except (msgspec.DecodeError, RecursionError) as e:
        raise CheckpointError(f"{path} is not a JSON object: {e}", hint="download it again") from e


def tokenizer_files(model: Path) -> tuple[str, ...]:
    """Names of the tokenizer's files; CheckpointError where the model directory lacks one."""
    missing = [name for name in REQUIRED_TOKENIZER if not (model / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{model} has no tokenizer: {' and '.join(missing)} missing",
            hint="download them, or save them with transformers' tokenizer.save_pretrained",
        )
    for name in REQUIRED_TOKENIZER:
        read_object(model / name)
    return (*REQUIRED_TOKENIZER, *(n for n in OPTIONAL_TOKENIZER if (model / n).is_file()))
