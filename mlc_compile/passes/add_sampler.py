"""Add the functions that choose a token where the logits are, on the device.

    argmax(logits [1, 1, v])                                     -> token i32[1]
    sample(logits [1, 1, v], temperature, top_k, top_p, uniform) -> token i32[1]
    softmax_with_temperature(logits [b, 1, v], temperature [b])  -> probabilities [b, 1, v]

The last is MLC's, for a runtime that samples by itself; web-llm's are in `add_page_sampler`. The
arguments of `sample` are tensors of one number each, `top_k` an int32. A token is -1 if its logit
is not finite, so that a caller who sees no logits learns of NaNs: all are NaN once the hidden
state has one.

The kernels are given to the pass. Workspaces are results that nobody reads, which PlanMemory
places; the reshapes are meant as views. Must run after BindWeights: there are no weights here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tvm import IRModule, relax, te, tirx
from tvm.ir.transform import PassContext, module_pass

from mlc_compile import ops

LOGITS_OF: Final = "decode"  # the function of the model whose first result is logits
ARGMAX: Final = "argmax"
SAMPLE: Final = "sample"
SOFTMAX: Final = "softmax_with_temperature"
SETTINGS: Final = {  # of `sample`, after the logits
    "temperature": ops.COMPUTE_DTYPE,
    "top_k": "int32",
    "top_p": ops.COMPUTE_DTYPE,
    "uniform": ops.COMPUTE_DTYPE,
}
EXPONENT: Final = 0x7F800000  # bits of a float32, all of them set in infinities and NaNs
NOT_FINITE: Final = -1

# Gives the kernel of each of the three functions, by its name, for a vocabulary. A kernel takes
# what its function does, `argmax` and `sample` logits [1, v], then the result and workspaces.
MakeKernels = Callable[[int], Mapping[str, tirx.PrimFunc]]


@module_pass(opt_level=0, name="AddSampler")
@dataclass(frozen=True)
class AddSampler:
    """`kernels`: those that the functions call."""

    kernels: MakeKernels

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        names = {str(gv.name_hint) for gv in mod.get_global_vars()}
        if LOGITS_OF not in names or ARGMAX in names:
            return mod
        vocab = vocab_of(mod)
        kernels = self.kernels(vocab)
        builder = relax.BlockBuilder(mod)
        row = {"logits": tensor(1, 1, vocab)}
        settings = {name: tensor(1, dtype=dtype) for name, dtype in SETTINGS.items()}
        add_function(builder, ARGMAX, row, _chosen_by(kernels[ARGMAX]))
        add_function(builder, SAMPLE, {**row, **settings}, _chosen_by(kernels[SAMPLE]))
        add_softmax(builder, vocab, kernels[SOFTMAX])
        return builder.get()


def vocab_of(mod: IRModule) -> int:
    """How many logits the model gives."""
    return int(mod[LOGITS_OF].ret_ty.fields[0].shape.values[-1])


def add_softmax(builder: relax.BlockBuilder, vocab: int, kernel: tirx.PrimFunc) -> None:
    """The function SOFTMAX, of `kernel`."""
    b = tirx.Var("b", "int64")
    rows = {"logits": tensor(b, 1, vocab), "temperature": tensor(b)}
    add_function(builder, SOFTMAX, rows, lambda *given: call_kernel(kernel, SOFTMAX, given)[0])


def add_function(
    builder: relax.BlockBuilder,
    name: str,
    inputs: Mapping[str, relax.TensorType],
    body: Callable[..., relax.Expr],
) -> None:
    """Add a function of the name whose result `body` makes of its parameters, `inputs`."""
    params = [relax.Var(key, ty) for key, ty in inputs.items()]
    with builder.function(name, params):
        with builder.dataflow():
            result = builder.emit_output(body(*params))
        builder.emit_func_output(result)


def _chosen_by(kernel: tirx.PrimFunc) -> Callable[..., relax.Expr]:
    """The token that a kernel chooses, NOT_FINITE in place of one whose logit is not."""

    def body(logits: relax.Var, *settings: relax.Var) -> relax.Expr:
        builder = relax.BlockBuilder.current()
        row = builder.emit(relax.op.reshape(logits, [1, ops.shape_of(logits)[-1]]))
        name = SAMPLE if settings else ARGMAX
        token = builder.emit(call_kernel(kernel, name, (row, *settings))[0])
        return builder.call_te(_if_finite, token, row, primfunc_name_hint="if_finite")

    return body


def _if_finite(token: te.Tensor, logits: te.Tensor) -> te.Tensor:
    """token[1] if its logit, of logits[1, v], is finite.

    Told by its bits: where a device's compiler may assume that there are no NaNs, comparing
    numbers would not find one.
    """

    def check(i: tirx.Var) -> tirx.Expr:
        at = tirx.min(token[i], logits.shape[-1] - 1)
        bits = tirx.reinterpret("uint32", logits[0, at])
        finite = (bits & tirx.const(EXPONENT, "uint32")) != tirx.const(EXPONENT, "uint32")
        return tirx.Select(finite, token[i], tirx.const(NOT_FINITE, token.dtype))

    return te.compute((1,), check, name="if_finite")


def call_kernel(kernel: tirx.PrimFunc, name: str, given: Sequence[relax.Expr]) -> list[relax.Expr]:
    """The kernel's results and workspaces; sizes that its arguments leave open are theirs."""
    builder = relax.BlockBuilder.current()
    sizes: dict[tirx.Var, Any] = {}
    for param, argument in zip(kernel.params, given, strict=False):  # results follow
        sizes |= zip(param.ty.shape, ops.shape_of(argument), strict=True)
    outputs = [param.ty for param in kernel.params[len(given) :]]
    results = [tensor(*(sizes.get(n, n) for n in ty.shape), dtype=ty.dtype) for ty in outputs]
    called = builder.add_func(kernel, f"{name}_kernel")
    whole = builder.emit(relax.call_tir(called, list(given), results))
    return [relax.TupleGetItem(whole, i) for i in range(len(results))]


def tensor(*shape: Any, dtype: Any = ops.COMPUTE_DTYPE) -> relax.TensorType:
    """The type of a tensor."""
    return relax.TensorType(shape, str(dtype))
