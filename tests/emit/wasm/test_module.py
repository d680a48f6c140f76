"""Imports and exports are read off the bytes of a module as the specification lays them out."""

import pytest

from mlc_compile.emit.wasm.module import MAGIC, WasmModule, read_module


def number(value):
    """LEB128."""
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + number(rest) if rest else bytes([low])


def name(text):
    return number(len(text.encode())) + text.encode()


def section(kind, *items):
    content = number(len(items)) + b"".join(items)
    return bytes([kind]) + number(len(content)) + content


def imported(module, field, kind):
    return name(module) + name(field) + kind


def exported(field, kind=0, index=0):
    return name(field) + bytes([kind]) + number(index)


# A byte for what it is, then its type.
FUNCTION, TABLE = b"\0" + number(300), b"\1\x70\1" + number(2) + number(200)
MEMORY, GLOBAL, TAG = b"\2\0" + number(2560), b"\3\x7f\1", b"\4\0" + number(5)


def test_imports_of_every_kind_are_stepped_over():
    kinds = (FUNCTION, TABLE, MEMORY, GLOBAL, TAG, FUNCTION)
    imports = [imported("env", f"f{i}", kind) for i, kind in enumerate(kinds)]
    read = read_module(MAGIC + section(2, *imports))
    assert read.imports == tuple(("env", f"f{i}") for i in range(len(kinds)))


def test_exports_come_in_order_and_other_sections_do_not_matter():
    custom = bytes([0]) + number(200) + bytes(200)
    exports = section(7, exported("malloc"), exported("memory", 2), exported("ü", 0, 1000))
    read = read_module(MAGIC + custom + exports + custom)
    assert read == WasmModule(imports=(), exports=("malloc", "memory", "ü"))


@pytest.mark.parametrize(
    "content",
    [b"", b"\x7fELF", b"\0asm\2\0\0\0", MAGIC + section(7, exported("malloc"))[:-3]],
    ids=["empty", "ELF", "another version", "cut short"],
)
def test_what_is_no_whole_module_is_refused(content):
    with pytest.raises(ValueError, match=r"it (does not begin|ends)"):
        read_module(content)
