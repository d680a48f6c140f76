"""The example in the page, through unmodified web-llm: its tokens are those of the CPU's library.

Greedy texts of two backends part at the first near-tie, so tokens are compared by force: the CPU
reads what the browser wrote, and each token must be within MARGIN of what the CPU would choose.
"""

import importlib.util
import logging
import re
import time
from pathlib import Path

import numpy as np
import pytest

from tests.chromium import npm_web_llm, page_with_gpu

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="needs zig"),
]

GOLDEN = Path(__file__).parent.parent / "golden"
# Both compute in float32, from the same INT4 weights: logits of some tens differ by the order of
# sums alone, some 1e-5; near-ties of float32 logits are decided by less than this.
MARGIN = 1e-3
TOKENS = 16
QUESTION = "Describe the class."  # its answer is longer than TOKENS
MORE = "What does this module do?"
PROMPT = (  # what web-llm makes of the first question, by the artifact's mlc-chat-config.json
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
)
PATIENCE = 300_000  # milliseconds: a GPU in software, on a busy machine
SHARD = re.compile(r'"GET /model/\S+\.bin HTTP')


@pytest.fixture(scope="module")
def built(cli, tiny_checkpoint, tmp_path_factory):
    """The example built for browsers."""
    out = tmp_path_factory.mktemp("web")
    ran = cli("build", tiny_checkpoint, "--target", "webgpu", "-o", out)
    assert ran.code == 0, ran.err
    return out / f"{tiny_checkpoint.name}-q4f32_1" / "webgpu"


@pytest.fixture(scope="module")
def web_llm(request):
    """web-llm's script, as npm has it."""
    return npm_web_llm(request.config)


@pytest.fixture
def page(tmp_path):
    """A page of a fresh Chromium with WebGPU in software."""
    with page_with_gpu(tmp_path / "profile", viewport={"width": 1280, "height": 800}) as opened:
        opened.set_default_timeout(PATIENCE)
        yield opened


def ready(page):
    """Wait until the model can be asked, or is known not to load."""
    page.wait_for_selector("#status.ready, #status.failed")
    assert page.get_attribute("#status", "class") == "ready", page.inner_text("#notice")


def ask(page, question):
    """Ask, and wait for the end of the answer."""
    page.fill("#prompt", question)
    page.press("#prompt", "Enter")
    ready(page)
    return page.locator("article.assistant").last


def shards_asked_for(caplog):
    """How often the server was asked for weights so far."""
    return sum(bool(SHARD.search(record.getMessage())) for record in caplog.records)


def test_the_page_writes_the_cpu_s_tokens_and_loads_once(
    request, built, web_llm, site_of, running, page, build_model, tiny_checkpoint, caplog
):
    caplog.set_level(logging.DEBUG, "mlc_compile.web.server")
    server = running(site_of(built, None, web_llm))
    page.goto(server.url)
    ready(page)
    assert "from the server" in page.inner_text("#status")
    loaded = shards_asked_for(caplog)
    assert loaded > 0

    page.fill("#temperature", "0")
    page.fill("#limit", str(TOKENS))
    answer = ask(page, QUESTION)
    text = answer.evaluate("article => article.source")
    assert f"{TOKENS} tokens" in answer.locator(".foot").inner_text()
    ids, logits = forced(build_model, tiny_checkpoint, built, text)
    assert len(ids) == TOKENS, "another question would be told apart"
    lost = logits.max(-1) - logits[np.arange(TOKENS), ids]
    assert lost.max() < MARGIN

    if request.config.getoption("--refresh-goldens"):
        ask(page, MORE)
        take_pictures(page)
    page.reload()
    ready(page)
    assert "from this browser" in page.inner_text("#status")
    assert shards_asked_for(caplog) == loaded


def forced(build_model, checkpoint, built, text):
    """The tokens of an answer, and f32[n, vocab], the CPU's logits before each of them."""
    from tokenizers import Tokenizer

    from mlc_compile.runtime.engine import open_engine

    tokenizer = Tokenizer.from_file(str(built / "tokenizer.json"))
    engine = open_engine(build_model(checkpoint, "q4f32_1", "--activations", "float32"))
    ids = tokenizer.encode(text).ids
    rows = [engine.prefill(tokenizer.encode(PROMPT).ids).copy()]
    rows += [engine.decode(token).copy() for token in ids[:-1]]
    return ids, np.stack(rows)


def take_pictures(page):
    """`pytest tests/web --refresh-goldens` writes those that the README shows."""
    page.evaluate("document.activeElement.blur()")
    page.screenshot(path=GOLDEN / "web.png")
    page.set_viewport_size({"width": 360, "height": 720})
    time.sleep(1)  # until the browser has drawn it
    page.evaluate("document.querySelector('main').scrollTop = 1e6")
    page.screenshot(path=GOLDEN / "web-phone.png")
    page.set_viewport_size({"width": 1280, "height": 800})
