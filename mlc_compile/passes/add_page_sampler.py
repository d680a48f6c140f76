"""Add the functions by which a page samples, as MLC's models and web-llm name them.

    softmax_with_temperature(logits [b, 1, v], temperature [b]) -> probabilities [b, 1, v]
    argsort_probs(probabilities [1, v]) -> (sorted [1, v], order i32[1, v])
    sample_with_top_p(sorted, order, uniform [1], rows i32[1], top_p [1]) -> token i32[1]

and kernels that change logits [b, v] in place, which the page calls as they are:

    apply_logit_bias_inplace, apply_penalty_inplace, apply_bitmask_inplace

The kernels are given to the pass, and workspaces are results that nobody reads, as in
`add_sampler`, in whose place it runs: a browser compiles every kernel of a library as it loads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tvm import IRModule, relax, tirx
from tvm.ir.transform import PassContext, module_pass

from mlc_compile.passes.add_sampler import (
    LOGITS_OF,
    SOFTMAX,
    MakeKernels,
    add_function,
    add_softmax,
    call_kernel,
    tensor,
    vocab_of,
)

ARGSORT: Final = "argsort_probs"
DRAW: Final = "sample_with_top_p"
BIAS: Final = "apply_logit_bias_inplace"
PENALTY: Final = "apply_penalty_inplace"
BITMASK: Final = "apply_bitmask_inplace"
IN_PLACE: Final = (BIAS, PENALTY, BITMASK)


@module_pass(opt_level=0, name="AddPageSampler")
@dataclass(frozen=True)
class AddPageSampler:
    """`kernels`: one for each of the six functions, by its name."""

    kernels: MakeKernels

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        names = {str(gv.name_hint) for gv in mod.get_global_vars()}
        if LOGITS_OF not in names or ARGSORT in names:
            return mod
        vocab = vocab_of(mod)
        kernels = self.kernels(vocab)
        builder = relax.BlockBuilder(mod)
        add_softmax(builder, vocab, kernels[SOFTMAX])
        add_function(builder, ARGSORT, {"probs": tensor(1, vocab)}, _sorted_by(kernels))
        drawn_from = {
            "sorted_probs": tensor(1, vocab),
            "sorted_indices": tensor(1, vocab, dtype="int32"),
            "uniform_samples": tensor(1),
            "sample_indices": tensor(1, dtype="int32"),
            "top_p": tensor(1),
        }
        add_function(builder, DRAW, drawn_from, _drawn_by(kernels))
        for name in IN_PLACE:
            builder.add_func(_public(kernels[name], name), name)
        return builder.get()


def _sorted_by(kernels: Mapping[str, tirx.PrimFunc]) -> Callable[..., relax.Expr]:
    def body(probs: relax.Var) -> relax.Expr:
        builder = relax.BlockBuilder.current()
        values, order, *_work = call_kernel(kernels[ARGSORT], ARGSORT, (probs,))
        return relax.Tuple([builder.emit(values), builder.emit(order)])

    return body


def _drawn_by(kernels: Mapping[str, tirx.PrimFunc]) -> Callable[..., relax.Expr]:
    return lambda *given: call_kernel(kernels[DRAW], DRAW, given)[0]


def _public(kernel: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    """A kernel that is found by its name, and thus kept although no function calls it."""
    return kernel.with_attr("global_symbol", name)
