"""Both stages of every single update: one row per client and round, for further analysis.

Stage I as printed and by its closed form ([TwoStage] Eqs. (5), (8), (9)), J of members and of
records that nobody trained on ([TwoStage] Eq. (30)). For checked updates also the quantities of
Theorem 1 and Lemmas 7 and 8 ([TwoStage] Eqs. (23) to (25)).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedaudit.arrays import Bools
from fedaudit.audits.two_stage_membership import detection, lemmas, theory
from fedaudit.audits.two_stage_membership.facts import CHECKED, PROXY, STAGES

if TYPE_CHECKING:
    from fedaudit.audits.two_stage_membership.audit import TwoStageMembership
    from fedaudit.audits.two_stage_membership.detection import Strength
    from fedaudit.audits.two_stage_membership.risk import Contribution
    from fedaudit.audits.two_stage_membership.survey import Survey

Columns = dict[str, tuple[float, ...]]

MOST_ROWS = 2000
"""Most rows; beyond it whole rounds are left out, evenly spaced."""
DIGITS = 6


def tables(
    audit: TwoStageMembership,
    guess: Survey,
    parts: list[Contribution],
    member: Bools,
    strength: Strength | None,
) -> dict[str, Columns]:
    """Columns of equal length; clients are numbered from 1, in the order of the parties."""
    out = {STAGES: _stages(audit, guess, parts, strength), CHECKED: _checked(guess, member)}
    return {name: columns for name, columns in out.items() if columns}


def _stages(
    audit: TwoStageMembership,
    guess: Survey,
    parts: list[Contribution],
    strength: Strength | None,
) -> Columns:
    """One row per update with all values defined: neither u = 0 nor dW = 0."""
    rounds = sorted({c.round for c in parts})
    most = max(1, MOST_ROWS * len(rounds) // max(len(parts), 1))
    kept = {
        rounds[round(float(i))] for i in np.linspace(0, len(rounds) - 1, min(most, len(rounds)))
    }
    # an SNR that its own noise hides is not shown
    with_snr = strength is not None and detection.readable(strength, audit)
    rows = []
    for i, c in enumerate(parts):
        stage = c.survey.stage_one
        if stage is None or c.round not in kept:
            continue
        lam, r = float(stage.alignment[c.row]), float(stage.magnitude_ratio[c.row])
        row = {
            "round": float(c.round),
            "client": guess.parties.index(c.party) + 1.0,
            "SUR": float(stage.ratio[c.row]),
            "1 / sqrt(1 + r^2 + 2 r lambda)": float(theory.survival_ratio(r, lam)),
            "lambda": lam,
            "r": r,
            "J": float(theory.phi(c.delta[c.member]).mean()),  # [TwoStage] Eq. (15)
            "J of nobody's": float(theory.phi(c.delta[~c.member]).mean()),
        }
        if with_snr:
            assert strength is not None
            row["SNR"] = float(strength.snr[i])
        if not any(map(math.isnan, row.values())):
            rows.append(row)
    return _columns(rows)


def _checked(guess: Survey, member: Bools) -> Columns:
    """Measurements along the segments of updates, on the checked members of each client."""
    rows = []
    for survey in guess.rounds:
        for party, segment in survey.segments.items():
            inside = lemmas.members_of(guess, member, party)
            g = lemmas.geometry(segment, inside)
            if not g:
                continue
            rows.append(
                {
                    "round": float(survey.number),
                    "client": guess.parties.index(party) + 1.0,
                    "found by linkage": float(survey.paths_linked),
                    "|u|": segment.norm,
                    "gamma": g["gamma"],
                    "|s|": g["score"],
                    "variance of <H(0), u>": g["variance"],
                    PROXY: float(theory.phi(segment.slope[inside]).mean()),
                    "J": float(theory.phi(segment.increment[inside]).mean()),
                    "L as published": float(segment.calibrated.max()),
                    **(
                        {}
                        if segment.smoothness is None
                        else {"L by Hessian": float(segment.smoothness.max())}
                    ),
                }
            )
    return _columns(rows)


def _columns(rows: list[dict[str, float]]) -> Columns:
    shared = [n for n in rows[0] if all(n in row for row in rows)] if rows else []
    return {n: tuple(float(f"{row[n]:.{DIGITS}g}") for row in rows) for n in shared}
