"""`mlc-compile device-server`: let other machines time kernels on this one."""

import platform
import signal
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mlc_compile.cli.console import Output, output_options
from mlc_compile.cli.options import Threads
from mlc_compile.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlc_compile.tune.rpc.tracker import Address

LOOPBACK: Final = "127.0.0.1"
ANYWHERE: Final = ("0.0.0.0", "::")
PORT: Final = 9090  # as TVM's own server has it
TRACKER_PORT: Final = 9190


@output_options
def device_server(
    output: Output,
    *,
    key: Annotated[
        str, typer.Option(help="Name of this kind of device, the same for all of them.")
    ],
    tracker: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="The RPC tracker to join.", show_default="one started here"
        ),
    ] = None,
    tracker_port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port of the tracker started here; 0: any free one."),
    ] = TRACKER_PORT,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0: all of this machine's.")
    ] = LOOPBACK,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")
    ] = PORT,
    threads: Threads = None,
) -> None:
    """Serve this machine to `tune --rpc`, as a device of a TVM RPC tracker.

    Whoever reaches its port can run any code here, as you: RPC has no passwords and no
    encryption. Use it only in networks where you trust everybody; it listens on 127.0.0.1 alone
    unless --host says more. Ctrl-C ends it.
    """
    from mlc_compile.runtime.host import require_threads
    from mlc_compile.tune.rpc.device import Server, bound, listen
    from mlc_compile.tune.rpc.tracker import address

    require_threads(threads)
    _require_key(key)
    given = None if tracker is None else address(tracker, "--tracker")
    _require_reachable(given, host)
    told = None if host in ANYWHERE else host
    with ExitStack() as stack:
        stack.enter_context(stopped_by_term())
        listener = stack.enter_context(listen(_place(host, port)))
        at = given or stack.enter_context(_tracker(host, tracker_port))
        server = Server(listener, at, key, threads, output.story, told)
        server.join()
        served, joined = _outside(bound(listener)), at if given else _outside(at)
        facts = {"address": str(served), "key": key, "tracker": str(joined)}
        output.result(facts, shown="serving {address} as {key}, tracker {tracker}".format(**facts))
        output.story(f"to measure here: mlc-compile tune MODEL --rpc {joined} --key {key}")
        server.serve()


def _place(host: str, port: int) -> "Address":
    from mlc_compile.tune.rpc.tracker import Address

    return Address(host, port)


@contextmanager
def _tracker(host: str, port: int) -> "Iterator[Address]":
    """A tracker of our own."""
    from mlc_compile.tune.rpc.device import listen, own_tracker

    with listen(_place(host, port)) as listener, own_tracker(listener) as at:
        yield at


def _outside(at: "Address") -> "Address":
    """As other machines know a place that listens at all addresses of this one."""
    return at._replace(host=platform.node()) if at.host in ANYWHERE else at


@contextmanager
def stopped_by_term() -> "Iterator[None]":
    """End the block at SIGTERM, as a service is told to stop, with exit code 0."""

    def stop(_number: int, _frame: object) -> None:
        raise typer.Exit

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _require_key(key: str) -> None:
    """ConfigError for what TVM's handshake would not carry."""
    if not key.strip() or any(character.isspace() or character == ":" for character in key):
        raise ConfigError(
            f"--key must be one word without a colon, got {key!r}", hint="for example --key pi5"
        )


def _require_reachable(tracker: "Address | None", host: str) -> None:
    """ConfigError where a tracker elsewhere would send others to an address of this machine."""
    if tracker is not None and not tracker.local and _place(host, 0).local:
        raise ConfigError(
            f"the tracker at {tracker} would send others to {host}, which is every machine itself",
            hint="add --host 0.0.0.0 in a network where you trust everybody",
        )
