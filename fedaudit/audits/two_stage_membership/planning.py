"""Cost of the two stages, and how many members and others the attack needs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedaudit.audits.planning import (
    AUC_RULE,
    Aim,
    SampleSize,
    Shape,
    auc_before,
    for_rate,
    normal_quantile,
)
from fedaudit.results import AuditResult
from fedaudit.stats import power

if TYPE_CHECKING:
    from fedaudit.audits.two_stage_membership.audit import TwoStageMembership

HEADLINE = "membership_auc"


def cost(audit: TwoStageMembership, shape: Shape) -> float:
    held = min(audit.records, shape.records / shape.clients)
    asked = 2 * held * shape.examples / shape.records * shape.clients * shape.rounds
    # only some windows of a document are scored
    often = 0.8 if shape.is_text else 8.0
    if shape.hidden:
        # every anonymous row scores every client's candidates twice; a named row scores its own
        # client's and those of a few others
        often *= max(1.0, 2 * shape.clients / (3 + audit.references))
    checked = audit.checked_rounds * min(audit.checked_clients, shape.clients)
    return 0.5 + often * shape.passes(asked) + 0.03 * checked


def samples(result: AuditResult, aim: Aim) -> list[SampleSize]:
    head = result.estimates[HEADLINE]
    asked = sum(int(r.get("members_asked") or 0) for r in result.per_client.values())
    members, others = asked, max(head.n - asked, 0)
    auc = aim.goal(0.5)
    ratio = others / members if members else 1.0
    out = []
    if min(members, others) >= 2:
        needed = power.records_for_auc(auc, *aim.level, others_per_member=ratio)
        wide = head.value - head.low
        plain = normal_quantile(head.confidence) * power.auc_deviation(head.value, members, others)
        # clients or classes differ: the squared ratio of widths multiplies the records
        wider = max(1.0, (wide / plain) ** 2) if plain > 0 and head.value < 1 else 1.0
        total = math.ceil(needed * wider)
        seen = power.detectable_auc(
            max(2, int(members / wider)), max(2, int(others / wider)), *aim.level
        )
        out.append(
            SampleSize(
                audit=result.audit,
                measure=HEADLINE,
                unit="members",
                chance=0.5,
                have=members,
                seen=seen,
                wanted=auc,
                needed=total,
                how=f"ask about {total:,} members and {math.ceil(total * ratio):,} others "
                f"(now {members:,} and {others:,})",
                rule=AUC_RULE
                + (f", times {wider:.2g} as the stored interval is wider" if wider > 1 else ""),
            )
        )
    return out + [
        for_rate(result.audit, _rate(r), r, aim, members=members, others=others) for r in aim.rates
    ]


def samples_before(audit: str, aim: Aim) -> list[SampleSize]:
    rates = (for_rate(audit, _rate(r), r, aim) for r in aim.rates)
    return [auc_before(audit, HEADLINE, aim), *rates]


def _rate(rate: float) -> str:
    return f"true_positive_rate (at {100 * rate:g} %)"
