"""Metal without a Mac: MSL is C++ with attributes, so clang reads it against our model of
Metal's standard library (`include/metal_stdlib`), and a kernel in which no thread waits for
another runs on this CPU, thread by thread. zig brings the clang.
"""

import ctypes
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm
from tvm import tirx

from mlc_compile.emit import metal
from mlc_compile.emit.exact_constants import with_exact_constants
from mlc_compile.target import find_target

INCLUDE = Path(__file__).parent / "include"
# Metal knows the attributes; a C++ compiler need not.
CLANG = (
    "-x",
    "c++",
    "-std=c++14",
    f"-I{INCLUDE}",
    "-Wno-unknown-attributes",
    "-Wno-user-defined-literals",
)
# As TVM's Metal runtime asks the device's compiler: fast math, which may reorder sums.
LIBRARY = (
    "-shared",
    "-fPIC",
    "-O2",
    "-ffast-math",
    "-nostdlib++",
    "-fno-exceptions",
    "-fno-sanitize=all",
)
# `  device float* x_ptr [[ buffer(0) ]]` -> ("device float*", "x_ptr", "buffer(0)")
PARAMETER = re.compile(r"\s*(.+?)\s*(\w+) \[\[\s*(\S+)\s*\]\]\s*")
TOGETHER = re.compile(r"threadgroup_barrier|simd(group)?_\w+\(")  # threads wait or exchange


Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Parameter:
    """One of a kernel function: its C++ type, its name, and what Metal passes there."""

    type: str
    name: str
    passed: str


@dataclass(frozen=True)
class Kernel:
    """A PrimFunc as MSL: one launch."""

    name: str
    source: str
    func: tirx.PrimFunc  # for the extents of its launch

    @property
    def waits(self) -> bool:
        """Whether its threads wait for or read from each other."""
        return bool(TOGETHER.search(self.source))

    @property
    def scalars(self) -> list[str]:
        """What the struct of scalars holds, each as `long x;`, or as `int x[2];` low half first."""
        struct = re.search(r"_args_t \{(.*?)\};", self.source, re.DOTALL)
        return re.findall(r"(\w+)(?:\[2\])?;", struct[1]) if struct else []

    @property
    def parameters(self) -> list[Parameter]:
        """Those of the kernel function, in order."""
        head = self.source.split("kernel void", 1)[1]
        inside = head[head.index("(") + 1 : head.index(") {")]
        return [
            Parameter(*PARAMETER.fullmatch(piece).groups()) for piece in inside.strip().split(",\n")
        ]


def msl(func: tirx.PrimFunc, target: str = "metal") -> list[Kernel]:
    """The launches of `func` as the target's compiler gets them."""
    row = metal.tvm_target(find_target(target))
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    mod = with_exact_constants(mod)
    mod = tirx.transform.ForceNarrowIndexToInt32()(mod)  # as the pipeline does
    with row:
        built = tvm.tirx.build(mod, row)
    return [Kernel(name, text, func) for name, text in metal.kernel_sources(built).items()]


def compile_text(text: str, room: Path, *flags: str, tool: str = "cc") -> str:
    """Compile C++ text in the directory `room`; what clang complains of, "" for nothing."""
    source = room / "kernel.metal"
    source.write_text(text)
    command = [sys.executable, "-m", "ziglang", tool, *CLANG, *flags, str(source)]
    done = subprocess.run(command, cwd=room, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def type_errors(text: str, room: Path) -> str:
    """What clang has against MSL text; "" is well typed."""
    return compile_text(text, room, "-fsyntax-only", tool="clang")


def run_kernel(kernel: Kernel, room: Path, arrays: Arrays, sizes: Mapping[str, int]) -> None:
    """Launch the kernel here on arrays by their names in the PrimFunc; it writes into them."""
    assert not kernel.waits, "threads run one after another here"
    library = room / f"kernel{len(list(room.iterdir()))}.so"
    said = compile_text(kernel.source + driver(kernel), room, *LIBRARY, "-o", str(library), "-lm")
    assert not said, said
    buffers = [arrays[p.name.removesuffix("_ptr")] for p in kernel.parameters if is_buffer(p)]
    pointers = (ctypes.c_void_p * len(buffers))(*(b.ctypes.data for b in buffers))
    scalars = np.array([sizes[name] for name in kernel.scalars], np.int64)
    grid = (ctypes.c_uint * 6)(*extents(kernel.func, sizes))
    ctypes.CDLL(str(library)).launch(pointers, scalars.ctypes.data_as(ctypes.c_void_p), grid)


def driver(kernel: Kernel) -> str:
    """C++ that calls the kernel for every thread of every block, x fastest."""
    passed = ", ".join(argument(p, i) for i, p in enumerate(kernel.parameters))
    return f"""
extern "C" void launch(void **buffers, const void *scalars, const unsigned *grid) {{
  for (unsigned bz = 0; bz < grid[2]; ++bz)
  for (unsigned by = 0; by < grid[1]; ++by)
  for (unsigned bx = 0; bx < grid[0]; ++bx)
  for (unsigned tz = 0; tz < grid[5]; ++tz)
  for (unsigned ty = 0; ty < grid[4]; ++ty)
  for (unsigned tx = 0; tx < grid[3]; ++tx)
    {kernel.name}({passed});
}}
"""


def is_buffer(parameter: Parameter) -> bool:
    return parameter.passed.startswith("buffer") and "*" in parameter.type


def argument(parameter: Parameter, position: int) -> str:
    if is_buffer(parameter):
        return f"({parameter.type})buffers[{position}]"
    if parameter.passed.startswith("buffer"):
        return f"*({parameter.type.removesuffix('&')}*)scalars"
    letter = {"threadgroup_position_in_grid": "b", "thread_position_in_threadgroup": "t"}
    axes = {"uint": "x", "uint2": "xy", "uint3": "xyz"}[parameter.type]
    return f"{parameter.type}({', '.join(letter[parameter.passed] + axis for axis in axes)})"


def extents(func: tirx.PrimFunc, sizes: Mapping[str, int]) -> Sequence[int]:
    """Blocks along x, y and z, then threads of a block; `sizes` are the symbolic ones."""
    found = {f"{what}Idx.{axis}": 1 for what in ("block", "thread") for axis in "xyz"}

    for node in statements(func.body):
        if isinstance(node, tirx.AttrStmt) and str(node.attr_key) == "thread_extent":
            found[str(node.node.thread_tag)] = number(node.value, sizes)
    assert len(found) == 6, found
    return list(found.values())


def statements(node: object) -> Iterator[object]:
    """A statement and those inside it."""
    yield node
    for field in ("body", "then_case", "else_case"):
        if getattr(node, field, None) is not None:
            yield from statements(getattr(node, field))
    for one in getattr(node, "seq", ()):
        yield from statements(one)


def number(value: object, sizes: Mapping[str, int]) -> int:
    """An extent once the symbolic sizes are known."""
    if isinstance(value, int):
        return value
    analyzer = tvm.sym.Analyzer()
    for size in tirx.analysis.undefined_vars(value):
        analyzer.bind(size, tirx.const(sizes[size.name], size.ty.dtype))
    return int(analyzer.simplify(value))
