"""`mlc-compile compile`: a model's config to a library for one target; no weights needed."""

from pathlib import Path
from typing import Annotated

import typer

from mlc_compile.cli.build import told_limits
from mlc_compile.cli.console import Output, output_options, timings
from mlc_compile.cli.options import (
    ActivationType,
    Context,
    DisabledPasses,
    DumpIR,
    KVType,
    MemoryBudget,
    Model,
    OneTarget,
    PrefillChunk,
    TargetQuant,
)
from mlc_compile.errors import ConfigError


@output_options
def compile_(
    output: Output,
    model: Model,
    *,
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory to write.")],
    target: OneTarget = None,
    quant: TargetQuant = None,
    context: Context = None,
    prefill_chunk: PrefillChunk = None,
    kv_dtype: KVType = None,
    activations: ActivationType = None,
    memory_budget: MemoryBudget = None,
    disable_pass: DisabledPasses = None,
    dump_ir: DumpIR = None,
) -> None:
    """Compile MODEL to a library and the plan of the weights it wants; a config is enough."""
    from mlc_compile.checkpoint import find_model
    from mlc_compile.cli.options import library_options, one_target, open_records, scheme_for
    from mlc_compile.driver.compile import compile_model

    if dump_ir is not None and dump_ir.resolve().is_relative_to(out.resolve()):
        raise ConfigError(
            f"--dump-ir {dump_ir} lies in the artifact, which is replaced as a whole",
            hint="choose a directory outside of -o",
        )
    row = one_target(target)
    scheme = scheme_for(quant, (row,))
    options = library_options(
        context, prefill_chunk, kv_dtype, activations, memory_budget, disable_pass
    )
    records = open_records(output.cache_dir)
    with output.progress() as progress:
        if dump_ir is not None:
            from mlc_compile.driver.dump import dump_ir as dump

            dump(find_model(model), (row,), scheme, dump_ir, options, progress, records)
        compiled = compile_model(find_model(model), row, scheme, out, options, progress, records)
    manifest = compiled.manifest
    output.story(timings(compiled.seconds))
    output.story(f"linked by {manifest.linker}")
    if memory_budget is not None:
        output.story(f"{told_limits(manifest)} fit in the budget")
    result = {
        "directory": str(out),
        "target": manifest.target,
        "limits": manifest.limits,
        "libraries": [library.path for library in manifest.libraries],
        "linker": manifest.linker,
        "plan_digest": manifest.plan_digest,
        "seconds": compiled.seconds,
    }
    output.result(result, "\n".join(str(out / one.path) for one in manifest.libraries))
