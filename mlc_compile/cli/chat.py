"""`mlc-compile chat`: a conversation, in the form that the model was trained on."""

import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mlc_compile.cli.console import Output, output_options
from mlc_compile.cli.options import (
    NOT_UTF8,
    Artifact,
    FrequencyPenalty,
    MinP,
    PresencePenalty,
    RepetitionPenalty,
    Seed,
    Stop,
    Threads,
    TopK,
    TopP,
)
from mlc_compile.errors import ConfigError

if TYPE_CHECKING:
    from mlc_compile.runtime.template import Message

CLEAR: Final = "/clear"


@output_options
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
    temperature: Annotated[
        float | None,
        typer.Option(help="0 always takes the likeliest token.", show_default="the model's advice"),
    ] = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    presence_penalty: PresencePenalty = None,
    frequency_penalty: FrequencyPenalty = None,
    repetition_penalty: RepetitionPenalty = None,
    stop: Stop = None,
    seed: Seed = None,
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

    manner = Manner(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        thinking=thinking,
        min_p=min_p,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        stop_texts=StopTexts(tuple(stop or ())),
    )
    conversation = Conversation(open_session(artifact, threads), manner, system)
    talking = prompt is None and sys.stdin.isatty()
    if talking:
        output.story("Ctrl-C ends an answer, Ctrl-D the chat")

    def forgotten(messages: "list[Message]") -> None:
        output.story(f"the context is full: forgot the oldest {len(messages) // 2} questions")

    answers = []
    for turn in _turns(prompt, output):
        if talking and turn.strip() == CLEAR:
            conversation.clear()
            continue
        try:
            with _interruptible(talking) as interrupted:
                told = forgotten if talking else None
                answers.append(conversation.ask(turn, output.stream, interrupted, told))
        except ConfigError as e:
            if not talking:
                raise
            output.story(f"error: {e}\n hint: {e.hint}")
            continue
        output.stream("\n")
        output.story(answers[-1].told())
    if output.json:
        output.result({"messages": conversation.messages, "answers": answers})


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
    from mlc_compile.runtime.turns import read_turns

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
    with suppress(ImportError):
        readline = importlib.import_module("readline")  # `input` then lets the line be edited
        readline.parse_and_bind("set enable-bracketed-paste on")  # lines pasted are one turn

    def read_line(mark: str) -> str:
        mark = "" if output.quiet else mark
        if not sys.stdout.isatty():
            sys.stderr.write(mark)
            sys.stderr.flush()
        return input(mark if sys.stdout.isatty() else "")

    return read_line
