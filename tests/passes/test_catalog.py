"""The list of passes says what the pipelines run, and which of it may be left out."""

import pytest

from mlc_compile.errors import ConfigError
from mlc_compile.passes.catalog import PASSES, check_disabled, optional_passes
from mlc_compile.pipeline import phases
from mlc_compile.target import target_names

SCHEMES = ("q4f16_1", "q4f32_1", "q0f32")


def pipelines(nano_plan):
    """(phase, pass) pairs of every target under every scheme that it takes."""
    for target in target_names():
        for scheme in SCHEMES:
            _, plan = nano_plan(target, scheme)
            yield [(phase.name, str(p.info.name)) for phase in phases(plan) for p in phase.passes]


def test_every_pipeline_runs_the_list_s_passes_in_its_order(nano_plan):
    listed = [(about.phase, name) for name, about in PASSES.items()]
    run = list(pipelines(nano_plan))
    for pipeline in run:
        assert pipeline == sorted(pipeline, key=listed.index)
    assert {step for pipeline in run for step in pipeline} == set(listed)  # and nothing is stale


@pytest.mark.parametrize("name", optional_passes())
def test_a_disabled_pass_is_in_no_pipeline(nano_plan, name):
    _, plan = nano_plan("cpu", "q4f16_1", disabled=(name,))
    _, whole = nano_plan("cpu", "q4f16_1")
    left = [str(p.info.name) for phase in phases(plan) for p in phase.passes]
    everything = [str(p.info.name) for phase in phases(whole) for p in phase.passes]
    assert left == [step for step in everything if step != name]


def test_choices_come_back_once_and_in_the_list_s_order():
    assert check_disabled(["FuseResidual", "FuseSwiGLU", "FuseResidual"]) == (
        "FuseSwiGLU",
        "FuseResidual",
    )
    assert check_disabled([]) == ()


def test_a_name_that_is_no_pass_is_refused_with_its_likeness():
    with pytest.raises(ConfigError, match="no pass 'FuseSwiglu'") as refused:
        check_disabled(["FuseSwiglu"])
    assert "'FuseSwiGLU'" in refused.value.hint


@pytest.mark.parametrize("name", [n for n, about in PASSES.items() if about.needed])
def test_what_others_need_is_refused_in_a_sentence(name):
    with pytest.raises(ConfigError) as refused:
        check_disabled([name])
    assert str(refused.value) == f"{name} cannot be disabled: {PASSES[name].needed}"
