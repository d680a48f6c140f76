"""A kernel over its device's limits is refused by name; what it takes is read off any schedule."""

import msgspec
import pytest
import tvm
from tvm import s_tir, te

from mlc_compile.errors import TargetError
from mlc_compile.schedule.kernels.gpu import norm
from mlc_compile.schedule.kernels.gpu.sampler import sample
from mlc_compile.schedule.limits import Taken, launches_of, require_limits
from mlc_compile.target import find_target

ROW = find_target("cuda-sm80")


def row(**limits):
    """The row with a device of these limits."""
    return msgspec.structs.replace(ROW, device=msgspec.structs.replace(ROW.device, **limits))


@pytest.fixture(scope="module")
def module():
    """RMSNorm over 4096 values: 256 threads, which share some memory, and 3 buffers."""
    kernel = norm.rms_norm(4096, 1e-6, None, find_target("webgpu").device)
    return tvm.IRModule({"rms_norm": kernel})


def scheduled():
    """A kernel as TVM's schedules write one: 2 threads, 512 bytes shared in each block."""
    a = te.placeholder((8, 128), name="a")
    b = te.compute((8, 128), lambda i, j: a[i, j] + 1.0, name="b")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    block = sch.get_sblock("b")
    staged = sch.cache_read(block, 0, "shared")
    outer, inner = sch.get_loops(block)
    rest, thread = sch.split(inner, [None, 2])
    sch.bind(outer, "blockIdx.x")
    sch.compute_at(staged, outer)
    sch.bind(thread, "threadIdx.x")
    del rest
    return sch.mod["main"]


def test_what_a_hand_written_kernel_takes(module):
    (taken,) = launches_of(module["rms_norm"])
    assert taken.threads == 256
    assert 0 < taken.shared_bytes <= 256 * 4 + 64


def test_what_a_scheduled_kernel_takes():
    (taken,) = launches_of(scheduled())
    assert (taken.blocks, taken.threads, taken.shared_bytes) == (8, 2, 512)
    assert [str(one.name) for one in taken.arguments] == ["a", "b"]


def test_a_kernel_that_launches_twice_takes_each_on_its_own(module):
    from mlc_compile.schedule.kernels.gpu.gemm import gemm
    from mlc_compile.schedule.kernels.gpu.weights import codec_of

    taken = launches_of(gemm(codec_of("q4f16_1", 64, 64), 64, ROW.device, compute="float16"))
    assert len(taken) == 2  # few rows, many rows
    assert all(isinstance(one, Taken) for one in taken)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"threads": 64}, "rms_norm takes 256 threads a block, the device allows 64"),
        ({"shared_bytes": 16}, "bytes of shared memory, the device allows 16"),
        ({"buffers": 2}, "rms_norm takes 3 buffers, the device allows 2"),
        ({"binding_bytes": 4096}, "takes 16,384 bytes in argument gamma, the device allows 4,096"),
    ],
    ids=["threads", "shared", "buffers", "binding"],
)
def test_a_kernel_over_a_limit_is_refused_by_name(module, limits, message):
    with pytest.raises(TargetError, match=message) as refused:
        require_limits(module, row(**limits))
    assert "cuda-sm80" in str(refused.value)
    assert refused.value.hint


def test_buffers_that_a_launch_does_not_touch_are_not_bound_to_it(module):
    """A sampler's launches share its function's arguments, and none uses all."""
    func = sample(700, find_target("webgpu").device)
    most = max(len(taken.arguments) for taken in launches_of(func))
    assert 3 <= most < len(func.params)
    require_limits(tvm.IRModule({"sample": func}), row(buffers=most))
    with pytest.raises(TargetError, match=f"takes {most} buffers, the device allows {most - 1}"):
        require_limits(tvm.IRModule({"sample": func}), row(buffers=most - 1))


def test_a_grid_that_is_too_long_is_refused():
    one_token = norm.rms_norm(64, 1e-6, 8, find_target("webgpu").device)
    with pytest.raises(TargetError, match="takes 8 blocks along x, the device allows 4"):
        require_limits(tvm.IRModule({"rms_norm": one_token}), row(grid=4))


def test_within_its_limits_it_passes(module):
    require_limits(module, row())


def test_a_cpu_has_no_such_limits(module):
    require_limits(module, find_target("cpu"))
