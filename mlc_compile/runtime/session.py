"""An artifact ready to generate: the engine, its tokenizer, and how long loading took."""

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from mlc_compile.artifact import Manifest
from mlc_compile.runtime.device import device_name
from mlc_compile.runtime.engine import Engine, start_engine
from mlc_compile.runtime.host import require_threads
from mlc_compile.runtime.load import check_artifact
from mlc_compile.runtime.tokenizer import Tokenizer
from mlc_compile.runtime.vm import start_tvm


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation's worth of a loaded artifact."""

    directory: Path
    manifest: Manifest
    engine: Engine
    tokenizer: Tokenizer
    threads: int
    load_s: float
    device: str  # what computes, by its own name; "" of the CPU


def open_session(directory: Path, threads: int | None = None) -> Session:
    """Check and load the artifact in `directory`; see `load.check_artifact` for the errors.

    ConfigError too, before anything is read, for more threads than this machine has.
    """
    start = perf_counter()
    require_threads(threads)
    loadable = check_artifact(directory)
    tokenizer = Tokenizer(directory)
    running = start_tvm(threads)
    engine = start_engine(loadable, threads)
    manifest = loadable.manifest
    device, load_s = device_name(manifest), perf_counter() - start
    return Session(directory, manifest, engine, tokenizer, running, load_s, device)
