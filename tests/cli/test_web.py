"""`mlc-compile web` serves until it is interrupted, and refuses in a sentence what it cannot."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from mlc_compile.artifact import Manifest, Versions, list_files, read_manifest, write_manifest
from mlc_compile.target import find_target
from mlc_compile.web.web_llm import PACKAGE, VERSION


@pytest.fixture
def package(tmp_path):
    """A stand-in of web-llm's package."""
    place = tmp_path / "package"
    (place / "lib").mkdir(parents=True)
    (place / "lib" / "index.js").write_text("export {};")
    (place / "package.json").write_text(json.dumps({"name": PACKAGE, "version": VERSION}))
    return place


@pytest.fixture
def make_artifact(nano_artifact, tmp_path):
    """`make_artifact(target="webgpu")`: an artifact of that manifest, which nothing runs."""

    def make(web_llm=VERSION, target="webgpu"):
        place = tmp_path / "artifact"
        place.mkdir()
        (place / "lib.wasm").write_bytes(b"\0asm")
        versions = Versions(mlc_compile="0", tvm="1", tvm_ffi="2", web_llm=web_llm)
        row, known = find_target(target), read_manifest(nano_artifact, Manifest)
        stated = {"target": target, "backend": row.backend, "triple": row.triple}
        fields = {name: getattr(known, name) for name in known.__struct_fields__}
        written = {"versions": versions, "files": list_files(place), **stated}
        write_manifest(place, Manifest(**{**fields, **written}))
        return place

    return make


@contextlib.contextmanager
def serving(*arguments, env=os.environ):
    """The command while it runs, and the first line of its result."""
    command = [sys.executable, "-m", "mlc_compile", "web", *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as process:
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


def test_it_prints_the_address_and_ends_at_an_interrupt(make_artifact, package):
    with serving(make_artifact(), "--web-llm", package, "--port", 0) as (process, line):
        url = line.strip()
        with urllib.request.urlopen(url, timeout=60) as page:
            assert b"<!doctype html>" in page.read()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "interrupted"
    assert "is not as npm has it" in err  # the stand-in


def test_json_has_the_address(make_artifact, package):
    given = [make_artifact(), "--web-llm", package, "--port", 0, "--json", "--quiet"]
    with serving(*given) as (process, line):
        text = line
        while "}" not in text:
            text += process.stdout.readline()
        told = json.loads(text)
        assert told.pop("url").startswith("http://127.0.0.1:")
        assert told["target"] == "webgpu"
        process.send_signal(signal.SIGINT)
        error = json.loads(process.communicate(timeout=60)[1])
        assert error == {"error": "interrupted", "hint": "", "exit_code": 130}


def test_other_machines_are_warned_of(make_artifact, package):
    given = [make_artifact(), "--web-llm", package, "--port", 0, "--host", "0.0.0.0"]
    with serving(*given) as (process, line):
        assert line.startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        assert "other machines can read this artifact now" in process.communicate(timeout=60)[1]


def test_open_opens_the_page(make_artifact, package, tmp_path):
    """The browser is a program that writes what it was given."""
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.new; mv {opened}.new {opened}\n')
    browser.chmod(0o755)
    given = [make_artifact(), "--web-llm", package, "--port", 0, "--open"]
    with serving(*given, env={**os.environ, "BROWSER": str(browser)}) as (process, line):
        for _ in range(6000):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.01)
            if opened.exists():
                break
        assert opened.read_text() == line


@pytest.mark.parametrize(
    ("artifact", "code", "words"),
    [
        pytest.param({"web_llm": "", "target": "cuda-sm90"}, 4, "'cuda-sm90'", id="other target"),
        pytest.param({"web_llm": "0.2.1"}, 4, "is web-llm 0.2.86, but the library", id="stale"),
    ],
)
def test_an_artifact_that_no_page_runs_is_refused(
    cli, make_artifact, package, artifact, code, words
):
    ran = cli("web", make_artifact(**artifact), "--web-llm", package, "--port", 0)
    assert (ran.code, ran.out) == (code, "")
    assert words in ran.err


def test_a_stale_library_is_refused_before_npm_is_asked(cli, make_artifact):
    ran = cli("web", make_artifact(web_llm="0.2.1"), env={**os.environ, "PATH": ""})
    assert ran.code == 4
    assert "was built for web-llm 0.2.1" in ran.err


def test_a_cpu_artifact_is_refused_with_its_target(cli, nano_artifact):
    ran = cli("web", nano_artifact)
    assert ran.code == 4
    assert "is for target 'cpu', which no browser runs" in ran.err


def test_a_damaged_artifact_is_refused(cli, make_artifact, package):
    artifact = make_artifact()
    (artifact / "lib.wasm").write_bytes(b"\0ASM")
    ran = cli("web", artifact, "--web-llm", package, "--port", 0)
    assert ran.code == 6
    assert "lib.wasm is not as mlc-compile wrote it" in ran.err


def test_a_used_port_is_told_in_a_sentence(cli, make_artifact, package):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = cli("web", make_artifact(), "--web-llm", package, "--port", port)
    assert ran.code == 7
    assert ran.err.splitlines()[-2:] == [
        f"error: port {port} is used by another program",
        " hint: end it, or name another with --port; 0 picks a free one",
    ]


def test_serving_loads_no_compiler():
    code = (
        "import sys, mlc_compile.web.server, mlc_compile.web.site, mlc_compile.web.web_llm\n"
        "print(*{m.partition('.')[0] for m in sys.modules})"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"tvm", "numpy", "typer", "rich"} & set(ran.stdout.split())
