"""nvcc: where it is looked for, what it is asked, what is said when it fails or is not there."""

import errno
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlc_compile.emit.cuda import nvcc, nvrtc, toolchain
from mlc_compile.emit.cuda.compiler import PIP_HINT
from mlc_compile.emit.cuda.nvcc import Nvcc, find_nvcc, gencode
from mlc_compile.emit.cuda.toolchain import find_compiler, probe
from mlc_compile.errors import TargetError

ALL = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100")
KERNEL = 'extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= 2; }\n'
REAL = find_nvcc()

needs_nvcc = pytest.mark.skipif(REAL is None, reason="needs nvcc of a CUDA toolkit")


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch):
    """No compiler but those that a test installs."""
    monkeypatch.setenv("PATH", "")
    for variable in (*nvcc.TOOLKITS, "NVCC_CCBIN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(nvcc, "USUAL", Path("/nowhere"))
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda _name: None)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """`install(release="12.4", archs=ALL)`: a program in a toolkit's place that says so.

    `compiling` is Python that stands for a compilation; `gcc` whether there is a gcc too.
    """

    def put(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!{sys.executable}\nimport os, sys\n{text}\n")
        path.chmod(0o755)

    def make(release="13.0", archs=ALL, compiling="sys.exit(1)", gcc=True, home="cuda"):
        version = f"Cuda compilation tools, release {release}, V{release}.88"
        answers = {"--version": version, "--list-gpu-code": "\n".join(archs)}
        lines = (f"if sys.argv[1] == {k!r}: print({v!r}); sys.exit()" for k, v in answers.items())
        put(tmp_path / home / "bin" / "nvcc", "\n".join([*lines, compiling]))
        if gcc:
            put(tmp_path / "path" / "gcc", "")
            monkeypatch.setenv("PATH", str(tmp_path / "path"))
        monkeypatch.setenv("CUDA_HOME", str(tmp_path / home))
        return tmp_path / home / "bin" / "nvcc"

    return make


@pytest.fixture
def real(monkeypatch):
    """The machine's own nvcc, and the tools around it."""
    monkeypatch.undo()
    return REAL


def refusal(archs=ALL):
    with pytest.raises(TargetError) as error:
        find_compiler(archs)
    assert error.value.exit_code == 4
    return str(error.value), error.value.hint


def test_the_toolkit_that_the_environment_names_is_found(install):
    command = install(release="12.8")
    found = find_compiler(ALL)
    assert (found.name, found.command, found.release) == ("nvcc 12.8.88", str(command), (12, 8))


def test_path_goes_before_the_environment_and_the_environment_before_the_usual_place(
    install, monkeypatch
):
    monkeypatch.setattr(nvcc, "USUAL", install(release="11.8", home="usual").parents[1])
    monkeypatch.delenv("CUDA_HOME")
    assert find_nvcc().name == "nvcc 11.8.88"
    command = install(release="12.8")
    assert find_nvcc().name == "nvcc 12.8.88"
    on_path = install(release="13.0", home="other")
    monkeypatch.setenv("CUDA_HOME", str(command.parents[1]))
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_nvcc().name == "nvcc 13.0.88"


def test_without_any_compiler_pip_is_told():
    assert refusal() == ("no CUDA compiler: nvcc or NVRTC is needed", PIP_HINT)
    assert "pip install 'mlc_compile[cuda]'" in PIP_HINT


def test_a_release_too_old_for_an_architecture_is_told_with_the_one_it_needs(install):
    install(release="12.4", archs=ALL[:-1])
    said, hint = refusal()
    assert said == "nvcc 12.4.88 cannot compile for sm_100: CUDA 12.8 or later is needed"
    assert hint == PIP_HINT
    assert find_compiler(ALL[:-1]).name == "nvcc 12.4.88"


def test_an_architecture_that_the_compiler_does_not_list_is_told_with_near_ones(install):
    install()
    said, hint = refusal(("sm_80", "sm_900"))
    assert said == "nvcc 13.0.88 knows no architecture 'sm_900'"
    assert "'sm_90'" in hint


def test_nvcc_without_a_host_compiler_is_refused_before_it_is_run(install):
    install(gcc=False)
    assert refusal()[0] == "nvcc 13.0.88 needs gcc, which is not on PATH"


def test_a_host_compiler_named_in_the_environment_will_do(install, monkeypatch):
    install(gcc=False)
    monkeypatch.setenv("NVCC_CCBIN", "clang++")
    assert find_compiler(ALL).name == "nvcc 13.0.88"


def test_nvcc_that_does_not_answer_is_refused(install):
    command = install()
    command.write_text("#!/nowhere/sh\n")
    assert refusal()[0] == f"{command} does not tell its version"


def test_nvrtc_does_where_nvcc_is_too_old(install, monkeypatch):
    install(release="12.4", archs=ALL[:-1])
    other = Nvcc("another", "", (13, 0), ALL)
    monkeypatch.setattr(toolchain, "FINDERS", (find_nvcc, lambda: other))
    assert find_compiler(ALL) is other


def test_every_architecture_gets_machine_code_and_the_newest_ptx():
    assert list(gencode(("sm_100", "sm_80")))[1::2] == [
        "arch=compute_100,code=sm_100",
        "arch=compute_80,code=sm_80",
        "arch=compute_100,code=compute_100",
    ]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "kernels.cu(3): error: no such thing\\n1 error detected",
            "kernels.cu(3): error: no such thing",
        ),
        ("nvcc fatal   : Failed to preprocess", "nvcc fatal   : Failed to preprocess"),
        ("Killed", "Killed"),
        ("", "exit code 3"),
    ],
)
def test_a_compilation_that_fails_is_quoted_in_a_sentence(install, said, words):
    install(compiling=f"sys.stderr.write('{said}'); sys.exit(3)")
    with pytest.raises(TargetError) as error:
        find_compiler(ALL).compile(KERNEL, ALL)
    assert str(error.value) == f"nvcc 13.0.88 could not compile the kernels: {words}"
    assert error.value.exit_code == 4
    assert error.value.hint


def test_a_disk_that_fills_up_under_the_compiler_is_told_as_such(install):
    install(compiling="sys.exit('Fatal error: cannot write: No space left on device')")
    with pytest.raises(OSError, match="No space left") as error:
        find_compiler(ALL).compile(KERNEL, ALL)
    assert error.value.errno == errno.ENOSPC


def test_options_in_the_environment_do_not_change_the_code(install, monkeypatch):
    for variable in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"):
        monkeypatch.setenv(variable, "-lineinfo")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    install(
        compiling="names = ('NVCC_PREPEND_FLAGS', 'NVCC_APPEND_FLAGS', 'LC_ALL')\n"
        "open('kernels.fatbin', 'w').write(repr([os.environ.get(n) for n in names]))"
    )
    assert find_compiler(ALL).compile(KERNEL, ALL).code == b"[None, None, 'C']"


@needs_nvcc
def test_the_same_source_gives_the_same_bytes_wherever_it_is_compiled(real, tmp_path, monkeypatch):
    one = real.compile(KERNEL, ALL)
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nvcc.tempfile, "tempdir", str(tmp_path / "deeper"))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert real.compile(KERNEL, ALL) == one
    assert str(tmp_path).encode() not in one.code


@needs_nvcc
def test_no_file_is_left_behind(real, tmp_path, monkeypatch):
    monkeypatch.setattr(nvcc.tempfile, "tempdir", str(tmp_path))
    real.compile(KERNEL, ("sm_80",))
    with pytest.raises(TargetError):
        real.compile("nonsense", ("sm_80",))
    assert list(tmp_path.iterdir()) == []


@needs_nvcc
def test_an_error_in_the_source_is_quoted_with_its_line(real):
    with pytest.raises(TargetError, match=r"kernels\.cu\(2\): error: .*\"nonsense\""):
        real.compile(KERNEL + "nonsense x;", ("sm_80",))


@needs_nvcc
def test_kernels_are_compiled_without_fast_math(real):
    """Fast math would make of `sinf` one approximate instruction, and little code."""
    sine = 'extern "C" __global__ void k(float* x) { x[0] = sinf(x[0]); }\n'
    fast = sine.replace("sinf", "__sinf")
    assert len(real.compile(sine, ("sm_80",)).code) > len(real.compile(fast, ("sm_80",)).code) + 500


FULL = """
import sys, tempfile
from mlc_compile.emit.cuda.nvcc import find_nvcc
tempfile.tempdir = sys.argv[1]
try:
    find_nvcc().compile(sys.argv[2], ("sm_80",))
except OSError as e:
    print(e.strerror, e.filename)
"""


@needs_nvcc
@pytest.mark.parametrize("size", ["4k", "64k", "1m"])
@pytest.mark.usefixtures("real")
def test_a_disk_too_small_for_temporary_files_is_told_as_full(tmp_path, size):
    def inside(script):
        command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    mount = f"mount -t tmpfs -o size={size} none {tmp_path}"
    if shutil.which("unshare") is None or inside(mount).returncode != 0:
        pytest.skip("this system lets nobody mount a disk of their own (unshare)")
    ran = inside(f"{mount} && {shlex.join([sys.executable, '-c', FULL, str(tmp_path), KERNEL])}")
    assert ran.stdout == f"No space left on device {tmp_path}\n", ran.stderr


def test_probe_tells_what_is_missing_and_raises_nothing(monkeypatch):
    def nothing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(toolchain.ctypes, "CDLL", nothing)
    found = probe()
    assert found.compiler is None
    assert found.emit_missing == "no CUDA compiler: nvcc or NVRTC is needed"
    assert found.emit_fix == PIP_HINT
    assert (found.devices, found.run_missing) == (0, "libcuda.so.1 does not load")
    assert "driver" in found.run_fix


@pytest.mark.parametrize(
    ("init", "count", "devices", "missing"),
    [
        (0, 2, 2, ""),
        (0, 0, 0, "there is no GPU"),
        (100, 0, 0, "the driver finds no GPU (status 100)"),
    ],
)
def test_probe_counts_devices(install, monkeypatch, init, count, devices, missing):
    class Driver:
        def __init__(self, _name):
            pass

        def cuInit(self, _flags):
            return init

        def cuDeviceGetCount(self, place):
            place._obj.value = count
            return 0

    install()
    monkeypatch.setattr(toolchain.ctypes, "CDLL", Driver)
    found = probe(ALL)
    assert found.compiler == "nvcc 13.0.88"
    assert (found.devices, found.run_missing) == (devices, missing)


@needs_nvcc
def test_this_machine_is_probed_without_loading_tvm(real):
    code = "import sys; from mlc_compile.emit.cuda.toolchain import probe; probe(); "
    code += "sys.exit('tvm' in sys.modules)"
    assert os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", code) == 0
    assert shutil.which("nvcc")
