"""What the model's own files say about generating: where to stop, how to sample."""

from pathlib import Path
from typing import Any, Final

import msgspec

from mlc_compile.artifact import CHAT_CONFIG
from mlc_compile.errors import DamageError
from mlc_compile.runtime.sampler import GREEDY, Sampling

GENERATION_CONFIG: Final = "generation_config.json"
CONFIG: Final = "config.json"


def stop_tokens(directory: Path) -> frozenset[int]:
    """Ids that end a text: of the first file that names any, as transformers does."""
    for name in (GENERATION_CONFIG, CONFIG, CHAT_CONFIG):
        ids = read_json(directory, name).get("eos_token_id")
        if ids is not None:
            return frozenset(ids if isinstance(ids, list) else [ids])
    return frozenset()


def model_sampling(directory: Path) -> Sampling:
    """The sampling that the model's authors advise; greedy where they say nothing."""
    advice = read_json(directory, GENERATION_CONFIG)
    if not advice.get("do_sample", False):
        return GREEDY
    return Sampling(
        temperature=advice.get("temperature", 1.0),
        top_k=advice.get("top_k", 50),  # transformers' own default
        top_p=advice.get("top_p", 1.0),
    )


def read_json(directory: Path, name: str) -> dict[str, Any]:
    """The object in `directory/name`, {} without that file; DamageError if it is not one."""
    path = directory / name
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as e:  # its subclass ValidationError included
        raise DamageError(f"{path} is damaged: {e}", hint="rebuild the artifact") from e
