"""What a report is made of: one chapter per recorded federation, results and words side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedaudit.frames import Row, Tabular
from fedaudit.results import AuditResult, Finding


@dataclass(frozen=True, kw_only=True)
class Chapter(Tabular):
    """One federation as it was recorded and audited.

    federation: which one ("digits"); chapters of the same federation stand side by side
    variant: how it was protected ("unprotected", "DP-SGD"); empty where there is only one
    summary: the federation in a few lines, label -> text
    findings, results: as judged and as measured, in the order of the catalogue
    guarantees: protection -> client -> epsilon, delta, unit and who must be trusted
    evidence: hashes, versions, how to rerun, label -> text
    config: the resolved settings as TOML text, without the seed
    clients: everybody who takes part, in the order of the federation
    notices: what a reader must know before the first number: unfinished, blind
    trust: protection -> who must be honest for it to hold
    cards: audit -> heading ("Question", "Vantage", "Differs") -> paragraphs, from the audit itself
    names: client -> what its owner calls it; written only where names are asked for
    allocation: noise per client at the same budget, the document of `fedaudit allocate`
    arrived, expected: answers of clients that are on record, and those that were due
    """

    federation: str
    variant: str = ""
    summary: Mapping[str, str]
    findings: Sequence[Finding]
    results: Sequence[AuditResult]
    guarantees: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    evidence: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    clients: Sequence[str] = ()
    notices: Sequence[str] = ()
    trust: Mapping[str, str] = field(default_factory=dict)
    cards: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    allocation: Mapping[str, Any] | None = None
    arrived: int | None = None
    expected: int | None = None

    @property
    def title(self) -> str:
        return f"{self.federation}, {self.variant}" if self.variant else self.federation

    def rows(self) -> Sequence[Row]:
        """One row per finding."""
        return [{"federation": self.federation, **row} for f in self.findings for row in f.rows()]

    def estimates(self) -> Sequence[Row]:
        """One row per estimate of every audit."""
        about = {"federation": self.federation, "variant": self.variant}
        return [{**about, **row} for result in self.results for row in result.rows()]


def notices_of(chapters: Sequence[Chapter]) -> list[tuple[str, str]]:
    """Every notice with the title it is about: one that all variants of a federation share stands
    once, under the federation's name. A single chapter needs no title."""
    variants: dict[str, list[Chapter]] = {}
    for c in chapters:
        variants.setdefault(c.federation, []).append(c)
    out = []
    for c in chapters:
        alike = variants[c.federation]
        for notice in c.notices:
            shared = all(notice in other.notices for other in alike)
            title = c.federation if shared else c.title
            out.append(("" if len(chapters) == 1 else title, notice))
    return list(dict.fromkeys(out))
