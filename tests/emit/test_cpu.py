"""Libraries for this machine compute, code is generated for every CPU, the same bytes again.

What libraries for other machines are like is in test_check_library.py.
"""

import os
import subprocess
import sys

import msgspec
import numpy as np
import pytest
import tvm
from tvm import IRModule, relax

from mlc_compile.emit.cpu import build, emit, tvm_target
from mlc_compile.emit.link import linker as linking
from mlc_compile.emit.link.linker import find_linker
from mlc_compile.errors import TargetError
from mlc_compile.schedule.kernels import norm
from mlc_compile.target import find_target, target_names

CROSS = [n for n in target_names() if n != "cpu" and find_target(n).backend == "cpu"]


def module():
    """A library of one kernel, gone through what `relax.build` still needs."""
    kernel = norm.rms_norm(64, 1e-6, None).with_attr("global_symbol", "rms_norm")
    return IRModule({"rms_norm": kernel})


def library(name, out):
    target = find_target(name)
    emit(module(), target, find_linker(target), out)
    return out.read_bytes()


@pytest.mark.parametrize("linker", ["the system's", "zig"])
def test_a_library_for_this_machine_loads_and_computes(tmp_path, monkeypatch, linker):
    if linker == "zig":
        pytest.importorskip("ziglang", reason="needs zig: pip install 'mlc_compile[cross]'")
        monkeypatch.setattr(linking.shutil, "which", lambda _name: None)
        assert find_linker(find_target("cpu")).name == "zig"
    library("cpu", tmp_path / "lib.so")
    x = np.full((1, 3, 64), 4, np.float32)
    y = tvm.runtime.tensor(np.empty_like(x))
    loaded = tvm.runtime.load_module(str(tmp_path / "lib.so"))
    run = loaded.get_function("rms_norm", query_imports=True)
    run(tvm.runtime.tensor(x), tvm.runtime.tensor(np.ones(64, np.float32)), y)
    np.testing.assert_allclose(y.numpy(), 1, rtol=1e-6)


@pytest.mark.parametrize("name", CROSS)
def test_code_for_every_target_is_generated_without_its_linker(tmp_path, name):
    code = build(module(), find_target(name))
    code.export_library(str(tmp_path / "lib.tar"))
    assert (tmp_path / "lib.tar").stat().st_size > 0


@pytest.mark.parametrize("name", CROSS)
def test_llvm_knows_the_cpu_and_features_of_every_preset(name, capfd):
    tvm_target(find_target(name))
    assert "not a recognized" not in capfd.readouterr().err


def test_code_is_generated_without_storage_rewriting_and_with_what_is_in_force(monkeypatch):
    seen = []

    def generate(_mod, target, **_options):
        now = tvm.transform.PassContext.current()
        seen.append((str(target.attrs["mcpu"]), dict(now.config), len(now.instruments)))

    monkeypatch.setattr(relax, "build", generate)
    row = find_target("cpu-x86-64-v3")
    with tvm.transform.PassContext(config={"tirx.disable_vectorize": True}, instruments=[]):
        build(module(), row)
    config = {"tirx.disable_vectorize": True, "tirx.disable_storage_rewrite": True}
    assert seen == [(row.mcpu, config, 0)]


def test_a_cpu_that_llvm_does_not_know_is_refused():
    odd = msgspec.structs.replace(find_target("cpu-x86-64-v3"), mcpu="pentium9")
    with pytest.raises(TargetError, match="LLVM knows no CPU 'pentium9'") as error:
        tvm_target(odd)
    assert error.value.exit_code == 4
    assert "configs/targets/cpu-x86-64-v3.toml: did you mean 'pentium" in error.value.hint


def test_the_same_model_gives_the_same_bytes_wherever_it_is_compiled(nano_checkpoint, tmp_path):
    """Two processes, two directories, two orders of hashing; neither loads torch."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch is loaded')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    made = []
    for seed, place in (("1", tmp_path / "a"), ("2", tmp_path / "deeper" / "b")):
        place.mkdir(parents=True)
        command = [sys.executable, "-m", "mlc_compile", "compile", nano_checkpoint]
        subprocess.run(
            [*map(str, command), "-o", str(place / "out"), "--quiet"],
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "TVM_NUM_THREADS": seed,
                "PYTHONPATH": path,
            },
            check=True,
            capture_output=True,
        )
        made.append(place / "out")
    one, other = made
    names = sorted(p.name for p in one.iterdir())
    assert names == sorted(p.name for p in other.iterdir())
    for name in set(names) - {"build-log.json"}:  # it alone holds times
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
