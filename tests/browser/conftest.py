"""What tests in a browser share: web-llm from npm, a server, Chromium on a software GPU."""

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chromium import npm_web_llm, page_with_gpu

RESOLVED = "/resolve/main/"  # web-llm puts it after a model's address, as on Hugging Face
TYPES = {".wasm": "application/wasm", ".js": "text/javascript", ".html": "text/html"}


@pytest.fixture(scope="session")
def web_llm(request) -> Path:
    """web-llm's one script, as npm has it."""
    return npm_web_llm(request.config).path


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[[dict[str, Path | str]], str]]:
    """`serve({"/": page, "/model/": directory})`: an address with texts, files and directories."""
    with contextlib.ExitStack() as running:

        def start(places: dict[str, Path | str]) -> str:
            handler = type("Handler", (_Handler,), {"places": places})
            server = running.enter_context(
                http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
            )
            threading.Thread(target=server.serve_forever, daemon=True).start()
            running.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}"

        yield start


class _Handler(http.server.BaseHTTPRequestHandler):
    places: dict[str, Path | str]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].replace(RESOLVED, "/")
        found = self._find(path)
        if found is None:
            self.send_error(404)
            return
        content, suffix = found
        self.send_response(200)
        self.send_header("Content-Type", TYPES.get(suffix, "application/octet-stream"))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _find(self, path: str) -> tuple[bytes, str] | None:
        place = self.places.get(path)
        if isinstance(place, str):
            return place.encode(), ".html"
        if place is None:
            directory, _, name = path.rpartition("/")
            base = self.places.get(f"{directory}/")
            place = base / name if isinstance(base, Path) else None
        if place is None or not place.is_file():
            return None
        return place.read_bytes(), place.suffix

    def log_message(self, *_arguments: object) -> None:
        """Tests have their own story."""


@pytest.fixture(scope="module")
def browser_page(tmp_path_factory) -> Iterator[object]:
    """A page of a fresh Chromium with WebGPU in software."""
    with page_with_gpu(tmp_path_factory.mktemp("profile")) as page:
        yield page
