"""`mlc-compile chat`: a conversation, in the form that the model was trained on."""

import io
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mlc_compile.cli.console import Output, output_options, tell_error
from mlc_compile.cli.options import NOT_UTF8, Artifact, Stop, Threads
from mlc_compile.cli.sampling import sampling_options
from mlc_compile.cli.turns import read_turns
from mlc_compile.errors import ConfigError, count

if TYPE_CHECKING:
    from mlc_compile.runtime.conversation import Conversation
    from mlc_compile.runtime.generate import Generation
    from mlc_compile.runtime.sampler import Asked
    from mlc_compile.runtime.template import Message

CLEAR: Final = "/clear"


@output_options
@sampling_options(left_open="the model's advice")
def chat(
    output: Output,
    artifact: Artifact,
    *,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", help="Ask this and end.", show_default="ask line by line"),
    ] = None,
    system: Annotated[str | None, typer.Option(help="Instructions for the assistant.")] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum tokens of an answer.", show_default="until the context is full"
        ),
    ] = None,
    sampling: "Asked",
    stop: Stop = None,
    threads: Threads = None,
    thinking: Annotated[
        bool | None, typer.Option("--think/--no-think", help="Whether to reason first.")
    ] = None,
) -> None:
    """Talk with the artifact in DIR; each line of standard input is one turn.

    Longer turns stand between lines of three double quotes, or have lines that end with a
    backslash. On a terminal, /clear begins anew.
    """
    from mlc_compile.runtime.conversation import Conversation, Manner
    from mlc_compile.runtime.session import open_session
    from mlc_compile.runtime.stop_texts import StopTexts

    manner = Manner(max_tokens, sampling, thinking, StopTexts(tuple(stop or ())))
    conversation = Conversation(open_session(artifact, threads), manner, system)
    talking = prompt is None and sys.stdin.isatty()
    if talking:
        output.story("Ctrl-C ends an answer, Ctrl-D the chat")
    answers: list[Generation] = []
    try:
        for answer in _talk(conversation, _turns(prompt, output), output, talking=talking):
            answers.append(answer)
    finally:  # what was answered is not lost with what was not
        if output.json:
            output.result({"messages": conversation.messages, "answers": answers})


def _talk(
    conversation: "Conversation", turns: Iterator[str], output: Output, *, talking: bool
) -> "Iterator[Generation]":
    """The answers to `turns`, written as they come; `talking`: to somebody at a terminal."""
    for turn in turns:
        if talking and turn.strip() == CLEAR:
            conversation.clear()
        elif (answer := _answer(conversation, turn, output, talking=talking)) is not None:
            output.stream("\n")
            output.story(answer.told())
            yield answer


def _answer(
    conversation: "Conversation", turn: str, output: Output, *, talking: bool
) -> "Generation | None":
    """None where somebody asks what has no answer: they are told why, and may ask again."""
    on_forgotten = partial(_tell_forgotten, output) if talking else None
    try:
        with _interruptible(talking) as interrupted:
            return conversation.ask(turn, output.stream, interrupted, on_forgotten)
    except ConfigError as e:
        if not talking:
            raise
        tell_error(str(e), e.hint)
        return None


def _tell_forgotten(output: Output, messages: "list[Message]") -> None:
    questions = count(len(messages) // 2, "question")
    output.story(f"the context is full: forgot {questions} from the beginning")


@contextmanager
def _interruptible(talking: bool) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, where somebody talks; if the answer goes on, it ends the chat."""
    pressed = threading.Event()
    if not talking:
        yield pressed.is_set
        return

    before = signal.getsignal(signal.SIGINT)

    def press(*_: object) -> None:
        signal.signal(signal.SIGINT, before)  # first: to set it twice at once would wait for ever
        pressed.set()

    signal.signal(signal.SIGINT, press)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _turns(prompt: str | None, output: Output) -> Iterator[str]:
    """What the user says, blank turns left out."""
    if prompt is not None:
        return iter([prompt] if prompt.strip() else [])
    return read_turns(_typed(output) if sys.stdin.isatty() else _piped)


def _piped(_mark: str) -> str:
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    return line.decode(errors=NOT_UTF8).rstrip("\r\n")


def _typed(output: Output) -> Callable[[str], str]:
    """Reads lines from a terminal. Where stdout is no terminal it holds answers alone."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors=NOT_UTF8)
    with suppress(ImportError):
        import readline  # `input` then lets the line be edited

        readline.parse_and_bind("set enable-bracketed-paste on")  # lines pasted are one turn

    def read_line(mark: str) -> str:
        mark = "" if output.quiet else mark
        while True:
            if not sys.stdout.isatty():
                sys.stderr.write(mark)
                sys.stderr.flush()
            try:
                return input(mark if sys.stdout.isatty() else "")
            except KeyboardInterrupt:  # as in a shell: what was typed goes, the prompt comes back
                sys.stderr.write("\n")

    return read_line
