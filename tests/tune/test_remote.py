"""Measuring through a tracker on loopback: real servers, one of which dies; and what is refused."""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mlc_compile.driver.job import Options
from mlc_compile.driver.tune import Effort, Request, tune_model
from mlc_compile.errors import TargetError
from mlc_compile.records import RecordStore, partition_of
from mlc_compile.target import find_target
from mlc_compile.tune import events
from mlc_compile.tune.measure import BUILDER, Failed, Measured
from mlc_compile.tune.remote import Remote, RemoteMeasurer
from mlc_compile.tune.rpc.device import MAGIC, MISMATCH
from mlc_compile.tune.rpc.fleet import Fleet
from mlc_compile.tune.rpc.tracker import Address, Tracker, address
from mlc_compile.tune.worker import Worker
from mlc_compile.tune.workshop import Workshop
from tests.tune.devices import SECONDS, device, wait_for
from tests.tune.test_measure import CRASH, HANG, RIGHT, SLOW, UNBUILT, WRONG, Way, toy

CPU = find_target("cpu")
NOWHERE = Path("nobody-builds-here")


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A device, and the tracker that it started."""
    with device(tmp_path_factory.mktemp("first"), "--tracker-port", 0) as made:
        yield made


@pytest.fixture(scope="module")
def tracker(first):
    return address(first.tracker, "--rpc")


@pytest.fixture
def second(first, tmp_path):
    """Another device of the same tracker, for one test, which may kill it."""
    with device(tmp_path, "--tracker", first.tracker) as made:
        yield made


@pytest.fixture
def free(tracker):
    """Wait until so many devices of key box are free."""

    def wait(count):
        def there():
            with Tracker.connect(tracker) as known:
                return known.standing().free.get("box") == count

        wait_for(there)

    return wait


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """One for all: it takes seconds to start."""
    made = Workshop(CPU, tmp_path_factory.mktemp("built"), builders=(Worker(BUILDER, threads=1),))
    yield made
    made.close()


@pytest.fixture
def measurer(tracker, workshop):
    """`measurer()`: what measures with all that is free; `said` collects what it tells."""
    made = []

    def make(key="box", said=None):
        fleet = Fleet(CPU, tracker, key, ([] if said is None else said).append)
        made.append(fleet)
        fleet.open()
        return RemoteMeasurer(fleet, workshop)

    yield make
    for fleet in made:
        fleet.close()


def test_candidates_are_measured_and_what_fails_is_told_by_kind(first, measurer, free):
    free(1)
    said = []
    one = measurer(said=said)
    one.fleet.runners[0].run_seconds = 5
    ways = [Way(way) for way in (WRONG, UNBUILT, CRASH, HANG, SLOW, RIGHT)]
    found = list(one.measure(toy(), ways, thorough=False))
    assert [outcome.point for outcome in found] == ways
    kinds = [outcome.kind for outcome in found if isinstance(outcome, Failed)]
    assert kinds == ["wrong result", "schedule", "run crash", "run hang"]
    slow, right = found[-2:]
    assert slow.cost > 2 > right.cost  # 200 times the work
    assert one.fleet.reasons == []  # a candidate took nothing down but its process
    assert said == [f"measuring at {first.address}: {one.partition.chip}, 1 core"]


def test_a_kernel_of_a_model_is_tuned_while_one_of_two_devices_is_killed(
    second, tracker, free, nano_checkpoint, tmp_path
):
    """The first trial's end is the signal, so that the other device has the next in hand."""
    free(2)
    heard = []

    def listen(event):
        heard.append(event)
        if isinstance(event, events.Progressed) and event.trials == 1:
            second.processes()
            second.process.send_signal(signal.SIGKILL)

    integers = Options(activations="int8" if CPU.int8_dot else "float32")
    effort = Effort(trials=8, pattern="cpu.int8_gemm * k=64 n=384*")
    remote = Remote(tracker, "box")
    result = tune_model(
        Request(nano_checkpoint, CPU, "q4f16_1", integers, effort, remote), tmp_path, listen
    )
    assert (result.trials, result.tasks[0].errors) == (8, 0)
    assert result.roof.bytes_s > 0  # of the device that is left
    assert result.roof.ops_s["int8" if CPU.int8_dot else "float32"] > 0
    told = [event.text for event in heard if isinstance(event, events.Noted)]
    assert sum(text.startswith("measuring at ") for text in told) == 2
    assert [text for text in told if text.startswith(f"lost a device of key box: {second.address}")]
    assert result.errors == {"device lost": 1}
    assert any(second.address in note for note in result.notes)
    partition = partition_of(CPU, cores=1)  # the devices', which are told to use one
    for kept in RecordStore(tmp_path).all():
        assert kept.partition == partition
    free(1)


def test_a_killed_server_takes_all_that_it_started_with_it(second, measurer, free):
    free(2)
    outcomes = list(measurer().measure(toy(), [Way(SLOW)] * 2, thorough=False))
    assert all(isinstance(outcome, Measured) for outcome in outcomes)
    assert len(second.processes()) == 3  # the server, the connection's process, its runner
    assert second.end(signal.SIGKILL) == (-signal.SIGKILL, [])


def test_without_a_device_left_it_ends_in_a_sentence(first, measurer, tmp_path):
    """What was measured before is there; so it is with the tracker gone, and at the next call."""
    with device(tmp_path, "--tracker", first.tracker, key="only") as only:
        one = measurer("only")
        measured = one.measure(toy(), [Way(SLOW)] * 6, thorough=False)
        assert isinstance(next(measured), Measured)
        assert only.end(signal.SIGKILL) == (-signal.SIGKILL, [])
        assert gone(measured)
        one.fleet.tracker = Address("127.0.0.1", unused())
        assert gone(one.measure(toy(), [Way(RIGHT)], thorough=False))


def gone(outcomes):
    """Whether they end, after some, in the error that tells of it."""
    with pytest.raises(
        TargetError, match="all devices of key 'only' are gone, the last "
    ) as raised:
        list(outcomes)
    return raised.value.exit_code == 4 and "is kept" in raised.value.hint


def test_a_device_finds_a_tracker_that_comes_back(tmp_path):
    port = unused()
    with (
        device(tmp_path, "--tracker-port", port) as host,
        device(tmp_path, "--tracker", host.tracker) as guest,
    ):
        assert host.end(signal.SIGTERM) == (0, [])
        guest.wait_for("is gone")
        with device(tmp_path, "--tracker-port", port, key="other") as other:
            guest.wait_for("joined the tracker")
            with Tracker.connect(address(other.tracker, "--rpc")) as known:
                wait_for(lambda: known.standing().free == {"box": 1, "other": 1})


# ---- who does not answer, or not as ours do ------------------------------------------------


def unused():
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def refused(tracker, key="box"):
    with pytest.raises(TargetError) as raised:
        RemoteMeasurer.open(Workshop(CPU, NOWHERE), Remote(tracker, key), lambda _: None)
    return str(raised.value)


def test_a_tracker_that_is_not_there_is_named():
    port = unused()
    told = refused(Address("127.0.0.1", port))
    assert told == f"no RPC tracker answers at 127.0.0.1:{port}: connection refused"


def test_what_is_no_tracker_is_named():
    def hang_up(listener):
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=hang_up, args=(listener,))
        thread.start()
        at = Address(*listener.getsockname())
        assert refused(at) == f"what listens at {at} is no RPC tracker"
        thread.join()


def test_a_key_that_no_device_has_is_told_with_those_that_there_are(tracker, free):
    free(1)
    told = refused(tracker, "bix")
    assert told == f"the tracker at {tracker} has no device of key 'bix'; it has box (1)"


def test_a_device_in_use_is_told(first, tracker, free):
    free(1)
    one = Fleet(CPU, tracker, "box", lambda _: None)
    other = Fleet(CPU, tracker, "box", lambda _: None, busy_seconds=0.5)
    try:
        one.open()
        with pytest.raises(TargetError, match="none of them free in 0 s"):
            other.open()
    finally:
        one.close()
        other.close()


def test_a_device_that_does_not_answer_is_told(tracker):
    """The tracker has it, but nobody listens where it should be."""
    port = unused()
    with Tracker.connect(tracker) as ghost:
        ghost.join("ghost", None, port)
        ghost.offer("ghost", None, port)
        told = refused(tracker, "ghost")
    assert told.startswith(f"no device of key 'ghost' could be reached: 127.0.0.1:{port}: ")


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        pytest.param(struct.pack("<ii", MAGIC, 12) + b"client:box:1", MISMATCH, id="no offer"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", None, id="another protocol"),
    ],
)
def test_who_does_not_come_from_the_tracker_is_refused(first, free, said, answer):
    with socket.create_connection(address(first.address, "--rpc"), SECONDS) as client:
        client.sendall(said)
        try:
            got = client.recv(4)
        except ConnectionResetError:  # what it had not read yet
            got = b""
    assert got == (b"" if answer is None else struct.pack("<i", answer))
    free(1)


def test_a_plain_server_of_tvm_is_told(tracker, tmp_path):
    arguments = ["--host", "127.0.0.1", "--port", "19400", "--port-end", "19500", "--key", "plain"]
    with (tmp_path / "said").open("wb") as said:
        server = subprocess.Popen(
            [sys.executable, "-m", "tvm.exec.rpc_server", *arguments, f"--tracker={tracker}"],
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:

        def there():
            with Tracker.connect(tracker) as known:
                return known.standing().free.get("plain") == 1

        wait_for(there)
        assert "is a plain TVM RPC server" in refused(tracker, "plain")
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(SECONDS)
