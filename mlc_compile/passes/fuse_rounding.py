"""Round what a kernel of tiles gives while it is in the L1 cache, for the next product on tiles.

    y = bf16_matmul(pairs, parts);  round_act(y; swiglu)   ->   bf16_swiglu(pairs, parts)
    o = tile_attend(q, cache ..);   round_act(o; plain)    ->   tile_attend(q, cache ..; rounded)

y and o are never written in float32, nor read again: what is written has a quarter of the bytes of
y, and half of those of o. Must run after MultiplyBF16Tiles, which makes these operators. Only if
nothing else reads y or o, no residual is added to y, and SwiGLU gives groups of 32, as words
pair its values.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import mutator

from mlc_compile import ops
from mlc_compile.layout import GROUP
from mlc_compile.passes.rewrite import Fuser, first_reason, fuse_functions
from mlc_compile.passes.values import behind

ROUND: Final = "mlc.round_act"


@dataclass(frozen=True, slots=True)
class Maker:
    """An operator whose result may be rounded at once: how, and why not."""

    name: str
    rounded: Callable[[relax.Call], relax.Call]
    refusals: Callable[[relax.Call], Mapping[str, bool]]


def _of_attention(attend: relax.Call) -> relax.Call:
    return ops.tile_attend(attend.args, ops.Attention.of(attend), rounded=True)


def _matmul_refusals(matmul: relax.Call) -> Mapping[str, bool]:
    half = int(matmul.attrs["n"]) // 2
    return {
        "a residual is added before it": bool(matmul.attrs["residual"]),
        f"its {half} columns are not a multiple of {GROUP}": half % GROUP != 0,
    }


MAKERS: Final = {  # by the source of the rounding
    "swiglu": Maker("mlc.bf16_matmul", ops.bf16_swiglu, _matmul_refusals),
    "plain": Maker("mlc.tile_attend", _of_attention, lambda _: {}),
}


@module_pass(opt_level=0, name="FuseRounding")
class FuseRounding:
    """Every rounding that MAKERS knows, of what only it reads."""

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return fuse_functions(mod, _Fuser)


@mutator
class _Fuser(Fuser):
    step: ClassVar[str] = "FuseRounding"

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        maker = MAKERS.get(str(call.attrs["source"])) if ops.is_call(call, ROUND) else None
        made = call.args[0] if maker else None
        call = super().visit_call_(call)
        if maker is None or not isinstance(made, relax.Var):
            return call
        source = behind(call.args[0], self.builder_)
        if not ops.is_call(source, maker.name):
            return call
        reasons = {"what it reads has other readers": self.uses[made] > 1}
        reasons |= maker.refusals(source)
        reason = first_reason(reasons)
        if reason is not None:
            self.refused(ROUND, reason)
            return call
        self.done(ROUND)
        return maker.rounded(source)
