"""What the loops of attention are compiled to: sums stay in registers whatever they are called.

A sum that LLVM has no register for is stored in every round of the loop that adds to it; one
that TVM puts in its pool is stored there too.
"""

import re

import pytest
import tvm

from mlc_compile.artifact import FlatKV
from mlc_compile.emit.cpu import code_generation, tvm_target
from mlc_compile.ops import Attention
from mlc_compile.schedule.kernels import attention
from mlc_compile.target import find_target

LABEL = re.compile(r"^(\.?L[\w$]+):")
ADDS = re.compile(r"vfmadd\w*ps|\baddps|\bfmla")
OTHER = re.compile(r"\bv?(subps|maxps|sqrtss|divss)|\bf(sub|max|maxnm|sqrt|div)\b")  # elsewhere
STORES = re.compile(r"(v?movu?a?[ap]s\s+%[xyz]mm\d+, [^%]*\(|st[rpu]+\s+q)")
STACK = re.compile(r"[xyz]mm.*\(%rsp\)|\(%rsp\).*[xyz]mm|\bq\d+.*\[sp")

LEVELS = {  # float16 pages become calls of a function where no instruction converts them
    "cpu-x86-64-v2": "float32",
    "cpu-x86-64-v3": "float16",
    "cpu-x86-64-v4": "float16",
    "cpu-sapphirerapids": "float16",  # up to four key heads side by side
    "cpu-aarch64": "float16",
    "cpu-apple-m1": "float16",
}
HEADS = [(16, 8), (32, 8), (40, 8), (16, 16)]  # Qwen3's, and one key head for each of them


def loops(text):
    """The instructions of each loop without branches that only multiplies and adds, in order."""
    blocks, label = {}, ""
    for line in text.splitlines():
        found = LABEL.match(line)
        if found:
            label = found.group(1)
        elif line.startswith("\t") and not line.startswith("\t."):
            blocks.setdefault(label, []).append(line.strip())
    bodies = (_until_jump(body, name) for name, body in blocks.items())
    plain = (body for body in bodies if not any(OTHER.search(i) for i in body))
    return [body for body in plain if sum(bool(ADDS.search(i)) for i in body) >= 8]


def _until_jump(body, label):
    """Up to the first jump to where it begins; nothing where there is none."""
    ends = [i for i, instruction in enumerate(body) if instruction.split()[-1] == label]
    return body[: ends[0] + 1] if ends else []


def compiled(heads, level, build):
    h_q, h_kv = heads
    op = Attention(0, h_q, h_kv, 128, 1e-6, 1.0, (1.0,) * 64)
    kv = FlatKV(layers=2, kv_heads=h_kv, head_dim=128, page=32, dtype=LEVELS[level])
    target = find_target(level)
    module = tvm.IRModule({"main": build(op, kv, target).with_attr("global_symbol", "main")})
    with code_generation():
        return tvm.compile(module, target=tvm_target(target)).mod.inspect_source("asm")


KERNELS = {
    "attend": lambda op, kv, target: attention.attend(op, kv, target, None),
    "step": attention.step,
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("heads", HEADS, ids=lambda heads: f"{heads[0]} of {heads[1]}")
@pytest.mark.parametrize("preset", LEVELS)
def test_sums_are_never_stored_while_they_are_added_to(preset, heads, kernel):
    found = loops(compiled(heads, preset, KERNELS[kernel]))
    assert len(found) >= 2  # scores, and weighted values
    for body in found:
        assert not [i for i in body if STORES.search(i) or STACK.search(i)]
