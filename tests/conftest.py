"""Fixtures that several test packages share.

TVM takes seconds to import, so only the tests that compile in this process import it, and
`cli` runs commands in a process of their own, as a user would.
"""

import contextlib
import fcntl
import functools
import gc
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from mlc_compile.cache import Store
from mlc_compile.emit.keeper import kept_by
from tests.hollow import Hollow

TESTS = Path(__file__).parent
ROOT = TESTS.parent

# Test packages and files that run the compiler in this process.
COMPILER_TESTS = (
    "passes/",
    "schedule/",
    "tune/",
    "emit/",
    "metal/",
    "simt/",
    "model/test_qwen3",
    "test_accuracy",
    "test_ops",
    "test_paged_equals_flat",
    "report/",
    "scripts/test_bench_tvm_default",
    "cli/test_activations",
    "cli/test_inspect_tuned",
    "cli/test_passes",
    "cli/test_tune",
    "driver/test_budget",
    "driver/test_build",
    "driver/test_compile",
    "test_gpu_",
    "test_optimized",
    "test_pipeline",
)

CACHES = tempfile.TemporaryDirectory(prefix="mlc-compile-caches-")  # never a user's
KERNELS = Path(CACHES.name) / "kernels"  # of all of them, each compiled once

# Workers of pytest-xdist share the CPUs: pinned, all of TVM's threads would sit on CPU 0.
os.environ.setdefault("TVM_BIND_THREADS", "0")


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that ended: its exit code, result and story."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> object:
        """stdout decoded."""
        return json.loads(self.out)


Cli = Callable[..., Ran]
Build = Callable[..., Path]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A golden prompt: ids i32[n] and float32 logits [p, vocab] after `positions` i32[p]."""

    ids: np.ndarray
    positions: np.ndarray
    logits: np.ndarray


@dataclass(frozen=True, slots=True)
class Golden:
    """What transformers computed in float32: logits by prompt length, and a greedy text."""

    prompts: Mapping[int, Prompt]
    greedy_prompt: np.ndarray
    greedy_tokens: np.ndarray


@pytest.fixture(scope="session")
def cli() -> Cli:
    """Run `mlc-compile ARGUMENTS...` in its own process: `cli("inspect", path).code`."""

    def run(
        *arguments: object,
        env: Mapping[str, str] = os.environ,
        cwd: Path = ROOT,
        timeout: float = 600,
        input: str | None = None,
    ) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "mlc_compile", *map(str, arguments)],
            env=env,
            cwd=cwd,
            timeout=timeout,
            input=input,
            capture_output=True,
            text=True,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Cli:
    """`cli` in this process, for what needs none of its own: help, refusals, reading files."""

    def run(
        *arguments: object, env: Mapping[str, str] = os.environ, cwd: Path | None = None
    ) -> Ran:
        from mlc_compile.cli.app import invoke

        capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(cwd or Path.cwd())
            for name, value in env.items():
                patch.setenv(name, value)
            code = invoke([*map(str, arguments)])
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def nano_checkpoint() -> Path:
    """The smallest trained Qwen3 checkpoint, in the Hugging Face layout."""
    return TESTS / "data" / "nano-qwen3"


@pytest.fixture(scope="session")
def tiny_checkpoint() -> Path:
    """The checkpoint that the package ships as its demo."""
    return ROOT / "mlc_compile" / "data" / "tiny-qwen3"


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """`once("name", fill)`: the directory that `fill(directory)` filled, once a session.

    The workers of pytest-xdist share it. Treat it as read-only.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    def get(name: str, fill: Callable[[Path], None]) -> Path:
        directory, done = shared / name, shared / f"{name}.done"
        with locked(shared / f"{name}.lock"):
            if not done.exists():
                fill(directory)
                done.touch()
        return directory

    return get


@pytest.fixture(scope="session")
def build_model(cli: Cli, once: Callable[[str, Callable[[Path], None]], Path]) -> Build:
    """`build_model(checkpoint, "q0f32")`: the checkpoint built for this machine, once a session.

    More arguments are options of `build`. Treat it as read-only.
    """

    def build(checkpoint: Path, quant: str = "q4f16_1", *options: object) -> Path:
        def fill(out: Path) -> None:
            asked = ["--target", "cpu", "--quant", quant, "-o", out, *options]
            ran = cli("build", checkpoint, *asked)
            assert ran.code == 0, ran.err

        words = ["build", checkpoint.name, quant, *(str(o).strip("-") for o in options)]
        return once("-".join(words), fill) / f"{checkpoint.name}-{quant}" / "cpu"

    return build


@pytest.fixture(scope="session")
def build_nano(build_model: Build, nano_checkpoint: Path) -> Build:
    """`build_nano("q0f32", *options)`: `build_model` of the nano checkpoint."""
    return functools.partial(build_model, nano_checkpoint)


@pytest.fixture(scope="session")
def nano_artifact(build_nano: Build) -> Path:
    """The nano checkpoint as an INT4 artifact (q4f16_1) for this machine."""
    return build_nano("q4f16_1")


@pytest.fixture(scope="session")
def nano_plan(nano_checkpoint: Path) -> Callable[..., tuple[object, object]]:
    """`nano_plan("cpu", "q4f16_1")`: the nano model as exported, and a plan by default options."""
    from mlc_compile.artifact import Limits
    from mlc_compile.checkpoint import read_config
    from mlc_compile.driver.job import Options, choose_activations, choose_kv
    from mlc_compile.model import load_config
    from mlc_compile.model.qwen3 import export
    from mlc_compile.pipeline import Plan
    from mlc_compile.target import find_target

    config = load_config(read_config(nano_checkpoint), "config.json")

    def make(
        target: str, scheme: str, *, chunk: int = 64, tied: bool = True, **options: object
    ) -> tuple[object, object]:
        asked, row = Options(**options), find_target(target)
        mod, names = export(config, tied=tied)
        plan = Plan(
            target=row,
            scheme=scheme,
            kv=choose_kv(config, row, scheme, asked),
            limits=Limits(context=256, prefill_chunk=chunk),
            weight_names=names,
            rope=config.rope,
            activations=choose_activations(row, scheme, asked),
            disabled=asked.disabled,
        )
        return mod, plan

    return make


@pytest.fixture(scope="session")
def nano_after(nano_plan: Callable[..., tuple[object, object]]) -> Callable[..., object]:
    """`nano_after("memory", "cpu", "q4f16_1")`: the nano model when that phase has ended.

    More arguments are `nano_plan`'s; equal calls share one module.
    """
    from mlc_compile.emit.cpu import tvm_target
    from mlc_compile.pipeline import phases

    @functools.cache
    def begin(target: str, scheme: str, **choices: object) -> Iterator[tuple[str, object]]:
        mod, plan = nano_plan(target, scheme, **choices)
        for phase in phases(plan):
            with tvm_target(plan.target):
                for step in phase.passes:
                    mod = step(mod)
            yield phase.name, mod

    usual = {p.name: p.default for p in inspect.signature(nano_plan).parameters.values()}
    usual["disabled"] = ()  # of `Options`, which the rest are for
    modules: dict[Iterator[tuple[str, object]], dict[str, object]] = {}

    def after(phase: str, target: str, scheme: str, **choices: object) -> object:
        asked = {name: value for name, value in choices.items() if value != usual.get(name)}
        run = begin(target, scheme, **asked)
        known = modules.setdefault(run, {})
        while phase not in known:  # and the next phases when somebody asks
            ended, mod = next(run)
            known[ended] = mod
        return known[phase]

    return after


@pytest.fixture
def hollow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Libraries compiled in this process have no code in their kernels, and cannot run.

    For claims about what is said of a library: LLVM is most of the time of a small one.
    """
    with kept_by(Hollow(tmp_path_factory.mktemp("hollow"))):
        yield


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Golden]:
    """`golden("nano")` or `golden("tiny")`: what tests/golden/make_goldens.py stored."""

    def read(name: str) -> Golden:
        with np.load(TESTS / "golden" / f"{name}.npz") as stored:
            prompts = {
                int(n): Prompt(stored[f"ids_{n}"], stored[f"positions_{n}"], stored[f"logits_{n}"])
                for n in stored["lengths"]
            }
            return Golden(prompts, stored["greedy_prompt"], stored["greedy_tokens"])

    return read


@pytest.fixture(autouse=True, scope="session")
def children_can_be_interrupted() -> None:
    """A job in the background starts with SIGINT ignored, and its children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_runtime_variable_outlives_a_test() -> Iterator[None]:
    """Running an artifact in this process asks TVM for its runtime alone; a child must not."""
    yield
    os.environ.pop("TVM_USE_RUNTIME_LIB", None)


@pytest.fixture(autouse=True)
def every_pass_leaves_valid_ir(request: pytest.FixtureRequest) -> Iterator[None]:
    """In tests that compile here: fail at the pass that broke the IR, not ten passes later."""
    if not compiles_here(request.path):
        yield
        return
    import tvm
    from tvm.ir.instrument import pass_instrument

    @pass_instrument
    class WellFormed:
        def run_after_pass(self, mod: object, _info: object) -> None:
            if isinstance(mod, tvm.IRModule):
                tvm.relax.analysis.well_formed(mod)  # raises; returns None

    with tvm.transform.PassContext(instruments=[WellFormed()]):
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Each test, with the fixtures set up for it, has a build cache of its own.

    Only what LLVM made of a kernel, whose key is all of its text, serves the next test too.
    """
    cache = os.environ["MLC_COMPILE_CACHE"] = tempfile.mkdtemp(dir=CACHES.name)
    entries = Store(Path(cache)).root / "entries"
    KERNELS.mkdir(exist_ok=True)
    entries.mkdir(parents=True)
    (entries / "kernel").symlink_to(KERNELS)


def pytest_sessionfinish() -> None:
    CACHES.cleanup()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--refresh-goldens`: write what is emitted now into tests/golden/<backend>/."""
    parser.addoption("--refresh-goldens", action="store_true", help="rewrite golden sources")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import the whole TVM before a test starts its runtime alone: a process has only one.

    Then a collection of garbage need not walk all that was imported, which takes seconds.
    """
    if any(compiles_here(item.path) for item in session.items):
        import tvm.relax  # noqa: F401
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a skip for want of a Debian package ("apt-get install ...") is a failure."""
    report = yield
    if os.environ.get("MLC_COMPILE_CI") == "1" and report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if "apt-get install" in reason:
            report.outcome = "failed"
            report.longrepr = f"skipped in CI, where every package must be there: {reason}"
    return report


def compiles_here(path: Path) -> bool:
    """Whether a test file is one of those that run the compiler in this process."""
    if not path.is_relative_to(TESTS):
        return False
    return path.relative_to(TESTS).as_posix().startswith(COMPILER_TESTS)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
