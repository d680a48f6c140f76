"""Tell the memory planner how large the symbolic token count can get.

    f(x[1, n, ..])   ->   f with tir_var_upper_bound {n: chunk}

Must run before PlanMemory, which else leaves what depends on n unplanned.
"""

from dataclasses import dataclass
from typing import Final

from tvm import IRModule
from tvm.ir.transform import PassContext, module_pass

from mlc_compile.passes.rewrite import relax_functions

TOKENS: Final = "n"  # the symbolic dimension of the model: tokens of one call


@module_pass(opt_level=0, name="BoundTokens")
@dataclass(frozen=True)
class BoundTokens:
    """`chunk` is the most tokens that one call takes."""

    chunk: int

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        out = IRModule(mod.functions, attrs=mod.attrs)
        for gv, func in relax_functions(mod):
            out[gv] = func.with_attr("tir_var_upper_bound", {TOKENS: self.chunk})
        return out
