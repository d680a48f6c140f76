"""What changes while a build runs is not cached under what it became, whenever it changes."""

from mlc_compile.cli import build as command
from mlc_compile.cli.app import invoke
from mlc_compile.driver import build as module
from mlc_compile.driver import convert as converting
from tests.driver.stand_ins import entries


def test_an_input_that_changes_under_the_build_is_not_cached(made, nano, stub, monkeypatch):
    write_proof = converting.write_proof

    def meddle(*args):
        write_proof(*args)
        with nano.tensors() as tensors:
            tensors["model.norm.weight"][3] ^= 1

    monkeypatch.setattr(converting, "write_proof", meddle)
    built = made()
    (note,) = built.notes
    assert "changed during the build, which did not cache the converted weights" in note
    monkeypatch.setattr(converting, "write_proof", write_proof)
    assert made().weights == "built"


def test_an_input_that_changes_before_its_step_is_not_cached_under_what_it_became(
    made, nano, stub, monkeypatch
):
    """The library's limits were decided from the config that was there at the start."""
    write_proof = converting.write_proof

    def meddle(*args):
        write_proof(*args)
        with (nano.path / "config.json").open("a") as file:
            file.write("\n")

    monkeypatch.setattr(converting, "write_proof", meddle)
    assert len(made().notes) == 2
    monkeypatch.setattr(converting, "write_proof", write_proof)
    assert made().weights == "built"
    assert "library" in stub


def test_a_config_that_changes_once_it_was_read_is_not_cached_as_what_it_became(
    made, nano, stub, monkeypatch
):
    """Its digest is asked for later, when weights and library get their keys."""
    read_subject = module.read_subject

    def read_and_meddle(model):
        subject = read_subject(model)
        with nano.config() as config:
            config["rms_norm_eps"] = 0.5
        return subject

    monkeypatch.setattr(module, "read_subject", read_and_meddle)
    assert len(made().notes) == 2
    monkeypatch.setattr(module, "read_subject", read_subject)
    made()
    assert stub[:2] == ["weights", "library"]


def test_code_that_is_deleted_under_a_build_ends_nothing_and_is_not_cached(
    made, stub, tmp_path, monkeypatch
):
    decide, code = module.decide, tmp_path / "code" / "passes.py"

    def decide_and_delete(*args):
        code.unlink(missing_ok=True)
        return decide(*args)

    monkeypatch.setattr(module, "decide", decide_and_delete)
    assert f"{code} changed during the build" in made().notes[0]
    assert "library" not in entries(tmp_path / "cache")


def test_neither_is_what_changes_while_a_build_tunes_first(
    nano, stub, tmp_path, monkeypatch, capsys
):
    def tune_first(*_args):
        with nano.config() as config:
            config["rms_norm_eps"] = 0.5

    monkeypatch.setattr(command, "tune_first", tune_first)
    arguments = ["build", nano.path, "-o", tmp_path / "out", "--cache-dir", tmp_path / "cache"]
    assert invoke([*map(str, arguments), "--target", "cpu", "--tune", "1s"]) == 0
    said = capsys.readouterr().err
    assert f"{nano.path / 'config.json'} changed during the build" in said
    assert not {"weights", "library"} & entries(tmp_path / "cache").keys()
