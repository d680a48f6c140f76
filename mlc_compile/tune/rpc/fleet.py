"""The devices of one key: every runner that the tracker has free, and what became of the others."""

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mlc_compile import __version__
from mlc_compile.errors import TargetError, listing
from mlc_compile.records import Partition, partition_of
from mlc_compile.target import HOST, Target
from mlc_compile.tune.rpc.runner_at import Lost, RemoteRunner
from mlc_compile.tune.rpc.tracker import Address, Offer, Standing, Tracker, missing_key
from mlc_compile.tune.rpc.wire import Device
from mlc_compile.tvm_version import PINS

BUSY_SECONDS: Final = 20.0  # a device whose last user has just left is free again within
PAUSE_SECONDS: Final = 0.5
LOOK_SECONDS: Final = 30.0  # between two looks for more devices

Say = Callable[[str], None]


@dataclass(slots=True)
class Fleet:
    """Runners that are there; `reasons` has one for each that was lost or left out, in order.

    All are one kind of machine: the first decides which.
    """

    target: Target
    tracker: Address
    key: str
    say: Say
    busy_seconds: float = BUSY_SECONDS
    runners: list[RemoteRunner] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    lost: int = 0
    device: Device | None = None
    _looked: float = 0.0

    def open(self) -> None:
        """Take what is free; TargetError says why there is not one."""
        end = time.monotonic() + self.busy_seconds
        while True:
            with Tracker.connect(self.tracker) as tracker:
                standing = self._standing(tracker)
                if self.key not in standing.servers:
                    raise missing_key(self.tracker, self.key, standing)
                refused = self._recruit(tracker, standing)
            if refused is not None:
                raise refused
            if self.runners:
                break
            if self.reasons or time.monotonic() > end:
                raise self._none(standing)
            time.sleep(PAUSE_SECONDS)
        self._looked = max(self._looked, time.monotonic())

    def look(self) -> None:
        """Take also what came, or came back, since; TargetError where none is left.

        Without a wait, and only now and then while there is a runner.
        """
        now = time.monotonic()
        if self.runners and now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        try:
            with Tracker.connect(self.tracker) as tracker:
                self._recruit(tracker, self._standing(tracker))
        except TargetError as e:
            if not self.runners:
                self.reasons.append(str(e))
        if not self.runners:
            raise self.gone()

    def lose(self, runner: RemoteRunner, reason: str) -> None:
        """Go on without it."""
        runner.close()
        self.runners.remove(runner)
        self.lost += 1
        self.reasons.append(reason)
        self.say(f"lost a device of key {self.key}: {reason}")

    def gone(self) -> TargetError:
        """The error for a fleet without a runner."""
        return TargetError(
            f"all devices of key {self.key!r} are gone, the last because of {self.reasons[-1]}",
            hint="what was found so far is kept; the same command goes on from there",
        )

    def partition(self) -> Partition:
        """Where what they measure holds: of `cpu` the machine is the device, not this one."""
        assert self.device is not None
        here = partition_of(self.target, self.device.cores)
        if self.target.name != HOST:
            return here
        there = self.device
        return msgspec.structs.replace(here, chip=there.chip, caches=there.caches)

    def close(self) -> None:
        """Let go of all."""
        for runner in self.runners:
            runner.close()
        self.runners.clear()

    @contextmanager
    def _lasting(self) -> Iterator[None]:
        """A connection to the tracker that breaks is a TargetError."""
        try:
            yield
        except (OSError, ValueError, LookupError, TypeError) as e:
            raise TargetError(
                f"the tracker at {self.tracker} broke off: {e}", hint="try again"
            ) from e

    def _standing(self, tracker: Tracker) -> Standing:
        with self._lasting():
            return tracker.standing()

    def _take(self, tracker: Tracker, count: int) -> list[Offer]:
        """At most `count` offers; fewer where somebody is faster."""
        offers: list[Offer] = []
        with self._lasting(), suppress(TimeoutError):
            for _ in range(count):
                offers.append(tracker.request(self.key))
        return offers

    def _none(self, standing: Standing) -> TargetError:
        count, seconds = standing.servers[self.key], self.busy_seconds
        if self.reasons:
            return TargetError(
                f"no device of key {self.key!r} could be reached: {self.reasons[-1]}",
                hint=f"can this machine reach what the tracker at {self.tracker} names?",
            )
        return TargetError(
            f"the tracker at {self.tracker} has {count} of key {self.key!r}, "
            f"none of them free in {seconds:.0f} s",
            hint="somebody else measures there; try again when that is done",
        )

    def _recruit(self, tracker: Tracker, standing: Standing) -> TargetError | None:
        """Take all that is free; if that gave no runner, why one would not do."""
        free = standing.free.get(self.key, 0)
        if not free:
            return None
        made = [RemoteRunner() for _ in range(free)]
        with ThreadPoolExecutor(free) as pool:
            try:
                list(pool.map(RemoteRunner.warm, made))
                offers = self._take(tracker, free)
                pairs = list(zip(made, offers, strict=False))
                jobs = [pool.submit(runner.open, offer, self.target) for runner, offer in pairs]
                refused = [
                    self._enlist(runner, job.result)
                    for (runner, _), job in zip(pairs, jobs, strict=True)
                ]
            except Lost as e:
                self.reasons.append(str(e))
                return None
            finally:
                for runner in made:
                    if runner not in self.runners:
                        runner.close()
        return None if self.runners else next(filter(None, refused), None)

    def _enlist(self, runner: RemoteRunner, opened: Callable[[], Device]) -> TargetError | None:
        try:
            device = opened()
            assert runner.address is not None
            require_fit(self.target, runner.address, device)
            require_alike(self.key, runner.address, device, self.device or device)
        except (Lost, TargetError) as e:
            self._looked = math.inf  # it is free again, and no better: no more looks
            self.reasons.append(str(e))
            self.say(f"left out: {e}")
            return e if isinstance(e, TargetError) else None
        self.device = device
        self.runners.append(runner)
        cores = "1 core" if device.cores == 1 else f"{device.cores} cores"
        self.say(f"measuring at {runner.address}: {device.chip}, {cores}")
        return None


def require_fit(target: Target, at: Address, device: Device) -> None:
    """TargetError unless that device has our versions and can run the target's code."""
    versions = {
        "mlc_compile": (device.version, __version__),
        "apache-tvm": (device.tvm, PINS["apache-tvm"]),
        "apache-tvm-ffi": (device.tvm_ffi, PINS["apache-tvm-ffi"]),
    }
    for name, (there, here) in versions.items():
        if there != here:
            raise TargetError(
                f"the device at {at} has {name} {there or 'missing'}, and this machine {here}",
                hint=f"install {name} {here} there: both ends must be the same",
            )
    if not device.fits:
        raise TargetError(
            f"target {target.name} cannot be measured at {at}: it is for {target.triple}, "
            f"that machine is {device.machine}",
            hint="name a target of that machine: `mlc-compile doctor` there lists what it runs",
        )
    if device.missing:
        raise TargetError(
            f"target {target.name} cannot be measured at {at}: that CPU lacks "
            f"{listing(device.missing, 12)}",
            hint="name a target of that machine: `mlc-compile doctor` there lists what it runs",
        )
    ours = partition_of(target, 1)
    if target.name == HOST and (ours.mcpu, ours.features) != (device.mcpu, device.features):
        raise TargetError(
            f"target {HOST} is the machine that builds, and the device at {at} is another CPU, "
            f"{device.chip}: no build would use what is measured there",
            hint="name a preset that both have, for example --target cpu-x86-64-v3",
        )


def require_alike(key: str, at: Address, device: Device, first: Device) -> None:
    """TargetError unless that device is the same machine as the first."""
    one, other = ((d.chip, d.cores, d.caches) for d in (device, first))
    if one != other:
        raise TargetError(
            f"the device at {at} is {device.chip} with {device.cores} cores, others of key "
            f"{key!r} are {first.chip} with {first.cores}, or have other caches",
            hint="give each kind of device a key of its own",
        )
