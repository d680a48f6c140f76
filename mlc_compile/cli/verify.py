"""`mlc-compile verify`: whether an artifact is whole and computes what it should."""

from typing import TYPE_CHECKING

from mlc_compile.cli.console import Output, output_options, plain_table
from mlc_compile.cli.options import Artifact
from mlc_compile.errors import DamageError, TargetError, listing

if TYPE_CHECKING:
    from rich.table import Table

    from mlc_compile.bench.verify import Verification


@output_options
def verify(output: Output, artifact: Artifact) -> None:
    """Check files, versions and the proof; exit 6 if damaged, 4 if built by another TVM.

    The proof of an artifact for another machine is "not run", which is no failure.
    """
    from mlc_compile.bench import verify as bench

    verification = bench.verify(artifact)
    output.result(verification, as_table(verification))
    names = [finding.name for finding in verification.failures]
    if names:
        kind = TargetError if names == ["versions"] else DamageError
        raise kind(f"{artifact} failed on {listing(names)}", hint="rebuild the artifact")


def as_table(verification: "Verification") -> "Table":
    """One row per finding."""
    table = plain_table("check", "status", "detail", folding=("detail",))
    for finding in verification.findings:
        table.add_row(finding.name, finding.status, finding.detail)
    return table
