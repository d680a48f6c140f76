"""What passes tell of tuning records: events, and two attributes of the module.

    mlc.tuned    the record of each kernel that has one
    mlc.asked    the workloads that a record was looked for, found or not

What is asked depends on the operators alone, never on what was answered: a record decides the
parameters of a kernel, and no other pass looks into one.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from tvm import IRModule
from tvm.ir import StringImm

from mlc_compile.passes.events import Event
from mlc_compile.records import Record, Workload
from mlc_compile.records.record import canonical

RECORDS: Final = "Records"  # the source of events that tell of a tuning record
ATTRIBUTE: Final = "mlc.tuned"
ASKED: Final = "mlc.asked"
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


def with_asked(mod: IRModule, workloads: Iterable[Workload]) -> IRModule:
    """`mod` that says for which workloads a record was looked for."""
    found = {*asked(mod), *workloads}
    if not found:
        return mod
    text = msgspec.json.encode(sorted(found, key=canonical)).decode()
    return mod.with_attr(ASKED, StringImm(text))


def asked(mod: IRModule) -> tuple[Workload, ...]:
    """Those workloads, each once, in an order of their own."""
    if mod.attrs is None or ASKED not in mod.attrs:
        return ()
    return msgspec.json.decode(str(mod.attrs[ASKED].value), type=tuple[Workload, ...])
