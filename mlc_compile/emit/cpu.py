"""CPU libraries: LLVM objects from the wheel's own LLVM, linked by `emit.link.linker`."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import tvm
from tvm import IRModule, relax
from tvm.ir.transform import PassContext

from mlc_compile.emit.backend import Emitted
from mlc_compile.emit.kernels import write_objects
from mlc_compile.emit.link.linker import Linker, as_tvm_callback
from mlc_compile.errors import TargetError, near_matches
from mlc_compile.target import Target

ROOM: Final = 16 << 20  # bytes: many times what the objects of a library take


def tvm_target(target: Target) -> tvm.target.Target:
    """TVM's description of `target`; TargetError if this LLVM does not know its CPU.

    LLVM itself only warns about an unknown CPU and then builds generic code.
    """
    if not tvm.get_global_func("target.llvm_is_valid_cpu")(target.mcpu, target.triple):
        near = near_matches(target.mcpu, _known_cpus(target.triple))
        raise TargetError(
            f"target {target.name}: LLVM knows no CPU {target.mcpu!r} for {target.triple}",
            hint=f"correct mcpu in configs/targets/{target.name}.toml: {near}",
        )
    features = [f"+{feature}" for feature in target.mattr]
    return tvm.target.Target(
        {"kind": "llvm", "mtriple": target.triple, "mcpu": target.mcpu, "mattr": features}
    )


def _known_cpus(triple: str) -> list[str]:
    """The names that LLVM lists; it knows a few aliases more, `apple-m1` among them."""
    known = tvm.get_global_func("target.llvm_get_cpu_archlist")
    return [str(name) for name in known(tvm.target.Target({"kind": "llvm", "mtriple": triple}))]


@contextmanager
def code_generation() -> Iterator[None]:
    """What TVM must know while it lowers our kernels, beside the settings in force.

    No storage rewriting: it lifts buffers out of a parallel launch, to where all threads
    would share them, and our kernels already place theirs where they belong.
    """
    now = PassContext.current()
    config = {**dict(now.config), "tirx.disable_storage_rewrite": True}
    with PassContext(now.opt_level, now.required_pass, now.disabled_pass, now.instruments, config):
        yield


def build(mod: IRModule, target: Target) -> relax.VMExecutable:
    """Generate code for a module that went through all phases."""
    with code_generation():
        return relax.build(mod, tvm_target(target), relax_pipeline=None)


def emit(mod: IRModule, target: Target, linker: Linker, out: Path) -> Emitted:
    """Compile a module that went through all phases, kernel by kernel, and link it to `out`.

    Beside which all lies that is needed meanwhile: so a build that is killed leaves it where the
    next one clears up.
    """
    beside = out.absolute().parent
    _require_room(beside, out)
    with (
        tempfile.TemporaryDirectory(prefix=".objects-", dir=beside) as place,
        code_generation(),
    ):
        executable, objects = write_objects(mod, tvm_target(target), Path(place))
        callback = as_tvm_callback(linker, out)
        executable.export_library(str(out), fcompile=callback, addons=objects, workspace_dir=place)
    return Emitted()


def _require_room(directory: Path, out: Path) -> None:
    """OSError where the disk is as good as full: LLVM would end the process while it writes."""
    if shutil.disk_usage(directory).free < ROOM:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(out))
