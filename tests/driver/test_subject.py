"""How a model is called."""

import pytest

from mlc_compile.driver.subject import read_subject

SNAPSHOT = "c1899de289a04d12100db370d81485cdf75e47ca"


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (f"hub/models--Qwen--Qwen3-0.6B/snapshots/{SNAPSHOT}", "Qwen3-0.6B"),
        ("models/Qwen3-0.6B", "Qwen3-0.6B"),
        ("snapshots/mine", "mine"),
    ],
)
def test_a_model_has_the_name_of_its_directory_or_of_its_place_in_the_cache(nano, place, name):
    directory = nano.path.parent / place
    directory.parent.mkdir(parents=True)
    nano.path.rename(directory)
    assert read_subject(directory).name == name
