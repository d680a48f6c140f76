"""`passes`, `--disable-pass` and `--dump-ir` on the command line."""

import json

import pytest

from mlc_compile.cli.app import invoke
from mlc_compile.passes.catalog import PASSES


def test_passes_are_listed_in_order_without_tvm(cli):
    ran = cli("passes", "--json")
    assert ran.code == 0
    assert [(row["phase"], row["name"]) for row in ran.json] == [
        (about.phase, name) for name, about in PASSES.items()
    ]
    by_name = {row["name"]: row for row in ran.json}
    assert by_name["FuseSwiGLU"]["can_be_disabled"]
    assert not by_name["BindWeights"]["can_be_disabled"]
    shown = cli("passes").out
    assert all(name in shown for name in PASSES)


def test_a_pass_that_cannot_be_disabled_ends_before_any_work(cli, nano_checkpoint, tmp_path):
    out = tmp_path / "out"
    for name, told in (("FuseSwiglu", "FuseSwiGLU"), ("FuseTIR", "disable FuseOps")):
        ran = cli("compile", nano_checkpoint, "-o", out, "--disable-pass", name)
        assert ran.code == 2
        assert told in ran.err
    assert not out.exists()


@pytest.mark.usefixtures("hollow")
def test_compile_dumps_and_logs_what_it_ran(nano_checkpoint, tmp_path):
    out, dump = tmp_path / "out", tmp_path / "ir"
    without = ("--disable-pass", "FuseResidual", "--disable-pass", "FuseSwiGLU")
    words = ["compile", nano_checkpoint, "-o", out, "--dump-ir", dump, *without]
    assert invoke([*map(str, words)]) == 0
    assert (dump / "02-graph.py").is_file()
    assert not list(dump.glob("*FuseResidual.py"))
    seconds = json.loads((out / "build-log.json").read_text())["pass_seconds"]
    assert "FuseResidual" not in seconds["activations"]
    assert "FuseQuantizeGemv" in seconds["activations"]


def test_a_dump_into_the_artifact_is_refused_since_it_would_be_lost(cli, nano_checkpoint, tmp_path):
    out = tmp_path / "out"
    ran = cli("compile", nano_checkpoint, "-o", out, "--dump-ir", out / "ir")
    assert ran.code == 2
    assert "lies in the artifact" in ran.err
    assert not out.exists()
