"""What a target says of int8 is what the kernels are written with."""

import pytest

from mlc_compile.schedule.kernels.dot import DOTS, dot_for
from mlc_compile.target import INT8_DOT_FEATURES, find_target, target_names


def test_each_feature_has_its_instruction_in_the_same_order():
    assert tuple(dot.feature for dot in DOTS) == INT8_DOT_FEATURES


@pytest.mark.parametrize("name", target_names())
def test_target_and_kernels_choose_alike(name):
    row = find_target(name)
    if row.device is not None:
        assert row.int8_dot is None  # its host has one, which computes nothing
        return
    dot = dot_for(row)
    assert (dot and dot.feature) == row.int8_dot
