"""The small files beside weights and libraries: configs and the tokenizer."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from mlc_compile.artifact import CHAT_CONFIG, Limits, pretty_json
from mlc_compile.checkpoint.directory import CONFIG, GENERATION_CONFIG, read_config, read_object
from mlc_compile.driver.chat_config import chat_config, generation_config
from mlc_compile.model.config import Qwen3Config


def write_texts(
    model: Path,
    config: Qwen3Config,
    tokenizer: tuple[str, ...],
    quant: str,
    directory: Path,
    limits: Limits,
) -> None:
    """Tokenizer files as they are; the configs for us, Hugging Face's tools and MLC's runtimes."""
    for name in tokenizer:
        shutil.copyfile(model / name, directory / name)
    found = (model / GENERATION_CONFIG).is_file()
    generation = read_object(model / GENERATION_CONFIG) if found else generation_config(config)
    # The tie is settled now: whoever reads this config later need not look at tensors.
    raw = {**read_config(model), "tie_word_embeddings": config.tie_word_embeddings}
    texts: Mapping[str, object] = {
        CONFIG: raw,
        GENERATION_CONFIG: generation,
        CHAT_CONFIG: chat_config(config, raw, generation, quant, tokenizer, limits),
    }
    for name, value in texts.items():
        (directory / name).write_bytes(pretty_json(value))
