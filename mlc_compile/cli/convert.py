"""`mlc-compile convert`: a checkpoint to quantized weights that any target can use."""

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from mlc_compile.cli.console import Output, output_options, timings
from mlc_compile.cli.options import Model, Quant

if TYPE_CHECKING:
    from mlc_compile.artifact import WeightsManifest


@output_options
def convert(
    output: Output,
    model: Model,
    *,
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory to write.")],
    quant: Quant = "q4f16_1",
) -> None:
    """Quantize MODEL into target-neutral weights, with the logits that prove their values."""
    from mlc_compile.checkpoint import find_model
    from mlc_compile.driver.convert import convert as convert_model

    start = perf_counter()
    with output.progress() as progress:
        manifest = convert_model(find_model(model), quant, out, progress)
    seconds = {"converting": perf_counter() - start}
    for line in (*manifest.notes, *(f"kept unquantized: {kept}" for kept in manifest.kept)):
        output.story(line)
    head = "tied to the embedding" if manifest.tied else "of its own"
    size = f"{stored_bytes(manifest) / 1e6:,.1f} MB"
    output.story(timings(seconds))
    output.story(f"{manifest.model} as {manifest.quant}, {size}, head {head}")
    result = {
        "directory": str(out),
        "model": manifest.model,
        "quant": manifest.quant,
        "tied": manifest.tied,
        "kept": manifest.kept,
        "notes": manifest.notes,
        "nbytes": stored_bytes(manifest),
        "digest": manifest.digest,
        "seconds": seconds,
    }
    output.result(result, str(out))


def stored_bytes(manifest: "WeightsManifest") -> int:
    """Bytes of all tensors."""
    return sum(file.nbytes for file in manifest.files if file.path.endswith(".bin"))
