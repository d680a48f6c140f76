"""The far end of one connection: TVM's RPC loop, with our function in it.

Run by `device` as `python -m mlc_compile.tune.rpc.answer FD PLACE THREADS`. What times a
candidate is the same runner as on the near end's own machine, in a process of its own: a
candidate that hangs or crashes it costs one answer, and the connection lasts. Stdin is held
open by the server; when that ends, however it ends, so do we and the runner.
"""

import os
import platform
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from mlc_compile import __version__
from mlc_compile.records import partition_of
from mlc_compile.runtime.host import available_cores
from mlc_compile.runtime.vm import start_tvm
from mlc_compile.target import host_target, missing_features, triple_mismatch
from mlc_compile.tune.rpc import runner
from mlc_compile.tune.rpc.wire import ANSWER, Asked, Device, Failure, Hello
from mlc_compile.tune.runner import Compare, Compared, Gauge, Gauged, Prepare, Prepared
from mlc_compile.tune.worker import FORESEEN, START_SECONDS, Trouble, Worker
from mlc_compile.tvm_version import installed

MODULE: Final = "mlc_compile.tune.rpc.answer"


@dataclass(slots=True)
class FarEnd:
    """What answers: `place` holds what was uploaded; `threads` None: the available cores.

    Who is told that a runner hung or crashed asks a new one to prepare before anything else.
    """

    place: Path
    threads: int | None = None
    runner: Worker = field(default_factory=lambda: Worker(runner.MODULE))
    ending: bool = False  # nobody is told any more why a runner ended
    _told: int = 0  # the start of the runner that knows its threads

    def answer(self, text: str) -> str:
        """JSON of an Asked in; of what it asks for, or of a Failure, out."""
        said: Device | Prepared | Compared | Gauged | Failure
        try:
            said = self._said(msgspec.json.decode(text, type=Asked))
        except Trouble as e:
            if self.ending:
                os._exit(0)
            said = Failure(e.kind, str(e))
        except FORESEEN as e:
            said = Failure("refused", f"{type(e).__name__}: {e}")
        return msgspec.json.encode(said).decode()

    def file(self, name: str) -> Path:
        """Where an uploaded file lies; nothing outside `place` has a name."""
        if Path(name).name != name or name in {"", ".."}:
            raise ValueError(f"{name!r} is not the plain name of a file")
        return self.place / name

    def _said(self, asked: Asked) -> Device | Prepared | Compared | Gauged:
        match asked.question:
            case Hello(triple, requires):
                return device(triple, requires, self.threads)
            case Prepare(baseline, situations):
                self._start()
                question = Prepare(str(self.file(baseline)), situations)
                return self.runner.ask(question, Prepared, asked.seconds)
            case Compare():
                return self._compare(asked.question, asked.seconds)
            case Gauge():
                self._start()
                return self.runner.ask(asked.question, Gauged, asked.seconds)

    def _start(self) -> None:
        """Have a runner with its threads."""
        self.runner.warm()
        if self._told != self.runner.starts:
            self.runner.ask(runner.Start(self.threads), runner.Started, START_SECONDS)
            self._told = self.runner.starts

    def _compare(self, question: Compare, seconds: float) -> Compared:
        candidate = self.file(question.candidate)
        try:
            known = msgspec.structs.replace(question, candidate=str(candidate))
            return self.runner.ask(known, Compared, seconds)
        finally:
            candidate.unlink(missing_ok=True)


def device(triple: str, requires: tuple[str, ...], threads: int | None) -> Device:
    """What this machine is, to one who would time code for such a target here."""
    here = partition_of(host_target(), threads or available_cores())
    return Device(
        version=__version__,
        tvm=installed("apache-tvm") or "",
        tvm_ffi=installed("apache-tvm-ffi") or "",
        machine=f"{platform.machine()} {platform.system()}",
        fits=triple_mismatch(triple) is None,
        missing=missing_features(requires),
        mcpu=here.mcpu,
        features=here.features,
        chip=here.chip,
        cores=here.cores,
        caches=here.caches,
    )


def _end_with_stdin(far: FarEnd) -> None:
    while os.read(0, 1):  # not sys.stdin: Python locks it when it exits
        pass
    far.ending = True
    far.runner.close()
    os._exit(0)


def main() -> None:
    """Serve the connection until it ends."""
    descriptor, place, threads = sys.argv[1:]
    far = FarEnd(Path(place), int(threads) or None)
    threading.Thread(target=_end_with_stdin, args=(far,), daemon=True).start()
    start_tvm(1)
    import tvm_ffi
    from tvm.rpc import _ffi_api

    tvm_ffi.register_global_func(ANSWER, far.answer)
    tvm_ffi.register_global_func(
        "tvm.rpc.server.workpath", lambda name: str(far.file(name)), override=True
    )
    try:
        _ffi_api.ServerLoop(int(descriptor))
    finally:
        far.runner.close()


if __name__ == "__main__":
    main()
