"""Sample sizes of audits that match anonymous rows with clients, round by round.

Without a leak the right matches of a round are the fixed points of a random permutation.
`stats.links` has their exact law, for links between two rounds and for names of one round alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedaudit.audits.planning import Aim, Recorded, SampleSize
from fedaudit.results import AuditResult
from fedaudit.stats.intervals import design_effect
from fedaudit.stats.links import detectable_share, pairs_for_share


@dataclass(frozen=True, kw_only=True)
class Matching:
    """What an audit matches.

    `measure`: share of right matches. `unit`: their noun. `right`, `tried`: columns of the client
    table with the right matches and with all of them. `earlier_rounds`: rounds before the first
    match. `rule` of the test; `note` on the numbers of a result.
    """

    measure: str
    unit: str
    right: str
    tried: str
    rule: str
    earlier_rounds: int = 0
    note: str = ""

    def samples(self, result: AuditResult, recorded: Recorded, aim: Aim) -> SampleSize | None:
        """Sample size of a result; None if it has no match."""
        rows = list(result.per_client.values())
        hits = np.array([float(r.get(self.right) or 0) for r in rows])
        tries = np.array([float(r.get(self.tried) or 0) for r in rows])
        hits, tries = hits[tries > 0], tries[tries > 0]
        chance = result.estimates[self.measure].baseline
        if chance is None or not len(tries):
            return None
        clients, total = len(tries), int(tries.sum())
        effect, each = design_effect(hits, tries), total / clients
        likeness = min(1.0, (effect - 1.0) / (each - 1.0)) if each > 1 else 0.0
        share = aim.goal(chance, default=min(chance, 1 - chance) / 2)
        found = (clients, max(1, round(each)), aim.power, level(aim), likeness)
        needed = pairs_for_share(share, clients, aim.power, level(aim), likeness)
        same = float(hits.sum()) in (0.0, float(tries.sum()))
        alike = (
            f"all {self.unit} of a client agree: each client counts once"
            if same
            else f"design effect {effect:.2g}"
        )
        return SampleSize(
            audit=result.audit,
            measure=self.measure,
            unit=self.unit,
            chance=chance,
            have=total,
            seen=detectable_share(*found),
            wanted=share,
            needed=None if needed is None else needed * clients,
            how=f"{self.unit} of a client are too similar: more than {clients} clients"
            if needed is None
            else f"{needed + self.earlier_rounds} rounds with all {clients} clients "
            f"(now {recorded.rounds})",
            rule=f"{self.rule}; {alike}; {total:,} {self.unit} of {clients} clients{self.note}",
        )

    def samples_before(self, audit: str, aim: Aim) -> SampleSize:
        """Sample size before anything is recorded."""
        chance = 1.0 / aim.clients
        share = aim.goal(chance, default=chance / 2)
        needed = pairs_for_share(share, aim.clients, aim.power, level(aim))
        return SampleSize(
            audit=audit,
            measure=self.measure,
            unit=self.unit,
            chance=chance,
            wanted=share,
            needed=None if needed is None else needed * aim.clients,
            how="no number of rounds is enough"
            if needed is None
            else f"{needed + self.earlier_rounds} rounds with all {aim.clients} clients; more if "
            f"the {self.unit} of a client are similar",
            rule=self.rule,
        )


def level(aim: Aim) -> float:
    """Error rate of the readings: half of what the interval leaves on one side.

    The other half is for single clients.
    """
    return (1 - aim.confidence) / 4
