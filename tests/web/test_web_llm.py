"""web-llm comes from npm in the pinned version and bytes, or from where the user says."""

import base64
import hashlib
import io
import os
import shutil
import stat
import tarfile

import pytest

from mlc_compile.emit.wasm import abi
from mlc_compile.errors import ConfigError, DamageError, EnvironmentError_, TargetError
from mlc_compile.web import web_llm
from mlc_compile.web.web_llm import PACKAGE, VERSION, find_script

SCRIPT = b"export const fake = 1;\n"


@pytest.fixture
def said():
    """What was said while a script was looked for."""
    return []


@pytest.fixture
def find(tmp_path, said):
    """`find(given)`: the script, with a cache under tmp_path."""

    def one(given=None, built_for=VERSION):
        return find_script(given, built_for, tmp_path / "cache", said.append)

    return one


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """`npm("shell script")`: what npm does from now on, in the directory it is run in."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def does(script):
        path = folder / "npm"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")

    return does


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """A package as npm packs it, and pins that fit it."""
    path = tmp_path / "packed.tgz"
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo("package/lib/index.js")
        entry.size = len(SCRIPT)
        archive.addfile(entry, io.BytesIO(SCRIPT))
    digest = base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
    monkeypatch.setattr(web_llm, "INTEGRITY", f"sha512-{digest}")
    monkeypatch.setattr(web_llm, "SCRIPT_SHA256", hashlib.sha256(SCRIPT).hexdigest())
    return path


def test_the_library_s_emitter_means_the_same_version():
    assert VERSION == abi.WEB_LLM


def test_npm_is_asked_once_for_the_pinned_version(find, npm, packed, said, tmp_path):
    asked = tmp_path / "asked"
    npm(f'echo "$@" >> {asked}; cp {packed} web-llm.tgz')
    script = find()
    assert script.path.read_bytes() == SCRIPT
    assert script.genuine
    assert said == [f"fetching {PACKAGE} {VERSION} with npm"]
    assert find() == script
    assert asked.read_text().split() == ["pack", f"{PACKAGE}@{VERSION}", "--loglevel=error"]
    assert [p.name for p in script.path.parent.iterdir()] == [script.path.name]


def test_a_damaged_copy_in_the_cache_is_fetched_again(find, npm, packed):
    npm(f"cp {packed} web-llm.tgz")
    script = find()
    script.path.write_bytes(SCRIPT[:-3])
    assert find().path.read_bytes() == SCRIPT


def test_another_package_than_was_published_is_damage(find, npm, packed, tmp_path):
    npm(f"cp {packed} web-llm.tgz; echo >> web-llm.tgz")
    with pytest.raises(DamageError, match="npm brought another @mlc-ai/web-llm"):
        find()
    assert not list((tmp_path / "cache").rglob("*.js"))


def test_no_npm_is_told(find, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TargetError, match="npm is not installed") as caught:
        find()
    assert "--web-llm" in caught.value.hint


@pytest.mark.parametrize(
    ("script", "words"),
    [
        pytest.param(
            "echo 'npm error code ENOTFOUND' >&2; echo 'npm error errno ENOTFOUND' >&2;"
            "echo 'npm error network request to somewhere failed' >&2;"
            "echo 'npm error A complete log of this run' >&2; exit 1",
            "could not fetch @mlc-ai/web-llm 0.2.86: network request to somewhere failed",
            id="network",
        ),
        pytest.param("exit 7", "exit code 7", id="silent"),
        pytest.param("exit 0", "npm brought no @mlc-ai/web-llm", id="nothing"),
    ],
)
def test_a_failure_of_npm_is_told_in_its_words(find, npm, script, words):
    npm(script)
    with pytest.raises(TargetError, match=words):
        find()


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")
def test_npm_itself_says_why_it_fails(find, monkeypatch, tmp_path):
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    with pytest.raises(TargetError, match=r"127\.0\.0\.1:9"):
        find()


def test_a_full_disk_is_told_as_one(find, npm):
    npm("echo 'npm error code ENOSPC' >&2; exit 1")
    with pytest.raises(EnvironmentError_, match="no space left"):
        find()


def test_a_package_is_found_by_its_directory_its_project_and_its_script(find, make_package):
    package = make_package("export {};")
    project = package.parent / "project"
    place = project / "node_modules" / PACKAGE
    place.parent.mkdir(parents=True)
    for given in (package, package / "lib" / "index.js"):
        script = find(given)
        assert script.path == package / "lib" / "index.js"
        assert not script.genuine
    package.rename(place)
    assert find(project).path == place / "lib" / "index.js"


def test_another_package_is_named(find, make_package):
    with pytest.raises(ConfigError, match="but is the npm package left-pad"):
        find(make_package(name="left-pad"))


def test_another_version_is_named(find, make_package):
    with pytest.raises(TargetError, match=f"is web-llm 0.2.1, but the library .* for {VERSION}"):
        find(make_package(version="0.2.1"))


def test_an_older_library_runs_with_the_package_that_it_was_built_for(find, make_package):
    assert find(make_package(version="0.2.1"), "0.2.1").version == "0.2.1"
    with pytest.raises(
        TargetError, match=f"built for web-llm 0.2.1, but mlc-compile is at {VERSION}"
    ):
        find(built_for="0.2.1")


def test_what_is_no_package_is_told(find, tmp_path):
    for given in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ConfigError, match="holds no such package"):
            find(given)


def test_a_package_that_was_not_built_is_told(find, make_package):
    package = make_package()
    (package / "lib" / "index.js").unlink()
    with pytest.raises(ConfigError, match=r"has no lib/index\.js"):
        find(package)


@pytest.mark.parametrize("about", ["", "{", "[]", "[" * 100_000, "\xff"])
def test_a_damaged_package_json_is_no_package(find, make_package, about):
    package = make_package()
    (package / "package.json").write_text(about, encoding="latin-1")
    with pytest.raises(ConfigError):
        find(package)
