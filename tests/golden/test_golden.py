"""Our libraries against transformers in float32, by the arrays that make_goldens.py stored."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlc_compile.runtime.engine import open_engine

# Both sides compute in float32 on the same weights: what differs is the order of sums.
TOLERANCE = 1e-3
LENGTHS = (1, 7, 63, 64, 65, 300)
MODELS = ("nano", "tiny")
SCRIPT = Path(__file__).parent / "make_goldens.py"


@pytest.fixture(params=MODELS)
def trained(request, build_model, golden, nano_checkpoint, tiny_checkpoint):
    """An artifact of a trained checkpoint in float32, and what transformers says of it."""
    checkpoint = {"nano": nano_checkpoint, "tiny": tiny_checkpoint}[request.param]
    return build_model(checkpoint, "q0f32"), golden(request.param)


def test_float32_logits_are_those_of_transformers(trained):
    artifact, golden = trained
    engine = open_engine(artifact)
    for n in LENGTHS:
        prompt = golden.prompts[n]
        engine.rewind()
        ours = np.concatenate(list(engine.score(prompt.ids)))
        assert np.abs(ours[prompt.positions] - prompt.logits).max() < TOLERANCE, n


@pytest.mark.parametrize("chunk", [1, 32, 64])
def test_chunked_prefill_gives_the_same_logits(build_nano, golden, chunk):
    engine = open_engine(build_nano("q0f32"))
    for n in LENGTHS:
        prompt = golden("nano").prompts[n]
        engine.rewind()
        for start in range(0, n, chunk):
            last = engine.prefill(prompt.ids[start : start + chunk])
        assert np.abs(last - prompt.logits[-1]).max() < TOLERANCE, n


def test_decoding_gives_the_logits_of_prefilling_the_whole(build_nano, golden):
    engine = open_engine(build_nano("q0f32"))
    prompt = golden("nano").prompts[65]
    rows = [engine.prefill(prompt.ids[:1]), *(engine.decode(int(i)) for i in prompt.ids[1:])]
    assert np.abs(np.stack(rows)[prompt.positions] - prompt.logits).max() < TOLERANCE


def test_128_greedy_tokens_are_those_of_transformers(trained, cli):
    artifact, golden = trained
    options = ["--max-tokens", 128, "--temperature", 0, "--ignore-eos", "--json"]
    ran = cli("run", artifact, "--prompt", "A list of", *options)
    assert ran.code == 0, ran.err
    assert ran.json["prompt_token_ids"] == golden.greedy_prompt.tolist()
    assert ran.json["token_ids"] == golden.greedy_tokens.tolist()


def test_transformers_still_computes_what_is_stored(tmp_path, golden):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch: pip install 'mlc_compile[hf]'")
    alone = os.environ | {"OMP_NUM_THREADS": "1"}  # small matrices; other tests want the cores
    command = [sys.executable, SCRIPT, "-o", tmp_path]
    subprocess.run(command, env=alone, check=True, capture_output=True)
    for name in MODELS:
        stored = golden(name)
        with np.load(tmp_path / f"{name}.npz") as now:
            np.testing.assert_array_equal(now["greedy_tokens"], stored.greedy_tokens)
            for n, prompt in stored.prompts.items():
                np.testing.assert_array_equal(now[f"ids_{n}"], prompt.ids)
                # The same code on another CPU sums in another order.
                np.testing.assert_allclose(now[f"logits_{n}"], prompt.logits, rtol=0, atol=1e-4)
