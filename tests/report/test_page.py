"""The page holds what the report says, escapes what strangers named, and asks for nothing."""

import html
import re
import subprocess
import sys
from html.parser import HTMLParser

import msgspec
import pytest

from mlc_compile.artifact import REPORT, Manifest, read_manifest
from mlc_compile.emit.cuda.resources import Resources
from mlc_compile.emit.vulkan.shaders import ShaderFacts
from mlc_compile.quant.error import TensorError
from mlc_compile.report.page import render
from mlc_compile.report.schema import Curve, Event, ReadReport
from mlc_compile.report.weights import errors_of
from mlc_compile.runtime.defaults import read_fields

HOSTILE = "<script>alert('x')</script>\"&"


@pytest.fixture(scope="module")
def parts(nano_artifact):
    """(manifest, report) of the nano model."""
    manifest = read_manifest(nano_artifact, Manifest)
    return manifest, read_fields(nano_artifact, REPORT, ReadReport)


@pytest.fixture(scope="module")
def page(parts):
    """What is rendered of them; the plots take seconds."""
    return render(*parts)


class Elements(HTMLParser):
    """Names and attributes of all elements."""

    def __init__(self, page):
        super().__init__()
        self.seen = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))


def test_every_kernel_event_weight_and_function_is_there(parts, page):
    (manifest, report), page = parts, html.unescape(page)
    for kernel in report.kernels:
        assert f">{kernel.name}</td>" in page
    for event in report.events:
        assert event.source in page
        assert event.reason in page
    for weight in report.weights:
        assert weight.name in page
    for function in report.memory.functions:
        assert f"<td>{function.name}</td>" in page
    assert manifest.check.told() in page


def test_equal_reports_give_equal_bytes_in_any_process(page, nano_artifact):
    code = (
        "import sys; from pathlib import Path\n"
        "from mlc_compile.artifact import Manifest, read_manifest\n"
        "from mlc_compile.report.page import render\n"
        "from mlc_compile.report.schema import ReadReport\n"
        "from mlc_compile.runtime.defaults import read_fields\n"
        f"place = Path({str(nano_artifact)!r})\n"
        "report = read_fields(place, 'report.json', ReadReport)\n"
        "sys.stdout.write(render(read_manifest(place, Manifest), report))\n"
        "assert 'tvm' not in sys.modules\n"
    )
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "SOURCE_DATE_EPOCH": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout == page


def test_names_are_text_and_never_markup(parts):
    manifest, report = parts
    event = Event(source=HOSTILE, subject=HOSTILE, outcome="refused", reason=HOSTILE)
    kernel = msgspec.structs.replace(report.kernels[0], name=HOSTILE, weights=(HOSTILE,))
    weight = msgspec.structs.replace(report.weights[0], name=HOSTILE, sources=(HOSTILE,))
    page = render(
        msgspec.structs.replace(manifest, model=HOSTILE),
        msgspec.structs.replace(
            report, model=HOSTILE, events=(event,), kernels=(kernel,), weights=(weight,)
        ),
    )
    scripts = [tag for tag, _ in Elements(page).seen if tag == "script"]
    assert scripts == ["script"]  # the page's own
    assert HOSTILE not in page
    assert "&lt;script&gt;alert" in page


def test_nothing_is_fetched(page):
    for tag, attrs in Elements(page).seen:
        for name in ("src", "href", "xlink:href", "action", "data", "poster"):
            assert (attrs.get(name) or "#").startswith(("#", "data:")), (tag, attrs)
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    assert html.unescape(policy).startswith("default-src 'none';")


def test_plots_take_the_page_s_colors(page):
    plots = re.findall(r"<svg class=\"plot\".*?</svg>", page, re.DOTALL)
    assert len(plots) == 6  # memory, stages and roofline of a token and of a prompt
    for plot in plots:
        # What is left in a fixed color is drawn by nobody: clips, and none of our marks.
        assert set(re.findall(r"(?:fill|stroke): (#\w+)", plot)) == set()
        assert "var(--" in plot


def test_errors_are_those_of_the_weights_that_were_packed(parts, page, nano_artifact, tmp_path):
    manifest, report = parts
    errors = errors_of(nano_artifact, manifest)
    assert {e.name for e in errors} == {s for w in report.weights for s in w.sources}
    assert errors_of(tmp_path, manifest) == ()
    other = msgspec.structs.replace(manifest, weights_digest="0")
    assert errors_of(nano_artifact, other) == ()
    (known,) = {w.sources for w in report.weights if w.name == "model.embed_tokens"}
    told = TensorError(name=known[0], scheme="q", rms=1, relative=0.1234, largest=0.5)
    assert "12.34 %" in render(manifest, report, [told])
    assert "quantization.json" in page  # where they would be


def test_tuning_is_drawn_where_there_was_some(parts, page):
    manifest, report = parts
    assert "<h2>Tuning</h2>" not in page
    curve = Curve(kernel="int8_gemv", trials=(1, 8, 64), seconds=(3e-4, 2e-4, 1e-4))
    page = render(manifest, msgspec.structs.replace(report, tuning=(curve,)))
    assert "<h2>Tuning</h2>" in page


def test_what_a_gpu_s_kernels_take_is_told_where_a_compiler_says(parts, page):
    manifest, report = parts
    assert "Registers and shared memory" not in page
    taken = Resources(
        kernel="gemv_kernel",
        arch="sm_90",
        threads=256,
        registers=40,
        shared_bytes=4096,
        local_bytes=0,
        spill_store_bytes=8,
        spill_load_bytes=8,
        occupancy=0.75,
    )
    page = render(manifest, msgspec.structs.replace(report, resources=(taken,)))
    row = page[page.index("gemv_kernel") :].partition("</tr>")[0]
    assert all(text in row for text in ("sm_90", ">256<", ">40<", "4.0 KiB", "8 B", "75 %"))


def test_what_a_vulkan_kernel_takes_is_told_where_there_are_some(parts, page):
    manifest, report = parts
    assert "<h2>Shaders</h2>" not in page
    facts = ShaderFacts(
        kernel="gemv_kernel",
        local_size=(64, 2, 1),
        shared_bytes=4096,
        buffers=5,
        scalars=17,
        uniform_block=True,
        capabilities=("Float16", "Shader"),
        code_bytes=20480,
    )
    page = render(manifest, msgspec.structs.replace(report, shaders=(facts,)))
    row = page[page.index("gemv_kernel") :].partition("</tr>")[0]
    told = (
        "64 \u00d7 2 \u00d7 1",
        "4.0 KiB",
        ">5<",
        "17 in a block",
        "20.0 KiB",
        "Float16, Shader",
    )
    assert [text for text in told if text not in row] == []
