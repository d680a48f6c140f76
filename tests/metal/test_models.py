"""Every kernel of a whole model compiled for Metal is well typed MSL."""

import pytest

from mlc_compile.emit import metal
from mlc_compile.pipeline import phases

SCHEMES = [
    "q4f16_1",
    "q0f32",
    *(pytest.param(s, marks=pytest.mark.slow) for s in ("q4f32_1", "q0f16")),
]


@pytest.fixture(scope="module", params=SCHEMES)
def sources(nano_plan, request):
    """MSL by kernel name, of the nano checkpoint."""
    mod, plan = nano_plan("metal", request.param)
    with metal.tvm_target(plan.target):
        for phase in phases(plan):
            for step in phase.passes:
                mod = step(mod)
    return metal.kernel_sources(metal.build(mod, plan.target).mod)


def test_every_kernel_of_a_model_is_well_typed(sources, type_errors):
    errors = {name: said for name, text in sources.items() if (said := type_errors(text))}
    assert not errors
    assert len(sources) > 20
