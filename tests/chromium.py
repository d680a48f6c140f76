"""Debian's Chromium for tests: headless, silent, its GPU none or one in software; and web-llm."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlc_compile.errors import TargetError
from mlc_compile.web.web_llm import VERSION, Script, find_script

SILENT = (
    "--headless=new",
    "--no-sandbox",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-sync",
)
NO_GPU = (*SILENT, "--disable-gpu")
# WebGPU on SwiftShader: float32 alone, 256 threads a workgroup.
SOFTWARE_GPU = (
    *SILENT,
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--disable-gpu-sandbox",
)


@contextlib.contextmanager
def launched() -> Iterator[object]:
    """A browser without a GPU, of which each `new_context()` is a fresh one; skips without one."""
    with _chromium() as (chromium, options):
        browser = chromium.launch(**options, args=NO_GPU)
        yield browser
        browser.close()


@contextlib.contextmanager
def page_with_gpu(profile: Path, **options: object) -> Iterator[object]:
    """A page of a browser that has WebGPU, and keeps what it is given in `profile`."""
    with _chromium() as (chromium, common):
        context = chromium.launch_persistent_context(
            profile, **common, args=SOFTWARE_GPU, **options
        )
        yield context.new_page()
        context.close()


def npm_web_llm(config: pytest.Config) -> Script:
    """web-llm as npm has it, fetched once and kept in pytest's cache; skips where it cannot be."""
    if shutil.which("npm") is None:
        pytest.skip("no npm: apt-get install npm")
    try:
        return find_script(None, VERSION, config.cache.mkdir("web"), print)
    except TargetError as e:
        pytest.skip(str(e))


@contextlib.contextmanager
def _chromium() -> Iterator[tuple[object, dict[str, object]]]:
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("no Chromium: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        # Not headless: the flag above is the newer mode.
        yield playwright.chromium, {"executable_path": path, "headless": False}
