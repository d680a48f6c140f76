"""What each pass of `pipeline.py` does in a line, and whether a build may leave it out.

The list without TVM, for `mlc-compile passes` and for options that are checked before it
loads. A pass that only makes code faster or smaller may be disabled; of any other, `needed`
says why not. A test holds this table to the pipelines of all targets, names and order.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mlc_compile.errors import ConfigError, near_matches


@dataclass(frozen=True, slots=True)
class About:
    """One pass. `needed` is empty for an optimization; `where` names the targets that run it."""

    phase: str
    does: str
    needed: str = ""
    where: str = "all"


_FORM = "what follows takes only the form it leaves"

PASSES: Final[dict[str, About]] = {  # in the order of pipeline.py
    "NameWeights": About(
        "import", "name weights as the checkpoint does", "weights are found by these names"
    ),
    "FoldConstants": About("graph", "compute what constants alone decide"),
    "SimplifyAlgebra": About("graph", "shorter expressions that are equal to the last bit"),
    "EliminateCommonSubexpressions": About("graph", "compute once what is computed twice"),
    "MergeProjections": About(
        "graph", "join linear layers that read one tensor: q, k, v; gate, up"
    ),
    "CancelSplitConcat": About("graph", "drop a concat that undoes a split"),
    "FuseSwiGLU": About("graph", "silu(gate) times up as one operator that reads both halves"),
    "QuantizeWeights": About(
        "graph", "store weights as the scheme does", "the scheme decides it: use --quant q0f32"
    ),
    "AssignLayouts": About(
        "graph", "pack weights as the target's kernels read them", "kernels read packed weights"
    ),
    "BindWeights": About(
        "graph", "weights become one parameter, and the weight plan is written", _FORM
    ),
    "LowerFlatKVCache": About(
        "graph", "attention over pages that are plain tensors", _FORM, where="CPU"
    ),
    "LowerPagedKVCache": About(
        "graph", "attention over the paged cache of TVM's runtime", _FORM, where="GPU"
    ),
    "AddSampler": About(
        "graph", "add functions that choose a token on the device", "generating calls them", "GPU"
    ),
    "AddPageSampler": About(
        "graph", "add the functions by which web-llm samples", "the page calls them", "browsers"
    ),
    "AttachMetadata": About(
        "graph", "add the function that tells a runtime of the library", "runtimes ask for it"
    ),
    "QuantizeActivations": About(
        "activations",
        "int8 activations where INT4 weights meet an int8 dot product; of prompts in wider groups",
        "it changes values: use --activations float32",
    ),
    "FuseQuantizeSource": About(
        "activations", "RMSNorm and SwiGLU inside the quantization that reads them", where="CPU"
    ),
    "FuseResidual": About("activations", "add the residual while a matmul's sums are in registers"),
    "FuseRMSNormLinear": About(
        "activations", "RMSNorm inside the linear layer that reads it, where that is float32"
    ),
    "FuseQuantizeGemv": About(
        "activations", "quantize one row inside the matmul that reads it", where="CPU"
    ),
    "FuseSwiGLUEpilogue": About(
        "activations", "SwiGLU while a matmul's sums are in registers, on CPUs of one row"
    ),
    "MultiplyBF16Tiles": About(
        "activations",
        "bfloat16 for many rows, and their attention, where the CPU has tiles for it",
        "it changes values: use --activations int8",
        where="CPU",
    ),
    "FuseRounding": About(
        "activations", "SwiGLU and attention of prompts written in bfloat16 at once", where="CPU"
    ),
    "FuseTileProjection": About(
        "activations",
        "queries, keys and values of prompts appended as their product is made",
        where="CPU",
    ),
    "LowerOperators": About(
        "kernels", "operators become the target's kernels", "only kernels can be compiled"
    ),
    "LegalizeOps": About(
        "kernels", "TVM's kernels for what is left", "only kernels can be compiled"
    ),
    "AnnotateTIROpPattern": About(
        "kernels", "tell which kernels may be fused", "FuseOps needs it: disable FuseOps"
    ),
    "FuseOps": About("kernels", "group what TVM's own fusion can join"),
    "FuseTIR": About(
        "kernels", "make one kernel of each group", "FuseOps needs it: disable FuseOps"
    ),
    "ScheduleLeftovers": About(
        "kernels",
        "vectors and threads for TVM's kernels",
        "a GPU runs no kernel without threads",
    ),
    "DeadCodeElimination": About("kernels", "drop what fusion left unused"),
    "tirx.NarrowDataType": About(
        "kernels", "32-bit indices", "some GPUs have no others", where="GPU"
    ),
    "ToNonDataflow": About("memory", "plain bindings in place of dataflow blocks", _FORM),
    "RemovePurityChecking": About("memory", "calls may have effects", _FORM),
    "CallTIRRewrite": About("memory", "kernels write into tensors that are given to them", _FORM),
    "BoundTokens": About(
        "memory", "the most tokens that a call takes", "PlanMemory sizes tensors by it"
    ),
    "PlanMemory": About(
        "memory",
        "one arena per function for all intermediates",
        "manifest, limits and --memory-budget state what it planned",
    ),
    "BoundResults": About(
        "runtime",
        "results of one size, whatever the call's length",
        "memory would grow with every new prompt length",
    ),
    "LowerAllocTensor": About("runtime", "tensors inside storages", _FORM),
    "KillAfterLastUse": About(
        "runtime", "free memory after its last use", "what a call holds is planned with it"
    ),
    "LowerRuntimeBuiltin": About("runtime", "allocations become calls of the runtime", _FORM),
    "ComputePrimValue": About("runtime", "computed numbers become functions", _FORM),
    "VMShapeLower": About("runtime", "check and compute symbolic shapes", _FORM),
    "AttachGlobalSymbol": About("runtime", "give functions their names in the library", _FORM),
}


def optional_passes() -> tuple[str, ...]:
    """The passes that may be disabled, in order."""
    return tuple(name for name, about in PASSES.items() if not about.needed)


def check_disabled(names: Iterable[str]) -> tuple[str, ...]:
    """The passes named, each once and in order of the list, so that equal choices are equal.

    Raises ConfigError for a name that is no pass, and for a pass that is no optimization.
    """
    asked = set(names)
    for name in sorted(asked):
        if name not in PASSES:
            hint = near_matches(name, optional_passes())
            raise ConfigError(f"there is no pass {name!r}", hint=f"{hint}; see mlc-compile passes")
        if PASSES[name].needed:
            raise ConfigError(
                f"{name} cannot be disabled: {PASSES[name].needed}",
                hint=f"these can: {', '.join(optional_passes())}",
            )
    return tuple(name for name in PASSES if name in asked)
