"""What goes between the ends of a connection: JSON texts, in and out of one function."""

from typing import Final

import msgspec

from mlc_compile.tune.runner import Compare, Gauge, Prepare

ANSWER: Final = "mlc_compile.tune.answer"  # the function's name on the far end


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Who are you, and can you run code for `triple` that uses the CPU features `requires`?"""

    triple: str
    requires: tuple[str, ...]


class Device(msgspec.Struct, frozen=True):
    """The answer. Fields are of plain types, so that other versions of us can read it too."""

    version: str  # of mlc_compile
    tvm: str
    tvm_ffi: str
    machine: str  # "x86_64 Linux"
    fits: bool  # whether code for the triple runs there
    missing: tuple[str, ...]  # of the features
    mcpu: str  # these and the rest as the machine's own Partition has them
    features: tuple[str, ...]
    chip: str
    cores: int
    caches: tuple[str, ...]


class Asked(msgspec.Struct, frozen=True):
    """A question and the seconds that the far end's runner has for it.

    Paths in it are the plain names of files that were uploaded before.
    """

    question: Hello | Prepare | Compare | Gauge
    seconds: float


class Failure(msgspec.Struct, frozen=True):
    """The far end's runner had no answer: a worker's Trouble."""

    kind: str
    message: str
