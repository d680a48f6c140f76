"""Prefill and decode speed of one OpenVINO GenAI model, as JSON with keys like "pp512", "tg64".

Run by bench_rivals.py with a Python that has openvino-genai. Every prompt has fresh token ids:
OpenVINO reuses the cache of a prefix that it has seen. For that reason too nothing is prefilled
at a depth: a prompt there would be one with what lies before it.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Generate = Callable[[int, int], Any]  # a prompt's length, tokens to make -> what OpenVINO returns


def main() -> None:
    """Arguments: model, prompt lengths, tokens to decode, depth, threads, the cache's type."""
    name, prompts, *numbers, kv_type = sys.argv[1:]
    generate, depth, threads = map(int, numbers)
    lengths = [int(n) for n in prompts.split(",") if n]
    model = Path(name)
    # Its own choice is u8: half the bytes of ours, which only a long cache makes felt.
    cache = {"KV_CACHE_PRECISION": kv_type} if depth else {}
    run = open_pipeline(model, {"INFERENCE_NUM_THREADS": threads, **cache})
    figures = {} if depth else {f"pp{n}": prefill_speed(run, n) for n in lengths}
    if generate:
        figures[f"tg{generate}"] = decode_speed(run, depth, generate)
    nbytes = (model / "openvino_model.bin").stat().st_size
    json.dump({"figures": figures, "weights_bytes": nbytes}, sys.stdout)


def open_pipeline(model: Path, properties: Mapping[str, object]) -> Generate:
    """A function that continues a prompt of random tokens."""
    import numpy as np
    import openvino_genai as genai  # type: ignore[import-not-found]  # only where it is installed
    from openvino import Tensor  # type: ignore[import-not-found]

    pipeline = genai.LLMPipeline(str(model), "CPU", **properties)
    rng = random.Random(0)

    def run(prompt: int, tokens: int) -> Any:
        ids = np.array([[rng.randrange(1000, 100000) for _ in range(prompt)]], np.int64)
        inputs = genai.TokenizedInputs(Tensor(ids), Tensor(np.ones_like(ids)))
        return pipeline.generate(
            inputs, genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True)
        )

    return run


def prefill_speed(run: Generate, prompt: int) -> float:
    """Tokens a second until the first new token is there, once the shape has been seen."""
    run(prompt, 1)
    start = time.perf_counter()
    run(prompt, 1)
    return prompt / (time.perf_counter() - start)


def decode_speed(run: Generate, depth: int, tokens: int) -> float:
    """Tokens a second after the first, by OpenVINO's own clock."""
    run(16, 4)
    result = run(depth or 16, tokens + 1)
    milliseconds: float = result.perf_metrics.get_tpot().mean
    return 1000 / milliseconds


if __name__ == "__main__":
    main()
