"""`mlc-compile build`: a checkpoint to finished artifacts, one per target."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlc_compile.cli.console import Output, output_options, timings
from mlc_compile.cli.options import (
    ActivationType,
    Context,
    KVType,
    Model,
    PrefillChunk,
    Quant,
    Targets,
)

if TYPE_CHECKING:
    from mlc_compile.artifact import Check


@output_options
def build(
    output: Output,
    model: Model,
    *,
    target: Targets = None,
    quant: Quant = "q4f16_1",
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Directory that holds all builds.")
    ] = Path("dist"),
    context: Context = None,
    prefill_chunk: PrefillChunk = None,
    kv_dtype: KVType = None,
    activations: ActivationType = None,
) -> None:
    """Convert MODEL, compile it for each target and pack its weights, then prove the result."""
    from mlc_compile.checkpoint import find_model
    from mlc_compile.cli.options import library_options, targets_named
    from mlc_compile.driver.build import build as build_model

    targets = targets_named(target)
    options = library_options(context, prefill_chunk, kv_dtype, activations)
    with output.progress() as progress:
        built = build_model(find_model(model), targets, quant, out, options, progress)
    output.story(timings(built.seconds))
    for one in built.artifacts:
        output.story(f"{one.manifest.target}: {timings(one.seconds)}")
        output.story(f"{one.manifest.target}: {told(one.manifest.check)}")
    result = [
        {
            "directory": str(one.directory),
            "target": one.manifest.target,
            "seconds": one.seconds,
            "check": one.manifest.check,
        }
        for one in built.artifacts
    ]
    paths = "\n".join(str(one.directory) for one in built.artifacts)
    output.result({"seconds": built.seconds, "artifacts": result}, paths)


def told(check: "Check") -> str:
    """How the proof ended: its error is one of logits, and so is the bound."""
    if check.max_abs_error is None:
        return f"proof {check.status} ({check.reason})" if check.reason else f"proof {check.status}"
    error = f"largest error of a logit {check.max_abs_error:.3g}, allowed {check.bound:.3g}"
    return f"proof {check.status}, {error}" + (f" ({check.reason})" if check.reason else "")
