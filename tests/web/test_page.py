"""The page in a browser, with a GPU and an engine that are made up: what it shows, and when."""

import json
from pathlib import Path

import pytest

from tests.chromium import launched

pytestmark = pytest.mark.browser

STAND_IN = Path(__file__).with_name("stand_in.js")
LIMITS = {
    "maxBufferSize": 2**30,
    "maxStorageBufferBindingSize": 2**30,
    "maxStorageBuffersPerShaderStage": 10,
    "maxComputeWorkgroupStorageSize": 32768,
    "maxComputeInvocationsPerWorkgroup": 1024,
}
GPU = """
const adapter = {
  features: new Set(%s), limits: %s, info: {vendor: "acme", architecture: "rocket"},
};
Object.defineProperty(navigator, "gpu", {value: {requestAdapter: async () => adapter}});
"""
READY = "#status.ready"
CODE = """Use **this**:

```python
def f(x):
    return x
```

where `x` is <img src=x onerror=alert(1)>"""
THOUGHT = "<think>\nIt was asked.\n</think>\n\nYes."
ANSWERS = {
    "code": CODE,
    "think": THOUGHT,
    "endless": "endless",
    "error": "error",
    "long": "wide " * 300,
}


def gpu(features=("shader-f16", "subgroups"), **limits):
    """A script that gives the page such a GPU."""
    return GPU % (json.dumps(features), json.dumps({**LIMITS, **limits}))


@pytest.fixture(scope="module")
def browser():
    """Chromium."""
    with launched() as chromium:
        yield chromium


@pytest.fixture
def served(running, site_of, artifact, make_package):
    """A server with the stand-in for web-llm."""
    return running(site_of(artifact, make_package(STAND_IN.read_text())))


@pytest.fixture
def visit(browser, served):
    """`visit(width, scheme, *scripts)`: the page, where the scripts ran before it; what it said."""
    contexts = []

    def one(*scripts, width=1280, scheme="light", server=served, ready=READY):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page, said = context.new_page(), []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url))
        for script in scripts or (gpu(),):
            page.add_init_script(script)
        page.add_init_script(f"window.answers = {json.dumps(ANSWERS)}")
        page.goto(server.url)
        page.wait_for_selector(ready)
        return page, said

    yield one
    for context in contexts:
        context.close()


def ask(page, question, until=READY):
    """Ask, and wait for the end of the answer."""
    page.fill("#prompt", question)
    page.press("#prompt", "Enter")
    page.wait_for_selector(until)
    return page.locator("article.assistant").last


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_the_screen_and_asks_nobody_else(visit, served, width, scheme):
    page, said = visit(width=width, scheme=scheme)
    ask(page, "long")
    ask(page, "code")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate("document.documentElement.scrollHeight <= window.innerHeight")
    page.click("#toggle")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert [line for line in said if not line.startswith(served.url)] == []


def test_the_dark_scheme_is_dark(visit):
    def paper(scheme):
        page, _ = visit(scheme=scheme)
        color = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(n) for n in color.strip("rgb()").split(","))

    assert paper("dark") < 128
    assert paper("light") > 600


def test_loading_is_told_in_bytes_and_where_they_come_from(visit):
    page, _ = visit(gpu(), "window.hold = true", ready="#stages .now")
    weights = page.locator("#stages li", has_text="Weights")
    weights.get_by_text("500 KiB of 1000 KiB, from the server").wait_for()
    assert page.locator("#stages .done").inner_text().startswith("Library and tokenizer")
    assert 0 < page.evaluate("document.getElementById('bar').value") < 1
    assert page.is_disabled("#send")
    page.evaluate("window.hold = false")
    page.wait_for_selector(READY)
    assert "loaded from the server" in page.inner_text("#status")
    assert page.is_hidden("#loading")


def test_the_second_visit_is_served_by_the_browser_and_an_older_build_is_forgotten(visit, served):
    page, _ = visit()
    old = served.site.about.address.replace(served.site.about.build, "0" * 16) + "x.bin"
    put = "old => caches.open('webllm/model').then(c => c.put(old, new Response('')))"
    page.evaluate(put, old)
    page.reload()
    page.wait_for_selector(READY)
    assert "loaded from this browser" in page.inner_text("#status")
    keys = "caches.open('webllm/model').then(c => c.keys()).then(k => k.map(r => r.url))"
    assert [url.rpartition("/")[2] for url in page.evaluate(keys)] == ["params_shard_0.bin"]


def test_the_engine_is_asked_for_this_artifact(visit, served):
    page, _ = visit()
    model = page.evaluate("window.model")
    base = served.url.rstrip("/")
    assert model["model"] == base + served.site.about.address
    assert model["model_lib"] == base + served.site.about.library


def test_an_answer_has_its_speed_and_its_form(visit):
    page, _ = visit()
    answer = ask(page, "code")
    assert answer.locator("pre code").inner_text() == "def f(x):\n    return x"
    assert answer.locator("strong").inner_text() == "this"
    assert answer.locator("img").count() == 0
    assert "<img src=x onerror=alert(1)>" in answer.inner_text()
    assert answer.evaluate("article => article.source") == CODE
    foot = answer.locator(".foot").inner_text()
    assert [part in foot for part in ("3 tokens", "prefill 812", "decode 41.3 tok/s")] == [True] * 3
    assert (page.inner_text("#prefill"), page.inner_text("#decode")) == ("812", "41.3")


def test_reasoning_is_apart_and_not_told_again(visit):
    page, _ = visit()
    answer = ask(page, "think")
    assert answer.locator(".text").inner_text() == "Yes."
    assert answer.locator("summary").inner_text() == "Reasoning"
    assert answer.locator("details > div").text_content() == "It was asked."
    ask(page, "next")
    told = page.evaluate("window.requests.at(-1).messages")
    assert [m["content"] for m in told] == ["think", "Yes.", "next"]


@pytest.mark.parametrize("way", ["button", "escape"])
def test_an_answer_can_be_stopped(visit, way):
    page, _ = visit()
    answer = ask(page, "endless", until="article.assistant .text p")
    assert page.inner_text("#send") == "Stop"
    assert page.get_attribute("#log", "aria-busy") == "true"
    if way == "button":
        page.click("#send")
    else:
        page.keyboard.press("Escape")
    page.wait_for_selector(READY)
    assert page.inner_text("#send") == "Send"
    assert page.get_attribute("#log", "aria-busy") == "false"
    assert answer.locator(".text").inner_text().startswith("on on")
    assert "stopped" in answer.locator(".foot").inner_text()


def test_a_new_conversation_knows_nothing_of_the_old(visit):
    page, _ = visit()
    ask(page, "endless", until="article.assistant .text p")
    page.click("#new")  # in the middle of an answer
    page.wait_for_selector(READY)
    page.wait_for_selector("#welcome:not([hidden])")
    assert page.locator("article").count() == 0
    ask(page, "next")
    assert len(page.evaluate("window.requests.at(-1).messages")) == 1


def test_a_failure_is_a_sentence_and_its_question_is_forgotten(visit):
    page, _ = visit()
    answer = ask(page, "error")
    said = answer.locator(".failed").inner_text()
    assert said.startswith("The GPU was lost")
    ask(page, "next")
    assert [m["content"] for m in page.evaluate("window.requests.at(-1).messages")] == ["next"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("TypeError: Failed to fetch", "The server does not answer"),
        ("QuotaExceededError", "no room left for the weights"),
        ("Something else\\n at line 3", "Something else"),
    ],
)
def test_what_cannot_be_loaded_is_told(visit, error, words):
    page, _ = visit(gpu(), f"window.broken = '{error}'", ready="#notice:not([hidden])")
    assert page.inner_text("#notice h2") == "The model could not be loaded"
    assert words in page.inner_text("#notice .why")
    assert page.is_disabled("#prompt")


def test_settings_reach_the_engine(visit):
    page, _ = visit()
    ask(page, "first")
    assert "temperature" not in page.evaluate("window.requests.at(-1)")
    page.fill("#temperature", "0")
    page.fill("#limit", "32")
    page.uncheck("#reason")
    ask(page, "second")
    request = page.evaluate("window.requests.at(-1)")
    assert (request["temperature"], request["max_tokens"]) == (0, 32)
    assert request["extra_body"] == {"enable_thinking": False}
    page.fill("#limit", "5000")  # more than the context
    page.fill("#prompt", "third")
    page.press("#prompt", "Enter")
    assert page.evaluate("document.activeElement.id") == "limit"
    assert page.evaluate("window.requests.length") == 2


def test_everything_is_reached_by_keys_and_the_focus_is_seen(visit):
    page, _ = visit()
    page.evaluate("document.activeElement.blur()")
    outline = """() => {
        const focused = document.activeElement, marked = focused.closest(".box") ?? focused;
        const seen = [focused, marked].some(e => getComputedStyle(e).outlineStyle !== "none");
        return [focused.id || focused.className || focused.localName, seen];
    }"""
    reached = {}
    for _ in range(12):
        page.keyboard.press("Tab")
        name, seen = page.evaluate(outline)
        if name != "body":  # the end of the page
            reached[name] = seen
    assert {"skip", "new", "toggle", "prompt", "temperature", "limit", "reason"} <= set(reached)
    assert [name for name, seen in reached.items() if not seen] == []
    page.focus("#prompt")
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    assert page.input_value("#prompt") == "one\ntwo"


def test_on_a_phone_the_details_are_a_sheet(visit):
    page, _ = visit(width=360)
    assert page.is_hidden("#panel")
    page.click("#toggle")
    assert page.is_visible("#panel")
    assert page.get_attribute("#toggle", "aria-expanded") == "true"
    page.keyboard.press("Escape")
    assert page.is_hidden("#panel")


def test_the_details_tell_what_the_device_has(visit):
    page, _ = visit(gpu(features=("subgroups",)))
    device = page.inner_text("#device")
    assert "acme, rocket" in device
    assert "no, and not needed" in device
    rows = page.locator("#limits tbody tr").all_inner_texts()
    assert ["Buffer", "256 MiB", "1 GiB"] in [row.split("\t") for row in rows]


NO_GPU = "Object.defineProperty(navigator, 'gpu', {value: undefined})"
NO_ADAPTER = "Object.defineProperty(navigator, 'gpu', {value: {requestAdapter: async () => null}})"
INSECURE = "Object.defineProperty(window, 'isSecureContext', {value: false})"


@pytest.mark.parametrize(
    ("script", "title", "todo"),
    [
        pytest.param(NO_GPU, "This browser has no WebGPU", "Use a current Chrome", id="no WebGPU"),
        pytest.param(NO_ADAPTER, "The browser found no GPU", "driver", id="no adapter"),
        pytest.param(INSECURE, "This address is not secure", "ssh -L", id="insecure"),
        pytest.param(
            gpu(maxStorageBuffersPerShaderStage=8),
            "This GPU is too small for the model",
            "another GPU",
            id="limits of web-llm",
        ),
    ],
)
def test_what_is_missing_is_told_with_what_to_do(visit, script, title, todo):
    page, _ = visit(script, ready="#notice:not([hidden])")
    assert page.inner_text("#notice h2") == title
    assert todo in page.inner_text("#notice ul")
    assert page.get_attribute("#notice", "role") == "alert"


def test_a_model_for_larger_gpus_can_be_built_anew(
    visit, running, site_of, make_artifact, make_package
):
    package = make_package(STAND_IN.read_text())
    server = running(site_of(make_artifact(target="webgpu-desktop"), package))
    small = gpu(maxComputeInvocationsPerWorkgroup=256)
    page, _ = visit(small, server=server, ready="#notice:not([hidden])")
    assert page.inner_text("#notice .why") == "Workgroup threads: 256 here, 1024 needed."
    assert page.inner_text("#notice code") == "mlc-compile build MODEL --target webgpu"


def test_a_float16_model_without_shader_f16_is_told(
    visit, running, site_of, make_artifact, make_package
):
    package = make_package(STAND_IN.read_text())
    server = running(site_of(make_artifact(dtype="float16", quant="q4f16_1"), package))
    page, _ = visit(gpu(features=()), server=server, ready="#notice:not([hidden])")
    assert page.inner_text("#notice h2") == "This GPU lacks shader-f16"
    assert "mlc-compile build MODEL --target webgpu" in page.inner_text("#notice ul")
    assert "no, and the model needs it" in page.inner_text("#device")
