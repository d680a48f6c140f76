"""What passes decided survives in the module, once, in order."""

import pytest
from tvm import IRModule, relax

from mlc_compile.passes import events
from mlc_compile.passes.events import Event

FUSED = Event("FuseThis", "a + b", "done")
KEPT = Event("Quantize", "w", "kept", "its 6 columns are not a multiple of 32")


def test_a_module_without_events_has_none():
    assert events.read(IRModule()) == ()
    assert events.read(IRModule().with_attr("other", 1)) == ()


def test_events_are_read_as_they_were_recorded_oldest_first():
    module = events.record(events.record(IRModule(), [KEPT]), [FUSED])
    assert events.read(module) == (KEPT, FUSED)


@pytest.mark.parametrize("again", [[KEPT], [KEPT, KEPT], []])
def test_an_event_is_recorded_once(again):
    module = events.record(IRModule(), [KEPT, KEPT])
    assert events.read(events.record(module, again)) == (KEPT,)


def test_recording_leaves_the_module_it_was_given_alone():
    module = IRModule()
    events.record(module, [KEPT])
    assert events.read(module) == ()


def test_events_outlive_other_passes(graph):
    module = events.record(graph({"x": (2, "n")}, lambda emit, x: emit(relax.op.abs(x))), [KEPT])
    assert events.read(relax.transform.DeadCodeElimination()(module)) == (KEPT,)
