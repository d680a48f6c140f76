"""`device-server`, and the options of `tune` that lead to it."""

import signal
import socket

import pytest

from tests.tune.devices import device


def test_the_help_says_what_it_lets_in(cli):
    ran = cli("device-server", "--help")
    text = " ".join(ran.out.replace("│", " ").split())
    assert "can run any code here" in text
    assert "127.0.0.1 alone unless --host says more" in text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_it_and_all_that_it_started(tmp_path, number, code):
    with device(tmp_path, "--tracker-port", 0) as one:
        one.wait_for(f"--rpc {one.tracker} --key box")
        assert one.end(number) == (code, [])
        assert "Traceback" not in one.said.read_text()


@pytest.mark.parametrize("option", ["--port", "--tracker-port"])
def test_a_port_in_use_is_told(cli, option):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = {"--port": 0, "--tracker-port": 0, option: port}
        ran = cli(
            "device-server", "--key", "box", *(word for pair in ports.items() for word in pair)
        )
    assert (ran.code, ran.out) == (7, "")
    told, hint = ran.err.splitlines()
    assert told == f"error: cannot listen on 127.0.0.1:{port}: address already in use"
    assert "0 for a free one" in hint


NOBODY = "no RPC tracker answers at 127.0.0.1:9: connection refused"


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("device-server", 2, "missing option '--key'"),
        ("device-server --key a:b", 2, "--key must be one word without a colon, got 'a:b'"),
        ("device-server --key a --host 192.0.2.1", 7, "cannot listen on 192.0.2.1:9090: "),
        ("device-server --key a --tracker pi", 2, "--tracker must be HOST:PORT, got 'pi'"),
        ("device-server --key a --tracker 10.0.0.7:1", 2, "the tracker at 10.0.0.7:1 would send"),
        ("device-server --key a --tracker 127.0.0.1:9 --port 0", 4, NOBODY),
        ("tune demo --rpc 127.0.0.1:9", 2, "--rpc needs --key too"),
        ("tune demo --key box", 2, "--key needs --rpc too"),
        ("tune demo --rpc 127.0.0.1:9 --key box", 4, NOBODY),
        ("tune demo -t metal --rpc 127.0.0.1:9 --key a", 4, "tuning measures on the device"),
    ],
)
def test_what_cannot_be_is_one_sentence(cli, line, code, told):
    ran = cli(*line.split())
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith(f"error: {told}")
