"""Kernels that take tensors from the middle of a storage, and compute what they computed."""

import re

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from mlc_compile.emit.cpu import code_generation, tvm_target
from mlc_compile.passes.plan_memory.offsets import take_offsets
from mlc_compile.target import find_target

N = 1000
START = 128  # bytes


@T.prim_func(s_tir=True)
def scaled(
    x: T.Buffer((N,), "float32"), k: T.Buffer((1,), "float32"), y: T.Buffer((N,), "float32")
):
    T.func_attr({"tirx.noalias": True})
    for i in T.parallel(N // 8):
        for j in T.vectorized(8):
            y[i * 8 + j] = x[i * 8 + j] * k[0]


def compiled(func):
    with code_generation():
        return tvm.compile(tvm.IRModule({"scaled": func}), tvm_target(find_target("cpu")))["scaled"]


def within(array, start):
    """A tensor that begins `start` bytes inside a storage, and holds `array`."""
    whole = np.zeros(START // 4 + array.size, np.float32)
    whole[start // 4 :][: array.size] = array
    return tvm.runtime.tensor(whole)._create_view(array.shape, "float32", start)


@pytest.fixture
def data():
    rng = np.random.default_rng(3)
    return rng.normal(size=N).astype(np.float32), np.array([3], np.float32)


def test_any_aligned_start_will_do(data):
    x, k = data
    kernel = compiled(take_offsets(scaled, [0, 2]))
    for of_x, of_y in [(0, 0), (64, START), (START, 64)]:
        y = within(np.zeros(N, np.float32), of_y)
        kernel(within(x, of_x), tvm.runtime.tensor(k), y)
        np.testing.assert_array_equal(y.numpy(), x * k)


def test_as_written_a_kernel_refuses_a_tensor_with_a_start(data):
    x, k = data
    with pytest.raises(ValueError, match="byte_offset"):
        compiled(scaled)(within(x, 64), tvm.runtime.tensor(k), within(x, 0))


def test_a_start_off_the_alignment_is_refused(data):
    x, k = data
    with pytest.raises(ValueError, match="Misaligned"):
        compiled(take_offsets(scaled, [0, 2]))(within(x, 4), tvm.runtime.tensor(k), within(x, 0))


def test_other_parameters_stay_as_they_were(data):
    shifted = take_offsets(scaled, [0, 2])
    assert shifted.params[1].same_as(scaled.params[1])
    assert dict(shifted.attrs) == dict(scaled.attrs)


def test_vectors_are_loaded_and_stored_as_aligned_as_before():
    """The loops are the same code: only the pointers that they start from were moved."""

    def alignments(func):
        with code_generation():
            built = tvm.compile(tvm.IRModule({"scaled": func}), tvm_target(find_target("cpu")))
        moves = re.findall(r"(load|store) <8 x float>.*align (\d+)", built.mod.inspect_source("ll"))
        return sorted(moves)

    before = alignments(scaled)
    assert {how for how, _ in before} == {"load", "store"}
    assert {int(nbytes) for _, nbytes in before} == {32}
    assert alignments(take_offsets(scaled, [0, 2])) == before
