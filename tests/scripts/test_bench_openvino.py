"""scripts/bench_openvino.py with a stand-in for OpenVINO GenAI: what it is asked, what is told."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "bench_openvino.py"

# Notes all prompts and properties; decodes a token in 20 ms by its own clock.
STAND_IN = """
import json, pathlib
from types import SimpleNamespace

log = []

class LLMPipeline:
    def __init__(self, model, device, **properties):
        self.properties = properties

    def generate(self, inputs, config):
        log.append([inputs.ids, config.max_new_tokens])
        pathlib.Path("log.json").write_text(json.dumps([self.properties, log]))
        tpot = SimpleNamespace(mean=20.0)
        return SimpleNamespace(perf_metrics=SimpleNamespace(get_tpot=lambda: tpot))

class TokenizedInputs:
    def __init__(self, ids, mask):
        assert ids.shape == mask.shape
        self.ids = ids[0].tolist()

def GenerationConfig(max_new_tokens, ignore_eos):
    assert ignore_eos
    return SimpleNamespace(max_new_tokens=max_new_tokens)
"""


@pytest.fixture
def measure(tmp_path):
    """`measure(prompts, generate, depth)`: the figures; the pipeline's properties; its prompts."""
    (tmp_path / "openvino_genai.py").write_text(STAND_IN)
    (tmp_path / "openvino.py").write_text("def Tensor(array): return array")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "openvino_model.bin").write_bytes(bytes(100))
    (tmp_path / "model" / "openvino_tokenizer.bin").write_bytes(bytes(900))

    def run(prompts, generate, depth):
        words = ["model", prompts, str(generate), str(depth), "2", "f16"]
        done = subprocess.run(
            [sys.executable, SCRIPT, *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        properties, log = json.loads((tmp_path / "log.json").read_text())
        return json.loads(done.stdout), properties, log

    return run


def test_prefill_is_timed_and_decoding_is_by_its_own_clock(measure):
    answer, properties, log = measure("64,128", 8, 0)
    assert list(answer["figures"]) == ["pp64", "pp128", "tg8"]
    assert answer["figures"]["tg8"] == 50
    assert answer["weights_bytes"] == 100  # not the tokenizer's
    assert properties == {"INFERENCE_NUM_THREADS": 2}
    lengths = [(len(ids), tokens) for ids, tokens in log]
    assert lengths == [(64, 1), (64, 1), (128, 1), (128, 1), (16, 4), (16, 9)]


def test_no_prompt_begins_as_an_earlier_one_did(measure):
    _, _, log = measure("64,128", 8, 0)
    starts = [tuple(ids[:4]) for ids, _ in log]
    assert len(set(starts)) == len(starts)


def test_at_a_depth_only_decoding_is_measured_over_a_cache_like_ours(measure):
    answer, properties, log = measure("64", 8, 256)
    assert list(answer["figures"]) == ["tg8"]
    assert properties["KV_CACHE_PRECISION"] == "f16"
    assert [(len(ids), tokens) for ids, tokens in log][-1] == (256, 9)
