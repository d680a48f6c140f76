"""What passes tell of tuning records: events, and the records used in the attribute `mlc.tuned`."""

from collections.abc import Mapping
from typing import Final

import msgspec
from tvm import IRModule
from tvm.ir import StringImm

from mlc_compile.passes.events import Event
from mlc_compile.records import Record

RECORDS: Final = "Records"  # the source of events that tell of a tuning record
ATTRIBUTE: Final = "mlc.tuned"
GAIN: Final = "{:.2f} times as fast as the rules' choice when tuned"
OUTDATED: Final = Event(
    RECORDS, "", "refused", "tuned beside another default than the rules choose now: tune it again"
)


def used(subject: str, choice: str, record: Record) -> Event:
    """A record decided about a kernel."""
    return Event(RECORDS, subject, "done", f"{choice}: {GAIN.format(record.speedup)}")


def with_tuned(mod: IRModule, records: Mapping[str, Record]) -> IRModule:
    """`mod` that says of kernels, by name, which record they are built by."""
    if not records:
        return mod
    text = msgspec.json.encode({**tuned(mod), **records}).decode()
    return mod.with_attr(ATTRIBUTE, StringImm(text))


def tuned(mod: IRModule) -> dict[str, Record]:
    """The record of each kernel that has one, in the order they were built."""
    if mod.attrs is None or ATTRIBUTE not in mod.attrs:
        return {}
    return msgspec.json.decode(str(mod.attrs[ATTRIBUTE].value), type=dict[str, Record])
