"""`run` and `chat` take the same options for sampling, and say what decides without them."""

import inspect
from dataclasses import fields

import pytest

from mlc_compile.cli.chat import chat
from mlc_compile.cli.run import run
from mlc_compile.cli.sampling import sampling_options
from mlc_compile.runtime.ranges import RANGES
from mlc_compile.runtime.sampler import Asked


@pytest.mark.parametrize(
    ("command", "without"),
    [
        (run, {"temperature": "0", "top_p": "1", "seed": "random"}),
        (chat, {"temperature": "the model's advice", "seed": "random"}),
    ],
)
def test_each_is_an_option_whose_help_has_its_range(command, without):
    parameters = inspect.signature(command).parameters
    options = {one.name: parameters[one.name].annotation.__metadata__[0] for one in fields(Asked)}
    for name, option in options.items():
        assert RANGES[name].rule in option.help
    assert {name: options[name].show_default for name in without} == without


def test_what_is_given_arrives_together():
    seen = []

    @sampling_options()
    def act(place: str, *, sampling: Asked, loud: bool = False) -> None:
        seen.append((place, sampling, loud))

    assert "sampling" not in inspect.signature(act).parameters
    open_ = dict.fromkeys(one.name for one in fields(Asked))
    act("here", loud=True, **{**open_, "top_k": 3})
    assert seen == [("here", Asked(top_k=3), True)]
