"""Build one candidate: a PrimFunc as TVM's JSON in, a shared library of this machine out.

Run by `tune.measure` as `python -m mlc_compile.tune.builder`, one question a line.
"""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from mlc_compile.target import Target
from mlc_compile.tune.worker import serve
from mlc_compile.tvm_version import import_compiler

if TYPE_CHECKING:
    from mlc_compile.emit.link.linker import Linker

SYMBOL: Final = "candidate"  # the name of the function in the library


class Build(msgspec.Struct, frozen=True):
    """Build `function` for `target` (its row as JSON) into the file `out`."""

    function: str
    target: msgspec.Raw
    out: str


class Built(msgspec.Struct, frozen=True):
    """It lies there."""

    out: str


def build(question: Build) -> Built:
    """Compile and link."""
    import tvm

    from mlc_compile.emit.cpu import code_generation, tvm_target
    from mlc_compile.emit.link.linker import as_tvm_callback

    target = _target(bytes(question.target))
    function = tvm.ir.load_json(question.function).with_attr("global_symbol", SYMBOL)
    described = tvm_target(target)
    with code_generation(), described:
        module = tvm.IRModule({tvm.ir.GlobalVar(SYMBOL): function})
        library = tvm.tirx.build(module, target=described)
        out = Path(question.out)
        library.export_library(question.out, fcompile=as_tvm_callback(_linker(target), out))
    return Built(question.out)


@cache
def _target(row: bytes) -> Target:
    return msgspec.json.decode(row, type=Target)


@cache
def _linker(target: Target) -> "Linker":
    from mlc_compile.emit.link.linker import find_linker

    return find_linker(target)


def main() -> None:
    """Load the compiler before the first question, then answer."""
    import_compiler()
    import mlc_compile.emit.cpu
    import mlc_compile.emit.link.linker

    del mlc_compile
    serve(Build, build)


if __name__ == "__main__":
    main()
