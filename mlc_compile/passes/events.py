"""What passes decided, as frozen records in the module attribute `mlc.events`.

Nothing is silent: a pattern fused or refused, a tensor kept, a kernel chosen, each leaves
one event, and the report lists them all.
"""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec
from tvm import IRModule
from tvm.ir import StringImm

ATTRIBUTE: Final = "mlc.events"


class Event(msgspec.Struct, frozen=True):
    """One decision: which pass, about what, what it did and why."""

    source: str  # the pass
    subject: str  # a tensor, a kernel, a function
    outcome: Literal["done", "refused", "kept"]
    reason: str = ""


def record(mod: IRModule, events: Iterable[Event]) -> IRModule:
    """`mod` with `events` appended; an event that is already there is not repeated."""
    known = read(mod)
    all_of_them = tuple(dict.fromkeys([*known, *events]))
    if len(all_of_them) == len(known):
        return mod
    text = msgspec.json.encode(all_of_them).decode()
    return mod.with_attr(ATTRIBUTE, StringImm(text))


def read(mod: IRModule) -> tuple[Event, ...]:
    """The events of a module, oldest first."""
    if mod.attrs is None or ATTRIBUTE not in mod.attrs:
        return ()
    return msgspec.json.decode(str(mod.attrs[ATTRIBUTE].value), type=tuple[Event, ...])
