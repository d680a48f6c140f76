"""What a kernel is called with: buffers, numbers and its place in the grid.

Set 0, binding i is the i-th buffer: a struct with an array without end. Numbers are 8 bytes
apart, as TVM's runtime packs them: push constants up to 128 bytes, which every device has,
else a uniform block at the binding after the buffers.
"""

from collections.abc import Sequence
from typing import Final

import tvm
from tvm import tirx

from . import declarations as d
from .dtypes import BOOL, INT32, UINT32, Type, Value
from .enumerants import BuiltIn, Capability, Decoration, StorageClass
from .module import append, text
from .opcodes import Op
from .state import Kernel, Memory
from .walk import key_of

STEP: Final = 8  # bytes from one number to the next
PUSHED: Final = 128  # bytes of push constants that every device takes
NOALIAS: Final = "tirx.noalias"
STORAGE_8BIT: Final = "SPV_KHR_8bit_storage"

STORED: Final = {8: Capability.StorageBuffer8BitAccess, 16: Capability.StorageBuffer16BitAccess}
THREAD_AXES: Final = {
    f"{kind}Idx.{axis}": (builtin, number)
    for kind, builtin in (("block", BuiltIn.WorkgroupId), ("thread", BuiltIn.LocalInvocationId))
    for number, axis in enumerate("xyz")
}


def declare(k: Kernel, func: tirx.PrimFunc) -> bool:
    """Declare what a kernel is called with; gives whether its numbers are in a uniform block."""
    pointers = [p for p in func.params if isinstance(p.ty, tvm.ir.PointerType)]
    numbers = [p for p in func.params if not isinstance(p.ty, tvm.ir.PointerType)]
    noalias = bool((func.attrs or {}).get(NOALIAS, False))
    for binding, parameter in enumerate(pointers):
        _declare_buffer(k, parameter, binding, noalias=noalias)
    uniform = STEP * len(numbers) > PUSHED
    if numbers:
        _declare_numbers(k, numbers, len(pointers) if uniform else None)
    return uniform


def axis(k: Kernel, tag: str) -> Value:
    """The place along an axis such as `blockIdx.x`, as int32."""
    builtin, number = THREAD_AXES[tag]
    whole = builtin_value(k, builtin, UINT32.of(3))
    return Value(INT32, k.body.lane(whole, number).ids)


def builtin_value(k: Kernel, builtin: BuiltIn, type_: Type) -> Value:
    """An input that the device sets; loaded once, where everything sees it."""
    if builtin not in k.builtins:
        type_id = d.held(k.module, type_, type_.lanes)
        to = d.pointer(k.module, StorageClass.Input, type_id)
        variable = k.module.declare_apart(Op.Variable, to, StorageClass.Input)
        k.module.decorate(variable, Decoration.BuiltIn, builtin)
        k.module.inputs.append(variable)
        k.builtins[builtin] = _load_first(k, type_id, variable)
    return Value(type_, (k.builtins[builtin],))


def _declare_buffer(k: Kernel, parameter: tirx.Var, binding: int, *, noalias: bool) -> None:
    pointed = k.element_type(str(parameter.ty.element_type.dtype), parameter)
    scalar, root = pointed.scalar, key_of(parameter)
    if scalar.stored_bits in STORED:
        k.need(STORED[scalar.stored_bits], parameter)
    if scalar.stored_bits == 8:
        k.module.extensions.add(STORAGE_8BIT)
    if scalar.bits == 64:
        raise k.refuse(parameter, "a buffer of 64-bit integers needs them, and they are not had")
    width = k.usage.widths.get(root, 1)
    block = _block(k, d.stored(k.module, scalar, width), scalar.stored_bits // 8 * width)
    to = d.pointer(k.module, StorageClass.StorageBuffer, block)
    variable = k.module.declare_apart(Op.Variable, to, StorageClass.StorageBuffer)
    k.module.name(variable, str(parameter.name))
    _decorate(k, variable, root, binding, noalias=noalias)
    k.buffers[root] = Memory(variable, StorageClass.StorageBuffer, scalar, width, block=True)


def _decorate(k: Kernel, variable: int, root: int, binding: int, *, noalias: bool) -> None:
    said = {
        Decoration.Restrict: noalias,
        Decoration.Aliased: not noalias,
        Decoration.Coherent: k.usage.coherent(root),
        Decoration.NonWritable: root not in k.usage.stored,
        Decoration.NonReadable: root not in k.usage.loaded,
    }
    k.module.decorate(variable, Decoration.DescriptorSet, 0)
    k.module.decorate(variable, Decoration.Binding, binding)
    for decoration, holds in said.items():
        if holds:
            k.module.decorate(variable, decoration)


def _block(k: Kernel, element: int, stride: int) -> int:
    """`struct { element array[]; }`; equal ones are declared and decorated once."""
    new = k.module.declared(Op.TypeRuntimeArray, element) is None
    array = k.module.declare_type(Op.TypeRuntimeArray, element)
    block = k.module.declare_type(Op.TypeStruct, array)
    if new:
        k.module.decorate(array, Decoration.ArrayStride, stride)
        k.module.decorate(block, Decoration.Block)
        k.module.decorate_member(block, 0, Decoration.Offset, 0)
    return block


def _declare_numbers(k: Kernel, numbers: Sequence[tirx.Var], binding: int | None) -> None:
    """A block of the numbers; push constants if it has no binding."""
    types = [_passed(k, n) for n in numbers]
    block = k.module.fresh()  # its layout is its own, also where a struct has the same members
    append(k.module.declarations, Op.TypeStruct, block, *[d.held(k.module, t, 1) for t in types])
    k.module.decorate(block, Decoration.Block)
    storage = StorageClass.PushConstant if binding is None else StorageClass.Uniform
    to = d.pointer(k.module, storage, block)
    variable = k.module.declare_apart(Op.Variable, to, storage)
    if binding is not None:
        k.module.decorate(variable, Decoration.DescriptorSet, 0)
        k.module.decorate(variable, Decoration.Binding, binding)
    for member, (number, type_) in enumerate(zip(numbers, types, strict=True)):
        k.module.decorate_member(block, member, Decoration.Offset, STEP * member)
        append(k.module.names, Op.MemberName, block, member, *text(str(number.name)))
        k.bind(number, _read_number(k, variable, storage, member, type_, k.type_of(number)))


def _passed(k: Kernel, number: tirx.Var) -> Type:
    """The type in which a number is passed: truth as an integer, 64 bits by their low half."""
    type_ = k.type_of(number)
    if type_.bits < 32 and type_ != BOOL:
        raise k.refuse(number, f"TVM passes no {type_} by value")
    return UINT32 if type_ == BOOL else type_


def _read_number(
    k: Kernel, variable: int, storage: StorageClass, member: int, passed: Type, type_: Type
) -> Value:
    type_id = d.held(k.module, passed, 1)
    at, to = k.module.fresh(), d.pointer(k.module, storage, type_id)
    append(k.module.prologue, Op.AccessChain, to, at, variable, d.word(k.module, member))
    value = Value(type_, (_load_first(k, type_id, at),))
    if type_ != BOOL:
        return value
    zero = k.body.constant(UINT32, 0)
    return k.body.op(Op.INotEqual, BOOL, Value(UINT32, value.ids), zero)


def _load_first(k: Kernel, type_id: int, pointer: int) -> int:
    """Load in the prologue, which dominates everything."""
    made = k.module.fresh()
    append(k.module.prologue, Op.Load, type_id, made, pointer)
    return made
