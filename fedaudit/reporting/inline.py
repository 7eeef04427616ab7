"""Figures of a report, one by one, for a notebook."""

from __future__ import annotations

from collections.abc import Sequence

from fedaudit.frames import SvgFigure
from fedaudit.reporting.audit import figure_rows
from fedaudit.reporting.chapter import Chapter


def inline_figures(chapters: Sequence[Chapter]) -> tuple[SvgFigure, ...]:
    """Every figure that a report over `chapters` draws, audit by audit."""
    out = []
    for federation in dict.fromkeys(c.federation for c in chapters):
        own = [c for c in chapters if c.federation == federation]
        for audit in dict.fromkeys(r.audit for c in own for r in c.results):
            of = [(c.variant, c, r) for c in own for r in c.results if r.audit == audit]
            for _, row in figure_rows(federation, of, always=True):
                out += [
                    SvgFigure(svg=str(f.svg), title=f.title, caption=f.words, audit=audit)
                    for f in row
                    if f.svg
                ]
    return tuple(out)
