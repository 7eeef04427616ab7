"""A study in a real browser: all figures are drawn, no errors, no network requests.

Screenshots go to the folder FEDAUDIT_SCREENSHOTS, or to the test's own. axe-core is not part of the
package: `make browser` fetches it.
"""

import os
import re
import shutil
from pathlib import Path

import pytest

from fedaudit.study import run
from fedaudit.study.chapters import chapter_at, write_study

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = Path(os.environ.get("FEDAUDIT_AXE", Path(__file__).parents[2] / ".cache/axe/axe.min.js"))
GALLERY = sorted((Path(__file__).parents[2] / "docs" / "gallery").glob("*.html"))
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium binary on this machine (apt-get install chromium)"
)

AUDITS = {
    "coverage": {},
    "fingerprint": {},
    "query_plan": {},
    "two_stage_membership": {"records": 8, "references": 2, "checked_rounds": 1},
}
VARIANTS = {
    "unprotected": {"shuffle": {}},
    "DP-SGD": {"shuffle": {}, "dp_sgd": {"noise_multiplier": 1.0}},
    "secure aggregation": {"secure_aggregation": {"threshold": 2}},
}
DATA = {
    "mixture": {"name": "gaussian-mixture", "records": 160, "dimension": 6},
    "digits": {"name": "digits"},
}
SHAPES = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two federations, one of them in three variants, with several audits each."""
    home = tmp_path_factory.mktemp("study")
    chapters = []
    for data, variant in [*(("mixture", v) for v in VARIANTS), ("digits", "unprotected")]:
        config = {
            "seed": 5,
            "data": DATA[data],
            "task": {"kind": "mlp", "hidden": [6], "activation": "gelu"},
            "federation": {"clients": 5, "rounds": 3},
            "protections": VARIANTS[variant],
            "audits": AUDITS,
        }
        folder = home / f"{data} {variant}"
        run(config, folder)
        chapters.append(chapter_at(folder, federation=data, variant=variant))
    write_study(home / "study", chapters)
    return home / "study" / "report.html"


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        opened = p.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, study):
    """Opens the study, or another report: width, scheme, other options of a browser context."""
    contexts = []

    def opened(width=1280, scheme="light", report=study, **more):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, **more
        )
        contexts.append(context)
        page = context.new_page()
        page.said, page.asked = [], []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(report.resolve().as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()


def open_all(page):
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")


@pytest.mark.parametrize(("width", "scheme"), SHAPES)
def test_it_renders_without_errors_at_any_width_and_scheme(visit, study, tmp_path, width, scheme):
    page = visit(width, scheme)
    shots = Path(os.environ.get("FEDAUDIT_SCREENSHOTS", tmp_path))
    shots.mkdir(parents=True, exist_ok=True)
    assert page.locator("details[open]").count() == 0
    page.screenshot(path=shots / f"first-{width}-{scheme}.png")
    assert page.locator("table.matrix").first.is_visible()
    open_all(page)
    for part in ("card-0", "card-1", "card-2", "protections"):
        page.evaluate("part => document.getElementById(part).scrollIntoView()", part)
        page.screenshot(path=shots / f"{part}-{width}-{scheme}.png")
    assert page.said == []
    assert page.asked == [study.resolve().as_uri()]
    across = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert across[0] <= across[1] == width
    ink, paper = page.evaluate(
        "(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))"
    )
    assert ink != paper
    dark = sum(int(v) for v in paper[4:-1].split(",")) < 3 * 128
    assert dark is (scheme == "dark")


DRAWN = """svgs => svgs.map(svg => {
  const box = svg.getBoundingClientRect();
  const marks = [...svg.querySelectorAll("polyline, path, circle, polygon")].filter(m => {
    const b = m.getBBox({stroke: true}), s = getComputedStyle(m);
    return Math.max(b.width, b.height) > 0 && (s.stroke !== "none" || s.fill !== "none");
  });
  return [svg.getAttribute("aria-label"), box.width, box.height, marks.length];
})"""


def test_every_figure_is_drawn(visit):
    page = visit()
    open_all(page)
    figures = page.locator("figure svg").evaluate_all(DRAWN)
    assert len(figures) >= 12
    assert page.locator("figure").count() == len(figures)
    dots = page.locator("td svg, svg.scale").evaluate_all(DRAWN)
    assert len(dots) >= 30
    for what, width, height, marks in [*figures, *dots]:
        assert width > 100, what
        assert height > 15, what
        assert marks >= 1, what


def column(table, at):
    return [float(t) for t in table.locator(f"tbody td:nth-child({at})").all_inner_texts()]


def test_tables_are_sorted_with_the_mouse_and_the_keyboard(visit):
    page = visit()
    open_all(page)
    table = page.locator("table.sortable", has=page.locator("th", has_text="share")).first
    heads = [t.strip() for t in table.locator("thead th").all_inner_texts()]
    at = heads.index("share") + 1
    before = column(table, at)
    head = table.locator(f"thead tr > :nth-child({at})")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(table, at) == sorted(before)
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert column(table, at) == sorted(before, reverse=True)
    # back to the clients' own order, by the space bar; 10 comes after 9
    table.locator("thead th").first.locator("button").focus()
    page.keyboard.press("Space")
    names = table.locator("tbody td:first-child").all_inner_texts()
    assert names == [f"client {i}" for i in range(1, 6)]
    assert head.get_attribute("aria-sort") is None


def test_a_client_is_highlighted_in_all_places(visit):
    page = visit()
    open_all(page)
    page.locator("button.name", has_text="client 2").first.click()
    page.mouse.move(0, 0)
    lit = page.locator(".lit").evaluate_all("es => es.map(e => [e.tagName, e.dataset.client])")
    assert {key for _, key in lit} == {"0-2"}
    assert {"TR", "g"} <= {tag for tag, _ in lit}
    assert len(lit) >= 6
    page.locator("button.name[aria-pressed=true]").first.press("Enter")
    page.mouse.move(0, 0)
    assert page.locator(".lit").count() == 0


def test_figures_read_out_their_values(visit):
    page = visit()
    open_all(page)
    figure = page.locator("figure", has=page.locator("g.who")).first
    svg, told = figure.locator("svg"), figure.locator("output")
    assert told.inner_text() == ""
    svg.focus()
    page.keyboard.press("ArrowRight")
    assert told.inner_text().startswith("client 1: ")
    page.keyboard.press("ArrowRight")
    assert told.inner_text().startswith("client 2: ")
    svg.evaluate("e => e.blur()")
    assert told.inner_text() == ""
    figure.locator("circle").nth(2).hover()
    assert told.inner_text().startswith("client 3: ")


def test_without_the_script_everything_still_reads(visit):
    page = visit(java_script_enabled=False)
    assert page.locator("table.matrix").first.is_visible()
    assert page.locator("button").count() == 0
    assert page.locator("table.sortable tbody tr").count() >= 10
    assert page.locator(".terms dfn").count() >= 15


def test_no_other_script_runs(visit):
    page = visit()
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'),"
        " {textContent: 'window.planted = 1'}))"
    )
    assert page.evaluate("window.planted") is None
    assert any("Content Security Policy" in said for said in page.said)


def test_the_keyboard_gets_past_the_head_of_the_page(visit):
    page = visit()
    page.keyboard.press("Tab")
    skip = page.locator(":focus")
    assert skip.inner_text() == "Skip to the findings"
    box = skip.bounding_box()
    assert box["x"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main"


def pages(pdf):
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf))


def test_paper_shows_what_matters_and_no_controls(visit, tmp_path):
    page = visit(scheme="dark")
    cards = page.locator("details.card:not([open])")
    assert cards.count() >= 3
    page.emulate_media(media="print")
    inside = "ds => ds.map(d => d.querySelector('.parts').getBoundingClientRect().height)"
    assert min(cards.evaluate_all(inside)) > 0
    assert page.locator("#rules table").is_visible()
    # what lies one click below a card stays on the screen
    assert not page.locator(".deep").first.is_visible()
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb(255, 255, 255)"
    arrow = "getComputedStyle(document.querySelector('th button'), '::after').content"
    assert page.evaluate(arrow) == "none"
    shots = Path(os.environ.get("FEDAUDIT_SCREENSHOTS", tmp_path))
    whole = page.pdf(path=shots / "print.pdf", format="A4", print_background=True)
    assert 3 <= pages(whole) <= 12


def test_the_first_page_is_one_sheet_of_paper(visit):
    page = visit()
    assert page.locator("#first").evaluate("e => e.matches('main > :first-child')")
    page.evaluate("document.querySelectorAll('main > :not(#first)').forEach(e => e.remove())")
    assert pages(page.pdf(format="A4")) == 1
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.getElementById('first')).breakAfter") == "page"


@pytest.mark.parametrize("report", GALLERY, ids=lambda p: p.stem)
def test_first_pages_of_real_studies_are_one_sheet_and_short(visit, report):
    """Those of the gallery: among them the built-in study, the longest there is by default."""
    page = visit(report=report)
    said = page.locator("h1, .sum h2, .today, .best").all_inner_texts()
    assert sum(len(text.split()) for text in said) <= 150
    assert len(page.locator("body").inner_text().split()) <= 1500
    page.evaluate("document.querySelectorAll('main > :not(#first)').forEach(e => e.remove())")
    assert pages(page.pdf(format="A4")) == 1


def test_on_a_phone_every_cell_names_its_protection(visit):
    """The matrix is stacked, so that nothing has to be scrolled sideways."""
    page = visit(width=390)
    cells = page.locator("#first td[data-of]")
    assert cells.count() > 10
    inside = "es => Math.max(...es.map(e => e.getBoundingClientRect().right))"
    assert cells.evaluate_all(inside) <= 390
    shown = "es => es.map(e => getComputedStyle(e, '::before').content)"
    assert not {"none", "normal", '""'} & {*cells.evaluate_all(shown)}
    heads = page.locator("#first thead th").all_text_contents()
    assert {*cells.evaluate_all("es => es.map(e => e.dataset.of)")} <= {*heads}
    assert not page.locator("#first thead").first.is_visible()


def test_the_first_page_is_short(visit):
    page = visit()
    said = page.locator("h1, .sum h2, .today, .best").all_inner_texts()
    assert sum(len(text.split()) for text in said) <= 150


def test_a_question_in_the_matrix_opens_its_card(visit):
    page = visit()
    link = page.locator("table.matrix tbody th a").first
    card = page.locator(link.get_attribute("href"))
    assert card.get_attribute("open") is None
    link.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("s => document.querySelector(s).open", arg=link.get_attribute("href"))
    assert card.locator("svg.scale").first.is_visible()
    assert not card.locator("table").first.is_visible()
    card.locator(".deep > summary").first.press("Enter")
    assert card.locator(".answers").first.is_visible()


@pytest.mark.skipif(not AXE.exists(), reason=f"{AXE.name} is missing (make browser)")
@pytest.mark.parametrize(("width", "scheme"), [SHAPES[0], SHAPES[-1]])
def test_axe_finds_nothing_serious(visit, width, scheme):
    # the page's policy would refuse axe itself
    page = visit(width, scheme, bypass_csp=True)
    open_all(page)
    page.add_script_tag(path=AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    bad = [
        (v["id"], v["impact"], v["nodes"][0]["html"][:200], v["nodes"][0].get("failureSummary"))
        for v in found
        if v["impact"] in ("serious", "critical")
    ]
    assert bad == []


def test_it_is_small(study):
    assert study.stat().st_size < 1_500_000
