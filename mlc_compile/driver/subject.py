"""The model that a job is about: everything that can be refused without reading its weights is."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mlc_compile.checkpoint import Checkpoint, open_checkpoint, read_config, tokenizer_files
from mlc_compile.checkpoint.directory import CONFIG, REQUIRED_TOKENIZER
from mlc_compile.driver.tensors import check_tensors, decide_tie
from mlc_compile.model import load_config
from mlc_compile.model.config import Qwen3Config
from mlc_compile.model.weights import weight_specs

CACHED: Final = "models--"  # begins the name of a model's directory in Hugging Face's cache


@dataclass(frozen=True, slots=True)
class Subject:
    """A model directory found to be sound, as far as it goes: a config alone can be compiled."""

    directory: Path
    config: Qwen3Config  # with the tie as the tensors, if any, decide it
    tokenizer: tuple[str, ...]  # files; empty where there are none
    checkpoint: Checkpoint | None = None  # None where there are no weights

    @property
    def name(self) -> str:
        """How the model is called everywhere: its directory's name.

        In the cache of Hugging Face, models--<org>--<name>/snapshots/<hash>, it is <name>.
        """
        path = self.directory.resolve()
        if path.parent.name == "snapshots" and path.parent.parent.name.startswith(CACHED):
            return path.parent.parent.name.rpartition("--")[2]
        return path.name


def read_subject(model: Path) -> Subject:
    """Config, tokenizer and tensors of a model directory; the latter two may be absent.

    Raises CheckpointError for what is there and not sound: a tokenizer without one of its
    files, a tensor of the wrong shape.
    """
    # The config first: it says in one word what the tensors of a GPTQ model say in hundreds.
    config = load_config(read_config(model), str(model / CONFIG))
    checkpoint = open_checkpoint(model) if any(model.glob("*.safetensors*")) else None
    has_tokenizer = any((model / name).exists() for name in REQUIRED_TOKENIZER)
    tokenizer = tokenizer_files(model) if has_tokenizer else ()
    if checkpoint is None:
        return Subject(model, config, tokenizer)
    tied = decide_tie(checkpoint)
    check_tensors(checkpoint, weight_specs(config, tied), tied=tied)
    return Subject(model, replace(config, tie_word_embeddings=tied), tokenizer, checkpoint)


def require_weights(subject: Subject) -> Checkpoint:
    """The checkpoint of `subject`; CheckpointError where it, or the tokenizer, is absent."""
    checkpoint = subject.checkpoint or open_checkpoint(subject.directory)
    if not subject.tokenizer:
        tokenizer_files(subject.directory)
    return checkpoint
