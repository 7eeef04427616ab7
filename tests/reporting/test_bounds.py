"""A bound reads the same in terminal, Markdown and HTML: value, unit, relation, cover, source,
assumption."""

import io
import re
from dataclasses import replace
from html import unescape

import pytest
from rich.console import Console

from fedaudit.reporting.chapter import Chapter
from fedaudit.reporting.findings import judge_all
from fedaudit.reporting.markdown import markdown
from fedaudit.reporting.page import page
from fedaudit.reporting.text import show_study
from fedaudit.results import AuditResult, Bound, Estimate

STEP = Bound(
    value=0.8413,
    kind="upper",
    of="success",
    source="[X] Theorem 9",
    assumes="a coin that is fair",
    unit="record",
    relation="replace_one",
    covers="one full-batch step",
)
RUN = replace(STEP, value=0.9912, kind="extended", covers="all 10 rounds")


def chapter():
    result = AuditResult(
        audit="active_membership",
        question="Can it?",
        vantage="server",
        headline="success",
        estimates={"success": Estimate(value=0.7, low=0.6, high=0.8, n=20, baseline=0.5)},
        bounds={"step": STEP, "run": RUN},
        detectable=0.6,
    )
    return Chapter(
        federation="digits",
        variant="noisy",
        summary={"federation": "3 clients"},
        findings=judge_all([result]),
        results=[result],
    )


def terminal():
    out = io.StringIO()
    show_study(Console(file=out, width=100, highlight=False), [chapter()])
    return out.getvalue()


def as_text(shown):
    """Without markup, escapes and line breaks."""
    plain = unescape(re.sub(r"<[^>]+>", "", shown)).replace("\\", "")
    return " ".join(plain.split())


@pytest.mark.parametrize(
    "shown", [terminal, lambda: markdown([chapter()]), lambda: page([chapter()])]
)
def test_bounds_state_all_they_need_to_be_read(shown):
    text = as_text(shown())
    for value, covers in (("84.1 %", "one full-batch step"), ("99.1 %", "all 10 rounds")):
        assert (
            f"at most {value} ({covers}; record level, replace one; [X] Theorem 9; assumes a coin "
            "that is fair)"
        ) in text
