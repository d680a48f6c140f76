"""The gate that refuses any TVM but the pinned one."""

import os
import sys

import pytest

from mlc_compile import tvm_version
from mlc_compile.errors import TargetError


def test_the_pinned_versions_pass():
    tvm_version.require_tvm()


@pytest.mark.parametrize("found", [None, "0.1.15.post2"])
def test_another_tvm_ffi_is_refused_with_the_command_that_mends_it(monkeypatch, found):
    versions = {**tvm_version.PINS, "apache-tvm-ffi": found}
    monkeypatch.setattr(tvm_version, "installed", versions.__getitem__)
    with pytest.raises(TargetError, match=r"apache-tvm-ffi must be 0\.1\.14\.post0") as failure:
        tvm_version.require_tvm()
    assert "pip install" in failure.value.hint
    assert "apache-tvm-ffi==0.1.14.post0" in failure.value.hint


def test_an_absent_distribution_has_no_version():
    assert tvm_version.installed("no-such-distribution-anywhere") is None


@pytest.mark.parametrize("name", tvm_version.OVERRIDES)
def test_an_exported_variable_does_not_put_another_library_under_the_compiler(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    tvm_version.require_tvm()
    assert name not in os.environ


@pytest.mark.parametrize("package", [p.package for p in tvm_version.DISTRIBUTIONS.values()])
def test_a_package_that_hides_the_distribution_s_is_refused(tmp_path, monkeypatch, package):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, package, raising=False)
    with pytest.raises(TargetError, match=f"found at {tmp_path / package}") as failure:
        tvm_version.require_tvm()
    assert "PYTHONPATH" in failure.value.hint
