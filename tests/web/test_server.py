"""The server gives what is in its table, whole or in parts, and nothing else, to many at once."""

import errno
import hashlib
import http.client
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mlc_compile.errors import ConfigError, EnvironmentError_
from mlc_compile.web.server import byte_range, is_local, open_server
from mlc_compile.web.site import MEDIA_TYPES

LENGTH = 1_024_000  # of the shard


@pytest.fixture
def ask(server):
    """`ask("/", "HEAD", Range="bytes=0-1")`: a response, and its body."""

    def one(path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        # Not `request`, which would put the path in order.
        connection.putrequest(method, path, skip_host="Host" in named, skip_accept_encoding=True)
        for name, value in named.items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response, body

    return one


@pytest.fixture
def raw(server):
    """`raw(bytes)`: all that comes back until the server closes."""

    def send(request):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as s:
            s.sendall(request)
            s.shutdown(socket.SHUT_WR)
            got = b""
            while block := s.recv(65536):
                got += block
            return got

    return send


def test_each_address_has_its_type_its_digest_and_its_time_to_live(ask, server):
    for path, resource in server.site.resources.items():
        response, body = ask(path)
        assert response.status == 200, path
        assert response.headers["Content-Type"] == resource.media_type
        assert response.headers["ETag"] == f'"{hashlib.sha256(body).hexdigest()}"'
        kept = path.startswith(("/model/", "/web-llm/"))
        assert ("immutable" in response.headers["Cache-Control"]) == kept, path
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    library, _ = ask(server.site.about.library)
    assert library.headers["Content-Type"] == MEDIA_TYPES[".wasm"] == "application/wasm"
    page, _ = ask("/")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    "path",
    [
        "/../artifact/manifest.json",
        "/..%2fmanifest.json",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..\\..\\etc\\passwd",
        "/%5c..%5cetc",
        "//etc/passwd",
        "/etc/passwd",
        "/./",
        "/index.html/..",
        "/page",
        "/server.py",
        "/%00",
        "/artifact.json%00.html",
        "/model",
        "/model/",
        "/resolve/main/lib.wasm",
        "/%ef%bc%8e%ef%bc%8e/secret",  # full-width dots, which some systems take for dots
        "/c%3a/windows",
        "/artifact.json/",
        "/ARTIFACT.JSON",
        "/%61rtifact.json",
        "*",
        "http://127.0.0.1/etc/passwd",
        "/" + "a" * 5000,
    ],
)
def test_odd_paths_lead_nowhere(ask, path):
    response, body = ask(path)
    assert response.status == 404
    assert body == b"404 there is nothing at this address\n"


def test_nothing_beside_the_files_of_the_build_is_there(ask, server, artifact, shard):
    (artifact / "later.json").write_text("{}")
    base = shard.removesuffix("params_shard_0.bin")
    for name in ("later.json", "manifest.json", "", ".", "../", "params_shard_0.bin/.."):
        assert ask(base + name)[0].status == 404, name
    assert ask(f"{shard}?download=true")[0].status == 200  # a query is no part of the name


@pytest.mark.parametrize(
    "line", [b"GET / /HTTP/1.1", b"GET \xff\xfe HTTP/1.1", b"GET\r\n", b"\0\0", b"GET / HTTP/9.9"]
)
def test_what_is_no_request_gets_an_answer_and_the_next_one_too(ask, raw, line):
    raw(line + b"\r\n\r\n")
    assert ask("/")[0].status == 200


def test_a_path_with_control_characters_leads_nowhere(raw):
    for path in (b"/\0", b"/\x1b[2J", b"/artifact.json\x7f"):
        assert b" 404 " in raw(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")


def test_head_tells_what_get_would_and_gives_nothing(ask, shard):
    response, body = ask(shard, "HEAD")
    assert (response.status, body) == (200, b"")
    assert response.headers["Content-Length"] == str(LENGTH)
    ranged, body = ask(shard, "HEAD", Range="bytes=0-9")  # only GET has ranges
    assert (ranged.status, body) == (200, b"")
    assert ask("/nothing", "HEAD")[1] == b""


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_body_is_no_second_request(server, method):
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as s:
        inner = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
        head = f"{method} /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(inner)}\r\n\r\n"
        s.sendall(head.encode() + inner)
        with s.makefile("rb") as answers:
            assert answers.read().count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_written(ask, shard, method):
    response, _ = ask(shard, method)
    assert response.status == 405
    assert response.headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        pytest.param("bytes=0-0", slice(0, 1), id="first byte"),
        pytest.param("bytes=0-99", slice(0, 100), id="start"),
        pytest.param("bytes=500000-500099", slice(500000, 500100), id="middle"),
        pytest.param("bytes=1023000-", slice(1023000, None), id="to the end"),
        pytest.param("bytes=-5", slice(-5, None), id="suffix"),
        pytest.param("bytes=-99999999", slice(None), id="suffix longer than the file"),
        pytest.param("bytes=1023990-99999999", slice(1023990, None), id="beyond the end"),
        pytest.param("bytes=0-", slice(None), id="all"),
    ],
)
def test_a_range_is_that_part(ask, shard, asked, part):
    whole = ask(shard)[1]
    response, body = ask(shard, Range=asked)
    assert response.status == 206
    assert body == whole[part]
    first, last = response.headers["Content-Range"].removeprefix("bytes ").split("/")[0].split("-")
    assert whole[int(first) : int(last) + 1] == body
    assert response.headers["Content-Range"].endswith(f"/{LENGTH}")


@pytest.mark.parametrize("asked", [f"bytes={LENGTH}-", "bytes=9999999-99999999", "bytes=-0"])
def test_a_range_beyond_the_file_is_refused_with_its_size(ask, shard, asked):
    response, _ = ask(shard, Range=asked)
    assert response.status == 416
    assert response.headers["Content-Range"] == f"bytes */{LENGTH}"


@pytest.mark.parametrize(
    "asked",
    ["bytes=0-1,5-9", "bytes=5-2", "bytes=-", "bytes=a-b", "lines=1-2", "bytes=" + "9" * 40 + "-"],
)
def test_several_ranges_and_none_that_we_know_give_the_whole(ask, shard, asked):
    response, body = ask(shard, Range=asked)
    assert (response.status, len(body)) == (200, LENGTH)


def test_an_empty_file_has_no_part():
    assert byte_range("bytes=0-", 0) == range(0)
    assert byte_range(None, 0) is None


def test_what_the_browser_has_is_not_sent_again(ask, shard):
    etag = ask(shard, "HEAD")[0].headers["ETag"]
    for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        response, body = ask(shard, If_None_Match=known)
        assert (response.status, body) == (304, b""), known
        assert response.headers["ETag"] == etag
    assert ask(shard, If_None_Match='"other"')[0].status == 200
    assert ask(shard, Range="bytes=0-0", If_Range=etag)[0].status == 206
    assert ask(shard, Range="bytes=0-0", If_Range='"other"')[0].status == 200


def test_one_connection_carries_many_requests(server, shard):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    for path, status in (("/", 200), ("/nothing", 404), (shard, 200), ("/artifact.json", 200)):
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        assert response.status == status
    connection.close()


def test_a_body_is_not_read_as_the_next_request(raw):
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 24\r\n\r\n"
    assert raw(request + b"GET /artifact.json HTTP/1.1\r\n\r\n").count(b"HTTP/1.1 ") == 1


def test_another_site_s_name_does_not_lead_here(ask):
    assert ask("/", Host="evil.example")[0].status == 421
    for name in ("localhost", "127.0.0.1:9999", "[::1]:80", "LOCALHOST:1"):
        assert ask("/", Host=name)[0].status == 200, name


def test_sixteen_readers_get_the_same_bytes(ask, shard):
    start = threading.Barrier(16)

    def read(_):
        start.wait(timeout=60)
        return hashlib.sha256(ask(shard)[1]).hexdigest()

    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(read, range(16)))) == 1


def test_a_reader_that_takes_nothing_holds_up_nobody(server, ask, shard):
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.server_port))
        slow.sendall(f"GET {shard} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert slow.recv(100).startswith(b"HTTP/1.1 200")
        assert len(ask(shard)[1]) == LENGTH


def test_a_reader_that_leaves_is_no_story(server, ask, shard, capfd):
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.server_port)) as s:
            # Closed at once, with unread bytes: the other side's next write fails.
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            s.sendall(f"GET {shard} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            s.recv(10)
    assert ask("/")[0].status == 200
    server.shutdown()
    assert capfd.readouterr() == ("", "")


def test_a_file_of_another_build_is_not_given_under_the_old_digest(ask, artifact, shard):
    (artifact / "params_shard_0.bin").write_bytes(b"x" * LENGTH)
    response, body = ask(shard)
    assert response.status == 410
    assert b"rebuilt" in body
    (artifact / "params_shard_0.bin").unlink()
    assert ask(shard)[0].status == 410


def test_a_used_port_is_told(server):
    with pytest.raises(EnvironmentError_, match=f"port {server.server_port} is used") as caught:
        open_server(server.site, "127.0.0.1", server.server_port)
    assert "0 picks a free one" in caught.value.hint


def test_a_port_that_is_not_allowed_is_told(server, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("socketserver.TCPServer.server_bind", refuse)
    with pytest.raises(EnvironmentError_, match="port 80 may not be opened"):
        open_server(server.site, "127.0.0.1", 80)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a" * 300, "203.0.113.1"])
def test_an_address_of_another_machine_is_told(server, host):
    with pytest.raises(ConfigError, match=host[:20]):
        open_server(server.site, host, 0)


def test_the_address_of_the_page_is_one_that_a_browser_here_can_open(server, running):
    assert server.url == f"http://127.0.0.1:{server.server_port}/"
    assert server.local
    wide = running(server.site, "0.0.0.0")
    assert wide.url == f"http://127.0.0.1:{wide.server_port}/"
    assert not wide.local
    assert is_local("::1")
    assert not is_local("192.0.2.1")


def test_it_also_listens_at_the_newer_addresses(server, running):
    if not socket.has_ipv6:
        pytest.skip("this system has no IPv6")
    try:
        newer = running(server.site, "::1")
    except ConfigError:
        pytest.skip("this machine has no address ::1")
    assert newer.url == f"http://[::1]:{newer.server_port}/"
    assert newer.local
    connection = http.client.HTTPConnection("::1", newer.server_port, timeout=60)
    connection.request("GET", "/")
    assert connection.getresponse().status == 200
    connection.close()
