"""What LLVM makes of the tiles' kernels for a CPU with AMX: read, since few machines can run it."""

import re
from collections import Counter

import pytest
import tvm

from mlc_compile import ops
from mlc_compile.emit.cpu import code_generation, tvm_target
from mlc_compile.schedule.kernels import bf16_gemm, peak
from mlc_compile.schedule.kernels.tiles import Amx
from mlc_compile.schedule.kernels.weights import codec_of
from mlc_compile.target import find_target

ROW = find_target("cpu-sapphirerapids")
TILE_CODE = re.compile(r"\t(ldtilecfg|tile\w+|tdp\w+)\t?(.*)")
MEMORY = re.compile(r"(-?\d*)\((%\w+)\)")
WIDTHS = {"x": 16, "y": 32, "z": 64}  # bytes of %xmm0, %ymm0, %zmm0
STORES = {"movb": 1, "movw": 2, "movl": 4, "movq": 8, "vmovd": 4, "vmovq": 8, "vmovss": 4}


def assembly(func):
    """Instructions of the kernel for a CPU with AMX, in AT&T's order of operands."""
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    with code_generation():
        compiled = tvm.compile(module, target=tvm_target(ROW)).mod
    return compiled.inspect_source("asm").splitlines()


@pytest.fixture(scope="module")
def gemm():
    """`gemm(n, residual=False, strips=1)`: its code, for k = 1024."""
    made = {}

    def code(n, *, residual=False, strips=1):
        if (n, residual, strips) not in made:
            codec, tile = codec_of("q4f16_1", n, 1024), bf16_gemm.Tile(strips=strips)
            func = bf16_gemm.gemm(codec, n, Amx(), tile, residual=residual)
            made[n, residual, strips] = assembly(func)
        return made[n, residual, strips]

    return code


def tile_code(lines):
    """(instruction, operands) of those that have to do with tiles."""
    found = (TILE_CODE.fullmatch(line.split("#")[0].rstrip()) for line in lines)
    return [(f[1], f[2]) for f in found if f]


CASES = {
    "whole blocks": (1024, False, 1),
    "a residual": (1024, True, 1),
    "a ragged block": (1000, False, 1),
    "a ragged block and a residual": (1000, True, 1),
    "strips": (1024, True, 2),
}


@pytest.mark.parametrize("case", CASES)
def test_a_task_has_one_configuration_and_what_its_tiles_need(gemm, case):
    n, residual, strips = CASES[case]
    code = tile_code(gemm(n, residual=residual, strips=strips))
    names = [name for name, _ in code]
    assert (names[0], names[-1]) == ("ldtilecfg", "tilerelease")
    counted = Counter(names)
    sweeps, products = counted["tilestored"] // 4, counted["tdpbf16ps"] // 4  # LLVM may unroll
    assert counted == {
        "ldtilecfg": 1,
        **({} if residual else {"tilezero": 4 * sweeps}),
        "tileloadd": 4 * products + 4 * sweeps * residual,
        "tdpbf16ps": 4 * products,
        "tilestored": 4 * sweeps,
        "tilerelease": 1,
    }


@pytest.mark.parametrize("case", CASES)
def test_sums_are_tiles_0_to_3_of_x_4_and_5_of_w_6_and_7(gemm, case):
    n, residual, strips = CASES[case]
    code = tile_code(gemm(n, residual=residual, strips=strips))
    products = {tuple(re.findall(r"%tmm(\d)", args)) for name, args in code if "tdp" in name}
    # w, x, sums: AT&T writes the destination last.
    assert products == {("6", "4", "0"), ("7", "4", "1"), ("6", "5", "2"), ("7", "5", "3")}
    stored = [args[len("%tmm")] for name, args in code if name == "tilestored"]
    assert stored == ["0", "1", "2", "3"] * (len(stored) // 4)
    assert stored


@pytest.mark.parametrize("case", CASES)
def test_all_64_bytes_of_the_configuration_are_stored_before_it_is_read(gemm, case):
    """A compiler that takes the instruction to read less may drop stores: SIGILL at first use."""
    n, residual, strips = CASES[case]
    lines = gemm(n, residual=residual, strips=strips)
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


def test_rows_are_as_far_apart_as_their_buffers_say(gemm):
    """Of x an odd number of cache lines, of the panel one, of y a row of n float32."""
    lines = gemm(1024, residual=True)
    constants = {int(c) for c in re.findall(r"\tmovl\t\$(\d+), %\w+", "\n".join(lines))}
    assert {4 * ops.rounded_words(1024), 64, 4 * 1024} <= constants


def test_no_function_is_called_between_configuration_and_release(gemm):
    """It might use tiles of its own, or none of this thread's."""
    for n, residual, strips in CASES.values():
        lines = gemm(n, residual=residual, strips=strips)
        first = next(i for i, line in enumerate(lines) if "\tldtilecfg\t" in line)
        last = next(i for i, line in enumerate(lines) if line.strip() == "tilerelease")
        assert not [line for line in lines[first:last] if re.match(r"\tcall|\tret", line)]


def test_the_peak_multiplies_as_the_kernel_does():
    names = Counter(name for name, _ in tile_code(assembly(peak.tile_peak(peak.OF_TILES, Amx()))))
    assert names["ldtilecfg"] == names["tilerelease"] == 1
    assert names["tdpbf16ps"] == names["tileloadd"] >= 4
