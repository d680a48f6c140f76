"""The compiler's passes, in order, by phase: this list is the compiler.

import       the model's own operators, weights named
graph        simplify, join, fuse; then storage: scheme, layout, KV cache; then the weight plan
activations  int8 or bfloat16 where the target multiplies it, with what feeds and follows fused in
kernels      operators to kernels, the rest through TVM's legalization, all scheduled
memory       calls in destination-passing style, one arena a function
runtime      what the virtual machine executes
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import tvm_ffi
from tvm import IRModule, relax, tirx
from tvm.ir.transform import Pass

from mlc_compile.artifact import Activations, FlatKV, Limits
from mlc_compile.model.rope import Rope
from mlc_compile.passes.add_page_sampler import (
    ARGSORT,
    BIAS,
    BITMASK,
    DRAW,
    PENALTY,
    AddPageSampler,
)
from mlc_compile.passes.add_sampler import ARGMAX, SAMPLE, SOFTMAX, AddSampler
from mlc_compile.passes.assign_layouts import AssignLayouts
from mlc_compile.passes.attach_metadata import AttachMetadata
from mlc_compile.passes.bind_weights import BindWeights
from mlc_compile.passes.bound_tokens import BoundTokens
from mlc_compile.passes.cancel_split_concat import CancelSplitConcat
from mlc_compile.passes.eliminate_common_subexpressions import EliminateCommonSubexpressions
from mlc_compile.passes.fold_constants import FoldConstants
from mlc_compile.passes.fuse_quantize_gemv import FuseQuantizeGemv
from mlc_compile.passes.fuse_quantize_source import FuseQuantizeSource
from mlc_compile.passes.fuse_residual import FuseResidual
from mlc_compile.passes.fuse_rms_norm_linear import FuseRMSNormLinear
from mlc_compile.passes.fuse_rounding import FuseRounding
from mlc_compile.passes.fuse_swiglu import FuseSwiGLU
from mlc_compile.passes.fuse_swiglu_epilogue import FuseSwiGLUEpilogue
from mlc_compile.passes.fuse_tile_projection import FuseTileProjection
from mlc_compile.passes.lower_flat_kv_cache import LowerFlatKVCache
from mlc_compile.passes.lower_paged_kv_cache import LowerPagedKVCache, MakeKernels
from mlc_compile.passes.merge_projections import MergeProjections
from mlc_compile.passes.multiply_bf16_tiles import MultiplyBF16Tiles
from mlc_compile.passes.name_weights import NameWeights
from mlc_compile.passes.plan_memory import PlanMemory
from mlc_compile.passes.plan_memory import read as read_memory
from mlc_compile.passes.plan_memory.results import BoundResults
from mlc_compile.passes.quantize_activations import QuantizeActivations
from mlc_compile.passes.quantize_weights import QuantizeWeights
from mlc_compile.passes.simplify_algebra import SimplifyAlgebra
from mlc_compile.quant import find_scheme, has_codes
from mlc_compile.records import NOTHING, Chosen
from mlc_compile.schedule.kernels.dot import grouping_for
from mlc_compile.schedule.kernels.gpu.argmax import argmax
from mlc_compile.schedule.kernels.gpu.argsort import argsort
from mlc_compile.schedule.kernels.gpu.attention import paged_kv_kernels
from mlc_compile.schedule.kernels.gpu.draw_sorted import draw_sorted
from mlc_compile.schedule.kernels.gpu.logit_edits import add_bias, forbid, penalize
from mlc_compile.schedule.kernels.gpu.sampler import sample
from mlc_compile.schedule.kernels.gpu.softmax import softmax
from mlc_compile.schedule.leftovers import ScheduleLeftovers
from mlc_compile.schedule.lower_operators import LowerOperators
from mlc_compile.target import Device, Target

# An exception in a pass reaches us through C++, by name, and this name TVM does not know:
# Ctrl-C would come out as a RuntimeError.
tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)

# Not legalized: the memory planner lets the result share its argument's storage, and the
# virtual machine has a builtin that makes a view. A kernel would copy.
VIEWS: Final = ("relax.reshape",)


@dataclass(frozen=True, slots=True)
class Plan:
    """All that decides which passes run: nothing else may."""

    target: Target
    scheme: str
    kv: FlatKV
    limits: Limits
    weight_names: tuple[str, ...]
    rope: Rope
    activations: Activations = "float32"
    facts: tuple[tuple[str, Any], ...] = ()  # for `_metadata`
    disabled: tuple[str, ...] = ()  # passes to leave out, by name; passes.catalog has which may be
    records: Chosen = NOTHING  # what tuning chose for the target


@dataclass(frozen=True, slots=True)
class Phase:
    """A named stretch of passes."""

    name: str
    passes: tuple[Pass, ...]


KV_CACHES: Final[dict[str, Callable[[Plan], Pass]]] = {  # by Target.kv
    "flat": lambda plan: LowerFlatKVCache(plan.kv),
    "tvm_paged": lambda plan: LowerPagedKVCache(
        plan.target, plan.rope, plan.kv.dtype, _paged_kernels(plan)
    ),
}


def _paged_kernels(plan: Plan) -> MakeKernels | None:
    """What a GPU's cache calls; a CPU's has TVM's own."""
    device, kv = plan.target.device, plan.kv
    if device is None:
        return None
    return partial(paged_kv_kernels, dtype=kv.dtype, page=kv.page, device=device)


Samplers = dict[str, Callable[[int, Device], tirx.PrimFunc]]  # by their functions
OUR_SAMPLERS: Final[Samplers] = {ARGMAX: argmax, SAMPLE: sample, SOFTMAX: softmax}
PAGE_SAMPLERS: Final[Samplers] = {
    SOFTMAX: softmax,
    ARGSORT: argsort,
    DRAW: draw_sorted,
    BIAS: add_bias,
    PENALTY: penalize,
    BITMASK: forbid,
}


def _sampler(plan: Plan) -> tuple[Pass, ...]:
    """Tokens are chosen where the logits are, if that is not the host."""
    device = plan.target.device
    if device is None:
        return ()
    if plan.target.page_runs:
        return (AddPageSampler(lambda vocab: _kernels(PAGE_SAMPLERS, vocab, device)),)
    return (AddSampler(lambda vocab: _kernels(OUR_SAMPLERS, vocab, device)),)


def _kernels(samplers: Samplers, vocab: int, device: Device) -> dict[str, tirx.PrimFunc]:
    return {name: make(vocab, device) for name, make in samplers.items()}


def phases(plan: Plan) -> tuple[Phase, ...]:
    """The whole compiler for `plan`, without what it disables."""
    return tuple(
        Phase(phase.name, tuple(p for p in phase.passes if str(p.info.name) not in plan.disabled))
        for phase in _all_phases(plan)
    )


def _all_phases(plan: Plan) -> tuple[Phase, ...]:
    return (
        Phase("import", (NameWeights(plan.weight_names),)),
        Phase(
            "graph",
            (
                # First: what follows matches the operators it knows, and takes two linear layers
                # for siblings only if they read one variable. Each of the three finds more
                # after the one before.
                FoldConstants(),
                SimplifyAlgebra(),
                EliminateCommonSubexpressions(),
                MergeProjections(),
                CancelSplitConcat(),  # what merging leaves where q, k and v met anyway
                FuseSwiGLU(),  # after merging: it wants gate and up in one tensor
                QuantizeWeights(plan.scheme),  # after all that moves rows
                AssignLayouts(plan.target.layout, plan.target.binding_bytes),
                BindWeights(),  # after the last pass that looks at a weight's attributes
                KV_CACHES[plan.target.kv](plan),  # may add a function, one without weights
                *_sampler(plan),  # adds functions without weights
                AttachMetadata(plan.facts),
            ),
        ),
        Phase("activations", _activations(plan)),
        Phase(
            "kernels",
            (
                LowerOperators(plan.target, plan.records),
                relax.transform.LegalizeOps(skip_ops=list(VIEWS)),
                relax.transform.AnnotateTIROpPattern(),
                relax.transform.FuseOps(),
                relax.transform.FuseTIR(),
                ScheduleLeftovers(plan.target.device, plan.records),
                relax.transform.DeadCodeElimination(),
                *_narrowing(plan),
            ),
        ),
        Phase(
            "memory",
            (
                relax.transform.ToNonDataflow(),
                relax.transform.RemovePurityChecking(),
                relax.transform.CallTIRRewrite(),
                BoundTokens(plan.limits.prefill_chunk),
                PlanMemory(plan.target.arena, plan.target.in_place),
            ),
        ),
        Phase(
            "runtime",
            (
                BoundResults(),
                relax.transform.LowerAllocTensor(),
                relax.transform.KillAfterLastUse(),
                relax.transform.LowerRuntimeBuiltin(),
                relax.transform.ComputePrimValue(),
                relax.transform.VMShapeLower(),
                relax.transform.AttachGlobalSymbol(),
            ),
        ),
    )


def _activations(plan: Plan) -> tuple[Pass, ...]:
    """How matmuls read their activations; unquantized weights leave no choice."""
    target = plan.target
    norms, swiglu = FuseRMSNormLinear(target), FuseSwiGLUEpilogue(target)
    fused = (FuseResidual(), norms, swiglu)
    if not has_codes(find_scheme(plan.scheme)):
        return fused
    if plan.activations == "float32":
        return (QuantizeActivations(refusal=_why_float(target)), *fused)
    return (
        QuantizeActivations(several=grouping_for(target)),
        FuseQuantizeSource(),  # norms and SwiGLU into the quantization that reads them
        FuseResidual(),
        norms,  # of the matmuls that stay float32
        # After these: it takes the matmul with all that was fused into it.
        FuseQuantizeGemv(target),
        # After FuseQuantizeGemv: only what that makes has the epilogue. SwiGLU is then in its
        # reader's quantization already, and stays there where the matmul cannot take it.
        swiglu,
        *_tiles(plan),  # last: of the int8 matmuls that are left, with all that they took in
    )


def _tiles(plan: Plan) -> tuple[Pass, ...]:
    """bfloat16 for many rows, if that was decided and the target's CPUs have tiles for it."""
    if plan.activations != "bfloat16" or not plan.target.bf16_tiles:
        return ()
    # The first makes what the others match.
    return (MultiplyBF16Tiles(), FuseRounding(), FuseTileProjection())


def _narrowing(plan: Plan) -> tuple[Pass, ...]:
    """32-bit indices where 64-bit ones are slow or missing: on every GPU."""
    if plan.target.device is None:
        return ()
    return (tirx.transform.ForceNarrowIndexToInt32(),)


def _why_float(target: Target) -> str:
    """Why INT4 weights are multiplied by float32 activations."""
    if target.int8_dot is None:
        return f"{target.name} has no int8 dot product"
    return "float32 was asked for"


def planned_bytes(mod: IRModule) -> dict[str, int]:
    """Function -> bytes of intermediate storage it holds at once; after phase "memory"."""
    return {one.name: one.planned_bytes for one in read_memory(mod)}
