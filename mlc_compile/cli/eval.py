"""`mlc-compile eval`: how well an artifact predicts a text."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mlc_compile.cli.console import Output, output_options
from mlc_compile.cli.options import Artifact, Threads
from mlc_compile.errors import ConfigError

if TYPE_CHECKING:
    from mlc_compile.bench.eval import Evaluation


STDIN: Final = Path("/dev/stdin")


@output_options
def eval_(
    output: Output,
    artifact: Artifact,
    *,
    text: Annotated[
        Path,
        typer.Option(
            help="UTF-8 text to predict; `-`: standard input.",
        ),
    ],
    reference: Annotated[
        Path | None,
        typer.Option(help="Artifact to compare with, such as the q0f32 build of the model."),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(min=2, help="Tokens read at a time.", show_default="512, or the context"),
    ] = None,
    threads: Threads = None,
) -> None:
    """Measure perplexity on a text; with --reference also KL divergence and top-1 agreement."""
    from mlc_compile.bench.eval import WINDOW, evaluate, read_text
    from mlc_compile.runtime.engine import open_engine
    from mlc_compile.runtime.session import open_session

    words = read_text(_source(text))
    session = open_session(artifact, threads)
    other = None if reference is None else open_engine(reference, threads)
    ids = session.tokenizer.encode(words, special=False)
    size = window or min(WINDOW, session.engine.limits.context)
    with output.progress() as progress:
        evaluation = evaluate(session.engine, ids, size, other, progress)
    output.result(evaluation, told(evaluation))


def _source(text: Path) -> Path:
    if str(text) == "-":
        return STDIN
    if not text.exists() or text.is_dir():
        raise ConfigError(f"no text file {text}", hint="give a UTF-8 file, or - for standard input")
    return text


def told(evaluation: "Evaluation") -> str:
    """The measures as lines for people."""
    e = evaluation
    lines = [f"perplexity       {e.perplexity:.3f}  ({e.tokens:,} tokens, windows of {e.window})"]
    if e.kl is not None and e.top1_agreement is not None:
        lines += [f"KL to reference  {e.kl:.5f}", f"top-1 agreement  {e.top1_agreement:.2%}"]
    return "\n".join([*lines, *([e.note] if e.note else [])])
