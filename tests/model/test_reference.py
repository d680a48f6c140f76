"""The numpy reference against transformers in float32, and against itself."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from mlc_compile.checkpoint import open_checkpoint
from mlc_compile.model import load_config
from mlc_compile.model.reference import forward
from mlc_compile.model.weights import EMBEDDING, HEAD

# float32 sums in another order: logits of 18 differ by about 2e-5
TOLERANCE = 1e-4


def run(directory, ids):
    checkpoint = open_checkpoint(directory)
    config = load_config(checkpoint.config, "config.json")
    return forward(config, config.tie_word_embeddings, checkpoint.read, ids)


def transformers_logits(directory, ids):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].numpy()


def some_ids(n, vocab=512):
    return np.random.default_rng(n).integers(0, vocab, n).astype(np.int32)


@pytest.mark.parametrize("n", [1, 7, 65])
def test_nano_agrees_with_transformers(nano_checkpoint, n):
    ids = some_ids(n)
    theirs = transformers_logits(nano_checkpoint, ids)
    np.testing.assert_allclose(run(nano_checkpoint, ids), theirs, atol=TOLERANCE, rtol=0)


def test_tiny_agrees_with_transformers(tiny_checkpoint):
    ids = some_ids(65, 4096)
    theirs = transformers_logits(tiny_checkpoint, ids)
    np.testing.assert_allclose(run(tiny_checkpoint, ids), theirs, atol=TOLERANCE, rtol=0)


def test_yarn_agrees_with_transformers(nano_checkpoint, tmp_path):
    stretched = tmp_path / "nano"
    shutil.copytree(nano_checkpoint, stretched)
    raw = json.loads((stretched / "config.json").read_text())
    raw["rope_scaling"] = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    }
    (stretched / "config.json").write_text(json.dumps(raw))
    ids = some_ids(200)
    ours = run(stretched, ids)
    np.testing.assert_allclose(ours, transformers_logits(stretched, ids), atol=TOLERANCE, rtol=0)
    assert np.abs(ours - run(nano_checkpoint, ids)).max() > 0.1  # so YaRN did something


def test_a_token_does_not_see_what_follows(nano_checkpoint):
    ids = some_ids(20)
    whole, start = run(nano_checkpoint, ids), run(nano_checkpoint, ids[:9])
    np.testing.assert_allclose(whole[:9], start, atol=TOLERANCE, rtol=0)


def test_an_untied_head_is_used(nano_checkpoint):
    checkpoint = open_checkpoint(nano_checkpoint)
    config = dataclasses.replace(
        load_config(checkpoint.config, "config.json"), tie_word_embeddings=False
    )
    ids = some_ids(3)

    def weights(name):
        return -checkpoint.read(EMBEDDING) if name == HEAD else checkpoint.read(name)

    np.testing.assert_array_equal(
        forward(config, False, weights, ids), -forward(config, True, checkpoint.read, ids)
    )


def test_weights_are_asked_for_once_in_order(nano_checkpoint):
    checkpoint = open_checkpoint(nano_checkpoint)
    config = load_config(checkpoint.config, "config.json")
    asked = []

    def weights(name):
        asked.append(name)
        return checkpoint.read(name)

    forward(config, True, weights, some_ids(2))
    assert (asked[0], asked[-1]) == (EMBEDDING, EMBEDDING)
    assert sorted(asked[:-1]) == sorted(checkpoint.names)


LOGITS = """
import hashlib, sys
from pathlib import Path
from mlc_compile.checkpoint import open_checkpoint
from mlc_compile.driver.proof import proof_prompt
from mlc_compile.model import load_config
from mlc_compile.model.reference import forward

checkpoint = open_checkpoint(Path(sys.argv[1]))
config = load_config(checkpoint.config, "config.json")
ids = proof_prompt(config.vocab_size)
logits = forward(config, config.tie_word_embeddings, checkpoint.read, ids)
print(hashlib.sha256(logits.tobytes()).hexdigest())
"""


@pytest.mark.skipif(os.cpu_count() == 1, reason="BLAS has one thread anyway")
def test_the_bytes_do_not_depend_on_the_number_of_threads(tiny_checkpoint):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", LOGITS, tiny_checkpoint],
            env={**os.environ, "OPENBLAS_NUM_THREADS": threads},
            stdout=subprocess.PIPE,
        )
        for threads in ("1", "2")
    ]
    digests = {process.communicate()[0] for process in processes}
    assert len(digests) == 1
    assert digests != {b""}
