"""The attack: one statistic per record, summed over rounds, and how well it tells members.

The paper runs no attack. Ours uses the score increments of [TwoStage] Eqs. (11), (12) and (16): an
update alone, what the whole model moved by, an update on top of all others. Other clients' models
calibrate them (a likelihood ratio). Results are an AUC and true-positive rates.

Shapes: P clients, n candidates each, (P, n) with `present` where rows are padded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats
from fedaudit.audits.two_stage_membership.facts import ROWS_LINKED
from fedaudit.results import Estimate
from fedaudit.stats import combine, intervals, naming
from fedaudit.trace import Truth

if TYPE_CHECKING:
    from fedaudit.audits.two_stage_membership.audit import TwoStageMembership
    from fedaudit.audits.two_stage_membership.survey import RoundSurvey, Survey


READINGS = {
    "own_model": "own model against other clients', all rounds",
    "own_model_last_round": "own model against other clients', last round",
    "update_on_the_others": "update on top of the others, all rounds (Eq. 16)",
    "update_alone": "update alone, all rounds (Eq. 11)",
    "linked_row": "row linked by a client's candidates against other rows, all rounds",
    "linked_row_last_round": "row linked by a client's candidates against other rows, last round",
    "best_row": "best anonymous row, all rounds",
    "model_change": "what the model moved by, all rounds (Eq. 12)",
    "model_change_last_round": "what the model moved by, last round (Eq. 12)",
    "final_model": "score of the final model",
}
"""Statistics of the attack: the qualifier of their AUC, and what they are in words."""


def statistics_of(guess: Survey) -> dict[str, Floats]:
    """Membership statistics (P, n) by name in `READINGS`, greater means member, the headline of
    this view first.

    Calibrated: evidence for a record under the client's own trained model minus its mean under
    other clients' models, in units of their spread. This is a likelihood ratio of two Gaussians of
    equal spread, with the other clients as reference. All statistics are centred over the
    candidates of one client and class, without using membership labels. Each statistic is summed
    over the rounds that have it (Stouffer).
    """
    out: dict[str, Floats] = {}
    each = list(zip(guess.rounds, round_statistics(guess), strict=True))

    def of(seen: str) -> list[Floats]:
        """The headline statistic of the rounds with this visibility."""
        return [statistic for r, statistic in each if r.seen == seen]

    def rounds(values: Iterable[Floats | None]) -> list[Floats]:
        return _comparable([v for v in values if v is not None], guess)

    if calibrated := of("named"):
        out["own_model"] = _stouffer(calibrated)
        out["own_model_last_round"] = _latest(calibrated)
    if plain := rounds(r.own for r in guess.rounds):
        worst = rounds(r.isolated for r in guess.rounds)
        out["update_on_the_others"] = _stouffer(plain)
        out["update_alone"] = _stouffer(worst)
    if linked := of("anonymous"):
        hidden = [r for r in guess.rounds if r.seen == "anonymous"]
        best = rounds(_best_row(r, guess.present) for r in hidden)
        out["linked_row"] = _stouffer(linked)
        out["linked_row_last_round"] = _latest(linked)
        out["best_row"] = _stouffer(best)
    if aggregate := rounds(r.aggregate for r in guess.rounds if not r.personal):
        out["model_change"] = _stouffer(aggregate)
        out["model_change_last_round"] = aggregate[-1]
    if np.isfinite(guess.final).any():
        out["final_model"] = _centred(guess.final, guess)
    return out


def round_statistics(guess: Survey) -> list[Floats]:
    """The headline statistic of every single round, (P, n) each."""
    values = []
    for r in guess.rounds:
        if r.seen == "named":
            values.append(_likelihood_ratio(r, guess.present))
        elif r.seen == "anonymous":
            values.append(_own_row(r, guess.present))
        else:
            values.append(r.aggregate)
    return _comparable(values, guess)


def _comparable(values: list[Floats], guess: Survey) -> list[Floats]:
    """Rounds (P, n) centred over client and class, in units of their spread."""
    return [_standardised(_centred(v, guess), guess.present) for v in values]


def _centred(values: Floats, guess: Survey) -> Floats:
    """Subtract the mean over the candidates of the same client and class."""
    groups = guess.classes + (int(guess.classes.max()) + 1) * np.arange(len(values))[:, None]
    usable = guess.present & np.isfinite(values)
    size = int(groups.max()) + 1
    totals = np.bincount(groups[usable], weights=values[usable], minlength=size)
    counts = np.bincount(groups[usable], minlength=size)
    return np.asarray(values - (totals / np.maximum(counts, 1))[groups])


def _standardised(values: Floats, present: Bools) -> Floats:
    """Divide by the spread over all candidates, so that rounds count equally."""
    usable = present & np.isfinite(values)
    spread = float(values[usable].std()) if usable.any() else 0.0
    return values / spread if spread > 0 else np.where(usable, 0.0, values)


def _likelihood_ratio(survey: RoundSurvey, present: Bools) -> Floats:
    assert survey.local is not None
    assert survey.reference is not None
    assert survey.spread is not None
    return naming.in_spreads(survey.local - survey.reference, survey.spread, present)


def linked_rows(survey: RoundSurvey, present: Bools) -> npt.NDArray[np.int64]:
    """The anonymous row of each client (P,), -1 for none."""
    assert survey.local_by_row is not None
    return link_rows(survey.local_by_row, present)


def link_rows(rows: Floats, present: Bools) -> npt.NDArray[np.int64]:
    """The row of each client (P,), -1 for none, from the evidence (K, P, n) under every row."""
    return naming.assign(naming.fits(rows, present))


def _own_row(survey: RoundSurvey, present: Bools) -> Floats:
    """Evidence for a record under its client's linked row, against all other rows."""
    assert survey.local_by_row is not None
    return naming.own_row(survey.local_by_row, linked_rows(survey, present), present)


def _best_row(survey: RoundSurvey, present: Bools) -> Floats:
    """Evidence for a record under its best row, against the median row."""
    assert survey.local_by_row is not None
    return naming.best_row(survey.local_by_row, present)


def _stouffer(values: list[Floats]) -> Floats:
    """Stouffer's sum over the rounds in which a client has a finite statistic."""
    stack = np.stack(values)
    return combine.stouffer(np.where(np.isfinite(stack), stack, np.nan))


def _latest(values: list[Floats]) -> Floats:
    """The last round in which each client took part."""
    out = np.full_like(values[-1], np.nan)
    for v in values:
        out = np.where(np.isfinite(v), v, out)
    return out


def linkage(guess: Survey, truth: Truth, audit: TwoStageMembership) -> dict[str, Estimate]:
    """How often an anonymous row was linked to the client that sent it, over clients and rounds."""
    right: dict[str, list[bool]] = {}
    chances = []
    for survey in guess.rounds:
        if survey.seen != "anonymous":
            continue
        senders = truth.senders(survey.number)
        for party, row in zip(guess.parties, linked_rows(survey, guess.present), strict=True):
            true = senders.get(survey.messages[row]) if row >= 0 else None
            if true is not None:
                right.setdefault(party, []).append(true == party)
                chances.append(1.0 / len(survey.messages))
    if not right:
        return {}
    return {
        ROWS_LINKED: intervals.clustered_share(
            [sum(hits) for hits in right.values()],
            [len(hits) for hits in right.values()],
            audit.confidence,
            baseline=float(np.mean(chances)),
        )
    }
