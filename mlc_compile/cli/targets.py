"""`mlc-compile targets`: the presets, and which of them this machine can run."""

from typing import TYPE_CHECKING

from mlc_compile.cli.console import Output, output_options, plain_table

if TYPE_CHECKING:
    from mlc_compile.target import Target


@output_options
def targets(output: Output) -> None:
    """List the targets that --target accepts."""
    rows = [(target, why_not_here(target)) for target in usable_targets()]
    table = plain_table(
        "target",
        "triple",
        "computes",
        "runs here",
        "about",
        folding=("runs here", "about"),
        dropped=("triple",),
    )
    for target, reason in rows:
        runs = f"no: {reason}" if reason else "yes"
        table.add_row(target.name, target.triple, told_device(target), runs, target.about)
    output.result(
        [
            {
                "name": target.name,
                "about": target.about,
                "backend": target.backend,
                "triple": target.triple,
                "mcpu": target.mcpu,
                "mattr": target.mattr,
                "requires": target.requires,
                "device": target.device,
                "quant": target.quant,
                "runs_here": not reason,
                "reason": reason,
            }
            for target, reason in rows
        ],
        table,
    )


def usable_targets() -> "list[Target]":
    """Every target there is; `cpu` is left out on a CPU too old to have a preset."""
    from mlc_compile.errors import TargetError
    from mlc_compile.target import HOST, find_target, host_target, target_names

    presets = [find_target(name) for name in target_names() if name != HOST]
    try:
        return [host_target(), *presets]
    except TargetError:
        return presets


def why_not_here(target: "Target") -> str:
    """The first reason why this machine cannot run the target's code; empty when it can."""
    from mlc_compile.emit.probe import ability

    return next((missing.what for missing in ability(target).to_run), "")


def told_device(target: "Target") -> str:
    """What computes: the width of a CPU's vectors, or the threads of a GPU's block."""
    if target.device is None:
        return f"CPU, {target.vector_bits} bit"
    return f"GPU, {target.device.threads} threads"
