"""What a target says of int8 is what the kernels are written with."""

from mlc_compile.schedule.kernels.dot import DOTS, dot_for
from mlc_compile.target import INT8_DOT_FEATURES, find_target, target_names


def test_each_feature_has_its_instruction_in_the_same_order():
    assert tuple(dot.feature for dot in DOTS) == INT8_DOT_FEATURES


def test_target_and_kernels_choose_alike():
    for name in target_names():
        dot = dot_for(find_target(name))
        assert (dot and dot.feature) == find_target(name).int8_dot
