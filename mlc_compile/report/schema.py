"""The schema of `report.json`, as far as it can be read without TVM: `inspect` shows a report.

`summary.Report` is what is written; a test holds the two together. Sizes are in bytes, and
`function` is `decode` (one token at the end of a full cache) or `prefill` (the longest prompt
that one call takes).
"""

from typing import Literal

from mlc_compile.artifact import Limits, Struct
from mlc_compile.emit.cuda.resources import Resources
from mlc_compile.emit.vulkan.shaders import ShaderFacts

Origin = Literal["record", "rule", "default", "runtime"]


class Kernel(Struct, frozen=True):
    """All calls of one kernel in one run of a function: a decoded token, or a whole prompt.

    Bytes and operations are sums over the calls.
    """

    function: str
    name: str
    origin: Origin  # a tuning record, a rule of ours, the fallback, or TVM's runtime
    how: str  # the rule's own words, where it has some
    calls: int
    weights: tuple[str, ...]  # whose it reads, the layers' numbers left out
    weight_bytes: int
    cache_bytes: int
    read_bytes: int  # activations
    written_bytes: int  # activations
    operations: int
    intensity: float  # operations a byte: its place on the roofline


class Operator(Struct, frozen=True):
    """One call: an operator before fusion, a kernel after it."""

    name: str
    weights: tuple[str, ...]  # whose it reads, the layers' numbers left out
    written_bytes: int


class Stretch(Struct, frozen=True):
    """Operators in order, `times` in a row."""

    times: int
    operators: tuple[Operator, ...]


class Stage(Struct, frozen=True):
    """What a function's calls write after one pass; intermediates only, not its result."""

    phase: str
    step: str  # the pass
    calls: int
    written_bytes: int


class FunctionGraph(Struct, frozen=True):
    """One function for a stated number of tokens: bytes of its longest call."""

    name: str
    tokens: int
    before: tuple[Stretch, ...]  # as the model is written
    after: tuple[Stretch, ...]  # as kernels
    stages: tuple[Stage, ...]  # the first, then each pass that changed a number; prefill: phase


class Traffic(Struct, frozen=True):
    """Bytes of one run of a function, all its calls together; weights and cache included.

    `unfused_bytes` are the intermediates that the operators as the model is written would
    write, one by one; `written_bytes` those that the kernels write.
    """

    function: str
    tokens: int
    before: int  # tokens in the cache
    launches: int
    weight_bytes: int
    cache_bytes: int
    read_bytes: int
    written_bytes: int
    unfused_bytes: int
    unfused_calls: int


class Curve(Struct, frozen=True):
    """How tuning one kernel went: the best seconds after so many trials, the default's first."""

    kernel: str
    trials: tuple[int, ...]
    seconds: tuple[float, ...]


class Event(Struct, frozen=True):
    """What a pass did or left, and why (`passes.events.Event`)."""

    source: str
    subject: str
    outcome: Literal["done", "refused", "kept"]
    reason: str


class Step(Struct, frozen=True):
    """A call of a kernel in the memory plan (`passes.plan_memory.KernelStep`)."""

    kernel: str
    live_bytes: int
    workspace_bytes: int


class Placed(Struct, frozen=True):
    """An intermediate in the memory plan (`passes.plan_memory.PlacedTensor`)."""

    name: str
    nbytes: int
    offset: int
    first: int
    last: int


class FunctionPlan(Struct, frozen=True):
    """What a function holds while it runs (`passes.plan_memory.FunctionMemory`)."""

    name: str
    naive_bytes: int
    static_plan_bytes: int
    planned_bytes: int
    storages: int
    lower_bound_bytes: int
    result_bytes: int
    workspace_bytes: int
    steps: tuple[Step, ...]
    tensors: tuple[Placed, ...]


class Memory(Struct, frozen=True):
    """What generating takes (`summary.Memory`)."""

    weights: int
    kv_cache: int
    activations: int
    functions: tuple[FunctionPlan, ...]


class StoredWeight(Struct, frozen=True):
    """One weight of the plan (`summary.StoredWeight`)."""

    name: str
    sources: tuple[str, ...]
    layout: str
    nbytes: int
    shape: tuple[int, ...]
    bits: float


class ReadReport(Struct, frozen=True):
    """All of `report.json` (`summary.Report`)."""

    model: str
    quant: str
    target: str
    limits: Limits
    memory: Memory
    weights: tuple[StoredWeight, ...]
    events: tuple[Event, ...]
    graphs: tuple[FunctionGraph, ...]
    traffic: tuple[Traffic, ...]
    kernels: tuple[Kernel, ...]
    tuning: tuple[Curve, ...] = ()
    resources: tuple[Resources, ...] = ()
    shaders: tuple[ShaderFacts, ...] = ()
