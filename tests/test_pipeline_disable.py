"""Leaving an optimization out leaves what it would have changed.

That it changes nothing that is computed is in test_optimized_equals_plain.py.
"""

import pytest

from mlc_compile import ops
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
