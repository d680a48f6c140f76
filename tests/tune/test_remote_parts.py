"""The parts of remote measuring, each without a process: who fits, who takes what, what is said."""

import _thread
import dataclasses
import itertools
import json
import math
import socket
import struct
import threading
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from tvm.rpc import base

from mlc_compile import __version__
from mlc_compile.errors import ConfigError, TargetError
from mlc_compile.records import partition_of
from mlc_compile.target import find_target
from mlc_compile.tune.inputs import Situation
from mlc_compile.tune.measure import Failed, Measured
from mlc_compile.tune.remote import MOST_DEVICES, Job, Race
from mlc_compile.tune.rpc import device, runner, tracker
from mlc_compile.tune.rpc.answer import FarEnd
from mlc_compile.tune.rpc.fleet import Fleet, require_alike, require_fit
from mlc_compile.tune.rpc.runner_at import Lost
from mlc_compile.tune.rpc.tracker import Address, Offer, Standing, Tracker, address, missing_key
from mlc_compile.tune.rpc.wire import Asked, Device, Failure, Hello
from mlc_compile.tune.runner import Compare, Compared, Gauge, Gauged, Timing
from mlc_compile.tune.worker import Trouble
from mlc_compile.tvm_version import PINS
from tests.tune.conftest import Point, toy_task

CPU, V3 = find_target("cpu"), find_target("cpu-x86-64-v3")
AT = Address("pi", 9090)
DEVICE = Device(
    version=__version__,
    tvm=PINS["apache-tvm"],
    tvm_ffi=PINS["apache-tvm-ffi"],
    machine="aarch64 Linux",
    fits=True,
    missing=(),
    mcpu="cortex-a76",
    features=("asimddp",),
    chip="cortex_a76",
    cores=3,
    caches=("L1 Data 64K",),
)


HERE = partition_of(CPU, 1)


def changed(**fields):
    return msgspec.structs.replace(DEVICE, **fields)


# ---- who fits ------------------------------------------------------------------------------


def test_a_device_with_our_versions_that_runs_the_code_fits():
    require_fit(V3, AT, DEVICE)
    require_alike("box", AT, changed(machine="another word"), DEVICE)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"tvm": "0.28"}, "the device at pi:9090 has apache-tvm 0.28, and this machine "),
        ({"tvm_ffi": ""}, "has apache-tvm-ffi missing, and"),
        ({"version": "9"}, "has mlc_compile 9, and"),
        ({"fits": False}, "it is for x86_64-unknown-linux-gnu, that machine is aarch64 Linux"),
        ({"missing": ("avx2", "fma")}, "cannot be measured at pi:9090: that CPU lacks avx2, fma"),
    ],
)
def test_what_does_not_fit_is_one_sentence(fields, told):
    with pytest.raises(TargetError) as raised:
        require_fit(V3, AT, changed(**fields))
    assert told in str(raised.value)
    assert raised.value.hint
    assert raised.value.exit_code == 4


def test_cpu_is_measured_on_such_cpus_alone():
    """For another, records of `cpu` would be found neither here nor there."""
    require_fit(CPU, AT, changed(mcpu=HERE.mcpu, features=HERE.features))
    for fields in ({"features": (*HERE.features, "more")}, {"mcpu": "other"}):
        alike = {"mcpu": HERE.mcpu, "features": HERE.features} | fields
        with pytest.raises(TargetError, match="target cpu is the machine that builds"):
            require_fit(CPU, AT, changed(**alike))


@pytest.mark.parametrize("fields", [{"chip": "n1"}, {"cores": 4}, {"caches": ()}])
def test_devices_of_one_key_are_one_kind_of_machine(fields):
    with pytest.raises(TargetError, match="others of key 'box' are cortex_a76 with 3"):
        require_alike("box", AT, changed(**fields), DEVICE)


def fleet(target):
    return Fleet(target, AT, "box", lambda _: None, device=DEVICE)


def test_what_is_measured_for_cpu_holds_on_the_device_and_not_here():
    found, here = fleet(CPU).partition(), partition_of(CPU, 3)
    assert (found.chip, found.cores, found.caches) == ("cortex_a76", 3, ("L1 Data 64K",))
    same = {name: getattr(here, name) for name in ("chip", "cores", "caches")}
    assert msgspec.structs.replace(found, **same) == here


def test_what_is_measured_for_a_preset_holds_for_the_preset():
    assert fleet(V3).partition() == partition_of(V3, 1)


# ---- who takes what ------------------------------------------------------------------------


@dataclass(eq=False)
class FakeRunner:
    """Gives each candidate the time that its file's name is; "x": the device is lost.

    Those that have `together` meet there, each with its first candidate.
    """

    name: str
    dies_after: float = math.inf
    together: threading.Barrier | None = None
    took: list[str] = field(default_factory=list)
    closed: bool = False

    def compare(self, task, default, library, quick):
        if self.together is not None and not self.took:
            self.together.wait(60)
        self.took.append(library.stem)
        if library.stem == "x" or len(self.took) > self.dies_after:
            raise Lost(f"{self.name} went away")
        if library.stem == "t":
            raise Trouble("hang", "no answer")
        return Compared((Timing(1.0, 1.0, float(library.stem), 0.01),))

    def close(self):
        self.closed = True


TASK = dataclasses.replace(toy_task(), situations=(Situation((), 0),))


def race(names, *runners):
    """A race of candidates over runners."""
    taken = Fleet(CPU, AT, "box", lambda _: None, runners=list(runners))
    made = Race(taken, TASK, Path("default"), Compare("", 1, 0.1, 0.0))
    for number, name in enumerate(names):
        made.add(Job(number, Point(number), Path(f"{name}.so")))
    return made


def costs(outcomes):
    return [o.cost if isinstance(o, Measured) else o.kind for o in outcomes]


def test_outcomes_come_in_order_whoever_took_them():
    names = ["1", "2", "t", "3", "4"]
    one, other = FakeRunner("a"), FakeRunner("b")
    made = race(names, one, other)
    made.add(Job(5, Point(5), Failed(Point(5), "build refused", "the test says so")))
    assert costs(made.outcomes()) == [1.0, 2.0, "run hang", 3.0, 4.0, "build refused"]
    assert sorted(one.took + other.took) == sorted(names)


def test_runners_work_at_the_same_time():
    together = threading.Barrier(2)
    one, other = FakeRunner("a", together=together), FakeRunner("b", together=together)
    assert costs(race(["1", "2"], one, other).outcomes()) == [1.0, 2.0]
    assert (len(one.took), len(other.took)) == (1, 1)


def test_what_a_lost_device_had_is_given_to_another():
    together = threading.Barrier(2)
    one = FakeRunner("a", dies_after=0, together=together)
    other = FakeRunner("b", together=together)
    made = race(["1", "2"], one, other)
    assert costs(made.outcomes()) == [1.0, 2.0]
    assert sorted(other.took) == ["1", "2"]
    assert (one.closed, made.fleet.lost, made.fleet.reasons) == (True, 1, ["a went away"])
    assert made.fleet.runners == [other]


def test_all_that_was_measured_comes_before_the_end_of_the_last_device():
    made = race(["1", "2", "3"], FakeRunner("a", dies_after=2))
    found = made.outcomes()
    assert costs(itertools.islice(found, 2)) == [1.0, 2.0]
    with pytest.raises(TargetError, match=r"all devices of key 'box' are gone.* a went away"):
        next(found)


def test_a_candidate_that_takes_devices_down_is_what_failed():
    runners = [FakeRunner(name) for name in "abc"]
    made = race(["x", "1"], *runners)
    assert costs(made.outcomes()) == ["run lost", 1.0]
    assert made.fleet.lost == MOST_DEVICES == 2
    assert len(made.fleet.runners) == 1


def test_who_wants_no_more_waits_for_what_is_being_timed_alone():
    runner = FakeRunner("a")
    made = race(["1"] * 100, runner)
    found = made.outcomes()
    next(found)
    found.close()
    assert made.over
    assert not made.running
    assert made.fleet.runners == [runner]


def test_an_interrupt_lets_go_of_what_is_being_timed():
    class Endless(FakeRunner):
        gone = threading.Event()

        def compare(self, task, default, library, quick):
            _thread.interrupt_main()
            self.gone.wait(60)
            raise Lost("closed")

        def close(self):
            self.closed = True
            self.gone.set()

    runner = Endless("a")
    made = race(["1"], runner)
    with pytest.raises(KeyboardInterrupt):
        next(made.outcomes())
    assert runner.closed
    with made.changed:
        assert made.changed.wait_for(lambda: not made.running, 60)
    assert made.fleet.lost == 0


def test_a_mistake_of_ours_is_not_taken_for_a_lost_device():
    with pytest.raises(ValueError, match="could not convert"):
        list(race(["no number"], FakeRunner("a")).outcomes())


# ---- what is said --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.0.0.7:9190", Address("10.0.0.7", 9190)),
        ("pi.local:1", Address("pi.local", 1)),
        ("[::1]:9190", Address("::1", 9190)),
    ],
)
def test_an_address_is_read_and_written_alike(text, found):
    assert address(text, "--rpc") == found
    assert str(found) == text


@pytest.mark.parametrize("text", ["", "pi", ":9190", "pi:", "pi:0", "pi:65536", "pi:x", "pi:²"])
def test_what_is_no_address_is_a_usage_error(text):
    with pytest.raises(ConfigError, match="--rpc must be HOST:PORT"):
        address(text, "--rpc")


@pytest.mark.parametrize(("seen", "named"), [("127.0.0.1", "pi"), ("10.0.0.9", "10.0.0.9")])
def test_a_device_that_the_tracker_sees_on_its_own_machine_is_there(seen, named):
    """Also where that is not ours."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        said = json.dumps([0, [seen, 9090, "box:0.5"]]).encode()
        theirs.sendall(struct.pack("<i", len(said)) + said)
        offer = Tracker(Address("pi", 9190), ours).request("box")
    assert offer == Offer(Address(named, 9090), "box:0.5")


def test_a_tracker_without_devices_says_so():
    assert str(missing_key(AT, "box", Standing({}, {}))).endswith("it has none at all")


def test_numbers_of_the_protocol_are_those_of_tvm():
    codes = base.TrackerCode
    ours = (tracker.PUT, tracker.REQUEST, tracker.UPDATE_INFO, tracker.SUMMARY)
    assert ours == (codes.PUT, codes.REQUEST, codes.UPDATE_INFO, codes.SUMMARY)
    assert tracker.GET_PENDING_MATCHKEYS == codes.GET_PENDING_MATCHKEYS
    assert (tracker.TRACKER_MAGIC, tracker.SUCCESS) == (base.RPC_TRACKER_MAGIC, codes.SUCCESS)
    assert (device.MAGIC, device.MISMATCH) == (base.RPC_MAGIC, base.RPC_CODE_MISMATCH)
    assert base.RPC_CODE_SUCCESS == device.MAGIC


def ask(far, question):
    return far.answer(msgspec.json.encode(Asked(question, 1.0)).decode())


def test_the_far_end_says_what_it_is(tmp_path):
    found = msgspec.json.decode(
        ask(FarEnd(tmp_path, 1), Hello(CPU.triple, CPU.requires)), type=Device
    )
    require_fit(CPU, AT, found)
    here = partition_of(CPU, 1)
    assert (found.chip, found.cores, found.caches) == (here.chip, 1, here.caches)
    other = Hello("riscv64-unknown-linux-gnu", ("no_such_feature",))
    found = msgspec.json.decode(ask(FarEnd(tmp_path), other), type=Device)
    assert (found.fits, found.missing) == (False, ("no_such_feature",))


@pytest.mark.parametrize("name", ["", "../x.so", "/etc/passwd", "a/b", ".."])
def test_the_far_end_touches_nothing_outside_its_place(tmp_path, name):
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(ValueError, match="is not the plain name of a file"):
        FarEnd(place).file(name)
    said = msgspec.json.decode(ask(FarEnd(place), Compare(name, 1, 0.1, 0.0)), type=Failure)
    assert said.kind == "refused"


def test_the_far_end_refuses_what_it_cannot_read(tmp_path):
    said = msgspec.json.decode(FarEnd(tmp_path).answer('{"question": 7}'), type=Failure)
    assert said.kind == "refused"


def test_the_far_end_says_how_fast_it_reads_with_the_threads_it_was_given(tmp_path):
    asked = []

    class Told:
        """A runner's process that answers at once."""

        starts = 1

        def warm(self):
            pass

        def ask(self, question, answer, seconds):
            asked.append(question)
            return runner.Started(3) if isinstance(question, runner.Start) else Gauged(1e10)

    far = FarEnd(tmp_path, 3, runner=Told())
    assert msgspec.json.decode(ask(far, Gauge()), type=Gauged) == Gauged(1e10)
    assert asked == [runner.Start(3), Gauge()]
