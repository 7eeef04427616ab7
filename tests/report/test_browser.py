"""A report in a real browser: it shows, it is silent, it asks the network for nothing."""

import shutil

import pytest

from fedaudit import experiment

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium binary on this machine (apt-get install chromium)"
)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    overrides = ["federation.rounds=4", "task.hidden=[8]"]
    return experiment.run(None, tmp_path_factory.mktemp("b") / "run", overrides=overrides)


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_the_report_shows_quietly(report, browser, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((report.path / "report.html").resolve().as_uri())
    assert said == []
    assert asked == [(report.path / "report.html").resolve().as_uri()]
    assert page.locator("table.headline").is_visible()
    assert page.locator("table.headline tbody tr").count() == len(report.findings)
    assert page.locator("table.clients tbody tr").count() == 20
    across = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert across[0] <= across[1] == width
    ink, paper = page.evaluate(
        "(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))"
    )
    assert ink != paper
    dark = sum(int(v) for v in paper[4:-1].split(",")) < 3 * 128
    assert dark is (scheme == "dark")
    context.close()
