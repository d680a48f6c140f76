"""What TVM's legalization makes of Relax operators: the kernels that `leftovers` schedules."""

from collections.abc import Callable

from tvm import IRModule, relax, tirx


def legalized(body: Callable[..., relax.Expr], *shapes: tuple[int | str, ...]) -> IRModule:
    """`body` of float32 tensors of these shapes, as kernels; "n" is symbolic."""
    sizes = {"n": tirx.Var("n", "int64")}
    builder = relax.BlockBuilder()
    params = [
        relax.Var(f"x{i}", relax.TensorType([sizes.get(s, s) for s in shape], "float32"))
        for i, shape in enumerate(shapes)
    ]
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(body(*params))
        builder.emit_func_output(out)
    return relax.transform.LegalizeOps()(builder.get())


def only_kernel(mod: IRModule) -> tirx.PrimFunc:
    """The one kernel of a module."""
    (kernel,) = (f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    return kernel
