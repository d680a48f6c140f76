"""`mlc-compile chat`: a conversation, in the form that the model was trained on."""

import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import typer

from mlc_compile.cli.console import Output, output_options
from mlc_compile.cli.options import NOT_UTF8, Artifact, MaxTokens, Seed, Threads, TopK, TopP


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
    max_tokens: MaxTokens = 512,
    temperature: Annotated[
        float | None,
        typer.Option(help="0 always takes the likeliest token.", show_default="the model's advice"),
    ] = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    threads: Threads = None,
    thinking: Annotated[
        bool | None, typer.Option("--think/--no-think", help="Whether to reason first.")
    ] = None,
) -> None:
    """Talk with the artifact in DIR; each line of standard input is one turn."""
    from mlc_compile.runtime.conversation import Conversation, Manner
    from mlc_compile.runtime.session import open_session

    manner = Manner(max_tokens, temperature, top_k, top_p, seed, thinking)
    conversation = Conversation(open_session(artifact, threads), manner, system)
    talking = prompt is None and sys.stdin.isatty()
    if talking:
        output.story("Ctrl-C ends an answer, Ctrl-D the chat")
    answers = []
    for line in _turns(prompt, output):
        with _interruptible(talking) as interrupted:
            answers.append(conversation.ask(line, output.stream, interrupted))
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
    """What the user says, blank lines left out."""
    lines = _typed(output) if sys.stdin.isatty() else _piped()
    yield from (line for line in (lines if prompt is None else [prompt]) if line.strip())


def _piped() -> Iterator[str]:
    for line in sys.stdin.buffer:
        yield line.decode(errors=NOT_UTF8).rstrip("\r\n")


def _typed(output: Output) -> Iterator[str]:
    """Lines from a terminal. Where stdout is no terminal it holds answers alone."""
    with suppress(ImportError):
        importlib.import_module("readline")  # `input` then lets the line be edited
    mark = "" if output.quiet else "> "
    while True:
        if not sys.stdout.isatty():
            sys.stderr.write(mark)
            sys.stderr.flush()
        try:
            yield input(mark if sys.stdout.isatty() else "")
        except EOFError:
            return
