"""Buffers that a GPU's kernels could not see whole are refused by name, before long work."""

import msgspec
import pytest

from mlc_compile.artifact import FlatKV, Limits, Part, PlannedTensor, WeightPlan
from mlc_compile.driver.bindings import require_whole_cache, require_whole_weights
from mlc_compile.errors import TargetError
from mlc_compile.target import find_target

MIB = 1 << 20
KV = FlatKV(layers=28, kv_heads=8, head_dim=128, page=16, dtype="float16")  # of Qwen3-0.6B: 4 KiB
CACHE = 4096  # bytes of a token in one layer: keys and values of 8 heads of 128 float16


def plan(*megabytes):
    parts = tuple(
        Part(name=f"w{m}", dtype="uint8", shape=(m << 20,), offset=0, nbytes=m << 20)
        for m in megabytes
    )
    return WeightPlan(
        tensors=(PlannedTensor(name="w", sources=("w",), layout="plain", parts=parts),), nbytes=0
    )


def test_a_weight_over_the_limit_is_named_with_both_sizes():
    row = find_target("vulkan")
    require_whole_weights(plan(128, 1), row)
    with pytest.raises(TargetError, match=r"w140 has 146,800,640 bytes.* 134,217,728") as error:
        require_whole_weights(plan(129, 140, 1), row)
    assert error.value.exit_code == 4


@pytest.mark.parametrize("name", ["vulkan-radv", "cuda-sm90", "cpu-x86-64-v3"])
def test_where_kernels_see_enough_no_weight_is_refused(name):
    require_whole_weights(plan(3000), find_target(name))


def test_a_cache_over_the_limit_names_the_context_that_fits():
    row = find_target("vulkan")
    most = row.device.binding_bytes // CACHE - KV.page
    require_whole_cache(KV, Limits(context=most, prefill_chunk=512), row)
    with pytest.raises(TargetError, match="40,960 tokens") as error:
        require_whole_cache(KV, Limits(context=40960, prefill_chunk=512), row)
    assert f"--context {most} or less" in error.value.hint
    require_whole_cache(KV, Limits(context=40960, prefill_chunk=512), find_target("vulkan-anv"))


def test_a_flat_cache_is_not_a_buffer_a_layer():
    row = msgspec.structs.replace(find_target("vulkan"), kv="flat")
    require_whole_cache(KV, Limits(context=40960, prefill_chunk=512), row)
