"""Both kinds of KV cache behind one engine: an artifact with TVM's own runs like one with ours."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlc_compile.artifact import Manifest, read_manifest
from mlc_compile.runtime.engine import open_engine

# In a process of its own: this one may have loaded TVM without its compiler.
BUILD = """
import sys
from pathlib import Path
import msgspec
from mlc_compile.driver.build import build
from mlc_compile.driver.job import Options
from mlc_compile.target import host_target
row = msgspec.structs.replace(host_target(), name="cpu-paged", kv="tvm_paged")
# One arithmetic: a prompt would be rounded to int8, or to bfloat16, otherwise than a token.
options = Options(activations="float32")
made = build(Path(sys.argv[1]), (row,), "q4f32_1", Path(sys.argv[2]), options)
print(made.artifacts[0].directory)
"""
PROMPT = [5, 17, 3, 99, 250, 7, 7, 41, 12, 60, 1, 8, 300, 2, 45, 90, 33, 21, 4, 11]


@pytest.fixture(scope="module")
def paged(nano_checkpoint, tmp_path_factory):
    """The nano checkpoint for this CPU, but with the cache that GPU targets have."""
    out = tmp_path_factory.mktemp("paged")
    command = [sys.executable, "-c", BUILD, str(nano_checkpoint), str(out)]
    return Path(subprocess.check_output(command, text=True).strip())


def test_the_proof_is_replayed_through_the_paged_cache(paged):
    manifest = read_manifest(paged, Manifest)
    assert (manifest.kv_kind, manifest.kv.page) == ("tvm_paged", 16)
    assert manifest.check.status == "pass"


def test_decoding_continues_a_prefill(paged):
    engine = open_engine(paged)
    whole = engine.prefill(PROMPT)
    engine.rewind()
    engine.prefill(PROMPT[:-2])
    engine.decode(PROMPT[-2])
    np.testing.assert_allclose(engine.decode(PROMPT[-1]), whole, atol=1e-4)


def test_a_rewound_sequence_forgets_what_came_after(paged):
    engine = open_engine(paged)
    first = engine.prefill(PROMPT)
    engine.rewind(10)
    engine.prefill([9] * 7)
    engine.rewind(10)
    np.testing.assert_allclose(engine.prefill(PROMPT[10:]), first, atol=1e-4)
