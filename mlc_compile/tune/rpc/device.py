"""The server of a device: one connection at a time, offered through a tracker.

A connection gets a process of its own (`answer`), and while it lasts the device is not free:
two measurements at once would disturb each other. A tracker that goes away is sought until it
is back. Handshake and offers are TVM's: int32 0xff271, n and a key of n bytes come in; int32
0xff271 or, for a key that was not offered, 0xff273 go out, then n and our key.
"""

import errno
import os
import selectors
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from mlc_compile.errors import EnvironmentError_, TargetError
from mlc_compile.runtime.child import command, environment
from mlc_compile.tune.rpc import answer
from mlc_compile.tune.rpc.tracker import Address, Tracker, receive

MAGIC: Final = 0xFF271
MISMATCH: Final = MAGIC + 2
LONGEST: Final = 4096  # bytes of a key

HANDSHAKE_SECONDS: Final = 5.0
TICK_SECONDS: Final = 0.25  # how soon the end of a connection is seen
PERIOD_SECONDS: Final = 2.0  # between two looks at the tracker
TAKEN_SECONDS: Final = 8.0  # who asked the tracker for us comes within, or we offer again
END_SECONDS: Final = 5.0
KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))

PORT_REMEDIES: Final = {  # other errors are about the host
    errno.EADDRINUSE: "choose another port, or 0 for a free one",
    errno.EACCES: "choose a port above 1023, or 0 for a free one",
}

Say = Callable[[str], None]


def listen(address: Address) -> socket.socket:
    """A socket that listens there; port 0 takes a free one."""
    try:
        family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(address, family=family)
    except OSError as e:
        reason = os.strerror(e.errno) if e.errno and e.errno > 0 else str(e)  # getaddrinfo: < 0
        raise EnvironmentError_(
            f"cannot listen on {address}: {reason.lower()}",
            hint=PORT_REMEDIES.get(e.errno or 0, "--host must be an address of this machine"),
        ) from e


def bound(listener: socket.socket) -> Address:
    """Where it listens."""
    host, port = listener.getsockname()[:2]
    return Address(host, port)


@dataclass(slots=True)
class Connection:
    """Somebody who uses the device, and the process that answers him."""

    process: "subprocess.Popen[bytes]"
    place: "tempfile.TemporaryDirectory[str]"
    peer: str

    def close(self) -> None:
        """End the process, which ends with its stdin, and remove what it was sent."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.place.cleanup()


@dataclass(slots=True)
class Server:
    """A device that listens, for clients that a tracker sends.

    `told` is the host that the tracker names to them; None: as it sees us. `module` answers.
    """

    listener: socket.socket
    tracker: Address
    key: str
    threads: int | None
    say: Say
    told: str | None = None
    module: str = answer.MODULE
    _joined: Tracker | None = None
    _match: str = ""  # what a client must name; "": we are not free
    _looked: float = 0.0  # when the tracker was asked last
    _free_since: float = 0.0  # when our offer was last seen pending
    _connection: Connection | None = None

    def join(self) -> None:
        """Be listed by the tracker; TargetError where there is none."""
        self._joined = Tracker.connect(self.tracker)
        self._joined.join(self.key, self.told, bound(self.listener).port)

    def serve(self) -> None:
        """Until an exception, such as an interrupt."""
        with ExitStack() as stack:
            stack.callback(self._leave)
            stack.callback(self._end)
            self.listener.setblocking(False)  # who knocked may be gone again
            selector = stack.enter_context(selectors.DefaultSelector())
            selector.register(self.listener, selectors.EVENT_READ)
            while True:
                if selector.select(TICK_SECONDS):
                    self._accept()
                self._tick()

    def _tick(self) -> None:
        """See who has left, and whether the tracker is there and offers us."""
        if self._connection is not None and self._connection.process.poll() is not None:
            self._end()
        now = time.monotonic()
        if self._joined is not None and self._connection is None and not self._match:
            self._with_tracker(self._offer)
        elif now - self._looked >= PERIOD_SECONDS:
            self._looked = now
            if self._joined is None:
                self._rejoin()
            else:
                self._with_tracker(self._look)

    def _rejoin(self) -> None:
        with suppress(TargetError, OSError, ValueError):
            self.join()
            self.say(f"joined the tracker at {self.tracker} again")

    def _with_tracker(self, act: Callable[[Tracker], None]) -> None:
        """Lose the tracker where it does not answer."""
        assert self._joined is not None
        try:
            act(self._joined)
        except (OSError, ValueError) as e:
            self._leave()
            self._match = ""
            self.say(f"the tracker at {self.tracker} is gone ({e}); looking for it")

    def _offer(self, tracker: Tracker) -> None:
        self._match = tracker.offer(self.key, self.told, bound(self.listener).port)
        self._free_since = self._looked = time.monotonic()

    def _look(self, tracker: Tracker) -> None:
        """Offer ourselves again if who took the offer does not come."""
        now = time.monotonic()
        if self._match in tracker.pending():
            self._free_since = now
        elif self._match and now - self._free_since > TAKEN_SECONDS:
            self._match = ""

    def _accept(self) -> None:
        """Start a process for who names our offer; refuse all others."""
        try:
            connection, peer = self.listener.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(HANDSHAKE_SECONDS)
            try:
                if self._welcome(connection):
                    connection.settimeout(None)
                    self._connection = self._started(connection, f"{peer[0]}:{peer[1]}")
            except (OSError, ValueError, struct.error) as e:
                self.say(f"{peer[0]}:{peer[1]} did not speak TVM's RPC: {e}")

    def _welcome(self, connection: socket.socket) -> bool:
        """Whether the client names our offer. After the key come options, which we need not."""
        magic, size = struct.unpack("<ii", receive(connection, 8))
        if magic != MAGIC or not 0 <= size <= LONGEST:
            raise ValueError(f"it begins with {magic:#x}")
        named = receive(connection, size).decode().partition(" ")[0]
        if self._connection is not None or not self._match or named != f"client:{self._match}":
            connection.sendall(struct.pack("<i", MISMATCH))
            return False
        key = f"server:{self.key}".encode()
        connection.sendall(struct.pack("<ii", MAGIC, len(key)) + key)
        return True

    def _started(self, connection: socket.socket, peer: str) -> Connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE:  # a client whose machine is gone leaves us free again
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._match = ""
        self.say(f"serving {peer}")
        place = tempfile.TemporaryDirectory(prefix="mlc-device-")
        number = connection.fileno()
        arguments = str(number), place.name, str(self.threads or 0)
        process = subprocess.Popen(
            command(self.module, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environment(),
            pass_fds=[number],
            start_new_session=True,
        )
        return Connection(process, place, peer)

    def _end(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            self.say(f"served {connection.peer}")

    def _leave(self) -> None:
        joined, self._joined = self._joined, None
        if joined is not None:
            joined.connection.close()


@contextmanager
def own_tracker(listener: socket.socket) -> Iterator[Address]:
    """TVM's tracker at that socket, in a thread of ours."""
    import asyncio
    import logging
    import threading

    from mlc_compile.runtime.vm import start_tvm

    start_tvm(1)
    from tornado.ioloop import IOLoop
    from tvm.rpc.tracker import TrackerServerHandler

    logging.getLogger("RPCTracker").setLevel(logging.ERROR)
    started, loops = threading.Event(), []

    def run() -> None:
        asyncio.set_event_loop(asyncio.new_event_loop())
        loops.append((TrackerServerHandler(listener, ""), IOLoop.current()))
        started.set()
        loops[0][0].run()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    started.wait()
    try:
        yield bound(listener)
    finally:
        handler, loop = loops[0]
        loop.add_callback(handler.stop)
        thread.join(END_SECONDS)
