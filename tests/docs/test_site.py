"""The site and the README: every page is in the menu, no link is dead, no picture is heavy."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def test_every_page_stands_in_the_menu_once():
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    named = re.findall(r":\s+([\w/-]+\.md)$", menu, re.MULTILINE)
    assert sorted(named) == sorted(str(p.relative_to(ROOT / "docs")) for p in PAGES)


@pytest.mark.parametrize("text", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(text):
    for target in LINK.findall(text.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (text.parent / target).exists(), target


def commands(text):
    """Lines and spans of code that begin with `fedaudit`, continued lines joined."""
    joined = re.sub(r"\\\n\s*", " ", text)
    return re.findall(r"(?:`|^ {4}|^\$ |^)fedaudit ([a-z][^`\n]*)", joined, re.MULTILINE)


@pytest.mark.parametrize("text", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_and_their_options_exist(text):
    from typer.main import get_command

    from fedaudit.cli import app

    for line in commands(text.read_text(encoding="utf-8")):
        if line.startswith(("runs ", "tells ")):
            continue  # "fedaudit runs or records": verbs
        words = line.split("#")[0].split()
        known = get_command(app)
        while words and hasattr(known, "commands"):
            found = known.get_command(None, words.pop(0))
            assert found is not None, line
            known = found
        options = {o for p in known.params for o in (*p.opts, *p.secondary_opts)}
        for word in words:
            if word.startswith("--"):
                assert word.partition("=")[0] in options, line


def test_pictures_are_light():
    for picture in (ROOT / "docs" / "img").iterdir():
        assert picture.stat().st_size < 200_000, picture.name


REPORTS = sorted((ROOT / "docs" / "gallery").glob("*.html"))


@pytest.mark.parametrize("report", REPORTS, ids=lambda p: p.name)
def test_reports_of_the_gallery_are_whole_light_and_without_network(report):
    text = report.read_text(encoding="utf-8")
    assert report.stat().st_size < 1_500_000
    assert text.rstrip().endswith("</html>")
    assert 'class="matrix"' in text
    assert not re.search(r"(?:src|href)=[\"'](?!#)", text)
    assert "failed" not in re.findall(r'class="cell (\w+)"', text)


def test_the_gallery_shows_three_reports():
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert len(REPORTS) >= 3
    assert {f"gallery/{r.name}" for r in REPORTS} <= set(LINK.findall(page))
