"""Give a function's results storages of one size, whatever the length of the call.

    y = alloc_tensor(shape [n, k])   ->   s = alloc_storage(chunk k 4)
                                          y = alloc_tensor(s at 0, shape [n, k])

TVM's allocator keeps each storage for the next call that asks for as many bytes: of results
sized by the call, every new prompt length would leave one behind for good. Runs after
PlanMemory, which leaves the results; TVM's LowerAllocTensor takes those that stay.
"""

from typing import Final

from tvm import IRModule
from tvm.ir.transform import PassContext, module_pass

from mlc_compile import ops
from mlc_compile.passes.plan_memory.layout import Layout, Place
from mlc_compile.passes.plan_memory.liveness import ALLOC, bounds_of, upper_bytes
from mlc_compile.passes.plan_memory.rewriting import put_in_place
from mlc_compile.passes.rewrite import bindings_of, relax_functions

# Larger results are sized by the call: logits of every token of a chunk are 300 MB, and
# whoever asks for them asks for fewer at a time.
MOST: Final = 32 << 20


@module_pass(opt_level=0, name="BoundResults")
class BoundResults:
    """What is still allocated tensor by tensor, of up to MOST bytes."""

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        out = IRModule(mod.functions, attrs=mod.attrs)
        for gv, func in relax_functions(mod):
            bounds, bindings = bounds_of(func), bindings_of(func)
            results = {v: call for v, call in bindings.items() if ops.is_call(call, ALLOC)}
            sizes = {v: upper_bytes(call, bounds) for v, call in results.items()}
            kept = {v: nbytes for v, nbytes in sizes.items() if nbytes and nbytes <= MOST}
            if kept:
                places = {var: Place(storage, 0) for storage, var in enumerate(kept)}
                out[gv] = put_in_place(func, Layout(tuple(kept.values()), places))
        return out
