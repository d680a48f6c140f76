"""Kernels that TVM wrote, tuned by MetaSchedule's designs: the second kind of space.

MetaSchedule generates designs for one shape (`PostOrderApply`, with the target's own rules)
and draws their tiles; those drawn with a fixed seed are the space, which the same search, cost
model and runner go through as through a family's. Its tensor intrinsics take seconds to load, so it
is only asked where a model has such a kernel.
"""

import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import CodeType, ModuleType
from typing import Any, Final

from tvm import IRModule, relax, tirx
from tvm.target import Target as TVMTarget

from mlc_compile.passes.rewrite import bindings_of, relax_functions
from mlc_compile.pipeline import Plan, phases
from mlc_compile.records.record import canonical
from mlc_compile.runtime.host import available_cores
from mlc_compile.schedule import leftovers
from mlc_compile.schedule.family import Family
from mlc_compile.schedule.operand import INPUT, RESULT
from mlc_compile.schedule.traces import UNFIT, TraceSpace, buffers, workload_of
from mlc_compile.tune.events import Untunable
from mlc_compile.tune.inputs import situation
from mlc_compile.tune.tasks import COUNTED, WRITTEN_BY_TVM, Task, Tasks, before_kernels

DESIGNS: Final = 64  # at most, of a kernel
DRAWS: Final = 64  # of all designs anew
SEED: Final = 1
FLOATS: Final = ("float16", "float32")

SYMBOLIC: Final = "it is for any number of tokens, and MetaSchedule's designs are for one"
INDICES: Final = "its integers may be places in a tensor, which no random ones are"
ALONE: Final = "MetaSchedule has no design for it"


def with_leftovers(tasks: Tasks, mod: IRModule, plan: Plan) -> Tasks:
    """`tasks` of the imported module, and those of the kernels that TVM writes of it.

    TVM's target must be current, as for the passes.
    """
    mod = before_schedules(before_kernels(mod, plan), plan)
    made, refused = [], []
    for gv, func in sorted(mod.functions.items(), key=lambda item: str(item[0].name_hint)):
        if not isinstance(func, tirx.PrimFunc) or "tirx.is_scheduled" in func.attrs:
            continue
        name, calls = str(gv.name_hint), _calls(mod, gv)
        found = _why_not(func) or _task(name, func, plan, calls)
        if isinstance(found, Task):
            made.append(found)
        else:
            refused.append(Untunable(name, calls.total(), found))
    others = [one for one in tasks.untunable if one.reason not in WRITTEN_BY_TVM]
    return replace(tasks, tasks=(*tasks.tasks, *made), untunable=(*others, *refused))


def before_schedules(mod: IRModule, plan: Plan) -> IRModule:
    """A module that the rules would lower now, as `ScheduleLeftovers` sees it."""
    (kernels,) = [phase for phase in phases(plan) if phase.name == "kernels"]
    for step in kernels.passes:
        if str(step.info.name) == leftovers.NAME:
            break
        mod = step(mod)
    return mod


def designs_of(func: tirx.PrimFunc, cores: int) -> tuple[str, ...]:
    """Distinct traces that MetaSchedule draws of a kernel, as JSON; the same on every run.

    TVM's target must be current.
    """
    from tvm.s_tir.meta_schedule import TuneContext

    with modules_found_once():
        context = TuneContext(
            IRModule({"main": func.with_attr("global_symbol", "main")}),
            target=TVMTarget({**TVMTarget.current().export(), "num-cores": cores}),
            space_generator="post-order-apply",
            rand_state=SEED,
            num_threads=1,
        )
    found: dict[str, None] = {}
    for _ in range(DRAWS):
        for schedule in context.generate_design_space():
            if all(post.apply(schedule) for post in context.space_generator.postprocs):
                trace = json.dumps(schedule.trace.as_json(), default=_number)
                found[canonical(json.loads(trace)).decode()] = None
        if len(found) >= DESIGNS:
            break
    return tuple(found)[:DESIGNS]


@contextmanager
def modules_found_once() -> Iterator[None]:
    """While TVM loads its tensor intrinsics: `inspect` remembers the module of each source file.

    TVM parses hundreds and takes the whole stack for each, where Python walks all modules for
    every frame of importlib's: nine tenths of the time.
    """
    plain, found = inspect.getmodule, {}

    def remembered(item: object, name: str | None = None) -> ModuleType | None:
        code = getattr(item, "f_code", item)
        if not isinstance(code, CodeType):
            return plain(item, name)
        if code.co_filename not in found:
            found[code.co_filename] = plain(item, name)
        return found[code.co_filename]

    getmodule: Callable[..., ModuleType | None] = remembered
    inspect.getmodule = getmodule
    try:
        yield
    finally:
        inspect.getmodule = plain


def _number(value: tirx.IntImm | tirx.FloatImm) -> int | float:
    """A constant of TVM's as JSON has it."""
    number: int | float = value.value
    return number


def _why_not(func: tirx.PrimFunc) -> str:
    params = buffers(func)
    if len(params) != len(func.params):
        return SYMBOLIC
    if not all(isinstance(dim, tirx.IntImm) for param in params for dim in param.shape):
        return SYMBOLIC
    return "" if all(str(param.dtype) in FLOATS for param in params) else INDICES


def _task(name: str, func: tirx.PrimFunc, plan: Plan, calls: Counter[str]) -> Task | str:
    try:
        designs = designs_of(func, available_cores())
    except UNFIT as e:
        return f"MetaSchedule fails on it: {type(e).__name__}"
    if not designs:
        return ALONE
    space = TraceSpace(func, leftovers.by_rules(func, plan.target.device), designs)
    operands = (*[INPUT] * (len(func.params) - 1), RESULT)
    family = Family(workload_of(func), space, space.build, operands)
    return Task(f"metaschedule {name}", family, (situation(func, operands, {}),), dict(calls))


def _calls(mod: IRModule, kernel: relax.GlobalVar) -> Counter[str]:
    return Counter(
        str(gv.name_hint)
        for gv, func in relax_functions(mod)
        if str(gv.name_hint) in COUNTED
        for callee in _callees(func)
        if callee.same_as(kernel)
    )


def _callees(func: relax.Function) -> Iterator[Any]:
    for value in bindings_of(func).values():
        if isinstance(value, relax.Call):
            yield from (arg for arg in value.args if isinstance(arg, relax.GlobalVar))
