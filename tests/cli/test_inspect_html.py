"""`inspect --html`: one file, written where it was asked for, whatever the model is called."""

import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from mlc_compile.artifact import Manifest, read_manifest, write_manifest

HOSTILE = "<script>alert(1)<b>&amp;"  # as much markup as a directory's name can hold


@pytest.fixture
def artifact(nano_artifact, tmp_path):
    """A copy, apart from the weights directory."""
    return Path(shutil.copytree(nano_artifact, tmp_path / "cpu"))


def test_the_page_is_written_and_named(here, nano_artifact, tmp_path):
    page = tmp_path / "report.html"
    ran = here("inspect", nano_artifact, "--html", page)
    assert ran.code == 0, ran.err
    assert ran.out == f"{page}\n"
    first = page.read_text()
    assert first.startswith("<!doctype html>")
    assert "relative error" in first
    ran = here("inspect", nano_artifact, "--html", page, "--json")
    assert ran.json["html"] == str(page)
    assert page.read_text() == first


def test_without_its_weights_an_artifact_has_a_page_without_errors(here, artifact, tmp_path):
    page = tmp_path / "report.html"
    assert here("inspect", artifact, "--html", page).code == 0
    assert "which is not beside this artifact" in page.read_text()


def test_a_model_s_name_is_text(here, artifact, tmp_path):
    page = tmp_path / "report.html"
    report = json.loads((artifact / "report.json").read_text())
    (artifact / "report.json").write_text(json.dumps({**report, "model": HOSTILE}))
    write_manifest(artifact, replace(read_manifest(artifact, Manifest), model=HOSTILE))
    assert here("inspect", artifact, "--html", page).code == 0
    text = page.read_text()
    assert HOSTILE not in text
    assert "<h1>&lt;script&gt;alert(1)&lt;b&gt;&amp;amp;</h1>" in text
    assert text.count("<script") == 1


def test_what_cannot_be_read_or_written_is_told(here, artifact, tmp_path):
    ran = here("inspect", artifact, "--html", tmp_path / "nowhere" / "report.html")
    assert ran.code == 2
    nowhere = tmp_path / "nowhere"
    told = f"error: --html: there is no directory {nowhere}\n hint: mkdir -p {nowhere}\n"
    assert ran.err == told
    (artifact / "report.json").write_text('{"events": []}')
    ran = here("inspect", artifact, "--html", tmp_path / "report.html")
    assert ran.code == 6
    assert "report.json is damaged" in ran.err


@pytest.mark.parametrize(
    ("place", "told"), [("cpu/report.json", "lies in the artifact"), (".", "is a directory")]
)
def test_nothing_of_the_artifact_is_overwritten(here, artifact, tmp_path, place, told):
    before = (artifact / "report.json").read_bytes()
    ran = here("inspect", artifact, "--html", tmp_path / place)
    assert ran.code == 2
    assert told in ran.err
    assert (artifact / "report.json").read_bytes() == before
