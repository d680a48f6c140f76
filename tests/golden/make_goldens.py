"""Store what transformers computes in float32 for the two trained checkpoints.

    pip install 'mlc_compile[hf]' && python tests/golden/make_goldens.py

Writes nano.npz and tiny.npz beside itself. Each holds, for every n of `lengths`: `ids_n`
i32[n], seeded random tokens; `positions_n` i32[p]; `logits_n` f32[p, vocab], the logits after
those positions. And `greedy_prompt` i32[m], `greedy_tokens` i32[128]: the text that follows
when the likeliest token is always taken, end tokens included.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent.parent
CHECKPOINTS: Final = {
    "nano": ROOT / "tests" / "data" / "nano-qwen3",
    "tiny": ROOT / "mlc_compile" / "data" / "tiny-qwen3",
}

LENGTHS: Final = (1, 7, 63, 64, 65, 300)  # around the boundaries of small prefill chunks
# Stored positions, those beyond the prompt aside; the last one always. Fewer where rows are long.
POSITIONS: Final = {"nano": (0, 3, 31, 32, 63, 64, 127, 128, 255, 256), "tiny": ()}
GREEDY_PROMPT: Final = "A list of"  # of a dozen tried, never near a tie on either checkpoint
GREEDY_TOKENS: Final = 128
MARGIN: Final = 2e-3  # twice the error that tests allow: no smaller lead of the best token


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description="Store what transformers computes in float32.")
    parser.add_argument("-o", "--out", type=Path, default=HERE, help="directory (default: here)")
    out = parser.parse_args().out
    for name, directory in CHECKPOINTS.items():
        model = load_reference(directory)
        prompt = AutoTokenizer.from_pretrained(directory)(GREEDY_PROMPT).input_ids
        arrays = {
            "lengths": np.array(LENGTHS, np.int32),
            **prompt_arrays(model, POSITIONS[name]),
            "greedy_prompt": np.array(prompt, np.int32),
            "greedy_tokens": greedy(model, prompt, GREEDY_TOKENS),
        }
        path = out / f"{name}.npz"
        np.savez(path, **arrays)
        print(f"{path}: {path.stat().st_size} bytes")


def load_reference(directory: Path) -> "PreTrainedModel":
    """The checkpoint as transformers runs it, all arithmetic in float32."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return model.eval()


@torch.inference_mode()
def logits(model: "PreTrainedModel", ids: np.ndarray) -> np.ndarray:
    """f32[n, vocab]: the logits after each of the n tokens."""
    return model(torch.from_numpy(ids).long()[None]).logits[0].numpy()


def prompt_arrays(model: "PreTrainedModel", wanted: tuple[int, ...]) -> dict[str, np.ndarray]:
    """ids, positions and logits of every length."""
    rng = np.random.default_rng(0)
    arrays = {}
    for n in LENGTHS:
        ids = rng.integers(0, model.config.vocab_size, n, dtype=np.int32)
        positions = np.array(sorted({*(p for p in wanted if p < n), n - 1}), np.int32)
        arrays |= {
            f"ids_{n}": ids,
            f"positions_{n}": positions,
            f"logits_{n}": logits(model, ids)[positions],
        }
    return arrays


def greedy(model: "PreTrainedModel", prompt: list[int], count: int) -> np.ndarray:
    """i32[count]: always the likeliest token, from the start each time: no cache to trust.

    Raises ValueError where two tokens are so close that another order of sums could swap them.
    """
    ids = list(prompt)
    for _ in range(count):
        row = logits(model, np.array(ids, np.int32))[-1]
        second, first = np.argsort(row)[-2:]
        if row[first] - row[second] < MARGIN:
            raise ValueError(f"tokens {first} and {second} are too close after {len(ids)} tokens")
        ids.append(int(first))
    return np.array(ids[len(prompt) :], np.int32)


if __name__ == "__main__":
    main()
