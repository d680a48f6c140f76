"""A web server of one site, for this machine: GET and HEAD, ranges, and nothing that writes.

An address is looked up as it was sent, in a table of all that there are. No part of it ever
becomes a path, so there is nothing to escape from.
"""

import errno
import logging
import os
import re
import socket
import socketserver
import sys
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import BinaryIO, Final

from mlc_compile.errors import ConfigError, EnvironmentError_
from mlc_compile.web.site import Resource, Site, mark_of

LOG: Final = logging.getLogger(__name__)
LOCAL: Final = "127.0.0.1"
LOCAL_NAMES: Final = frozenset({"127.0.0.1", "localhost", "::1"})
ANYWHERE: Final = frozenset({"", "0.0.0.0", "::"})

# The page runs our scripts and web-llm's, whose tokenizer is WebAssembly in an address of its own.
POLICY: Final = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; "
    "connect-src 'self' data:; style-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Accept-Ranges": "bytes",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
REBUILT: Final = "the artifact was rebuilt: start `mlc-compile web` again"
# One range; eighteen digits are more than any file has. Several are answered with the whole.
RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


def open_server(site: Site, host: str, port: int) -> "PageServer":
    """A server that listens and does not answer yet: `serve_forever` does.

    Raises ConfigError (no such host) and EnvironmentError_ (the port is used or not allowed).
    """
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError):
        raise ConfigError(f"--host {host} is no address of this machine", hint=LOCAL) from None
    family, *_, address = found[0]
    try:
        return PageServer(site, host, family, address)
    except PermissionError:
        words = f"port {port} may not be opened by this user"
        raise EnvironmentError_(words, hint="name one above 1023 with --port") from None
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            told = f"port {port} is used by another program"
            hint = "end it, or name another with --port; 0 picks a free one"
            raise EnvironmentError_(told, hint=hint) from None
        words = f"{host} port {port} cannot be opened: {(e.strerror or str(e)).lower()}"
        raise ConfigError(words, hint=f"--host {LOCAL} is this machine") from None


class PageServer(ThreadingHTTPServer):
    """A thread for each connection, so that a slow reader holds up nobody."""

    daemon_threads = True  # an interrupt does not wait for readers
    request_queue_size = 64

    def __init__(self, site: Site, host: str, family: int, address: tuple[object, ...]) -> None:
        self.address_family = socket.AddressFamily(family)
        self.allow_reuse_address = os.name != "nt"  # there it would share the port
        self.site = site
        self.host = host
        super().__init__(address, _Handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        """Bind, without asking the network for this machine's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that breaks ends, and is no story; anything else is a bug of ours."""
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        LOG.log(level, "a connection of %s failed", client_address, exc_info=True)

    @property
    def url(self) -> str:
        """The address of the page, for a browser on this machine."""
        host = LOCAL if self.host in ANYWHERE else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/"

    @property
    def local(self) -> bool:
        """Whether only this machine reaches it."""
        return is_local(self.server_name)


def is_local(address: str) -> bool:
    """Whether an address is of the machine itself."""
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address in LOCAL_NAMES


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    timeout = 60.0  # seconds: a reader that takes nothing for so long is gone
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"

    def handle(self) -> None:
        """Answer until the other side leaves, which is no failure."""
        with suppress(ConnectionError, TimeoutError):
            super().handle()

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._end_after_a_body()
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", Allow="GET, HEAD")

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST

    def _end_after_a_body(self) -> None:
        """Nobody reads a body: it must not be taken for the next request."""
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            self.close_connection = True

    def _answer(self) -> None:
        self._end_after_a_body()
        if not self._is_for_us():
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this server has another name")
            return
        found = self.server.site.resources.get(self.path.partition("?")[0])
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing at this address")
        elif isinstance(found.source, bytes):
            self._give(found, None)
        else:
            self._open(found)

    def _open(self, found: Resource) -> None:
        """A file, if it is still the one whose digest is known."""
        assert not isinstance(found.source, bytes)
        try:
            file = found.source.open("rb")
        except OSError:
            self._refuse(HTTPStatus.GONE, REBUILT)
            return
        with file:
            if mark_of(os.fstat(file.fileno())) == found.mark:
                self._give(found, file)
            else:
                self._refuse(HTTPStatus.GONE, REBUILT)

    def _is_for_us(self) -> bool:
        """Whether the address bar names this machine.

        Another site's name may be made to lead here, and its page would then read our files.
        """
        asked = self.headers.get("Host")
        if asked is None or not self.server.local:
            return True
        name = re.sub(r":[0-9]*$", "", asked.strip()).strip("[]").lower()
        return name in {*LOCAL_NAMES, self.server.host.lower()}

    def _give(self, found: Resource, file: BinaryIO | None) -> None:
        facts = {"ETag": found.etag, "Cache-Control": found.cache_control}
        if _names(self.headers.get("If-None-Match"), found.etag):
            self._start(HTTPStatus.NOT_MODIFIED, facts)
            return
        part = self._range(found)
        if part is None:
            status, part = HTTPStatus.OK, range(found.nbytes)
        elif not part:
            told = f"there are {found.nbytes} bytes"
            self._refuse(
                HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
                told,
                **{"Content-Range": f"bytes */{found.nbytes}"},
            )
            return
        else:
            status = HTTPStatus.PARTIAL_CONTENT
            facts["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{found.nbytes}"
        length = {"Content-Type": found.media_type, "Content-Length": str(len(part))}
        self._start(status, {**length, **facts})
        if self.command != "HEAD" and part:
            self._send(found, file, part)

    def _range(self, found: Resource) -> range | None:
        """The bytes that are asked for; None: all. Only GET has ranges."""
        if self.command != "GET" or self.headers.get("If-Range", found.etag) != found.etag:
            return None
        return byte_range(self.headers.get("Range"), found.nbytes)

    def _start(self, status: HTTPStatus, facts: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, **facts}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, found: Resource, file: BinaryIO | None, part: range) -> None:
        if file is None:
            assert isinstance(found.source, bytes)
            self.wfile.write(found.source[part.start : part.stop])
        elif self.connection.sendfile(file, part.start, len(part)) != len(part):
            self.close_connection = True  # it was cut while we sent it

    def _refuse(self, status: HTTPStatus, sentence: str, **facts: str) -> None:
        text = f"{status.value} {sentence}\n".encode()
        length = {"Content-Type": self.error_content_type, "Content-Length": str(len(text))}
        self._start(status, {**length, "Cache-Control": "no-store", **facts})
        if self.command != "HEAD":
            self.wfile.write(text)

    def version_string(self) -> str:
        """What we call ourselves."""
        return "mlc-compile"

    def log_message(self, format: str, *args: object) -> None:
        """A request is no story."""
        LOG.debug(format, *args)


def byte_range(asked: str | None, nbytes: int) -> range | None:
    """The part of `nbytes` that a Range header asks for; None: all of it; empty: none is there.

    What is not one range of bytes counts as no range, as RFC 9110 lets a server have it.
    """
    found = RANGE.fullmatch((asked or "").replace(" ", ""))
    if found is None or found[0] == "bytes=-":
        return None
    first, last = found.groups()
    if not first:
        return range(max(0, nbytes - int(last)), nbytes)
    if last and int(last) < int(first):
        return None
    return range(int(first), min(nbytes, int(last) + 1) if last else nbytes)


def _names(asked: str | None, etag: str) -> bool:
    """Whether an If-None-Match header has the tag, in its strong or weak form."""
    tags = {tag.strip().removeprefix("W/") for tag in (asked or "").split(",")}
    return not tags.isdisjoint({etag, "*"})
