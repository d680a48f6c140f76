"""Leaving optimizations out changes how the model is computed, never what."""

import json
from pathlib import Path

import pytest

from mlc_compile import ops
from mlc_compile.passes.catalog import optional_passes
from mlc_compile.passes.rewrite import bindings_of, relax_functions

# What a pass makes, which nothing else does: gone with it.
MADE = {
    "MergeProjections": ("graph", "relax.split"),
    "FuseSwiGLU": ("graph", "mlc.swiglu"),
    "FuseQuantizeGemv": ("activations", "mlc.int8_gemv"),
}
# And what is left to do where it did not run.
LEFT = {
    "CancelSplitConcat": ("graph", "relax.concat"),
    "FuseSwiGLU": ("graph", "relax.nn.silu"),
    "FuseQuantizeSource": ("activations", "relax.nn.rms_norm"),
    "FuseResidual": ("activations", "relax.add"),
    "FuseQuantizeGemv": ("activations", "mlc.quantize_act"),
}


def count(mod, name, function="decode"):
    functions = {gv.name_hint: func for gv, func in relax_functions(mod)}
    return sum(ops.is_call(v, name) for v in bindings_of(functions[function]).values())


@pytest.mark.parametrize(("name", "phase", "op"), [(n, *left) for n, left in LEFT.items()])
def test_what_a_pass_would_fuse_stays(nano_after, name, phase, op):
    assert count(nano_after(phase, "cpu", "q4f16_1"), op) == 0
    assert count(nano_after(phase, "cpu", "q4f16_1", disabled=(name,)), op) > 0


@pytest.mark.parametrize(
    ("name", "phase", "op"), [(n, *made) for n, made in MADE.items() if n != "MergeProjections"]
)
def test_what_a_pass_makes_is_missing(nano_after, name, phase, op):
    assert count(nano_after(phase, "cpu", "q4f16_1"), op) > 0
    assert count(nano_after(phase, "cpu", "q4f16_1", disabled=(name,)), op) == 0


def test_unmerged_projections_are_weights_of_their_own(nano_after):
    from mlc_compile.passes.bind_weights import read_plan

    joined, apart = (
        len(read_plan(nano_after("graph", "cpu", "q4f16_1", **choices)).tensors)
        for choices in ({}, {"disabled": ("MergeProjections",)})
    )
    # Two layers: q, k, v were one of three, gate and up one of two.
    assert apart == joined + 2 * (2 + 1)


@pytest.mark.parametrize("scheme", ["q4f16_1", "q0f32"])
def test_with_everything_disabled_the_proof_still_passes(cli, nano_checkpoint, tmp_path, scheme):
    options = [word for name in optional_passes() for word in ("--disable-pass", name)]
    ran = cli("build", nano_checkpoint, "--quant", scheme, "-o", tmp_path, "--json", *options)
    assert ran.code == 0, ran.err  # fails unless the logits are the reference's
    artifact = Path(ran.json["artifacts"][0]["directory"])
    assert json.loads((artifact / "manifest.json").read_text())["check"]["status"] == "pass"
    told = json.loads((artifact / "report.json").read_text())["events"]
    refused = [e["source"] for e in told if e["reason"] == "disabled by --disable-pass"]
    assert refused == list(optional_passes())
