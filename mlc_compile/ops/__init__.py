"""The `mlc.*` Relax operators: what the model emits and what passes and rules match.

Operator and arguments, attributes below, result to the right:

    weight()                                the tensor `part` of the joined sources
        sources, part, layout, shape, dtype
    linear(x[.., k], w[n, k])               x w^T: [.., n]
    quantized_matmul(inputs of `source` .., part, .., residual[.., n] if any)
        source, k, eps, n, scheme,          x dequantize(parts)^T (+ residual): [.., n];
        residual, swiglu                    swiglu of the product: [.., n / 2]
    quantized_take(ids[m], part, ..)        rows of dequantize(parts): [m, k]
        n, scheme, k
    swiglu(gate_up[.., 2 i])                silu(gate) * up: [.., i]
    attention(qkv[1, m, (h_q + 2 h_kv) d], gamma_q[d], gamma_k[d], kv)
        fields of `Attention`               (o[1, m, h_q d], kv)
    qk_norm(qkv[1, m, (h_q + 2 h_kv) d], gamma_q[d], gamma_k[d])
        fields of `Attention`, dtype        dtype[m, h_q + 2 h_kv, d]
    rope_angles(length, inv_freq[d/2], x[1, m, ..])
        scale                               cosines and sines: [m, d]
    flat_append(qkv, gamma_q, gamma_k, angles, k_pages, v_pages, table, length)
        fields of `Attention`               (q[1, m, h_q, d], k_pages, v_pages)
    flat_step(the arguments of flat_append), for m = 1
        fields of `Attention`               (o[1, 1, h_q d], k_pages, v_pages)
    flat_attend(q, k_pages, v_pages, table, length)
        fields of `Attention`               o[1, m, h_q d]
    tile_append(the arguments of flat_append)
        fields of `Attention`               (q i32[1, m, h_q, d/2], k_pages, v_pages): q scaled
                                            for the softmax to base 2, and rounded
    tile_project(pairs, part of w[n, k], gamma_q, gamma_k, angles, k_pages, v_pages, table, length)
        fields of `Attention`, n, k, scheme as tile_append of the product, n = (h_q + 2 h_kv) d
    tile_attend(q i32[1, m, h_q, d/2], k_pages, v_pages, table, length), in bfloat16
        fields of `Attention`, rounded      o[1, m, h_q d], or i32[1, m, rounded_words(h_q d)]

    quantize_act(inputs of `source`)        (codes i32[1, m, k/4], scales f32[1, m, k/group],
        source, k, eps, fields of `Grouping` offsets i32[1, m, k/group])
    int8_matmul(codes, scales, offsets, parts of w[n, k] .., residual if any)
        n, scheme, residual                 [1, m, n]
    round_act(inputs of `source`)           i32[1, m, rounded_words(k)]: bfloat16 of k and k + 16
        source, k, eps                       of each group of 32
    bf16_matmul(pairs, parts of w[n, k] .., residual if any)
        n, k, scheme, residual              [1, m, n]
    bf16_swiglu(pairs, parts of w[n, k] ..) swiglu of the product, rounded:
        n, k, scheme                        i32[1, m, rounded_words(n / 2)]
    int8_gemv(inputs of `source` .., parts .., residual if any)
        source, k, eps, n, scheme, residual, swiglu
                                            [1, 1, n] or [1, 1, n / 2]

A `source` (see SOURCES) is what is computed on the way into quantization, rounding or product:
x is what it makes of its inputs. A residual has the shape of the result: it is added last,
after `swiglu` too. The operators with `flat` or `rope` are what `mlc.attention` becomes over
the flat KV cache (artifact.FlatKV), those with `tile` or `bf16` what takes the place of others
where a CPU multiplies tiles, and `qk_norm` what is left of it to do before TVM's paged
one; x gives `mlc.rope_angles` its m.

A weight is an operator, not a function parameter, until `BindWeights` ends the graph
phases: a pass can then join, quantize or repack weights by rewriting attributes, and the
weight plan falls out at the end. Results are float32, the type of our arithmetic, unless the
line says otherwise.
"""

from mlc_compile.ops.attributes import (
    COMPUTE_DTYPE,
    NARROW,
    RAW,
    SOURCES,
    Attention,
    Grouping,
    Matrix,
    Source,
    Weight,
    rounded_words,
)
from mlc_compile.ops.calls import (
    attention,
    bf16_matmul,
    bf16_swiglu,
    flat_append,
    flat_attend,
    flat_step,
    in_compute_dtype,
    int8_gemv,
    int8_matmul,
    is_call,
    is_one_row,
    is_plain,
    linear,
    norms_rows,
    qk_norm,
    quantize_act,
    quantized_matmul,
    quantized_take,
    rope_angles,
    round_act,
    shape_of,
    swiglu,
    tile_append,
    tile_attend,
    tile_project,
    weight,
    with_args,
    with_residual,
    with_source,
    with_swiglu,
)
from mlc_compile.ops.inference import OPERATORS

__all__ = [
    "COMPUTE_DTYPE",
    "NARROW",
    "OPERATORS",
    "RAW",
    "SOURCES",
    "Attention",
    "Grouping",
    "Matrix",
    "Source",
    "Weight",
    "attention",
    "bf16_matmul",
    "bf16_swiglu",
    "flat_append",
    "flat_attend",
    "flat_step",
    "in_compute_dtype",
    "int8_gemv",
    "int8_matmul",
    "is_call",
    "is_one_row",
    "is_plain",
    "linear",
    "norms_rows",
    "qk_norm",
    "quantize_act",
    "quantized_matmul",
    "quantized_take",
    "rope_angles",
    "round_act",
    "rounded_words",
    "shape_of",
    "swiglu",
    "tile_append",
    "tile_attend",
    "tile_project",
    "weight",
    "with_args",
    "with_residual",
    "with_source",
    "with_swiglu",
]
