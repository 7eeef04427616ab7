"""Check the published bounds against measurements.

[TwoStage] Eq. (19), Lemma 6 for increments; [TwoStage] Eq. (23), Theorem 1 and [TwoStage] Lemma 7
for J; [TwoStage] Lemma 8 as printed and in its sound form, with the geometry of
[TwoStage] Eqs. (24), (25); and Lemma 6 again with the constant of [TwoStage] Section 6.2.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools
from fedaudit.audits.two_stage_membership import theory
from fedaudit.audits.two_stage_membership.facts import (
    BEYOND_LEMMA_6,
    BEYOND_LEMMA_7,
    BEYOND_THEOREM_1,
    BY_LINKAGE,
    SHARE_BEYOND_LEMMA_6,
)
from fedaudit.results import Bound, Estimate
from fedaudit.stats import intervals

if TYPE_CHECKING:
    from fedaudit.audits.two_stage_membership.attribution import UpdateSegment
    from fedaudit.audits.two_stage_membership.audit import TwoStageMembership
    from fedaudit.audits.two_stage_membership.survey import Survey


def bound_checks(guess: Survey, member: Bools) -> tuple[dict[str, Estimate], dict[str, Bound]]:
    """How far measured J and increments lie beyond Theorem 1, Lemma 7 and Lemma 6.

    Worst case over all checked clients and rounds; the interval is the error of the quadrature.
    """
    theorem, concentrated, lemma = [], [], []
    for survey in guess.rounds:
        for party, segment in survey.segments.items():
            if segment.smoothness is None:
                continue
            inside = members_of(guess, member, party)
            off = np.abs(segment.increment - segment.slope)
            smooth = float(segment.smoothness.max())
            slack = float(theory.remainder_bound(smooth, segment.norm))
            lemma += list(zip(off - slack, segment.error, strict=True))
            if inside.any():
                j = float(theory.phi(segment.increment[inside]).mean())
                proxy = float(theory.phi(segment.slope[inside]).mean())
                error = float(segment.error[inside].mean()) / 4
                theorem.append((abs(j - proxy) - slack / 4, error))
                mean, variance = (
                    float(segment.slope[inside].mean()),
                    float(segment.slope[inside].var()),
                )
                wide = float(theory.mean_score_slack(variance, smooth, segment.norm))
                concentrated.append((abs(j - float(theory.phi(mean))) - wide, error))
    estimates, bounds = {}, {}
    linked = "".join({f", {BY_LINKAGE}" for r in guess.rounds if r.segments and r.paths_linked})
    for name, found, source in (
        (BEYOND_THEOREM_1, theorem, "[TwoStage] Eq. (23), Theorem 1"),
        (BEYOND_LEMMA_7, concentrated, "[TwoStage] Lemma 7"),
        (BEYOND_LEMMA_6, lemma, "[TwoStage] Eq. (19), Lemma 6"),
    ):
        if not found:
            continue
        # the worst by its low end: what is certainly outside
        value, error = max(found, key=lambda f: f[0] - f[1])
        estimates[name] = Estimate(
            value=float(value),
            low=float(value - error),
            high=float(value + error),
            n=len(found),
            confidence=1.0,  # no chance is involved
            method=f"worst of all checked clients and rounds{linked}; interval: quadrature error",
        )
        bounds[name] = Bound(
            value=0.0,
            kind="upper",
            of=name,
            source=source,
            assumes="L is the largest |Hessian u|/|u| on five points of the segment",
        )
    return estimates, bounds


def violations(guess: Survey, audit: TwoStageMembership) -> dict[str, Estimate]:
    """Share of checked increments beyond Lemma 6 with two constants that are smaller than L.

    The first is the paper's, calibrated record by record on every other of six steps along the
    segment, the last being the whole update ([TwoStage] Section 6.2): it is not a bound. The second
    is the curvature along u alone, sup |u' Hess u| / |u|^2: a sharper bound than L, but a supremum
    over five points leaves no margin. So a violation of either is not a disagreement.
    """
    constants: dict[str, list[tuple[UpdateSegment, npt.ArrayLike]]] = {
        "the published L": [],
        "the curvature along u": [],
    }
    for survey in guess.rounds:
        for segment in survey.segments.values():
            if segment.norm == 0:
                continue
            constants["the published L"].append((segment, segment.calibrated))
            if segment.directional is not None:
                constants["the curvature along u"].append((segment, segment.directional))
    out = {}
    for name, found in constants.items():
        beyond = [
            np.abs(segment.increment - segment.slope) - segment.error
            > theory.remainder_bound(constant, segment.norm)
            for segment, constant in found
        ]
        if beyond:
            # records of one update share its segment; a valid bound leaves none beyond
            out[f"{SHARE_BEYOND_LEMMA_6} ({name})"] = intervals.clustered_share(
                [int(one.sum()) for one in beyond],
                [len(one) for one in beyond],
                audit.confidence,
                baseline=0.0,
            )
    return out


def conditions(guess: Survey, member: Bools) -> list[str]:
    """A note on how often Lemma 8 holds as printed and in its sound form, and on J then."""
    checked = published = wrong = sound = 0
    for survey in guess.rounds:
        for party, segment in survey.segments.items():
            inside = members_of(guess, member, party)
            g = geometry(segment, inside)
            if not g or segment.smoothness is None:
                continue
            checked += 1
            smooth = float(segment.smoothness.max())
            j = float(theory.phi(segment.increment[inside]).mean())
            if theory.published_condition(segment.norm, g["score"], g["gamma"], smooth):
                published += 1
                wrong += j <= 0
            sound += theory.sound_condition(g["mean"], g["variance"], smooth, segment.norm)
    if not checked:
        return []
    return [
        f"Lemma 8 as printed holds for {published} of {checked} checked updates (J <= 0 in {wrong} "
        f"of them); its sound form for {sound}"
    ]


def geometry(segment: UpdateSegment, inside: Bools) -> dict[str, float]:
    """|s|, gamma = cos(u, s), Var of directional scores, over members. [TwoStage] Eqs. (24), (25)

    <s, u> is the mean slope; |s|^2 the mean inner product of the members' score gradients.
    """
    if not inside.any() or segment.norm == 0:
        return {}
    slope = segment.slope[inside]
    size = math.sqrt(max(float(segment.products[np.ix_(inside, inside)].mean()), 0.0))
    mean = float(slope.mean())
    gamma = mean / (size * segment.norm) if size > 0 else 0.0
    return {"score": size, "gamma": gamma, "mean": mean, "variance": float(slope.var())}


def members_of(guess: Survey, member: Bools, party: str) -> Bools:
    """Members among the checked records of a client, as a mask."""
    return np.asarray(member[guess.parties.index(party)][guess.checked[party]])
