"""A module has the header, the sections and the strings that the specification demands."""

import re
import struct
from pathlib import Path

import pytest
from tvm import tirx

from mlc_compile.emit.spirv import declarations as d
from mlc_compile.emit.spirv.dtypes import BOOL, FLOAT16, FLOAT32, INT32, UINT32, Type
from mlc_compile.emit.spirv.module import Module, text
from mlc_compile.emit.spirv.opcodes import Op
from mlc_compile.emit.vulkan.emitter import build
from mlc_compile.target import find_target
from tests.emit.gpu_kernels import KERNELS, module

from .reading import Code, Instruction
from .reading import text as read_text
from .writing import F32, THREADS, call, kernel, load, store

GOLDEN = Path(__file__).parents[2] / "golden" / "spirv"

# The order of sections; instructions of one number may stand in any order.
SECTIONS = (
    {Op.Capability},
    {Op.Extension},
    {Op.ExtInstImport},
    {Op.MemoryModel},
    {Op.EntryPoint},
    {Op.ExecutionMode},
    {Op.Name, Op.MemberName},
    {Op.Decorate, Op.MemberDecorate},
    {op for op in Op if op.name.startswith(("Type", "Constant"))} | {Op.Variable},
)


def doubled(n):
    x = load(n.x, n.thread)
    return [store(n.y, tirx.Add(x, x), n.thread)]


@pytest.fixture
def code(emit):
    return Code(emit(kernel(doubled, {"x": F32, "y": F32}, {"m": "int32"})).code)


def test_the_header_has_magic_version_and_bound(code):
    magic, version, generator, bound, schema = code.words[:5]
    assert (magic, version, generator, schema) == (0x07230203, 0x00010300, 0, 0)
    results = [i.result for i in code.instructions if i.op.name.startswith(("Type", "Constant"))]
    assert max(results) < bound


def test_sections_come_in_the_order_of_the_specification(code):
    seen = [i.op for i in code.instructions]
    function = seen.index(Op.Function)
    ranks = [next(n for n, ops in enumerate(SECTIONS) if op in ops) for op in seen[:function]]
    assert ranks == sorted(ranks)
    assert set(ranks) == set(range(len(SECTIONS))) - {1}  # it needs no extension
    assert seen[-1] is Op.FunctionEnd


def test_the_entry_point_has_the_kernels_name_and_threads(code, emit):
    entry = code.one(Op.EntryPoint)
    assert read_text(entry.operands[2:]) == "k"
    assert code.one(Op.ExecutionMode).operands[1:] == (17, THREADS, 1, 1)
    assert emit(kernel(doubled, {"x": F32, "y": F32})).local_size == (THREADS, 1, 1)


@pytest.mark.parametrize("string", ["", "abc", "abcd", "kernel_1", "µ"])
def test_strings_end_with_a_zero_and_fill_words(string):
    raw = struct.pack(f"<{len(text(string))}I", *text(string))
    assert raw.rstrip(b"\0") == string.encode()
    assert len(raw) % 4 == 0
    assert len(raw) > len(string.encode())


def test_equal_types_and_constants_are_declared_once():
    m = Module("k")
    assert d.constant(m, INT32, 5) == d.constant(m, INT32, 5)
    assert d.constant(m, INT32, 5).ids == d.constant(m, UINT32, 5).ids, "integers have no sign"
    assert d.held(m, Type("uint", 8), 4) == d.held(m, Type("int", 32), 4), "held in 32 bits"
    assert d.stored(m, Type("uint", 8), 1) != d.held(m, Type("uint", 8), 1)
    assert d.stored(m, BOOL, 1) == d.stored(m, Type("int", 8), 1)


@pytest.mark.parametrize(
    ("type_", "value", "bits"),
    [
        (FLOAT32, 1.5703125, 0x3FC90000),
        (FLOAT32, float("inf"), 0x7F800000),
        (FLOAT32, float("-inf"), 0xFF800000),
        (FLOAT32, float("nan"), 0x7FC00000),
        (FLOAT32, 1e-45, 0x00000001),  # the least subnormal
        (FLOAT32, -0.0, 0x80000000),
        (FLOAT32, 1e300, 0x7F800000),
        (FLOAT16, 65504.0, 0x7BFF),
        (FLOAT16, 65536.0, 0x7C00),
        (FLOAT16, 2.0**-24, 0x0001),
        (FLOAT16, 1 / 3, 0x3555),
        (INT32, -1, 0xFFFFFFFF),
        (Type("int", 8), -128, 0xFFFFFF80),
        (Type("uint", 16), 65535, 0xFFFF),
    ],
)
def test_constants_are_kept_by_their_bits(type_, value, bits):
    m = Module("k")
    (made,) = d.constant(m, type_, value).ids
    assert m.declarations[-4:] == [4 << 16 | Op.Constant, d.held(m, type_, 1), made, bits]


def test_vectors_of_more_than_four_are_chunks():
    m = Module("k")
    assert len(d.constant(m, FLOAT32.of(8), 1).ids) == 2
    assert FLOAT32.of(6).chunks == (4, 2)


def test_arguments_have_names_for_a_debugger(code):
    names = {read_text(i.operands[1:]) for i in code.all(Op.Name)}
    assert names == {"k", "x_ptr", "y_ptr"}
    assert read_text(code.one(Op.MemberName).operands[2:]) == "m"


def test_a_kernel_without_floats_16_asks_for_nothing(emit):
    assert emit(kernel(doubled, {"x": F32, "y": F32})).capabilities == ("Shader",)


def test_halves_that_are_only_converted_need_no_float16_arithmetic(emit):
    def widen(n):
        return [store(n.y, tirx.Cast(F32, load(n.x, n.thread)), n.thread)]

    shader = emit(kernel(widen, {"x": "float16", "y": F32}))
    assert shader.capabilities == ("Shader", "StorageBuffer16BitAccess")

    def grow(n):
        x = load(n.x, n.thread)
        return [store(n.y, tirx.Add(x, x), n.thread)]

    shader = emit(kernel(grow, {"x": "float16", "y": "float16"}))
    assert shader.capabilities == ("Float16", "Shader", "StorageBuffer16BitAccess")


def test_emission_is_reproducible(emit):
    func = kernel(doubled, {"x": F32, "y": F32})
    assert emit(func).code == emit(func).code


def test_a_call_of_c_is_one_instruction(emit):
    from tvm.ir import StringImm

    def root(n):
        x = call("tirx.call_pure_extern", F32, StringImm("sqrtf"), load(n.x, n.thread))
        return [store(n.y, x, n.thread)]

    assert Code(emit(kernel(root, {"x": F32, "y": F32})).code).extended() == [31]


@pytest.mark.parametrize("name", KERNELS)
def test_emitted_words_are_the_golden_ones(name, request, emit):
    """`pytest tests/emit --refresh-goldens` writes what is emitted now."""
    built = build(module(**{name: KERNELS[name]}), find_target("vulkan"))
    (func,) = built.kernels.values()
    listing = "".join(map(line, Code(emit(func).code).instructions))
    golden = GOLDEN / f"{name}.spvasm"
    if request.config.getoption("--refresh-goldens"):
        golden.write_text(listing)
    assert listing == golden.read_text()


def line(instruction: Instruction) -> str:
    """`IAdd 6 41 40 39`: the instruction, then its words."""
    words = " ".join(map(str, instruction.operands))
    return re.sub(r" $", "", f"{instruction.op.name} {words}") + "\n"
