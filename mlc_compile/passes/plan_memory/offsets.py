"""Let a kernel take tensors that begin inside a storage.

    f(x: Buffer(..)): body
    ->
    f(x': Buffer(.., elem_offset = x_start, offset_factor = 64 bytes)):
        x = decl_buffer(.., data = address_of(x'[0, ..]))
        body

The pointer is moved once a call, before the first loop, and told to be as aligned as it was,
so the loops are compiled to the same instructions as without. A buffer without a symbolic
start would refuse any tensor that has one.
"""

from collections.abc import Collection

from tvm import ir, tirx
from tvm.runtime import DataType

from mlc_compile.passes.plan_memory.packing import ALIGNMENT


def take_offsets(func: tirx.PrimFunc, positions: Collection[int]) -> tirx.PrimFunc:
    """`func` with the parameters at `positions` free to begin at any multiple of ALIGNMENT."""
    params, pointers, views = list(func.params), [], []
    body = func.body
    for i in sorted(positions):
        buffer = func.params[i]
        params[i] = _anywhere(buffer)
        element = ir.PointerType(ir.PrimType(str(buffer.ty.dtype)), buffer.scope())
        pointer = tirx.Var(f"{buffer.name}_data", element)
        pointers.append(tirx.Bind(pointer, tirx.address_of(params[i])))
        views.append((pointer, tirx.DeclBuffer(buffer, data=pointer)))
    body = tirx.SeqStmt([*(view for _, view in views), body])
    for pointer, _ in views:
        body = tirx.AttrStmt(pointer, "storage_alignment", tirx.IntImm("int32", ALIGNMENT), body)
    return tirx.PrimFunc(params, tirx.SeqStmt([*pointers, body]), func.ret_type, func.attrs)


def _anywhere(buffer: tirx.Var) -> tirx.Var:
    """A buffer like `buffer` that may begin at any multiple of ALIGNMENT."""
    kind = buffer.ty
    return tirx.decl_buffer(
        kind.shape,
        kind.dtype,
        buffer.name,
        elem_offset=tirx.Var(f"{buffer.name}_start", "int64"),
        offset_factor=ALIGNMENT // DataType(str(kind.dtype)).itemsize,
        data_alignment=kind.data_alignment,
        scope=buffer.scope(),
    )
