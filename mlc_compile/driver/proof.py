"""The proof that travels with the weights: logits of a fixed prompt, from the stored values.

They are computed from what was written, not from the checkpoint, so that a library which
multiplies by the same values must give the same logits up to rounding.
"""

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from mlc_compile.artifact import PROOF
from mlc_compile.checkpoint import TensorCache
from mlc_compile.driver.storage import Dequantized, Storage
from mlc_compile.errors import CheckpointError
from mlc_compile.model.config import Qwen3Config
from mlc_compile.model.reference import Weight, forward
from mlc_compile.progress import Progress

PROMPT_TOKENS: Final = 8
MULTIPLIER: Final = 2654435761  # Knuth's, close to 2**32 divided by the golden ratio


def proof_prompt(vocab_size: int) -> NDArray[np.int32]:
    """Token ids i32[8] spread over the vocabulary; the same for every run and machine."""
    steps = np.arange(1, PROMPT_TOKENS + 1, dtype=np.int64)
    return (steps * MULTIPLIER % vocab_size).astype(np.int32)


def write_proof(
    config: Qwen3Config, plan: tuple[Storage, ...], directory: Path, progress: Progress
) -> None:
    """Run the reference over the tensors in `directory` and put the logits beside them."""
    cache = TensorCache(directory, verify=False)
    stored = {s.spec.name: s for s in plan}
    progress.step("computing the reference logits", len(plan) + config.tie_word_embeddings)

    def weights(name: str) -> Weight:
        progress.advance()
        return Dequantized(cache, stored[name])

    prompt = proof_prompt(config.vocab_size)
    with np.errstate(all="ignore"):  # what comes of it is looked at below
        logits = forward(config, config.tie_word_embeddings, weights, prompt)
    if not np.isfinite(logits).all() or not logits.any():
        what = "are all zero" if np.isfinite(logits).all() else "are not finite"
        raise CheckpointError(
            f"the model's logits {what}: its weights are finite, but compute nothing",
            hint="the checkpoint is damaged or was never trained: download it again",
        )
    (directory / PROOF).write_bytes(save({"logits": logits, "prompt": prompt}))
