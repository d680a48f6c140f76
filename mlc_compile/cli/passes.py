"""`mlc-compile passes`: what the compiler runs, in order, and which of it a build may leave out.

A command of its own, not an option of `compile`: it needs no model, target or output, and
loads no TVM.
"""

from mlc_compile.cli.console import Output, output_options, plain_table


@output_options
def passes(output: Output) -> None:
    """List the phases and passes of the compiler in order."""
    from mlc_compile.passes.catalog import PASSES

    table = plain_table(
        "phase",
        "pass",
        "targets",
        "does",
        "--disable-pass",
        folding=("does", "--disable-pass"),
        dropped=("targets",),
    )
    phase = ""
    for name, about in PASSES.items():
        shown = "" if about.phase == phase else about.phase
        phase = about.phase
        can = f"no: {about.needed}" if about.needed else "yes"
        table.add_row(shown, name, about.where, about.does, can)
    output.result(
        [
            {
                "name": name,
                "phase": about.phase,
                "does": about.does,
                "targets": about.where,
                "can_be_disabled": not about.needed,
                "needed": about.needed,
            }
            for name, about in PASSES.items()
        ],
        table,
    )
