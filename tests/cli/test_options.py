"""Lists of numbers in an option."""

import pytest

from mlc_compile.cli.options import numbers
from mlc_compile.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"), [("128,512", (128, 512)), (" 1, 2 ,", (1, 2)), ("", ()), ("0", (0,))]
)
def test_numbers_are_read(text: str, expected: tuple[int, ...]) -> None:
    assert numbers(text, "--depth") == expected


@pytest.mark.parametrize("text", ["a", "1;2", "-1", "1.5"])
def test_what_is_no_number_is_refused_by_the_options_name(text: str) -> None:
    with pytest.raises(ConfigError, match="--depth must be numbers separated by commas"):
        numbers(text, "--depth")
