'''Lines become turns: one each, but for """ and a trailing backslash.'''

from collections.abc import Iterator

import pytest

from mlc_compile.cli.turns import read_turns


def reading(lines: list[str], prompts: list[str] | None = None) -> Iterator[str]:
    left = iter(lines)

    def read_line(prompt: str) -> str:
        if prompts is not None:
            prompts.append(prompt)
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    return read_turns(read_line)


@pytest.mark.parametrize(
    ("lines", "turns"),
    [
        pytest.param(["Hi", "", "  ", "And?"], ["Hi", "And?"], id="blank lines are none"),
        pytest.param(['"""', "a", "", " b", '"""', "c"], ["a\n\n b", "c"], id="marks alone"),
        pytest.param(['"""a', 'b"""', "c"], ["a\nb", "c"], id="marks beside text"),
        pytest.param([' """a""" ', "c"], ["a", "c"], id="one line"),
        pytest.param(['"""', "a\\", '"""'], ["a\\"], id="no continuation within"),
        pytest.param(['"""', "a"], ["a"], id="never closed"),
        pytest.param(['say """', "b"], ['say """', "b"], id="not at the beginning"),
        pytest.param(['""""""', "a"], ["a"], id="nothing within"),
        pytest.param(['"""a""" b', "c"], ['"""a""" b', "c"], id="closed before the line's end"),
        pytest.param(["a\\", "  b\\", "c", "d"], ["a\n  b\nc", "d"], id="continued"),
        pytest.param(["a\\"], ["a"], id="continued by nothing"),
        pytest.param([], [], id="no lines"),
    ],
)
def test_turns(lines: list[str], turns: list[str]) -> None:
    assert list(reading(lines)) == turns


def test_the_prompt_tells_whether_a_turn_goes_on() -> None:
    prompts: list[str] = []
    list(reading(["a\\", "b", '"""c', '"""', "d"], prompts))
    assert prompts == ["> ", "... ", "> ", "... ", "> ", "> "]


def test_the_end_within_a_turn_is_asked_for_once() -> None:
    """Ctrl-D on a terminal ends one read, and the next would wait."""
    prompts: list[str] = []
    assert list(reading(['"""a'], prompts)) == ["a"]
    assert prompts == ["> ", "... "]
