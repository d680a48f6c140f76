"""`mlc-compile build`: a checkpoint to finished artifacts, one per target."""

from pathlib import Path
from typing import Annotated

import typer

from mlc_compile.cli.console import Output, output_options
from mlc_compile.cli.options import ActivationType, Context, KVType, Model, PrefillChunk, Quant


@output_options
def build(
    output: Output,
    model: Model,
    *,
    target: Annotated[
        str, typer.Option("-t", "--target", help="What to build for; several with commas.")
    ] = "cpu",
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
    output.story(f"converting {built.seconds['converting']:.1f} s")
    for one in built.artifacts:
        stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in one.seconds.items())
        output.story(f"{one.manifest.target}: {stages}")
    result = [
        {
            "directory": str(one.directory),
            "target": one.manifest.target,
            "seconds": one.seconds,
            "check": one.manifest.check,
        }
        for one in built.artifacts
    ]
    lines = [f"{one.directory}  proof: {one.manifest.check.told()}" for one in built.artifacts]
    output.result({"seconds": built.seconds, "artifacts": result}, "\n".join(lines))
