"""The example's report in a browser: silent, no wider than the screen, sortable."""

import pytest

from tests.chromium import launched

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page_file(cli, build_model, tiny_checkpoint, tmp_path_factory):
    """The report of the example as a page."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    ran = cli("inspect", build_model(tiny_checkpoint), "--html", path)
    assert ran.code == 0, ran.err
    return path


@pytest.fixture(scope="module")
def browser():
    """Chromium."""
    with launched() as chromium:
        yield chromium


@pytest.fixture
def opened(browser, page_file):
    """`opened(width, scheme)`: the page in a fresh browser, and what it said or asked for."""
    contexts = []

    def open_(width, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page, said = context.new_page(), []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url))
        page.goto(page_file.as_uri())
        return page, [line for line in said if line != page_file.as_uri()]

    yield open_
    for context in contexts:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen_and_says_nothing(opened, tmp_path, width, scheme):
    page, said = opened(width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    picture = page.screenshot(path=tmp_path / "report.png")
    assert len(picture) > 10_000  # something is drawn
    assert [line for line in said if not line.startswith("data:")] == []


def test_a_heading_sorts_its_table(opened):
    page, _ = opened(1280)
    table = page.locator("table.sortable", has_text="operations").first
    heading = table.locator("th", has_text="operations")

    def values():
        column = "[...rows].map(row => Number(row.cells[8].dataset.value))"
        return table.locator("tbody").evaluate(
            f"body => {{ const rows = body.rows; return {column} }}"
        )

    before = values()
    heading.locator("button").click()
    assert values() == sorted(before)
    heading.locator("button").click()
    assert values() == sorted(before, reverse=True)
    assert heading.get_attribute("aria-sort") == "descending"


def test_the_dark_scheme_is_dark(opened):
    def paper(scheme):
        page, _ = opened(390, scheme)
        color = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(n) for n in color.strip("rgb()").split(","))

    assert paper("dark") < 128
    assert paper("light") > 600
