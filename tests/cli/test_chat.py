"""A chat on a terminal goes on after a question that cannot be asked; a script ends there."""

import pytest

from mlc_compile.cli.chat import _talk
from mlc_compile.cli.console import Output
from mlc_compile.errors import ConfigError
from mlc_compile.runtime.template import Message


class Told:
    """An answer as far as a chat looks at it."""

    def told(self) -> str:
        return "in no time"


class Forgetful:
    """A conversation that refuses a question and forgets as many as it is asked to."""

    def __init__(self) -> None:
        self.cleared = 0

    def clear(self) -> None:
        self.cleared += 1

    def ask(self, question, on_text, interrupted, on_forgotten):
        if question == "too long":
            raise ConfigError("the prompt is too long")
        if question.isdigit():
            on_forgotten([Message("user", "")] * 2 * int(question))
        on_text(question.upper())
        return Told()


def talk(turns, *, talking=True, quiet=False):
    conversation = Forgetful()
    return conversation, [*_talk(conversation, iter(turns), Output(quiet=quiet), talking=talking)]


@pytest.mark.parametrize("quiet", [True, False])
def test_a_question_that_fails_is_told_and_the_next_one_asked(capsys, quiet):
    _, answers = talk(["too long", "Hi"], quiet=quiet)
    said = capsys.readouterr()
    assert (len(answers), said.out) == (1, "HI\n")
    assert said.err == "error: the prompt is too long\n" + "in no time\n" * (not quiet)


def test_a_script_fails_with_its_question_and_clears_nothing(capsys):
    with pytest.raises(ConfigError):
        talk(["too long", "Hi"], talking=False)
    assert talk(["/clear"], talking=False)[0].cleared == 0
    assert capsys.readouterr().out == "/CLEAR\n"


def test_who_talks_may_clear(capsys):
    conversation, answers = talk([" /clear ", "Hi"])
    assert (conversation.cleared, len(answers)) == (1, 1)
    assert capsys.readouterr().out == "HI\n"


@pytest.mark.parametrize(("forgotten", "told"), [("1", "1 question "), ("2", "2 questions ")])
def test_what_is_forgotten_is_counted(capsys, forgotten, told):
    talk([forgotten])
    assert f"forgot {told}from the beginning" in capsys.readouterr().err
