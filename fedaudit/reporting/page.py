"""The report as one HTML file without network access, readable without its script.

    page.py         the document and its content-security policy
    first_page.py   first page: two sentences, the matrix, the cost, the next step
    cards.py        one folded card per question; scale.py draws its picture
    audit.py        method, numbers and figures of an audit, one click below its card
    promises.py     promises of the protections
    tables.py       tables of clients, and the small plot of an estimate
    terms.py        tooltips of terms, and the glossary at the end
    templates/      the markup; `environment.py` escapes all printed text
    page.css, page.js   inlined; the policy allows only these two

The script sorts tables, reads out values of figures, and highlights a client across the page.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from fedaudit.reporting.cards import cards
from fedaudit.reporting.chapter import Chapter, notices_of
from fedaudit.reporting.environment import html
from fedaudit.reporting.first_page import key_of, summarise
from fedaudit.reporting.overview import by_federation, report_heading
from fedaudit.reporting.promises import protected_chapters
from fedaudit.reporting.rules import CALIBRATION, RULES, VERDICTS
from fedaudit.reporting.tables import LEGEND
from fedaudit.reporting.terms import Glossary
from fedaudit.reporting.text import cell


@lru_cache
def inlined(name: str) -> tuple[str, str]:
    """The text of a file in this folder, and its source expression for the policy."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return text, f"'sha256-{digest}'"


def policy_of(*, script: bool) -> str:
    """Content-security policy: our style only, and our script if there is one."""
    scripts = f"script-src {inlined('page.js')[1]}; " if script else ""
    return (
        f"default-src 'none'; style-src {inlined('page.css')[1]}; {scripts}"
        "base-uri 'none'; form-action 'none'"
    )


def page(
    chapters: Sequence[Chapter], *, title: str = "", notices: Sequence[str] = (), place: str = ""
) -> str:
    """One or several chapters as one HTML document; `names.renamed` sets the clients' names.

    `place` is the folder of the report, as commands on the page name it.
    """
    style, script = inlined("page.css")[0], inlined("page.js")[0]
    overviews = by_federation(chapters)
    asked = list(cards(overviews))
    first = [summarise(part, place) for part in overviews]
    whole = (
        html()
        .get_template("page.html")
        .render(
            policy=policy_of(script=True),
            style=style,
            script=script,
            heading=title or report_heading(overviews),
            notices=[*notices, *notices_of(chapters)],
            federations=overviews,
            first=first,
            key=key_of(first),
            rules=list(RULES.values()),
            rule_ids=set(RULES),
            calibration=CALIBRATION,
            verdicts=VERDICTS,
            cards=asked,
            card_of={card.audit: i for i, card in enumerate(asked)},
            remarks=notices_of(chapters, "data_notes"),
            protections=[p for p in protected_chapters(overviews) if p.promises or p.allocated],
            chapters=chapters,
            terms=Glossary(),
            legend=LEGEND,
            cell=cell,
        )
    )
    # JSON can hold half a surrogate pair, a file cannot
    return whole.encode("utf-8", "replace").decode("utf-8")
