"""The report as one HTML file without network access, readable without its script.

    page.py         the document and its content-security policy
    overview.py     first screen: one row per question
    audit.py        one section per audit, variants side by side
    promises.py     promises of the protections
    tables.py       tables of clients, and the small plot of an estimate
    terms.py        explanations of terms at their first mention
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

from fedaudit.reporting.audit import by_audit
from fedaudit.reporting.chapter import Chapter, notices_of
from fedaudit.reporting.environment import html
from fedaudit.reporting.overview import FederationOverview, by_federation, report_heading
from fedaudit.reporting.promises import protected_chapters
from fedaudit.reporting.rules import RULES, VERDICTS, label_of
from fedaudit.reporting.tables import LEGEND, dot
from fedaudit.reporting.terms import Glossary
from fedaudit.reporting.text import cell

ABOUT = ("arrived", "protected by", "promised", "held out", "truth", "state")
"""Lines of a summary that differ between variants."""


@lru_cache
def _inlined(name: str) -> tuple[str, str]:
    """The text of a file in this folder, and its source expression for the policy."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return text, f"'sha256-{digest}'"


def page(chapters: Sequence[Chapter], *, title: str = "", notices: Sequence[str] = ()) -> str:
    """One or several chapters as one HTML document; `names.renamed` sets the clients' names."""
    style, style_hash = _inlined("page.css")
    script, script_hash = _inlined("page.js")
    overviews = by_federation(chapters)
    whole = (
        html()
        .get_template("page.html")
        .render(
            policy=f"default-src 'none'; style-src {style_hash}; script-src {script_hash}; "
            "base-uri 'none'; form-action 'none'",
            style=style,
            script=script,
            heading=title or report_heading(overviews),
            notices=[*notices, *notices_of(chapters)],
            federations=overviews,
            contents=_contents(overviews),
            about=ABOUT,
            rules=list(RULES.values()),
            rule_ids=set(RULES),
            verdicts=VERDICTS,
            audits=by_audit(overviews),
            protections=protected_chapters(overviews),
            chapters=chapters,
            terms=Glossary(),
            legend=LEGEND,
            label_of=label_of,
            dot=dot,
            cell=cell,
        )
    )
    # JSON can hold half a surrogate pair, a file cannot
    return whole.encode("utf-8", "replace").decode("utf-8")


def _contents(overviews: Sequence[FederationOverview]) -> list[tuple[str, str]]:
    """(anchor, title) of every section."""
    audits = dict.fromkeys(q.audit for part in overviews for q in part.questions)
    return [
        *((f"federation-{i}", part.federation) for i, part in enumerate(overviews)),
        ("rules", "rules of the verdicts"),
        *((f"audit-{i}", audit.replace("_", " ")) for i, audit in enumerate(audits)),
        ("protections", "protections"),
        ("evidence", "evidence"),
    ]
