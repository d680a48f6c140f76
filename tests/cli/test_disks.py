"""Disks that are full or read-only, through the real command: one sentence, 7, nothing left."""

import shlex
import subprocess
import sys

import pytest


@pytest.fixture
def on_disk(tmp_path):
    """`on_disk("size=1m", "build", ...)`: run a command that sees a small disk at tmp_path/disk.

    Gives its exit code, stderr, and what is on the disk afterwards.
    """
    disk = tmp_path / "disk"
    disk.mkdir()

    def inside(script):
        command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def run(options, *arguments):
        mount = f"mount -t tmpfs -o {options} none {shlex.quote(str(disk))}"
        command = shlex.join([sys.executable, "-m", "mlc_compile", *map(str, arguments)])
        ran = inside(
            f"{mount} || exit 99; {command}; code=$?; cd {disk}; find * 2>/dev/null; exit $code"
        )
        return ran.returncode, ran.stderr, ran.stdout

    try:
        usable = inside(f"mount -t tmpfs none {disk}").returncode == 0
    except FileNotFoundError:
        usable = False
    if not usable:
        pytest.skip("this system lets nobody mount a disk of their own (unshare)")
    return run


@pytest.mark.parametrize("command", ["convert", "compile", "build"])
def test_a_read_only_disk(on_disk, nano_checkpoint, tmp_path, command):
    out = tmp_path / "disk" / "out"
    code, said, left = on_disk("ro", command, nano_checkpoint, "-o", out)
    assert (code, left) == (7, "")
    error, hint = said.splitlines()
    assert error.startswith(f"error: {out}")
    assert error.endswith(": read-only file system")
    assert hint == " hint: make the file system writable, or write elsewhere with -o"


@pytest.mark.parametrize(
    ("size", "told", "whole"),
    [
        pytest.param("64k", "/weights: the weights need 0 MiB", set(), id="weights"),
        pytest.param("300k", "no space left on device", {"weights"}, id="linker"),
        pytest.param("400k", "no space left on device", {"weights"}, id="copies"),
    ],
)
def test_a_full_disk(on_disk, nano_checkpoint, tmp_path, size, told, whole):
    """Weights that were finished before stay: the next try makes them again, or replaces them."""
    out = tmp_path / "disk" / "out"
    code, said, left = on_disk(f"size={size}", "build", nano_checkpoint, "-o", out, "--quiet")
    assert code == 7, said
    assert {path.split("/")[2] for path in left.split() if path.count("/") > 1} == whole
    error, hint = said.splitlines()
    assert told in error
    assert ".partial" not in error
    assert str(nano_checkpoint) not in error
    assert "free some space" in hint
    assert "-o" in hint
