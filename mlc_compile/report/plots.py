"""The report's plots as inline SVG: the same bytes on every run, colors from the page.

Drawn by matplotlib with colors that stand for the page's CSS variables, so that one picture
serves a light and a dark scheme. Text stays text. matplotlib is imported when a plot is
drawn: it takes a second.
"""

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from mlc_compile.report.schema import Curve, FunctionGraph, FunctionPlan, Kernel, Stage
from mlc_compile.report.units import BINARY, PREFIXES, amount, unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What is drawn in these colors takes the page's.
COLORS: Final = {
    "ink": "#010203",
    "muted": "#020304",
    "line": "#030405",
    "accent": "#040506",
    **{f"series-{i}": f"#05060{i}" for i in range(6)},
}
SERIES: Final = tuple(COLORS[f"series-{i}"] for i in range(6))
WIDTH: Final = 5.6  # inches: text is readable at the width of a phone, and not huge at a desk's
NEAR: Final = (0.8, 1.0)  # decades across and down within which two labels would touch
LONGEST: Final = 20  # letters of a label
# Operations a byte from which arithmetic decides: peak of arithmetic over that of memory.
BALANCES: Final = ((10, "a CPU core, float32"), (300, "a data-center GPU, float16"))
STYLE: Final = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": COLORS["ink"],
    "axes.edgecolor": COLORS["line"],
    "axes.labelcolor": COLORS["muted"],
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "xtick.color": COLORS["line"],
    "ytick.color": COLORS["line"],
    "xtick.labelcolor": COLORS["muted"],
    "ytick.labelcolor": COLORS["muted"],
    "grid.color": COLORS["line"],
    "grid.linewidth": 0.5,
    "path.simplify": False,
}
_IDS: Final = re.compile(r' id="[A-Za-z]+[\w.]*_\d+"')  # of groups: nothing refers to them
_HEAD: Final = re.compile(r"^.*?<svg [^>]*viewBox=\"([^\"]+)\"[^>]*>", re.DOTALL)
_METADATA: Final = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_DEFAULTS: Final = re.compile(r"\s*<style type=\"text/css\">.*?</style>", re.DOTALL)


def memory_plot(plan: FunctionPlan) -> str:
    """Who is alive where in a function's storages, call by call, and the sum of it."""
    with _figure(2.9, f"memory-{plan.name}", f"memory of {plan.name}, call by call") as (
        figure,
        out,
    ):
        from matplotlib.patches import Rectangle

        axes = figure.subplots()
        unit, name = unit_of(plan.planned_bytes, BINARY)
        names = list(dict.fromkeys(tensor.name for tensor in plan.tensors))
        for tensor in plan.tensors:
            corner = (tensor.first - 0.5, tensor.offset / unit)
            width, height = tensor.last - tensor.first + 1, tensor.nbytes / unit
            color = SERIES[names.index(tensor.name) % len(SERIES)]
            axes.add_patch(Rectangle(corner, width, height, facecolor=color, linewidth=0))
        live = [step.live_bytes / unit for step in plan.steps]
        axes.stairs(
            live, [i - 0.5 for i in range(len(live) + 1)], color=COLORS["ink"], baseline=None
        )
        axes.axhline(plan.lower_bound_bytes / unit, color=COLORS["accent"], linestyle="--", lw=1)
        axes.set_xlim(-0.5, len(live) - 0.5)
        axes.set_ylim(0, plan.planned_bytes / unit * 1.08 or 1)
        axes.set(xlabel="calls of kernels, in order", ylabel=name)
    return out[0]


def roofline_plot(function: str, kernels: Sequence[Kernel]) -> str:
    """Each kernel by its operations and its operations a byte; diagonals are equal bytes."""
    title = f"kernels of {function}: operations against operations a byte"
    drawn = [k for k in kernels if k.operations and k.intensity]
    with _figure(3.3, f"roofline-{function}", title) as (figure, out):
        axes = figure.subplots()
        axes.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="operations")
        if drawn:
            _frame(axes, drawn)
        for i, kernel in enumerate(drawn):
            color = SERIES[i % len(SERIES)]
            axes.plot(kernel.intensity, kernel.operations, "o", color=color, markersize=7)
        for names, place in _labels(drawn):
            axes.annotate(names, place, (6, 5), textcoords="offset points", fontsize=9)
    return out[0]


def _labels(kernels: Sequence[Kernel]) -> Iterator[tuple[str, tuple[float, float]]]:
    """A label for each group of kernels that lie too close together for one of their own."""
    groups: list[list[Kernel]] = []
    for kernel in sorted(kernels, key=lambda k: (-k.operations, k.name)):
        near = next((group for group in groups if _is_near(group[0], kernel)), None)
        if near is None:
            groups.append([kernel])
        else:
            near.append(kernel)
    for first, *others in groups:
        more = f" and {len(others)} more" if others else ""
        yield _cut(first.name) + more, (first.intensity, first.operations)


def _cut(name: str) -> str:
    """`vm.builtin.attention_kv_cache_attention_with_fused_qkv` leaves no room for the plot."""
    last = name.rpartition(".")[2]
    return last if len(last) <= LONGEST else f"{last[:LONGEST]}…"


def _is_near(one: Kernel, other: Kernel) -> bool:
    right = math.log10(other.intensity / one.intensity)
    down = math.log10(one.operations / other.operations)
    return abs(right) < NEAR[0] and down < NEAR[1]


def _frame(axes: "Axes", kernels: Sequence[Kernel]) -> None:
    """Limits around the kernels, diagonals of equal bytes and the balances of machines."""
    left = min(0.1, *(k.intensity for k in kernels)) / 2
    right = max(1000.0, *(k.intensity for k in kernels)) * 2
    low = min(k.operations for k in kernels) / 4
    high = max(k.operations for k in kernels) * 6
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _position: _counted(value))
        axis.set_minor_formatter("")
    for power in range(3, 13, 2):
        moved = 10**power
        axes.plot([left, right], [left * moved, right * moved], color=COLORS["line"], lw=0.7)
        x = high / moved / 1.6
        if left * 2 < x < right / 4:
            axes.annotate(
                f"{amount(moved)}B", (x, x * moved), fontsize=7.5, color=COLORS["muted"], ha="right"
            )
    for balance, machine in BALANCES:
        axes.axvline(balance, color=COLORS["accent"], linestyle=":", lw=1)
        axes.annotate(
            f" {balance}: {machine}",
            (balance, low),
            fontsize=7.5,
            color=COLORS["muted"],
            rotation=90,
            va="bottom",
            ha="right",
        )


def traffic_plot(graph: FunctionGraph) -> str:
    """Bytes of intermediates that one run writes, after each pass that changed them."""
    title = f"intermediates that {graph.name} writes, pass by pass"
    with _figure(0.9 + 0.27 * len(graph.stages), f"traffic-{graph.name}", title) as (figure, out):
        axes = figure.subplots()
        most = max((stage.written_bytes for stage in graph.stages), default=1)
        unit, name = unit_of(most, BINARY)
        labels = ["as written", *(_stage(stage, graph.tokens) for stage in graph.stages[1:])]
        values = [stage.written_bytes / unit for stage in graph.stages]
        last = len(values) - 1
        colors = [COLORS["accent"] if i in {0, last} else SERIES[0] for i in range(len(values))]
        bars = axes.barh(range(len(values)), values, color=colors, height=0.7)
        axes.bar_label(bars, [f"{value:.3g}" for value in values], padding=3, fontsize=8.5)
        axes.set_yticks(range(len(values)), labels)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel(name)
    return out[0]


def tuning_plot(curves: Sequence[Curve]) -> str:
    """The best time of each kernel so far, trial by trial, relative to its default's."""
    with _figure(2.9, "tuning", "tuning: best time so far") as (figure, out):
        axes = figure.subplots()
        for i, curve in enumerate(curves):
            relative = [seconds / curve.seconds[0] for seconds in curve.seconds]
            color = SERIES[i % len(SERIES)]
            axes.step(curve.trials, relative, where="post", color=color, label=curve.kernel)
        axes.set(xlabel="trials", ylabel="time, of the default's")
        axes.legend(frameon=False, fontsize=8.5)
    return out[0]


@contextmanager
def _figure(height: float, salt: str, title: str) -> Iterator[tuple["Figure", list[str]]]:
    """A figure to draw on; once drawn, its SVG is the one item of the list."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    out: list[str] = []
    with mpl.rc_context({**STYLE, "svg.hashsalt": salt}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure, out
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    out.append(_inline(file.getvalue(), title))


def _inline(svg: str, title: str) -> str:
    """A figure's file as an element of the page."""
    head = rf'<svg class="plot" viewBox="\1" role="img" aria-label="{title}">'
    for pattern, replacement in ((_HEAD, head), (_METADATA, ""), (_DEFAULTS, ""), (_IDS, "")):
        svg = pattern.sub(replacement, svg)
    for name, color in COLORS.items():
        svg = svg.replace(color, f"var(--{name})")
    return svg


def _stage(stage: Stage, tokens: int) -> str:
    """A prompt is looked at where a phase ends."""
    return stage.step if tokens == 1 else f"phase {stage.phase}"


def _counted(number: float) -> str:
    unit, prefix = unit_of(number, PREFIXES)
    return f"{number / unit:g}{prefix}"
