"""Kernels compiled alone and run on numpy arrays, with guards around every one of them.

And tiles of bfloat16, if need be in software.
"""

import ctypes
import functools
import shutil
import subprocess
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from platform import machine, system

import msgspec
import numpy as np
import pytest

from mlc_compile import target as targets
from mlc_compile.emit.link.linker import C_COMPILERS
from mlc_compile.target import (
    BF16_TILE_FEATURES,
    EXTRA_FEATURES,
    Target,
    find_target,
    missing_features,
    target_names,
    triple_mismatch,
)
from tests.schedule.kernels.bf16_products import BEST, UNITS, Unit

Arrays = list[np.ndarray]
Kernel = Callable[..., Arrays]

GUARD = 4096  # bytes before and after an array, all ones: NaN to whoever reads them as floats


def written_for(row: Target) -> object:
    """What decides the code: a row without its name and in no order of features."""
    return msgspec.structs.replace(row, name="", about="", requires=tuple(sorted(row.requires)))


# Targets whose code this machine can execute, one of each code; vector widths and registers differ.
RUNNABLE = {
    written_for(row): row.name
    for row in map(find_target, reversed(target_names()))
    if row.device is None
    and triple_mismatch(row.triple) is None
    and not missing_features(row.requires)
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`level`: this machine's own target and every other preset it can run."""
    if "level" in metafunc.fixturenames:
        metafunc.parametrize("level", sorted(RUNNABLE.values()))


@pytest.fixture(scope="session")
def compile_kernel() -> Callable[..., Kernel]:
    """`compile_kernel(prim_func, target="cpu")(*arrays)`: the arrays as the kernel leaves them.

    A write outside of an array fails the test; a read there gives NaN.
    """
    import tvm
    from tvm_ffi import StructuralKey

    from mlc_compile.emit.cpu import code_generation, tvm_target

    @functools.lru_cache(maxsize=128)  # claims about one kernel share it
    def code(same: StructuralKey, target: str) -> Callable[..., None]:
        module = tvm.IRModule({"main": same.key})
        with code_generation():
            return tvm.compile(module, target=tvm_target(find_target(target)))["main"]

    def compiled(func: object, target: str = "cpu") -> Kernel:
        run = code(StructuralKey(func.with_attr("global_symbol", "main")), target)

        def call(*arguments: np.ndarray | int) -> Arrays:
            guarded = [_Guarded(a) if isinstance(a, np.ndarray) else a for a in arguments]
            run(
                *(
                    tvm.runtime.from_dlpack(g.array) if isinstance(g, _Guarded) else g
                    for g in guarded
                )
            )
            return [g.checked() for g in guarded if isinstance(g, _Guarded)]

        return call

    return compiled


class _Guarded:
    """A copy of an array, aligned as TVM's tensors are, between two guards."""

    def __init__(self, array: np.ndarray) -> None:
        raw = np.full(array.nbytes + 2 * GUARD + 64, 0xFF, np.uint8)
        start = GUARD + -(raw.ctypes.data + GUARD) % 64
        self.before, middle, self.after = np.split(raw, [start, start + array.nbytes])
        self.array = middle.view(array.dtype).reshape(array.shape)
        self.array[...] = array

    def checked(self) -> np.ndarray:
        for guard in (self.before, self.after):
            assert (guard == 0xFF).all(), "the kernel wrote outside of its arrays"
        return self.array


def blank(shape: Sequence[int], dtype: str = "float32") -> np.ndarray:
    """What a kernel must overwrite entirely."""
    return np.full(shape, np.nan, dtype)


@pytest.fixture(scope="session")
def unwritten() -> Callable[..., np.ndarray]:
    """`unwritten(shape, dtype="float32")`: an output before the call, NaN everywhere."""
    return blank


@pytest.fixture(scope="session")
def amx_trap(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], int]:
    """`amx_trap(1)`: from now on AMX's instructions are done in software; see amx_trap.c."""
    if (system(), machine()) != ("Linux", "x86_64"):
        pytest.skip("amx_trap.c knows Linux on x86-64 alone")
    compiler = next((c for c in C_COMPILERS if shutil.which(c)), None)
    if compiler is None:
        pytest.skip("needs a C compiler: apt-get install gcc")
    source = Path(__file__).parent / "kernels" / "amx_trap.c"
    library = tmp_path_factory.mktemp("amx") / "amx_trap.so"
    options = ["-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), str(source), "-lm"]
    subprocess.run([compiler, *options], check=True)
    trap = ctypes.CDLL(str(library)).amx_trap
    trap.restype = ctypes.c_long
    return trap


@pytest.fixture
def trapping(
    amx_trap: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> Generator[str, None, None]:
    """The name of a target: this machine with tiles, each of whose instructions traps."""
    here = find_target("cpu")
    told = tuple(EXTRA_FEATURES[f] for f in BF16_TILE_FEATURES)
    row = msgspec.structs.replace(here, name="cpu-trapping", mattr=(*here.mattr, *told))
    rows = {**targets._rows(), row.name: row}
    monkeypatch.setattr(targets, "_rows", lambda: rows)
    before = amx_trap(1)
    yield row.name
    assert amx_trap(0) > before, "no instruction trapped"


@pytest.fixture
def unit(request: pytest.FixtureRequest, compile_kernel: Callable[..., object]) -> Unit:
    """The best way to do tiles that this machine has, if a test does not name one."""
    kind = getattr(request, "param", BEST)
    target = request.getfixturevalue("trapping") if kind == "trapped" else "cpu"
    return Unit(UNITS[kind], functools.partial(compile_kernel, target=target))
