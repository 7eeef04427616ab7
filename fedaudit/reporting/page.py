"""The report as one self-contained file: no network, and readable without its one small script.

    page.py         the document and its content-security policy
    overview.py     first screen: one row per question
    audit.py        one section per audit, variants side by side
    promises.py     what the protections promise
    tables.py       tables of clients, and the small drawing beside every number
    terms.py        terms, explained where they first stand
    templates/      the markup; `environment.py` escapes all text that it prints
    page.css, page.js   are put into the file; the policy in its head allows these two alone

The script only adds to the page: it sorts tables, reads out values of figures, and highlights a
client wherever it stands.
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
from fedaudit.reporting.overview import FederationOverview, parts
from fedaudit.reporting.promises import protected
from fedaudit.reporting.rules import RULES, VERDICTS, label_of
from fedaudit.reporting.tables import LEGEND, dot
from fedaudit.reporting.terms import Glossary
from fedaudit.reporting.text import cell

ABOUT = ("arrived", "protected by", "promised", "held out", "truth", "state")
"""Lines of a summary that set one variant apart from another."""


@lru_cache
def _inlined(name: str) -> tuple[str, str]:
    """A file beside this one, and the policy's source expression for exactly its text."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return text, f"'sha256-{digest}'"


def page(chapters: Sequence[Chapter], *, title: str = "", notices: Sequence[str] = ()) -> str:
    """The report of one or several chapters as one HTML document.

    Clients have the names that the chapters give them: see `names.renamed`.
    """
    style, style_hash = _inlined("page.css")
    script, script_hash = _inlined("page.js")
    divided = parts(chapters)
    plural = "these federations give" if len(divided) > 1 else "this federation gives"
    whole = (
        html()
        .get_template("page.html")
        .render(
            policy=f"default-src 'none'; style-src {style_hash}; script-src {script_hash}; "
            "base-uri 'none'; form-action 'none'",
            style=style,
            script=script,
            heading=title or f"What {plural} away",
            notices=notices,
            chapter_notices=notices_of(chapters),
            federations=divided,
            contents=_contents(divided),
            about=ABOUT,
            rules=list(RULES.values()),
            rule_ids=set(RULES),
            verdicts=VERDICTS,
            audits=by_audit(divided),
            protections=protected(divided),
            chapters=chapters,
            terms=Glossary(),
            legend=LEGEND,
            label_of=label_of,
            dot=dot,
            cell=cell,
        )
    )
    # a file cannot hold half a surrogate pair, which JSON can
    return whole.encode("utf-8", "replace").decode("utf-8")


def _contents(divided: Sequence[FederationOverview]) -> list[tuple[str, str]]:
    """(anchor, words) of every section."""
    audits = dict.fromkeys(q.audit for part in divided for q in part.questions)
    return [
        *((f"federation-{i}", part.federation) for i, part in enumerate(divided)),
        ("rules", "how verdicts are made"),
        *((f"audit-{i}", audit.replace("_", " ")) for i, audit in enumerate(audits)),
        ("protections", "protections"),
        ("evidence", "evidence"),
    ]
