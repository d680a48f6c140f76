"""Two attentions join into the one over all keys, without a race; TVM's kernel has one."""

import numpy as np
import pytest
from tvm.relax.frontend.nn.llm.kv_cache import _merge_state_inplace

from mlc_compile.schedule.kernels.gpu import merge
from mlc_compile.target import find_target
from tests.schedule.kernels.gpu.emission import (
    PRINTED,
    device_of,
    every_row,
    every_type,
    simulate,
    source,
    tvm_target,
)
from tests.schedule.kernels.gpu.paged_cache import attend, near
from tests.simt import DataRace, run


def states(dtype, m, heads, d, split=9, n=20):
    """Attention over the first keys, over the others, and over all."""
    random = np.random.default_rng(m)
    q = random.standard_normal((m, heads, d))
    k, v = random.standard_normal((2, n, heads, d))
    halves = (attend(q, k[s], v[s], causal=False) for s in (slice(split), slice(split, n)))
    parts = [x.astype(t) for half in halves for x, t in zip(half, (dtype, "float32"), strict=True)]
    return parts, attend(q, k, v, causal=False)


@every_type
@pytest.mark.parametrize(("m", "heads", "d"), [(1, 4, 64), (2, 3, 80), (5, 16, 128)])
def test_the_parts_become_the_whole(row, dtype, m, heads, d):
    (o, s, other_o, other_s), (whole, mass) = states(dtype, m, heads, d)
    simulate(merge.merge_state(heads, d, dtype, device_of(row)), row, o, s, other_o, other_s)
    np.testing.assert_allclose(o, whole, **near(dtype))
    np.testing.assert_allclose(s, mass, rtol=1e-6, atol=1e-6)


@every_row
def test_a_part_without_keys_changes_nothing(row):
    (o, s, other_o, other_s), _ = states("float32", 2, 4, 64)
    before = o.copy(), s.copy()
    other_o[:], other_s[:] = 0, -1e30  # what our kernels give where no key was seen
    simulate(merge.merge_state(4, 64, "float32", device_of(row)), row, o, s, other_o, other_s)
    np.testing.assert_array_equal(o, before[0])
    np.testing.assert_array_equal(s, before[1])


@every_row
def test_far_apart_parts_do_not_overflow(row):
    (o, s, other_o, other_s), _ = states("float32", 1, 4, 64)
    s[:], other_s[:] = 300, -300
    expected = o.copy()
    simulate(merge.merge_state(4, 64, "float32", device_of(row)), row, o, s, other_o, other_s)
    np.testing.assert_allclose(o, expected, rtol=1e-6)
    np.testing.assert_allclose(s, 300, rtol=1e-6)


def test_tvms_kernel_races():
    """Why ours exists: all threads of a row read s, and all write it."""
    target = tvm_target(find_target("cuda-sm80"))
    arguments, _ = states("float16", 1, 4, 128)
    with pytest.raises(DataRace):
        run(_merge_state_inplace(4, 128, "float16", target), *arguments, target=target)


@pytest.mark.parametrize("row", PRINTED)
def test_every_code_generator_prints_it(row):
    assert "exp2" in source(row, merge.merge_state(16, 128, "float32", device_of(row)))
