"""Lower a PrimFunc with the passes of `tvm.tirx.build`, up to the split of host and device."""

import tvm
from tvm import tirx
from tvm.ir.instrument import pass_instrument

from .errors import Unsupported

SPLIT = "tirx.SplitHostDevice"

DEFAULT_TARGET = {"kind": "cuda", "arch": "sm_80"}


@pass_instrument
class _StopBeforeSplit:
    """Remembers the module as the split would get it and runs no pass from there on."""

    def __init__(self) -> None:
        self.mod: tvm.IRModule | None = None

    def should_run(self, mod: tvm.IRModule, info: object) -> bool:
        if info.name == SPLIT:
            self.mod = mod
        return self.mod is None


def lower(func: tirx.PrimFunc, target: tvm.target.Target | None) -> tirx.PrimFunc:
    """`func` as the code generators of `target` (CUDA by default) would see it."""
    target = target or tvm.target.Target(DEFAULT_TARGET, host={"kind": "llvm"})
    pipeline, _, _ = tirx.get_default_tir_pipeline(target)
    stop = _StopBeforeSplit()
    config = dict(tvm.transform.PassContext.current().config)
    with tvm.transform.PassContext(instruments=[stop], config=config), target:
        pipeline(tirx.transform.BindTarget(target)(tvm.IRModule({"main": func})))
    if stop.mod is None:
        raise Unsupported(f"the pipeline of target {target.kind.name} has no pass {SPLIT}")
    (lowered,) = stop.mod.functions.values()
    return lowered
