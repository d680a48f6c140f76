"""Lower operators to kernels by the target's rules: the last pass that sees `mlc.*`.

    y = quantized_matmul(x, parts)   ->   y = call_tir(gemv, (x, parts))

An operator of Relax that no rule answers is left to TVM's own legalization, and an event
says so where there is a rule for others of its kind; an `mlc.*` operator must be answered.
Equal kernels are one function. Of a kernel family a tuning record chooses the point, where
there is one that still names a point of the family's space; else the rules' default does, and
an event says why (`schedule.tuned`).
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace
from tvm import IRModule, relax, tirx
from tvm.ir import Op
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from mlc_compile.errors import count
from mlc_compile.passes import events
from mlc_compile.passes.rewrite import relax_functions
from mlc_compile.records import NOTHING, Chosen, Record, Workload
from mlc_compile.schedule import cpu, gpu
from mlc_compile.schedule.family import Family
from mlc_compile.schedule.rule import Kernel, Rule
from mlc_compile.schedule.space import Space
from mlc_compile.schedule.tuned import OUTDATED, RECORDS, used, with_asked, with_tuned
from mlc_compile.target import Backend, Target

NAME: Final = "LowerOperators"
OURS: Final = "mlc."  # how our operators' names begin
RULES: Final[dict[Backend, dict[str, Rule]]] = {
    "cpu": cpu.RULES,
    "cuda": gpu.RULES,
    "metal": gpu.RULES,
    "vulkan": gpu.RULES,
    "webgpu": gpu.RULES,
}


@module_pass(opt_level=0, name=NAME)
@dataclass(frozen=True)
class LowerOperators:
    """Rules are chosen by the target's backend, points of a family's space by `records`."""

    target: Target
    records: Chosen = NOTHING

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        lowerer = _Lowerer(mod, self.target, self.records)
        for gv, func in relax_functions(mod):
            body = lowerer.visit_expr(func.body)
            lowered = relax.Function(func.params, body, None, func.is_pure, func.attrs)
            lowerer.builder_.update_func(gv, lowered)
        out = lowerer.builder_.get()
        for key, value in (mod.attrs or {}).items():
            out = out.with_attr(key, value)
        chosen = [
            events.Event(NAME, name, "done", count(calls, "call"))
            for name, calls in sorted(lowerer.used.items())
        ]
        left = [
            events.Event(NAME, name, "refused", "no kernel of ours takes its arguments: TVM's does")
            for name in sorted(lowerer.left)
        ]
        out = with_tuned(events.record(out, [*chosen, *lowerer.told, *left]), lowerer.tuned)
        return relax.transform.DeadCodeElimination()(with_asked(out, lowerer.built))


@mutator
class _Lowerer(PyExprMutator):
    def __init__(self, mod: IRModule, target: Target, records: Chosen) -> None:
        super().__init__(mod)
        self.records = records
        self.built: dict[Workload, _Built] = {}
        self.told: list[events.Event] = []  # of records
        self.tuned: dict[str, Record] = {}
        self.target = target
        self.rules = RULES[target.backend]
        self.used: Counter[str] = Counter()  # kernels
        self.left: set[str] = set()  # operators

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if not isinstance(call.op, Op):
            return call
        name = str(call.op.name)
        rule = self.rules.get(name)
        kernel = None if rule is None else rule(call, self.target)
        if kernel is None:
            assert not name.startswith(OURS), f"{name} has no kernel on {self.target.backend}"
            if rule is not None:
                self.left.add(name)
            return call
        gv = self._add(kernel)
        self.used[str(gv.name_hint)] += 1
        return _call(gv, kernel)

    def _add(self, kernel: Kernel) -> relax.GlobalVar:
        """The kernel's function in the module, with an event if a record is about it."""
        func = kernel.func
        if not isinstance(func, Family):
            return self.builder_.add_func(func, kernel.name)
        if func.workload not in self.built:
            self.built[func.workload] = _at_its_point(func, self.records)
        built = self.built[func.workload]
        gv = self.builder_.add_func(built.func, kernel.name)
        name = str(gv.name_hint)
        if built.told is not None:
            self.told.append(replace(built.told, subject=name))
        if built.record is not None:
            self.tuned[name] = built.record
        return gv


@dataclass(frozen=True, slots=True)
class _Built:
    """A family's function at its point; `told` says of a record what became of it."""

    func: tirx.PrimFunc
    told: events.Event | None = None
    record: Record | None = None  # that chose the point


def _at_its_point(family: Family[Any], records: Chosen) -> _Built:
    record = records.find(family.workload, family.version)
    if record is None:
        told = OUTDATED if records.outdated(family.workload, family.version) else None
        return _Built(family.build(family.space.default), told)
    space = family.space
    assert isinstance(space, Space), "a rule's family has parameters"
    point = space.point(record.choice)
    if point is None:
        told = events.Event(RECORDS, "", "refused", f"no point of its space: {record.choice}")
        return _Built(family.build(family.space.default), told)
    knobs = ", ".join(f"{name} {value}" for name, value in space.choice(point).items())
    return _Built(family.build(point), used("", knobs, record), record)


def _call(gv: relax.GlobalVar, kernel: Kernel) -> relax.Call:
    if kernel.inplace:
        return relax.call_tir_inplace(
            gv, list(kernel.args), list(kernel.inplace), list(kernel.results)
        )
    return relax.call_tir(gv, list(kernel.args), list(kernel.results))
