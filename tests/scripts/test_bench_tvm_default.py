"""scripts/bench_tvm_default.py: plain TVM computes the same model, so it is a fair rival."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from mlc_compile.checkpoint import open_checkpoint

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"


def test_its_logits_are_those_of_transformers(monkeypatch, nano_checkpoint, golden):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from bench_tvm_default import PlainModel

    prompt = golden("nano").prompts[63]
    *before, last = prompt.ids.tolist()
    model = PlainModel(open_checkpoint(nano_checkpoint), context=63)
    # Both are float32: they differ in the order of sums alone.
    np.testing.assert_allclose(model.append([*before, last]), prompt.logits[-1], atol=1e-3)
    model.clear()
    model.append(before)
    np.testing.assert_allclose(model.append([last]), prompt.logits[-1], atol=1e-3)


def test_it_answers_as_the_other_rivals_do(nano_checkpoint):
    words = [nano_checkpoint, "8", "2", "0", "1"]
    out = subprocess.check_output([sys.executable, SCRIPTS / "bench_tvm_default.py", *words])
    answer = json.loads(out)
    assert list(answer["figures"]) == ["pp8", "tg2"]
    assert min(answer["figures"].values()) > 0
    tensors = open_checkpoint(nano_checkpoint).tensors.values()
    assert answer["weights_bytes"] == sum(4 * int(np.prod(t.shape)) for t in tensors)


def test_it_fills_no_cache(nano_checkpoint):
    words = [nano_checkpoint, "8", "2", "64", "1"]
    command = [sys.executable, SCRIPTS / "bench_tvm_default.py", *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == "plain TVM would take hours to fill a cache"
