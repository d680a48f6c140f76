"""What LLVM makes of the tiles' kernels for a CPU with AMX: read, since few machines can run it."""

import re
from collections import Counter
from functools import cache

import pytest
import tvm

from mlc_compile import ops
from mlc_compile.artifact import FlatKV
from mlc_compile.emit.cpu import code_generation, tvm_target
from mlc_compile.schedule.kernels import attention, bf16_gemm, bf16_swiglu, peak
from mlc_compile.schedule.kernels.tiles import Amx
from mlc_compile.schedule.kernels.weights import codec_of
from mlc_compile.target import find_target

ROW = find_target("cpu-sapphirerapids")
TILE_CODE = re.compile(r"\t(ldtilecfg|tile\w+|tdp\w+)\t?(.*)")
MEMORY = re.compile(r"(-?\d*)\((%\w+)\)")
LEAVES = re.compile(r"jmpq?$|ret")
WIDTHS = {"x": 16, "y": 32, "z": 64}  # bytes of %xmm0, %ymm0, %zmm0
STORES = {"movb": 1, "movw": 2, "movl": 4, "movq": 8, "vmovd": 4, "vmovq": 8, "vmovss": 4}


def assembly(func):
    """Instructions of the kernel for a CPU with AMX, in AT&T's order of operands."""
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    with code_generation():
        compiled = tvm.compile(module, target=tvm_target(ROW)).mod
    return compiled.inspect_source("asm").splitlines()


def gemm(n, *, residual=False, strips=1):
    codec, tile = codec_of("q4f16_1", n, 1024), bf16_gemm.Tile(strips=strips)
    return bf16_gemm.gemm(codec, n, Amx(), tile, residual=residual)


def gated(outputs):
    return bf16_swiglu.gemm(
        codec_of("q4f16_1", 2048, 1024), 2048, Amx(), bf16_swiglu.Tile(outputs=outputs)
    )


def attend(h_q, dtype, d=128, *, rounded=False):
    a = ops.Attention(0, h_q, 1, d, 1e-6, 1.0, (1.0,) * (d // 2))
    kv = FlatKV(layers=2, kv_heads=1, head_dim=d, page=32, dtype=dtype)
    return attention.attend_tiles(a, kv, Amx(), attention.Share(), rounded=rounded)


def projected(dtype):
    a = ops.Attention(0, 4, 2, 64, 1e-6, 1.0, (1.0,) * 32)
    kv = FlatKV(layers=2, kv_heads=2, head_dim=64, page=32, dtype=dtype)
    return attention.project(a, kv, codec_of("q4f16_1", 512, 1024), Amx(), attention.Heads())


GEMMS = {
    "whole blocks": gemm(1024),
    "a residual": gemm(1024, residual=True),
    "a ragged block": gemm(1000),
    "a ragged block and a residual": gemm(1000, residual=True),
    "strips": gemm(1024, residual=True, strips=2),
}
CASES = {
    **GEMMS,
    "SwiGLU": gated(1),
    "SwiGLU of several outputs": gated(4),
    "queries, keys and values": projected("float16"),
    "queries, keys and values of an int8 cache": projected("int8"),
    "attention": attend(2, "float16"),
    "attention that is rounded": attend(2, "float16", rounded=True),
    "attention with an odd number of heads": attend(5, "float32"),
    "attention, one group a head": attend(1, "float16", d=32),
}


@pytest.fixture(scope="module")
def code():
    """`code("strips")`: the instructions of a case."""
    return cache(lambda case: assembly(CASES[case]))


def tile_code(lines):
    """(instruction, operands) of those that have to do with tiles."""
    found = (TILE_CODE.fullmatch(line.split("#")[0].rstrip()) for line in lines)
    return [(f[1], f[2]) for f in found if f]


@pytest.mark.parametrize("case", CASES)
def test_a_kernel_has_one_configuration_and_what_its_tiles_need(code, case):
    """Four tiles of sums are zeroed or loaded, multiplied and stored; LLVM may unroll."""
    counted = Counter(name for name, _ in tile_code(code(case)))
    products, stores = counted["tdpbf16ps"], counted["tilestored"]
    loads = counted["tileloadd"] + counted["tileloaddt1"]
    begun = {"tilezero": counted["tilezero"], "tileloadd": loads - products}
    assert sum(begun.values()) == stores
    assert all(count % 4 == 0 for count in (products, stores, *begun.values()))
    assert products >= stores
    assert counted["ldtilecfg"] == counted["tilerelease"] == 1
    assert set(counted) <= {
        *("ldtilecfg", "tilezero", "tileloadd", "tileloaddt1"),
        *("tdpbf16ps", "tilestored", "tilerelease"),
    }
    assert counted["tileloaddt1"] == (0 if case.startswith("attention") else products)
    if case in GEMMS:
        assert (begun["tilezero"] == 0) == ("residual" in case or case == "strips")
        assert 0 in begun.values()
    if case.startswith("attention"):
        assert 0 not in begun.values()  # scores begin with zeros, outputs with what they were


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("attention")])
def test_packed_weights_are_asked_for(code, case):
    """Each line of a pair of groups, of two row blocks: 8 of codes, and 1 of float16 scales."""
    assert sum("prefetcht1" in line for line in code(case)) == 2 * 9


@pytest.mark.parametrize("case", CASES)
def test_sums_are_tiles_0_to_3_of_x_4_and_5_of_w_6_and_7(code, case):
    found = tile_code(code(case))
    products = {tuple(re.findall(r"%tmm(\d)", args)) for name, args in found if "tdp" in name}
    # w, x, sums: AT&T writes the destination last.
    assert products == {("6", "4", "0"), ("7", "4", "1"), ("6", "5", "2"), ("7", "5", "3")}
    stored = [args[len("%tmm")] for name, args in found if name == "tilestored"]
    assert stored == ["0", "1", "2", "3"] * (len(stored) // 4)
    assert stored


@pytest.mark.parametrize("case", CASES)
def test_all_64_bytes_of_the_configuration_are_stored_before_it_is_read(code, case):
    """A compiler that takes the instruction to read less may drop stores: SIGILL at first use."""
    lines = code(case)
    read = next(i for i, line in enumerate(lines) if "\tldtilecfg\t" in line)
    offset, base = place(lines[read].split()[1])
    assert base == "%rsp"
    assert stored_bytes(lines[:read]) >= set(range(offset, offset + 64))


def place(operand):
    """(offset, register) of a memory operand, None for any other."""
    found = MEMORY.fullmatch(operand)
    return found and (int(found[1] or 0), found[2])


def stored_bytes(lines):
    """Offsets from %rsp that a function's code stores to, by way of `lea` too."""
    start = max(
        i for i, line in enumerate(lines) if re.match(r"\S+:$", line) and ".LBB" not in line
    )
    pointers, written = {"%rsp": 0}, set()
    for line in lines[start:]:
        name, _, rest = line.split("#")[0].strip().partition("\t")
        operands = re.split(r",\s*(?![^(]*\))", rest)
        target, width = operands[-1], width_of(name, operands[0])
        at = place(target)
        if name == "leaq" and (source := place(operands[0])) and source[1] in pointers:
            pointers[target] = pointers[source[1]] + source[0]
        elif at and width and at[1] in pointers:
            first = pointers[at[1]] + at[0]
            written |= set(range(first, first + width))
        elif target != "%rsp":
            pointers.pop(target, None)
    return written


def width_of(name, source):
    """Bytes that a move stores; 0 for what is no move."""
    vector = re.fullmatch(r"%([xyz])mm\d+", source)
    if name in STORES:
        return STORES[name]
    return WIDTHS[vector[1]] if vector and name.startswith("vmov") else 0


def test_rows_are_as_far_apart_as_their_buffers_say(code):
    """Of x an odd number of cache lines, of the panel one, of y a row of n float32."""
    lines = code("a residual")
    constants = {int(c) for c in re.findall(r"\tmovl\t\$(\d+), %\w+", "\n".join(lines))}
    assert {4 * ops.rounded_words(1024), 64, 4 * 1024} <= constants


def paths(lines):
    """The instructions of the function that has tiles, and for each those that may be next.

    Of `ret`, and of a jump to another function, there are none.
    """
    at = next(i for i, line in enumerate(lines) if "\tldtilecfg\t" in line)
    labels = [i for i, line in enumerate(lines) if re.match(r"[^\s.]\S*:", line)]
    start, end = max(i for i in labels if i < at), min((i for i in labels if i > at), default=None)
    instructions, named = [], {}
    for line in lines[start:end]:
        text = line.split("#")[0].strip()
        if label := re.fullmatch(r"(\S+):", text):
            named[label[1]] = len(instructions)
        elif text and not text.startswith("."):
            instructions.append(text)
    following = []
    for i, text in enumerate(instructions):
        name, _, target = text.partition("\t")
        jump = [named[target]] if name.startswith("j") and target in named else []
        following.append(jump if LEAVES.match(name) else [*jump, i + 1])
    return instructions, following


def reached(instructions, following, starts, stop):
    """Instructions that may come after `starts`, as far as the next `stop`."""
    seen, left = set(), list(starts)
    while left:
        i = left.pop()
        if i not in seen and i < len(instructions):
            seen.add(i)
            left += [] if instructions[i].startswith(stop) else following[i]
    return [instructions[i] for i in sorted(seen)]


@pytest.mark.parametrize("case", CASES)
def test_tiles_are_touched_between_configuration_and_release_on_every_path(code, case):
    """And no function is called there: it might use tiles of its own, or none of this thread's."""
    instructions, following = paths(code(case))
    first, last = (
        next(i for i, text in enumerate(instructions) if text.startswith(name))
        for name in ("ldtilecfg", "tilerelease")
    )
    before = reached(instructions, following, [0], "ldtilecfg")
    between = reached(instructions, following, following[first], "tilerelease")
    after = reached(instructions, following, following[last], "ldtilecfg")
    for outside in (before, after):
        assert not [text for text in outside if "%tmm" in text or text == "tilerelease"]
    assert not [text for text in between if re.match(r"call|ret|jmpq|ldtilecfg", text)]
    assert len([text for text in between if "tdpbf16ps" in text]) >= 4
    assert any(re.match("ret|jmpq", text) for text in after)


def test_the_peak_reads_the_l1_cache_and_does_nothing_else():
    names = Counter(name for name, _ in tile_code(assembly(peak.tile_peak(peak.OF_TILES, Amx()))))
    assert names["ldtilecfg"] == names["tilerelease"] == 1
    assert names["tdpbf16ps"] == names["tileloadd"] >= 4
    assert not names["tileloaddt1"]
