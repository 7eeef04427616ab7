"""Input of a report: one chapter per recorded federation, with results and findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedaudit.frames import Row, Tabular
from fedaudit.results import AuditResult, Estimate, Finding


@dataclass(frozen=True, kw_only=True)
class Chapter(Tabular):
    """One recorded and audited federation.

    federation: its name ("digits"); chapters of the same federation stand side by side
    variant: its protection ("unprotected", "DP-SGD"); empty if there is only one
    summary: label -> text, the federation in a few lines
    findings, results: verdicts and measurements, in the order of the catalogue
    guarantees: protection -> client -> epsilon, delta, unit and trusted party
    evidence: label -> text: hashes, versions, how to rerun
    config: the resolved settings as TOML, without the seed
    clients: all clients, in the order of the federation
    notices: warnings to read first: unfinished, blind
    trust: protection -> trusted party
    cards: audit -> heading ("Question", "Vantage", "Differs") -> paragraphs of its docstring
    names: client -> the owner's name for it; shown on request only
    allocation: output of `fedaudit allocate`: noise per client at the same budget
    arrived, expected: recorded and expected answers of clients
    utility: held-out metric of the last model -> its estimate
    data_notes: clients that lost records or have few
    folder: the run's folder, as seen from the report's; None if there is none
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
    utility: Mapping[str, Estimate] = field(default_factory=dict)
    data_notes: Sequence[str] = ()
    folder: str | None = None

    @property
    def title(self) -> str:
        return f"{self.federation}, {self.variant}" if self.variant else self.federation

    @property
    def heading(self) -> str:
        """Its column beside other variants: a run that has no name is named by its protections."""
        named = f"with {', '.join(self.trust)}" if self.trust else "as recorded"
        return self.variant or named

    def rows(self) -> Sequence[Row]:
        """One row per finding."""
        return [{"federation": self.federation, **row} for f in self.findings for row in f.rows()]

    def estimates(self) -> Sequence[Row]:
        """One row per estimate of every audit."""
        about = {"federation": self.federation, "variant": self.variant}
        return [{**about, **row} for result in self.results for row in result.rows()]


def notices_of(chapters: Sequence[Chapter], about: str = "notices") -> list[str]:
    """All notices (or `data_notes`), each with its chapter's title; a single chapter needs none.

    A notice that all variants of a federation share appears once, under the federation's name.
    """
    variants: dict[str, list[Chapter]] = {}
    for c in chapters:
        variants.setdefault(c.federation, []).append(c)
    out = []
    for c in chapters:
        alike = variants[c.federation]
        for notice in getattr(c, about):
            shared = all(notice in getattr(other, about) for other in alike)
            title = c.federation if shared else c.title
            out.append(notice if len(chapters) == 1 else f"{title}: {notice}")
    return list(dict.fromkeys(out))
