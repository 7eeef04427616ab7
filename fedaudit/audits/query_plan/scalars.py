"""Audit of sums of inner products: which groups they expose, and whether the terms were kept.

A sum of products tells of a group's update what its templates span, no more. The combinations are
those of sums of updates: whoever has the templates has the products of the training aggregate too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedaudit.audits.query_plan.theory import align_clients, audit_plan
from fedaudit.stats import query_algebra
from fedaudit.trace import View
from fedaudit.trace.ledger import RoundQueries, scalar_queries
from fedaudit.trace.schema import RELEASE, SCALARS


@dataclass(frozen=True, kw_only=True)
class ScalarPlan:
    """`smallest`, `floor`: clients in the smallest group whose products some combination of a
    round's answers gives, as found and as proven; `templates`: products per group; `width`: numbers
    in an update; `answers`: over all `rounds`; `terms`: what the owner stated before round 1."""

    smallest: int
    floor: int
    templates: int
    width: int
    answers: int
    rounds: int
    refused: int
    terms: Mapping[str, Any]

    @property
    def notes(self) -> tuple[str, ...]:
        stated = self.terms.get("commitment")
        kept = (
            f"documents committed to as {str(stated)[:16]}"
            if stated
            else "no commitment to the documents was recorded before round 1"
        )
        return (
            f"scalars: {self.answers} sums of {self.templates} products in {self.rounds} rounds "
            f"span at most {self.templates} of {self.width:,} directions of a group's update; "
            f"{kept}",
            *((f"{self.refused} sums of products refused or failed",) if self.refused else ()),
        )


def scalar_plan(view: View, totals: Sequence[RoundQueries]) -> ScalarPlan | None:
    """The plan of all sums of products that `view` contains, beside the rounds' sums of updates."""
    if SCALARS not in view.layouts:
        return None
    asked = [scalar_queries(view, number) for number in view.rounds]
    answered = [a for a in asked if len(a.answered)]
    if not answered:
        return None
    by_round = {a.round: a for a in totals}
    found = []
    for one in answered:
        beside = [by_round[one.round]] if one.round in by_round else []
        _, matrices = align_clients([one, *beside])
        work = query_algebra.WORK // len(answered)
        found.append(audit_plan(np.concatenate(matrices), work=work))
    return ScalarPlan(
        smallest=min(p.min_support for p in found),
        floor=min(p.min_support_floor for p in found),
        templates=view.layouts[SCALARS].width,
        width=view.layout.width,
        answers=sum(len(a.answered) for a in answered),
        rounds=len(answered),
        refused=sum(len(a.queries) - len(a.answered) for a in asked),
        terms=next((d for d in view.declared if d.get(RELEASE) == SCALARS), {}),
    )
