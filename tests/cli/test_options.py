"""Lists in an option, and choices."""

import pytest

from mlc_compile.cli.options import (
    ACTIVATION_TYPES,
    KV_TYPES,
    QUANTS,
    library_options,
    one_target,
    scheme_for,
    targets_named,
)
from mlc_compile.cli.values import numbers
from mlc_compile.driver.job import ACTIVATIONS, KV_DTYPES
from mlc_compile.errors import ConfigError
from mlc_compile.quant import SCHEMES
from mlc_compile.target import find_target

V3_ARM = ["cpu-x86-64-v3", "cpu-aarch64"]


@pytest.mark.parametrize(
    ("text", "expected"), [("128,512", (128, 512)), (" 1, 2 ,", (1, 2)), ("", ()), ("0", (0,))]
)
def test_numbers_are_read(text: str, expected: tuple[int, ...]) -> None:
    assert numbers(text, "--depth") == expected


@pytest.mark.parametrize("text", ["a", "1;2", "-1", "1.5"])
def test_what_is_no_number_is_refused_by_the_options_name(text: str) -> None:
    with pytest.raises(ConfigError, match="--depth must be numbers separated by commas"):
        numbers(text, "--depth")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, ["cpu"]),
        (["cpu"], ["cpu"]),
        (["cpu", "cpu-x86-64-v2"], ["cpu", "cpu-x86-64-v2"]),
        (["cpu-x86-64-v3,cpu-aarch64", "cpu-x86-64-v2"], [*V3_ARM, "cpu-x86-64-v2"]),
        (["cpu-x86-64-v2", " cpu-x86-64-v2,"], ["cpu-x86-64-v2"]),
    ],
)
def test_targets_may_be_repeated_or_listed_and_come_once(
    given: list[str] | None, names: list[str]
) -> None:
    assert [target.name for target in targets_named(given)] == names


@pytest.mark.parametrize(("name", "side"), [("cpu+", "after"), ("+cpu", "before")])
def test_a_sign_of_two_targets_stands_between_two(name: str, side: str) -> None:
    with pytest.raises(ConfigError) as e:
        targets_named([name])
    assert str(e.value) == f"no target {side} '+' in {name!r}"


def test_one_target_is_not_several() -> None:
    assert one_target(["cpu-x86-64-v2"]).name == "cpu-x86-64-v2"
    with pytest.raises(ConfigError, match="one target at a time, got cpu-x86-64-v2, cpu-a") as e:
        one_target(["cpu-x86-64-v2,cpu-aarch64"])
    assert e.value.hint == "mlc-compile build takes several"


def test_the_help_lists_what_the_tables_hold() -> None:
    assert set(QUANTS) == set(SCHEMES)
    assert tuple(KV_DTYPES) == KV_TYPES
    assert tuple(ACTIVATIONS) == ACTIVATION_TYPES


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ((None, "int4"), "one of float32, int8, bfloat16"),
        (("float8", None), "one of float16, float32, int8"),
    ],
)
def test_every_choice_is_in_the_hint(options: tuple[str | None, str | None], hint: str) -> None:
    with pytest.raises(ConfigError) as e:
        library_options(None, None, *options)
    assert e.value.hint == hint


def test_the_scheme_is_the_targets_unless_asked():
    web, cuda = find_target("webgpu"), find_target("cuda-sm80")
    assert scheme_for(None, [web]) == "q4f32_1"
    assert scheme_for(None, [cuda, find_target("cpu")]) == "q4f16_1"
    assert scheme_for("q0f32", [web, cuda]) == "q0f32"


def test_targets_that_disagree_on_the_scheme_are_named():
    with pytest.raises(ConfigError, match="webgpu q4f32_1, cuda-sm80 q4f16_1"):
        scheme_for(None, [find_target("webgpu"), find_target("cuda-sm80")])
