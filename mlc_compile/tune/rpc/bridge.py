"""The near end of one connection, in a process of its own: TVM's RPC calls have no deadline.

Run by `fleet` as `python -m mlc_compile.tune.rpc.bridge`, one question a line; who asked in
vain kills it, and the far end sees its connection end.
"""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from mlc_compile.runtime.vm import start_tvm
from mlc_compile.tune.rpc.wire import ANSWER
from mlc_compile.tune.worker import serve

MODULE: Final = "mlc_compile.tune.rpc.bridge"


class Open(msgspec.Struct, frozen=True, tag=True):
    """Connect; `match` is what the tracker said to name."""

    host: str
    port: int
    match: str


class Opened(msgspec.Struct, frozen=True):
    """Connected; `ours`: it has our function."""

    ours: bool


class Ship(msgspec.Struct, frozen=True, tag=True):
    """Copy the file `path` to the far end, as `name`."""

    path: str
    name: str


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Call our function there."""

    text: str


class Said(msgspec.Struct, frozen=True):
    """What it returned; nothing for a file."""

    text: str = ""


@dataclass(slots=True)
class Bridge:
    """The connection."""

    session: Any = None
    function: Any = None

    def answer(self, question: Open | Ship | Ask) -> Opened | Said:
        """Do what is asked; RuntimeError where the connection does not last."""
        match question:
            case Open():
                return self.open(question)
            case Ship():
                self.session.upload(question.path, question.name)
                return Said()
            case Ask():
                return Said(str(self.function(question.text)))

    def open(self, question: Open) -> Opened:
        """Connect, and look for our function."""
        import tvm.rpc

        self.session = tvm.rpc.connect(question.host, question.port, question.match)
        try:
            self.function = self.session.get_function(ANSWER)
        except AttributeError:
            return Opened(ours=False)
        return Opened(ours=True)


def main() -> None:
    """Load TVM before the first question, then answer."""
    start_tvm(1)
    import tvm.rpc

    del tvm
    serve(Open | Ship | Ask, Bridge().answer)  # type: ignore[arg-type]  # msgspec takes a union


if __name__ == "__main__":
    main()
