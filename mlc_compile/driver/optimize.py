"""Run the phases of `pipeline` over a module: each pass timed, and shown to whoever watches."""

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from mlc_compile.driver.clock import Clock
from mlc_compile.passes.watch import At, Watcher

if TYPE_CHECKING:
    from tvm import IRModule

    from mlc_compile.passes.events import Event
    from mlc_compile.pipeline import Plan


def optimize(
    mod: "IRModule", plan: "Plan", clock: Clock, watchers: Sequence[Watcher] = ()
) -> "IRModule":
    """`mod` after all passes of `plan`, for which the TVM target must be current."""
    from mlc_compile.passes import events
    from mlc_compile.pipeline import phases

    mod = events.record(mod, _left_out(plan))
    for watcher in watchers:
        watcher.start(mod)
    for phase_number, phase in enumerate(phases(plan), 1):
        for number, step in enumerate(phase.passes, 1):
            name, start = str(step.info.name), perf_counter()
            mod = step(mod)
            clock.add_pass(phase.name, name, perf_counter() - start)
            at = At(phase.name, phase_number, name, number, number == len(phase.passes))
            for watcher in watchers:
                watcher.after(at, mod)
    return mod


def _left_out(plan: "Plan") -> "list[Event]":
    from mlc_compile.passes.catalog import PASSES
    from mlc_compile.passes.events import Event

    reason = "disabled by --disable-pass"
    return [Event(name, PASSES[name].does, "refused", reason) for name in plan.disabled]
