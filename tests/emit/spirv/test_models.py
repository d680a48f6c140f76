"""Every kernel of a whole model is a valid shader, within the row's promises."""

import pytest

from mlc_compile.emit.spirv import emit_kernel
from mlc_compile.emit.spirv.opcodes import Glsl
from mlc_compile.emit.vulkan.emitter import build, tvm_target
from mlc_compile.pipeline import phases

from .reading import Code

# Vulkan promises 2**-11 of them: too little for angles, so kernels have formulas of their own.
LOOSE = {Glsl.Sin, Glsl.Cos, Glsl.Tan}


@pytest.mark.parametrize(
    ("scheme", "capabilities"),
    [
        ("q4f16_1", {"Float16", "Shader", "StorageBuffer16BitAccess"}),
        ("q4f32_1", {"Shader"}),
    ],
)
def test_every_kernel_of_a_model_is_valid(nano_plan, errors_of, scheme, capabilities):
    mod, plan = nano_plan("vulkan", scheme)
    with tvm_target(plan.target):
        for phase in phases(plan):
            for step in phase.passes:
                mod = step(mod)
    kernels = build(mod, plan.target).kernels
    shaders = [emit_kernel(func, plan.target.device) for func in kernels.values()]
    assert not {s.name: said for s in shaders if (said := errors_of(s))}
    assert [s.name for s in shaders] == list(kernels)
    assert {name for s in shaders for name in s.capabilities} == capabilities
    assert len(shaders) > 20
    used = {number for s in shaders for number in Code(s.code).extended()}
    assert Glsl.Exp in used
    assert not used & LOOSE
