"""A client of a TVM RPC tracker: frames of JSON over TCP, every wait with its deadline.

TVM's own client retries for a minute and has no deadlines; the numbers are those of its
`tvm.rpc.base`. A frame is int32 n, little endian, and n bytes of JSON.
"""

import json
import random
import socket
import struct
from dataclasses import dataclass
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Final, NamedTuple

from mlc_compile.errors import ConfigError, TargetError, listing

TRACKER_MAGIC: Final = 0x2F271
SUCCESS: Final = 0
PUT, REQUEST, UPDATE_INFO, SUMMARY, GET_PENDING_MATCHKEYS = 3, 4, 5, 6, 7

SECONDS: Final = 5.0  # for one answer of a tracker, which only looks at its lists
LARGEST: Final = 1 << 20  # bytes of a frame, as for the tracker
STARTS_ONE: Final = "`mlc-compile device-server --key K` on the device starts one"


class Address(NamedTuple):
    """Where something listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def local(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def address(text: str, option: str) -> Address:
    """`"device:9190"` -> Address("device", 9190); ConfigError for anything else."""
    host, _, port = text.strip().rpartition(":")
    number = int(port) if port.isascii() and port.isdecimal() and len(port) < 6 else 0
    if not host or not 0 < number < 1 << 16:
        raise ConfigError(
            f"{option} must be HOST:PORT, got {text!r}", hint=f"for example {option} 10.0.0.7:9190"
        )
    return Address(host.removeprefix("[").removesuffix("]"), number)


@dataclass(frozen=True, slots=True)
class Standing:
    """What a tracker knows: how many servers each key has, and how many of those are free."""

    servers: dict[str, int]
    free: dict[str, int]


@dataclass(frozen=True, slots=True)
class Offer:
    """A free server: whoever names `match` to it first has it."""

    address: Address
    match: str


@dataclass(slots=True)
class Tracker:
    """A connection to one; OSError and ValueError come from what breaks it later."""

    address: Address
    connection: socket.socket

    @classmethod
    def connect(cls, address: Address) -> "Tracker":
        """TargetError, in seconds, where none answers."""
        try:
            connection = socket.create_connection(address, SECONDS)
        except OSError as e:
            raise TargetError(
                f"no RPC tracker answers at {address}: {_reason(e)}", hint=STARTS_ONE
            ) from e
        try:
            connection.sendall(struct.pack("<i", TRACKER_MAGIC))
            (said,) = struct.unpack("<i", receive(connection, 4))
        except OSError:
            said = None
        if said != TRACKER_MAGIC:
            connection.close()
            raise TargetError(f"what listens at {address} is no RPC tracker", hint=STARTS_ONE)
        return cls(address, connection)

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None
    ) -> None:
        self.connection.close()

    def standing(self) -> Standing:
        """Who is there. TVM writes a server's key as `server:KEY`."""
        said = self._ask([SUMMARY])[1]
        keys = [str(server["key"]).partition(":")[2] for server in said["server_info"]]
        free = {str(key): int(queue["free"]) for key, queue in said["queue_info"].items()}
        return Standing({key: keys.count(key) for key in sorted(keys)}, free)

    def request(self, key: str) -> Offer:
        """Take a free server; TimeoutError where there is none."""
        host, port, match = self._ask([REQUEST, key, "", 1])[1]
        found = Address(str(host), int(port))
        if found.local:  # as the tracker sees it: they are on one machine
            found = Address(self.address.host, found.port)
        return Offer(found, str(match))

    def join(self, key: str, host: str | None, port: int) -> None:
        """Be listed as a server; `host` None: as the tracker sees us."""
        self._ask([UPDATE_INFO, {"key": f"server:{key}", "addr": [host, port]}])

    def offer(self, key: str, host: str | None, port: int) -> str:
        """Be free; what a client must name."""
        match = f"{key}:{random.random()}"
        self._ask([PUT, key, [port, match], host])
        return match

    def pending(self) -> list[str]:
        """Of what we offered, what nobody has asked for yet."""
        return [str(match) for match in self._ask([GET_PENDING_MATCHKEYS])]

    def _ask(self, question: list[Any]) -> Any:
        data = json.dumps(question).encode()
        self.connection.sendall(struct.pack("<i", len(data)) + data)
        (size,) = struct.unpack("<i", receive(self.connection, 4))
        if not 0 < size <= LARGEST:
            raise ValueError(f"a frame of {size} bytes")
        return json.loads(receive(self.connection, size))


def missing_key(tracker: Address, key: str, standing: Standing) -> TargetError:
    """The error for a key that no server of the tracker has."""
    known = listing(f"{name} ({count})" for name, count in standing.servers.items())
    return TargetError(
        f"the tracker at {tracker} has no device of key {key!r}; it has {known or 'none at all'}",
        hint=f"`mlc-compile device-server --tracker {tracker} --key {key}` on the device joins it",
    )


def receive(connection: socket.socket, count: int) -> bytes:
    """So many bytes; OSError where the connection ends before."""
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionResetError("it closed the connection")
        data += piece
    return data


def _reason(error: OSError) -> str:
    timed_out = isinstance(error, TimeoutError)
    return f"nothing in {SECONDS:.0f} s" if timed_out else (error.strerror or str(error)).lower()
