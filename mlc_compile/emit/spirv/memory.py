"""Loads and stores: where an element is, and in which type it is kept there."""

from tvm import tirx
from tvm.runtime import Object as Node

from . import declarations as d
from .dtypes import BOOL, INT32, UINT32, WIDEST, Type, Value
from .enumerants import MemoryAccess, StorageClass
from .module import append
from .opcodes import Op
from .state import Kernel, Memory
from .usage import consecutive
from .walk import key_of


def load(k: Kernel, node: Node) -> Value:
    """The value of a TensorLoad."""
    memory, type_ = memory_of(k, node.source, node), k.type_of(node)
    places = _places(k, memory, node.source, node, type_)
    k.body.effects += 1
    return _assembled(k, type_, [_load_element(k, memory, at) for at in places])


def store(k: Kernel, node: tirx.BufferStore) -> None:
    """Write what a BufferStore writes."""
    memory, value = memory_of(k, node.buffer, node), k.value(node.value)
    places = _places(k, memory, node.buffer, node, value.type)
    k.body.effects += 1
    for at, part in zip(places, _cut(k, value, memory.width), strict=True):
        _store_element(k, memory, at, part)


def memory_of(k: Kernel, buffer: Node, node: Node) -> Memory:
    """What a buffer shows; refused if it is shown as another type."""
    root = k.usage.root(buffer)
    memory = k.buffers.get(root) if root is not None else None
    if memory is None:
        raise k.refuse(node, "its buffer is no parameter and was not allocated before")
    shown = element_of(k, buffer).scalar
    if shown != memory.type:
        raise k.refuse(node, f"memory of {memory.type} is shown as {shown}")
    return memory


def element_of(k: Kernel, buffer: Node) -> Type:
    """The type of a TIR buffer's elements."""
    return k.element_type(str(buffer.ty.dtype.dtype), buffer)


def allocate(k: Kernel, node: tirx.AllocBuffer, storage: StorageClass) -> int:
    """Give a buffer of constant size its memory; gives the bytes that it takes."""
    element = element_of(k, node.buffer)
    lanes = element.lanes
    for extent in node.buffer.ty.shape:
        if not isinstance(extent, tirx.IntImm):
            raise k.refuse(node, "its size is not a constant")
        lanes *= extent.value
    root, scalar = key_of(node.buffer), element.scalar
    width = k.usage.widths.get(root, 1)
    elements = -(-lanes // width)
    k.body.use(scalar)
    held = d.held(k.module, scalar, width)
    array = k.module.declare_type(Op.TypeArray, held, d.word(k.module, elements))
    variable = _variable(k, storage, d.pointer(k.module, storage, array))
    volatile = "tirx.volatile" in (node.annotations or {})
    k.buffers[root] = Memory(variable, storage, scalar, width, block=False, volatile=volatile)
    return elements * width * (scalar.held_bits // 8 or 4)


def _variable(k: Kernel, storage: StorageClass, type_id: int) -> int:
    if storage is not StorageClass.Function:
        return k.module.declare_apart(Op.Variable, type_id, storage)
    made = k.module.fresh()
    append(k.module.variables, Op.Variable, type_id, made, storage)
    return made


def _places(k: Kernel, memory: Memory, buffer: Node, node: Node, type_: Type) -> list[Value]:
    """Which elements, in order, an access of `type_` at a node's index touches."""
    indices = list(node.indices)
    if len(indices) != 1:
        raise k.refuse(node, f"it has {len(indices)} indices, not one")
    (index,) = indices
    element = element_of(k, buffer).lanes
    start = index if type_.lanes == element else consecutive(index)
    if start is None:
        return _scattered(k, memory, k.value(index), element)
    first = _scaled(k, k.value(start), element, memory.width)
    count = type_.lanes // memory.width
    return [_offset(k, first, i) for i in range(count)]


def _scattered(k: Kernel, memory: Memory, index: Value, element: int) -> list[Value]:
    """An element for each lane of the index, or several where those of the buffer are vectors."""
    count = element // memory.width
    firsts = [_scaled(k, at, element, memory.width) for at in k.body.lanes(index)]
    return [_offset(k, at, i) for at in firsts for i in range(count)]


def _scaled(k: Kernel, index: Value, element: int, width: int) -> Value:
    """An index in elements of `element` lanes as one in those of `width`."""
    if element >= width:
        factor = element // width
        scale = k.body.constant(INT32, factor)
        return index if factor == 1 else k.body.op(Op.IMul, INT32, index, scale)
    shift = k.body.constant(INT32, (width // element).bit_length() - 1)
    return k.body.op(Op.ShiftRightArithmetic, INT32, index, shift)


def _offset(k: Kernel, first: Value, by: int) -> Value:
    return first if by == 0 else k.body.op(Op.IAdd, INT32, first, k.body.constant(INT32, by))


def _pointer(k: Kernel, memory: Memory, at: Value) -> int:
    type_id = d.pointer(k.module, memory.storage, _element_type(k, memory))
    member = (d.word(k.module, 0),) if memory.block else ()
    return k.body.pure(Op.AccessChain, type_id, (memory.variable, *member, at.ids[0]))


def _load_element(k: Kernel, memory: Memory, at: Value) -> Value:
    pointer = _pointer(k, memory, at)
    made = k.body.impure(Op.Load, _element_type(k, memory), pointer, *_access(memory))
    type_ = memory.type.of(memory.width)
    if not memory.narrow:
        return Value(type_, (made,))
    return _widened(k, type_, made)


def _widened(k: Kernel, type_: Type, stored: int) -> Value:
    """A narrow element as it is held."""
    op = Op.SConvert if type_.kind == "int" else Op.UConvert
    wide = UINT32.of(type_.lanes)
    held = Value(wide, (k.body.impure(op, d.held(k.module, wide, wide.lanes), stored),))
    if type_.kind == "bool":
        zero = k.body.constant(wide, 0)
        return k.body.op(Op.INotEqual, BOOL.of(type_.lanes), held, zero)
    return Value(type_, held.ids)


def _store_element(k: Kernel, memory: Memory, at: Value, value: Value) -> None:
    stored = value.ids[0] if not memory.narrow else _narrowed(k, memory, value)
    k.body.act(Op.Store, _pointer(k, memory, at), stored, *_access(memory))


def _narrowed(k: Kernel, memory: Memory, value: Value) -> int:
    """A value as its element is stored."""
    if value.type.kind == "bool":
        wide = UINT32.of(value.type.lanes)
        one, zero = k.body.constant(wide, 1), k.body.constant(wide, 0)
        value = k.body.op(Op.Select, wide, value, one, zero)
    return k.body.impure(Op.UConvert, _element_type(k, memory), value.ids[0])


def _element_type(k: Kernel, memory: Memory) -> int:
    """As wide as it says only in buffers, whose layout is not ours."""
    kind = d.stored if memory.block else d.held
    return kind(k.module, memory.type, memory.width)


def _access(memory: Memory) -> tuple[int, ...]:
    return (MemoryAccess.Volatile,) if memory.volatile else ()


def _assembled(k: Kernel, type_: Type, elements: list[Value]) -> Value:
    """Elements, each a whole chunk or less, as one value."""
    width = elements[0].type.lanes
    if width == min(type_.lanes, WIDEST):
        return Value(type_, tuple(id_ for e in elements for id_ in e.ids))
    return k.body.join([lane for e in elements for lane in k.body.lanes(e)])


def _cut(k: Kernel, value: Value, width: int) -> list[Value]:
    """A value as elements of so many lanes."""
    if width == min(value.type.lanes, WIDEST):
        element = value.type.of(width)
        return [Value(element, (id_,)) for id_ in value.ids]
    lanes = k.body.lanes(value)
    return [k.body.join(lanes[i : i + width]) for i in range(0, len(lanes), width)]
