"""Cards of audits for the report: question, vantage, paper and differences, from docstrings."""

from __future__ import annotations

import importlib
import re

from fedaudit.setup.catalogue import AUDITS, find

HEADINGS = ("Question", "Vantage", "Paper", "Differs", "Shapes")

PARTIES = {"SERVER": "the server", "WIRETAP": "a wiretap"}
"""Observer in a card -> its name in a report."""


def card(audit: str) -> dict[str, tuple[str, ...]]:
    """The card of an audit, from the docstring of its module: heading -> paragraphs."""
    module = find(AUDITS, "audit", audit).__module__
    for name in (module, module.rpartition(".")[0]):
        text = importlib.import_module(name).__doc__ or ""
        if re.search(r"^Differs:", text, re.MULTILINE):
            return read_card(text)
    return {}


def read_card(text: str) -> dict[str, tuple[str, ...]]:
    """Headings of a docstring and the paragraphs below them, without lists of files."""
    pieces = re.split(rf"^({'|'.join(HEADINGS)}):", text, flags=re.MULTILINE)
    out = {}
    for heading, inside in zip(pieces[1::2], pieces[2::2], strict=True):
        paragraphs = []
        for block in re.split(r"\n\s*\n", inside):
            if not block.strip() or re.match(r"\n*    \S", block) or block.startswith("Read "):
                continue
            for item in re.split(r"(?:^|\n)- |\s(?=\(\d\) )", block):
                plain = " ".join(item.split()).replace(" One file per part:", "").replace("`", "")
                for party, words in PARTIES.items():
                    plain = plain.replace(party, words)
                if plain:
                    paragraphs.append(plain[0].upper() + plain[1:])
        out[heading] = tuple(paragraphs)
    return out
