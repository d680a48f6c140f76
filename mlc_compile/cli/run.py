"""`mlc-compile run`: continue a text."""

import re
import sys
from typing import Annotated

import typer

from mlc_compile.cli.console import Output, output_options
from mlc_compile.cli.options import NOT_UTF8, Artifact, MaxTokens, Seed, Stop, Threads
from mlc_compile.errors import ConfigError


@output_options
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
    max_tokens: MaxTokens = 128,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample among the k likeliest; 0: all.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Sample among the likeliest that make up this share.")
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Leave out what is less likely than this share of the likeliest.")
    ] = 0.0,
    presence_penalty: Annotated[
        float, typer.Option(help="Taken off the logit of every token generated before, -2 to 2.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="The same for each time that it was.")
    ] = 0.0,
    repetition_penalty: Annotated[
        float,
        typer.Option(help="Divides the logit of every token of prompt and text, 0.1 to 10."),
    ] = 1.0,
    stop: Stop = None,
    seed: Seed = None,
    threads: Threads = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after a stop token.")
    ] = False,
) -> None:
    """Continue a text with the artifact in DIR, printing it as it comes."""
    from msgspec.structs import asdict

    from mlc_compile.runtime.defaults import stop_tokens
    from mlc_compile.runtime.generate import Request, generate
    from mlc_compile.runtime.sampler import Sampling
    from mlc_compile.runtime.session import open_session
    from mlc_compile.runtime.stop_texts import StopTexts

    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        min_p=min_p,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
    )
    stop_texts = StopTexts(tuple(stop or ()))
    text = _standard_input() if prompt is None else prompt
    session = open_session(artifact, threads)
    request = Request(
        prompt=session.tokenizer.encode(text),
        max_tokens=max_tokens,
        sampling=sampling,
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
