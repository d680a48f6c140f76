"""nvcc: where it is looked for, what it is asked, what is said when it fails or is not there."""

import errno
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlc_compile.emit import tool
from mlc_compile.emit.cuda import nvcc, nvrtc, toolchain
from mlc_compile.emit.cuda.compiler import PIP_HINT
from mlc_compile.emit.cuda.nvcc import Nvcc, find_nvcc, gencode
from mlc_compile.emit.cuda.toolchain import find_compiler, probe
from mlc_compile.errors import EnvironmentError_, TargetError

ALL = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100")
KERNEL = 'extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= 2; }\n'
REAL = find_nvcc()

needs_nvcc = pytest.mark.skipif(REAL is None, reason="needs nvcc of a CUDA toolkit")


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch):
    """No compiler but those that a test installs."""
    monkeypatch.setenv("PATH", "")
    for variable in (*nvcc.TOOLKITS, nvcc.HOST_VARIABLE, "TMPDIR"):
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
    why = "it does not start: No such file or directory"
    assert refusal() == (f"{command} --version gives no answer: {why}", nvcc.REINSTALL)


@pytest.mark.parametrize(
    ("text", "question", "why"),
    [
        ("print('hello world')", "--version", "it says 'hello world'"),
        ("sys.exit('broken')", "--version", "broken"),
        ("os.write(1, b'\\xff no number\\n')", "--version", "it says '\ufffd no number'"),
        ("import time; time.sleep(600)", "--version", "it does not answer within 2 seconds"),
        ("sys.exit('nvcc fatal: no file')", "--list-gpu-code", "nvcc fatal: no file"),
        ("pass", "--list-gpu-code", "it says 'nothing'"),
        ("print('release 13.0')", "--list-gpu-code", "it says 'release 13.0'"),
    ],
)
def test_an_answer_that_is_none_is_quoted(install, monkeypatch, text, question, why):
    monkeypatch.setattr(tool, "LIMIT", 2.0)
    command = install()
    version = command.read_text().splitlines()[2] if question != "--version" else ""
    command.write_text(f"#!{sys.executable}\nimport os, sys\n{version}\n{text}\n")
    assert refusal() == (f"{command} {question} gives no answer: {why}", nvcc.REINSTALL)


def test_a_version_between_bytes_that_are_no_text_is_read(install):
    command = install()
    head = f"#!{sys.executable}\nimport os, sys\nos.write(1, b'\\xff\\xfe ')\n"
    command.write_text(head + command.read_text().partition("import os, sys\n")[2])
    assert find_compiler(ALL).name == "nvcc 13.0.88"


def test_nvcc_is_asked_once_until_it_changes(install):
    command = install()
    counted = "open(__file__ + '.asked', 'a').write(sys.argv[1] + chr(10))"
    lines = command.read_text().replace("import os, sys\n", f"import os, sys\n{counted}\n")
    command.write_text(lines)
    assert find_nvcc() == find_nvcc()
    asked = Path(f"{command}.asked")
    assert asked.read_text().split() == ["--version", "--list-gpu-code"]
    command.write_text(lines.replace("13.0", "12.8"))
    assert find_nvcc().release == (12, 8)


@pytest.mark.parametrize("place", ["gone", "file"])
def test_a_place_for_temporary_files_that_is_none_is_told_as_such(
    install, tmp_path, monkeypatch, place
):
    command = install()
    lines = command.read_text().splitlines()
    failing = "if sys.argv[1] == '--list-gpu-code': sys.exit('nvcc fatal: could not open')"
    command.write_text("\n".join([*lines[:3], failing]))
    (tmp_path / "file").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path / place))
    with pytest.raises(EnvironmentError_, match=r"TMPDIR names .* no file can be written") as error:
        find_compiler(ALL)
    assert error.value.exit_code == 7
    assert str(tmp_path / place) in str(error.value)
    assert error.value.hint
    assert probe(ALL).emit_missing == str(error.value)


@needs_nvcc
def test_a_real_nvcc_needs_that_place(real, monkeypatch):
    monkeypatch.setenv("TMPDIR", "/nonsense")
    assert isinstance(find_nvcc().missing(("sm_80",)), EnvironmentError_)


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


@pytest.mark.parametrize("said", ["", "ptxas info : 0 bytes gmem", "warning: error in a name"])
def test_a_compiler_that_ends_well_and_writes_nothing_is_told(install, said):
    install(compiling=f"print({said!r})")
    with pytest.raises(TargetError) as error:
        find_compiler(ALL).compile(KERNEL, ALL)
    words = "nvcc 13.0.88 could not compile the kernels: it ended well, without a file"
    assert (str(error.value), error.value.exit_code) == (words, 4)


def test_a_failure_told_in_bytes_that_are_no_text_is_quoted(install):
    install(compiling="os.write(2, b'x.cu(1): error: \\xff'); sys.exit(3)")
    with pytest.raises(TargetError, match=r"x\.cu\(1\): error: \ufffd"):
        find_compiler(ALL).compile(KERNEL, ALL)


def test_a_compiler_that_is_gone_is_told(install):
    command = install()
    found = find_compiler(ALL)
    command.unlink()
    with pytest.raises(TargetError, match="nvcc does not start: No such file"):
        found.compile(KERNEL, ALL)


def test_without_files_in_memory_what_is_said_is_read_from_disk(install, monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    install(compiling="sys.exit('kernels.cu(3): error: no such thing')")
    with pytest.raises(TargetError, match=r"kernels\.cu\(3\): error: no such thing"):
        find_compiler(ALL).compile(KERNEL, ALL)


def test_everything_that_nvcc_runs_is_named_wherever_it_says_that_it_is(
    install, tmp_path, monkeypatch
):
    def programs():
        return find_compiler(ALL).programs()

    for path in ("bin/ptxas", "bin/nvcc", "nvvm/bin/cicc", "nvvm/libdevice/libdevice.10.bc"):
        (tmp_path / "real" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "real" / path).touch()
    places = {"_HERE_": "bin", "CICC_PATH": "nvvm/bin", "NVVMIR_LIBRARY_DIR": "nvvm/libdevice"}
    told = "; ".join(
        f"print('#$ {k}={tmp_path}/real/{v}', file=sys.stderr)" for k, v in places.items()
    )
    command = install(compiling=told)
    found = programs()
    assert {name: str(path.relative_to(tmp_path)) for name, path in found.items()} == {
        "command": "cuda/bin/nvcc",
        "nvcc": "real/bin/nvcc",
        "ptxas": "real/bin/ptxas",
        "cicc": "real/nvvm/bin/cicc",
        "libdevice.10.bc": "real/nvvm/libdevice/libdevice.10.bc",
        "gcc": "path/gcc",
    }
    monkeypatch.setenv("NVCC_CCBIN", str(tmp_path / "path"))
    assert programs() == found
    other = tmp_path / "other"
    (tmp_path / "path" / "gcc").rename(other)
    monkeypatch.setenv("NVCC_CCBIN", str(other))
    assert programs()["gcc"] == other
    install(compiling="")  # one that tells no places: they are beside it
    (command.parent / "ptxas").touch()
    assert programs()["ptxas"] == command.parent / "ptxas"


@needs_nvcc
def test_the_programs_of_a_real_toolkit_are_found(real):
    programs = real.programs()
    assert {"command", "nvcc", "cicc", "ptxas", "fatbinary", "libdevice.10.bc"} <= set(programs)
    assert all(path.is_file() for path in programs.values())


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
