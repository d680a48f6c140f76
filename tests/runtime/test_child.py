"""How a process of ours is started: whatever its directory holds, it runs our package."""

import os
import subprocess

from mlc_compile.runtime.child import PACKAGES, command, environment


def test_a_file_where_we_are_called_does_not_stand_in_for_a_module(tmp_path):
    (tmp_path / "msgspec.py").write_text("raise SystemExit('the wrong one')")
    (tmp_path / "mlc_compile.py").write_text("raise SystemExit('the wrong one')")
    asked = command("mlc_compile", "--version")
    done = subprocess.run(asked, cwd=tmp_path, env=environment(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_our_package_comes_before_what_the_caller_names(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert environment()["PYTHONPATH"] == os.pathsep.join([str(PACKAGES), "/elsewhere"])
    monkeypatch.delenv("PYTHONPATH")
    assert environment()["PYTHONPATH"] == str(PACKAGES)


def test_what_is_given_is_added_to_what_is_there(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    made = environment(OMP_NUM_THREADS="1")
    assert made["OMP_NUM_THREADS"] == "1"
    assert set(os.environ) <= set(made) | {"PYTHONPATH"}
