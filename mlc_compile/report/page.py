"""`report.html`: a report as one page that needs nothing but itself, network least of all.

Names of models and tensors come from whoever made the checkpoint, so the template escapes
everything; the page's policy allows its own script and no other. Equal reports give equal
bytes.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import jinja2
from markupsafe import Markup

from mlc_compile.artifact import Manifest
from mlc_compile.quant.error import TensorError
from mlc_compile.report import plots
from mlc_compile.report.schema import (
    Event,
    FunctionGraph,
    FunctionPlan,
    Kernel,
    Placed,
    ReadReport,
    StoredWeight,
    Traffic,
)
from mlc_compile.report.units import amount, size

HERE: Final = Path(__file__).parent
OUTCOMES: Final = ("done", "refused", "kept")
PLOTTED: Final = ("decode", "prefill")  # functions with a memory plot; the others are in the table
ALIVE: Final = 8  # tensors told of the fullest moment


@dataclass(frozen=True, slots=True)
class Folded:
    """Events of one pass with one outcome and reason; how often each subject."""

    source: str
    outcome: str
    reason: str
    subjects: tuple[tuple[str, int], ...]

    @property
    def count(self) -> int:
        """How many events."""
        return sum(count for _, count in self.subjects)


@dataclass(frozen=True, slots=True)
class FunctionMemory:
    """A function's memory plan, the call in which most is alive, and what that is."""

    plan: FunctionPlan
    plot: Markup
    peak: int  # the call, from 0
    kernel: str
    alive: tuple[Placed, ...]  # the largest first
    more: int  # alive too, and smaller


@dataclass(frozen=True, slots=True)
class FunctionWork:
    """A function's graph, traffic and kernels with their plots."""

    graph: FunctionGraph
    traffic: Traffic
    kernels: tuple[Kernel, ...]
    stages: Markup
    roofline: Markup


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight and the largest errors of its sources; None where they are not known."""

    stored: StoredWeight
    relative: float | None
    largest: float | None


def render(manifest: Manifest, report: ReadReport, errors: Iterable[TensorError] = ()) -> str:
    """The page; `errors` are those that convert noted, if they are at hand."""
    script = (HERE / "page.js").read_text(encoding="utf-8")
    by_name = {error.name: error for error in errors}
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            manifest=manifest,
            report=report,
            memory=[_memory(plan) for plan in report.memory.functions if plan.name in PLOTTED],
            work=[_work(report, graph) for graph in report.graphs],
            events=_folded(report.events),
            weights=[_weight(stored, by_name) for stored in report.weights],
            tuning=Markup(plots.tuning_plot(report.tuning)) if report.tuning else None,
            style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
            script=Markup(script),
            script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True,
        loader=jinja2.FileSystemLoader(HERE),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["size"] = size
    environment.filters["amount"] = amount
    return environment


def _memory(plan: FunctionPlan) -> FunctionMemory:
    live = [step.live_bytes for step in plan.steps]
    peak = live.index(max(live))
    alive = sorted(
        (tensor for tensor in plan.tensors if tensor.first <= peak <= tensor.last),
        key=lambda tensor: (-tensor.nbytes, tensor.offset),
    )
    return FunctionMemory(
        plan=plan,
        plot=Markup(plots.memory_plot(plan)),
        peak=peak,
        kernel=plan.steps[peak].kernel,
        alive=tuple(alive[:ALIVE]),
        more=max(0, len(alive) - ALIVE),
    )


def _work(report: ReadReport, graph: FunctionGraph) -> FunctionWork:
    kernels = tuple(k for k in report.kernels if k.function == graph.name)
    return FunctionWork(
        graph=graph,
        traffic=next(t for t in report.traffic if t.function == graph.name),
        kernels=kernels,
        stages=Markup(plots.traffic_plot(graph)),
        roofline=Markup(plots.roofline_plot(graph.name, kernels)),
    )


def _folded(events: Sequence[Event]) -> dict[str, list[Folded]]:
    """By outcome; equal passes and reasons together, in the order of their first events."""
    alike: dict[tuple[str, str, str], Counter[str]] = {}
    for event in events:
        key = (event.source, event.outcome, event.reason)
        alike.setdefault(key, Counter())[event.subject] += 1
    found: dict[str, list[Folded]] = {outcome: [] for outcome in OUTCOMES}
    for (source, outcome, reason), subjects in alike.items():
        found[outcome].append(Folded(source, outcome, reason, tuple(subjects.items())))
    return found


def _weight(stored: StoredWeight, errors: dict[str, TensorError]) -> Weight:
    known = [errors[source] for source in stored.sources if source in errors]
    return Weight(
        stored,
        max((error.relative for error in known), default=None),
        max((error.largest for error in known), default=None),
    )
