"""Write a layout into a function: storages at its start, allocations in their places."""

from tvm import relax

from mlc_compile.passes.plan_memory.layout import Layout


def put_in_place(func: relax.Function, layout: Layout) -> relax.Function:
    """`func` with its planned allocations made in storages; the others stay."""
    normalize = relax.BlockBuilder().normalize
    storages = [relax.Var(f"storage{i}", relax.AnyType()) for i in range(len(layout.storages))]

    def rewritten(binding: relax.Binding) -> relax.Binding:
        where = layout.places.get(binding.var)
        if where is None:
            return binding
        shape, dtype, device = binding.value.args[:3]
        storage = storages[where.storage]
        value = relax.op.memory.alloc_tensor(storage, where.offset, shape, dtype, device)
        return relax.VarBinding(binding.var, normalize(value))

    made = [
        relax.VarBinding(var, normalize(_storage(nbytes)))
        for var, nbytes in zip(storages, layout.storages, strict=True)
    ]
    blocks = [
        relax.BindingBlock([rewritten(binding) for binding in block.bindings])
        for block in func.body.blocks
    ]
    body = normalize(relax.SeqExpr([relax.BindingBlock(made), *blocks], func.body.body))
    return relax.Function(func.params, body, None, func.is_pure, func.attrs)


def _storage(nbytes: int) -> relax.Call:
    return relax.op.memory.alloc_storage(relax.ShapeExpr([nbytes]), 0, "global", "uint8")
