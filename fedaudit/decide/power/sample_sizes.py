"""How many rounds, records or queries an audit needs to detect a leak of a given size.

For a run: its sample sizes, the smallest leak that they detect, and the sample size for a wanted
leak. For an audit alone: the same, before anything is recorded. Each audit supplies its own rule
(`Audit.samples`, `Audit.samples_before`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace

from fedaudit.audits import facts_of
from fedaudit.audits.audit import Audit
from fedaudit.audits.planning import Aim, Recorded, SampleSize, counted_headline
from fedaudit.decide.gate.evidence import Evidence, gather_evidence, require_results
from fedaudit.decide.power.outcome import SampleSizes
from fedaudit.errors import UsageError
from fedaudit.reporting.findings import number
from fedaudit.results import AuditResult
from fedaudit.setup.catalogue import AUDITS, find
from fedaudit.study.audit_request import as_list

CLIENTS = 20
"""Clients of a federation that is only planned, where nobody says another number."""


def power(
    run: str | os.PathLike[str] | None = None,
    *,
    audits: str | Sequence[str | Audit] = (),
    effect: float | None = None,
    power: float = 0.9,
    confidence: float = 0.95,
    clients: int | None = None,
    threshold: int = 5,
    rate: float | None = None,
) -> SampleSizes:
    """How many rounds, records or games audits need before they can conclude.

    Of a `run` or study: what its results rest on, the smallest leak they would have shown, and what
    the wanted one takes. Without a run: what `audits` will need, in a federation of `clients`.

    `effect` is the smallest leak to find, as a distance from chance; `power` the probability of
    finding it; `confidence` that of the intervals. `threshold`: clients in the smallest group that
    may be exposed (attribution). `rate`: false-positive rate (membership).
    """
    names = [a if isinstance(a, str) else str(a.name) for a in as_list(audits)]
    if run is None and not names:
        raise UsageError(
            "nothing to plan for",
            expected="a run, or `audits` with the name of one",
            got="neither",
            remedy='`fedaudit.power(RUN)`, or `fedaudit.power(audits=["fingerprint"], clients=20)`',
        )
    if run is not None and clients is not None:
        raise UsageError(
            "`clients` is for planning without a run",
            expected="a run, or `clients`",
            got="both",
            remedy="leave `clients` out: the run knows how many there are",
        )
    aim = Aim(
        effect=effect,
        power=power,
        confidence=confidence,
        clients=CLIENTS if clients is None else clients,
        threshold=threshold,
        rate=rate,
    )
    if run is not None:
        found = power_of_run(run, audits=names, aim=aim)
    else:
        found = [n for name in names for n in power_of_audit(name, aim)]
    return SampleSizes(sizes=tuple(found), power=power, confidence=confidence)


def power_of_run(
    run: str | os.PathLike[str], *, audits: Sequence[str] = (), aim: Aim | None = None
) -> list[SampleSize]:
    """Sample sizes of the results of a run or study, and those that `aim` needs."""
    aim = aim or Aim()
    found = gather_evidence(run)
    require_results(found)
    for name in audits:
        find(AUDITS, "audit", name)
    out = []
    for e in found:
        for name in audits or e.results:
            if name not in e.results:
                raise UsageError(
                    f"{e.path} has no result of {name}",
                    expected="one of: " + ", ".join(e.results),
                    got=name,
                    remedy=f"`fedaudit.audit({str(e.path)!r}, audits=[{name!r}])`, or plan "
                    f"without a run: `fedaudit.power(audits=[{name!r}])`",
                )
            result = e.results[name]
            old = "stale result of another trace, audit again; " if name in e.stale else ""
            out += [
                replace(n, run=e.label, how=old + n.how, rule=_rule_text(n, result, aim))
                for n in _of_result(result, e, aim)
            ]
    return out


def _of_result(result: AuditResult, e: Evidence, aim: Aim) -> list[SampleSize]:
    if result.headline is None:
        how = str(result.need)
        return [SampleSize(audit=result.audit, measure="nothing was measured", how=how)]
    if result.known:
        return [counted_headline(result)]
    audit = find(AUDITS, "audit", result.audit)
    found: list[SampleSize] = audit.samples(
        result, Recorded(rounds=e.rounds, threshold=_threshold(e), results=e.results), aim
    )
    return found


def _rule_text(found: SampleSize, result: AuditResult, aim: Aim) -> str:
    """The rule of a sample size, and why its "saw from" differs from the figure in the report.

    A report states the smallest *measured* value that counts as a leak. A true leak of that size
    reaches it in about half of all runs. A leak that is detected with the power in `aim` is larger.
    """
    if found.measure != result.headline or result.detectable is None or found.seen is None:
        return found.rule
    if found.exact or found.seen == result.detectable:
        return found.rule
    if math.isinf(result.detectable):
        return f"{found.rule}; in this run no measured value would have counted as a leak"
    return (
        f"{found.rule}; the report's {number(result.detectable)} is the smallest measured "
        "value that counts as a leak: a true leak of that size reaches it in half of all runs, "
        f"one of {number(found.seen)} in {100 * aim.power:g} of 100"
    )


def power_of_audit(audit: str, aim: Aim | None = None) -> list[SampleSize]:
    """Sample sizes that an audit needs, before anything is recorded."""
    found: list[SampleSize] = find(AUDITS, "audit", audit).samples_before(aim or Aim())
    return found


def _threshold(e: Evidence) -> int | None:
    """The threshold of a run's own sums, if an audit of them states it."""
    for r in e.results.values():
        stated = r.settings.get("threshold")
        if facts_of(r.audit).single_updates_in_sums and isinstance(stated, int):
            return stated
    return None
