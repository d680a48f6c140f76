"""The tasks of a model: its distinct kernels that have a space, and how often they are called.

A kernel for any number of tokens m is timed at representative m, and one choice is kept for
all of them: what is best by the weighted mean of its times over the default's. So a kernel
needs no guard, and what is best for long prompts may cost short ones a little, never more
than the weights say.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from tvm import IRModule, relax
from tvm.ir import Op

from mlc_compile.artifact import Activations, Limits
from mlc_compile.passes.rewrite import bindings_of, relax_functions
from mlc_compile.pipeline import VIEWS, Plan, phases
from mlc_compile.schedule.families import peak_family, tile_peak_family
from mlc_compile.schedule.family import Family
from mlc_compile.schedule.kernels.peak import OF_TILES, TILES
from mlc_compile.schedule.kernels.tiles import unit_for
from mlc_compile.schedule.lower_operators import RULES
from mlc_compile.target import Target
from mlc_compile.tune.events import TaskRow, Untunable
from mlc_compile.tune.inputs import Situation, situation, symbols

DECODE: Final = "decode"
PREFILL: Final = "prefill"
COUNTED: Final = (DECODE, PREFILL)  # the functions whose time counts
TOKENS: Final = "m"  # the symbolic dimension that is the number of tokens
PAGES: Final = "pages"
REPRESENTATIVE: Final = (1, 16, 128, 512)  # tokens of a call, beside the longest
DEPTH: Final = 512  # tokens in the cache when one is decoded

# Operators that are no kernels of ours, and why.
NO_KERNELS: Final = {
    **dict.fromkeys(VIEWS, "a view"),
    "relax.call_pure_packed": "a builtin of TVM's runtime",
    "relax.call_tir": "a pass writes the kernel",
}
NO_RULE: Final = "no rule: TVM writes the kernel"
OTHER_SHAPES: Final = "its shapes are no rule's: TVM writes the kernel"
WRITTEN_BY_TVM: Final = (NO_RULE, OTHER_SHAPES)


@dataclass(frozen=True, slots=True)
class Task:
    """One workload: `calls` are those of one run of a function, by its name."""

    name: str
    family: Family[Any]
    situations: tuple[Situation, ...]
    calls: Mapping[str, int] = field(default_factory=dict)

    @property
    def row(self) -> TaskRow:
        """For whoever watches."""
        return TaskRow(self.name, dict(self.calls), self.family.space.size)


@dataclass(frozen=True, slots=True)
class Tasks:
    """What can be tuned of a model, and what cannot; `peaks` only measure the machine."""

    tasks: tuple[Task, ...]
    untunable: tuple[Untunable, ...]
    peaks: tuple[Task, ...] = ()


def tasks_of(mod: IRModule, plan: Plan) -> Tasks:
    """The tasks of an imported module; TVM's target must be current, as for the passes."""
    return read_tasks(before_kernels(mod, plan), plan)


def before_kernels(mod: IRModule, plan: Plan) -> IRModule:
    """The module as the rules see it."""
    for phase in phases(plan):
        if phase.name == "kernels":
            break
        for step in phase.passes:
            mod = step(mod)
    return mod


def read_tasks(mod: IRModule, plan: Plan) -> Tasks:
    """The tasks of a module that the rules would lower now."""
    families: dict[str, Family[Any]] = {}
    calls: dict[str, Counter[str]] = defaultdict(Counter)
    left: Counter[tuple[str, str]] = Counter()
    for function, call in _calls(mod):
        found = _looked_up(call, plan.target)
        if isinstance(found, str):
            left[str(call.op.name), found] += 1
        else:
            name = name_of(found)
            families[name] = found
            calls[name][function] += 1
    made = [
        Task(name, family, situations_of(family, plan), dict(calls[name]))
        for name, family in sorted(families.items())
    ]
    refused = [Untunable(name, count, why) for (name, why), count in sorted(left.items())]
    return Tasks(tuple(made), tuple(refused), peaks_of(plan.target))


def peaks_of(target: Target) -> tuple[Task, ...]:
    """Kernels that do nothing but multiply, in each arithmetic that the target's have."""
    kinds: tuple[Activations, ...] = ("int8", "float32") if target.int8_dot else ("float32",)
    families = [(tile, peak_family(tile, target, kind)) for kind, tile in product(kinds, TILES)]
    unit = unit_for(target)
    if unit is not None:
        families.append((OF_TILES, tile_peak_family(unit)))
    made = []
    for tile, family in families:
        call = situation(family.build(tile), family.operands, {})
        made.append(Task(name_of(family), family, (call,)))
    return tuple(made)


def name_of(family: Family[Any]) -> str:
    """Its workload's title: no two tasks have the same."""
    return family.workload.title


def situations_of(family: Family[Any], plan: Plan) -> tuple[Situation, ...]:
    """How a model calls the kernel: once where its shapes are fixed, else by tokens."""
    func = family.build(family.space.default)
    limits, page = plan.limits, plan.kv.page

    def called(m: int, depth: int, weight: float) -> Situation:
        pages = -(-(depth + m) // page)
        sizes = {TOKENS: m, PAGES: pages}
        filled = (depth + m) / (pages * page)
        return situation(func, family.operands, sizes, depth, weight, m, filled)

    if TOKENS not in symbols(func):
        return (called(1, min(DEPTH, limits.context - 1), 1.0),)
    return tuple(called(m, 0, m**0.5) for m in representative(limits))


def representative(limits: Limits) -> tuple[int, ...]:
    """Numbers of tokens that stand for all: short prompts, long ones, the longest call."""
    chunk = limits.prefill_chunk
    return tuple(sorted({*(m for m in REPRESENTATIVE if m < chunk), chunk}))


def _calls(mod: IRModule) -> Iterator[tuple[str, relax.Call]]:
    """Calls of operators in the functions that count."""
    for gv, func in relax_functions(mod):
        name = str(gv.name_hint)
        if name in COUNTED:
            for value in bindings_of(func).values():
                if isinstance(value, relax.Call) and isinstance(value.op, Op):
                    yield name, value


def _looked_up(call: relax.Call, target: Target) -> Family[Any] | str:
    """The call's family, or why it has none."""
    name = str(call.op.name)
    rule = RULES[target.backend].get(name)
    if rule is None:
        return NO_KERNELS.get(name, NO_RULE)
    kernel = rule(call, target)
    if kernel is None:
        return OTHER_SHAPES
    return kernel.func if isinstance(kernel.func, Family) else "its rule has one way to write it"
