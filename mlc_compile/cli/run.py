"""`mlc-compile run`: continue a text."""

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mlc_compile.cli.console import Output, output_options
from mlc_compile.cli.options import NOT_UTF8, Artifact, Stop, Threads
from mlc_compile.cli.sampling import sampling_options
from mlc_compile.errors import ConfigError

if TYPE_CHECKING:
    from mlc_compile.runtime.sampler import Asked


@output_options
@sampling_options()
def run(
    output: Output,
    artifact: Artifact,
    *,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "-p",
            help="Text to continue.",
            show_default="standard input, without its last newline",
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens to generate.")] = 128,
    sampling: "Asked",
    stop: Stop = None,
    threads: Threads = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after a stop token.")
    ] = False,
) -> None:
    """Continue a text with the artifact in DIR, printing it as it comes."""
    from msgspec.structs import asdict

    from mlc_compile.runtime.defaults import stop_tokens
    from mlc_compile.runtime.generate import Request, generate
    from mlc_compile.runtime.sampler import GREEDY
    from mlc_compile.runtime.session import open_session
    from mlc_compile.runtime.stop_texts import StopTexts

    chosen = sampling.over(GREEDY)
    stop_texts = StopTexts(tuple(stop or ()))
    text = _standard_input() if prompt is None else prompt
    session = open_session(artifact, threads)
    request = Request(
        prompt=session.tokenizer.encode(text),
        max_tokens=max_tokens,
        sampling=chosen,
        stop=frozenset() if ignore_eos else stop_tokens(artifact),
        stop_texts=stop_texts,
    )
    done = generate(session.engine, session.tokenizer, request, output.stream)
    output.stream("\n")
    if output.json:
        timings = {"load_s": session.load_s, **asdict(done.timings)}
        where = {"threads": session.threads, "device": session.device or "cpu"}
        output.result({**asdict(done), "timings": timings, **where})
    output.story(done.told() + (f", on {session.device}" if session.device else ""))


def _standard_input() -> str:
    """Without the newline that ends a file or a line, so that it is what `-p` would be."""
    if sys.stdin.isatty():
        raise ConfigError("there is no prompt", hint="give one with -p, or pipe a text in")
    return re.sub(r"\r?\n\Z", "", sys.stdin.buffer.read().decode(errors=NOT_UTF8))
