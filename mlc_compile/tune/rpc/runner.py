"""The runner of the far end: that of `tune.runner`, told first with how many threads.

Run by `answer` as `python -m mlc_compile.tune.rpc.runner`, one question a line.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from mlc_compile.runtime.vm import start_tvm
from mlc_compile.tune.runner import Compare, Compared, Gauge, Gauged, Prepare, Prepared, Runner
from mlc_compile.tune.worker import serve

MODULE: Final = "mlc_compile.tune.rpc.runner"


class Start(msgspec.Struct, frozen=True, tag=True):
    """Start TVM with so many threads; None: the available cores."""

    threads: int | None


class Started(msgspec.Struct, frozen=True):
    """It runs with so many."""

    threads: int


@dataclass(slots=True)
class FarRunner:
    """A runner that starts when it is told to."""

    runner: Runner = field(default_factory=Runner)

    def answer(
        self, question: Start | Prepare | Compare | Gauge
    ) -> Started | Prepared | Compared | Gauged:
        """Do what is asked."""
        if isinstance(question, Start):
            self.runner.threads = start_tvm(question.threads)
            return Started(self.runner.threads)
        return self.runner.answer(question)


def main() -> None:
    """Answer."""
    asked = Start | Prepare | Compare | Gauge
    serve(asked, FarRunner().answer)  # type: ignore[arg-type]  # as elsewhere


if __name__ == "__main__":
    main()
