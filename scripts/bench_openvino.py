"""Prefill and decode speed of one OpenVINO GenAI model, as JSON like {"pp512 t2": 488.0}.

Run by bench_rivals.py with a Python that has openvino-genai. Every prompt has fresh token
ids: OpenVINO reuses the cache of a prefix that it has seen.
"""

import json
import random
import sys
import time
from pathlib import Path


def main() -> None:
    """Arguments: model directory, prompt lengths, tokens to decode, numbers of threads."""
    model, prompts, generate, threads = sys.argv[1:5]
    lengths = [int(n) for n in prompts.split(",")]
    figures = {}
    for count in (int(n) for n in threads.split(",")):
        figures.update(_measure(Path(model), lengths, int(generate), count))
    json.dump(figures, sys.stdout)


def _measure(model: Path, lengths: list[int], generate: int, threads: int) -> dict[str, float]:
    import openvino_genai as genai  # type: ignore[import-not-found]  # only where it is installed
    from openvino import Tensor  # type: ignore[import-not-found]

    pipeline = genai.LLMPipeline(str(model), "CPU", INFERENCE_NUM_THREADS=threads)
    rng = random.Random(threads)

    def seconds(prompt: int, tokens: int) -> float:
        ids = [[rng.randrange(1000, 100000) for _ in range(prompt)]]
        settings = genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True)
        import numpy as np

        start = time.perf_counter()
        pipeline.generate(
            genai.TokenizedInputs(
                Tensor(np.array(ids, np.int64)), Tensor(np.ones((1, prompt), np.int64))
            ),
            settings,
        )
        return time.perf_counter() - start

    seconds(16, 4)  # warm-up
    figures = {f"pp{n} t{threads}": n / seconds(n, 1) for n in lengths}
    short = seconds(16, 1)
    figures[f"tg{generate} t{threads}"] = generate / (seconds(16, generate + 1) - short)
    return figures


if __name__ == "__main__":
    main()
