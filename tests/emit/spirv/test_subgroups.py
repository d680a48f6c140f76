"""Shuffles: which lane's value a thread gets, and what they ask of a device."""

import msgspec
import numpy as np
import pytest

from mlc_compile.emit.spirv import emit_kernel
from mlc_compile.errors import TargetError

from .writing import F16, F32, I32, THREADS, U32, call, const, kernel, load, store

WIDTH = 4  # lavapipe's subgroups are as small as a vector of the CPU


def shuffled(name, operand, dtype=F32, width=WIDTH):
    def body(n):
        everyone = call("tirx.tvm_warp_activemask", U32)
        by, wide = const(I32, operand), const(I32, width)
        value = load(n.x, n.thread)
        return [store(n.y, call(name, dtype, everyone, value, by, wide, wide), n.thread)]

    return kernel(body, {"x": dtype, "y": dtype})


t = np.arange(THREADS)
LANE, FIRST = t % WIDTH, t - t % WIDTH


@pytest.mark.vulkan
@pytest.mark.parametrize(
    ("name", "operand", "source"),
    [
        ("tirx.tvm_warp_shuffle", 2, FIRST + 2),
        ("tirx.tvm_warp_shuffle", 7, FIRST + 3),
        ("tirx.tvm_warp_shuffle_down", 1, np.where(LANE + 1 < WIDTH, t + 1, t)),
        ("tirx.tvm_warp_shuffle_up", 3, np.where(LANE >= 3, t - 3, t)),
        ("tirx.tvm_warp_shuffle_xor", 1, t ^ 1),
        ("tirx.tvm_warp_shuffle_xor", 4, t),
    ],
)
@pytest.mark.parametrize("dtype", [F32, F16, "int8"])
def test_a_thread_gets_the_value_of_the_lane(run, name, operand, source, dtype):
    x = np.random.default_rng(0).integers(-99, 99, THREADS).astype(dtype)
    y = np.zeros_like(x)
    run(shuffled(name, operand, dtype), [x, y])
    np.testing.assert_array_equal(y, x[source])


def test_a_shuffle_asks_for_shuffles_alone(emit):
    shader = emit(shuffled("tirx.tvm_warp_shuffle_down", 1))
    assert shader.capabilities == ("GroupNonUniform", "GroupNonUniformShuffle", "Shader")


@pytest.mark.parametrize("subgroup", [1, 16])
def test_devices_with_smaller_subgroups_are_refused(device, subgroup):
    small = msgspec.structs.replace(device, subgroup=subgroup)
    with pytest.raises(TargetError, match=f"subgroups of 32 threads.* subgroup = {subgroup}"):
        emit_kernel(shuffled("tirx.tvm_warp_shuffle_down", 1, width=32), small)
