"""The model of Metal's standard library refuses what MSL refuses, and computes as MSL says."""

import ctypes

import pytest

from .model import LIBRARY, compile_text

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def test_vectors_attributes_and_address_spaces_are_understood(type_errors):
    text = """
kernel void f(device float* x [[ buffer(0) ]], constant uint& n [[ buffer(1) ]],
              uint2 block [[threadgroup_position_in_grid]]) {
  threadgroup half held[32];
  thread float4 v = *(device float4*)(x + block.x * 4);
  v = v * 2.0f + float4(1.0f, 2.0f, 3.0f, 4.0f);
  held[block.y] = half4(v).x + 1.0h;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (block.x < n) x[0] = simd_shuffle_down(v.zw.y, 3) + dot(v, v) + as_type<float>((uint)7);
}
"""
    assert type_errors(HEAD + text) == ""


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("float4 v = half4(1.0h);", "no viable conversion"),
        ("float x = max(1, 2L);", "no matching function"),
        ("float4 v = float4(1.0f, 2.0f);", "one value for each element"),
        ("half h = as_type<half>(1.0f);", "as_type keeps the size"),
        ("float x = erf(1.0f);", "undeclared identifier 'erf'"),
        ("float4 v = float4(1.0f) + half4(1.0h);", "invalid operands"),
        ("double x;", "poisoned"),
    ],
)
def test_what_msl_refuses_is_refused(type_errors, statement, said):
    assert said in type_errors(f"{HEAD}kernel void f() {{ {statement} }}")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("float4(1, 2, 3, 4).zw.x", 3),
        ("dot(float3(1, 2, 3), float3(4, 5, 6))", 32),
        ("(float)half(2049.0f)", 2048),  # half has 11 bits
        ("as_type<float>(0x40490fdbu)", 3.1415927410125732),
        ("(float)as_type<half2>(0x40003c00u).y", 2),  # the high half is the second element
        ("rsqrt(float4(4, 16, 64, 256))[2]", 0.125),
        ("clamp(7.0f, 0.0f, 2.0f) + (float)clamp(-3, -2, 2)", 0),
        ("float(select(1, 5, true)) + fma(2.0f, 3.0f, 4.0f)", 15),
        ("(float)((uint4(6) & uint4(3)) << uint4(2)).w", 8),
        ("(float)(int4(-7) / int4(2)).x + (float)((-7) >> 1)", -7),  # toward zero, then down
        ("(float)sizeof(float3) + (float)sizeof(long)", 24),
        ("(float4(1) < float4(2)).x ? 1.0f : 0.0f", 1),
    ],
)
def test_expressions_have_the_values_of_msl(room, expression, value):
    library = room / f"expression{len(list(room.iterdir()))}.so"
    text = f'{HEAD}extern "C" float value() {{ return {expression}; }}'
    assert compile_text(text, room, *LIBRARY, "-o", str(library), "-lm") == ""
    compute = ctypes.CDLL(str(library)).value
    compute.restype = ctypes.c_float
    assert compute() == value
