"""Add `_metadata() -> str`: what a runtime must know of a library before it calls it.

JSON with MLC's keys where MLC has one (`params`, `prefill_chunk_size`, `context_window_size`,
`kv_state_kind`). Must run after BindWeights, whose plan gives the parameters.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
from tvm import IRModule, relax
from tvm.ir import StringImm
from tvm.ir.transform import PassContext, module_pass

from mlc_compile.passes.bind_weights import read_plan

FUNCTION = "_metadata"


@module_pass(opt_level=0, name="AttachMetadata")
@dataclass(frozen=True)
class AttachMetadata:
    """`facts` are (key, value) pairs, told as they are."""

    facts: tuple[tuple[str, Any], ...]

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        parts = [part for tensor in read_plan(mod).tensors for part in tensor.parts]
        params = [{"name": p.name, "shape": p.shape, "dtype": p.dtype} for p in parts]
        text = msgspec.json.encode({**dict(self.facts), "params": params}).decode()
        builder = relax.BlockBuilder(mod)
        with builder.function(FUNCTION, []):
            builder.emit_func_output(StringImm(text))
        return builder.get()
