"""Whole models for every browser profile: no kernel asks for more than the profile's devices give.

`require_limits` names a kernel that does; the tight row also has weights cut into ranges.
"""

import dataclasses
import functools

import msgspec
import pytest

from mlc_compile.passes.bind_weights import read_plan
from mlc_compile.pipeline import phases
from mlc_compile.schedule.limits import require_limits
from mlc_compile.target import find_target, target_names

BROWSERS = [name for name in target_names() if find_target(name).page_runs]


@functools.cache
def compiled(nano_plan, name, **device):
    """The nano model after all phases, for a row whose device is changed so, and the row."""
    mod, plan = nano_plan(name, find_target(name).quant)
    row = plan.target
    row = msgspec.structs.replace(row, device=msgspec.structs.replace(row.device, **device))
    for phase in phases(dataclasses.replace(plan, target=row)):
        for step in phase.passes:
            mod = step(mod)
    return mod, row


@pytest.mark.parametrize("name", BROWSERS)
def test_a_model_stays_within_every_profile(nano_plan, name):
    require_limits(*compiled(nano_plan, name))


def test_a_weight_that_no_kernel_sees_whole_is_cut_and_stays_within(nano_plan):
    whole, _ = compiled(nano_plan, "webgpu")
    parts = [part for tensor in read_plan(whole).tensors for part in tensor.parts]
    largest = max(parts, key=lambda part: part.nbytes)
    cut, row = compiled(nano_plan, "webgpu", binding_bytes=largest.nbytes - 1)
    require_limits(cut, row)
    names = [part.name for tensor in read_plan(cut).tensors for part in tensor.parts]
    assert largest.name not in names
    assert {f"{largest.name}_0", f"{largest.name}_1"} <= set(names)
