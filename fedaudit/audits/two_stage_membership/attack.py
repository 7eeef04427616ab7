"""The attack: one statistic per record, summed over rounds, and how well it tells members.

The paper runs no attack. Ours uses the score increments of [TwoStage] Eqs. (11), (12) and (16): an
update alone, what the whole model moved by, an update on top of all others. Other clients' models
calibrate them (a likelihood ratio). Results are an AUC and true-positive rates.

Shapes: P clients, n candidates each, (P, n) with `present` where rows are padded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats
from fedaudit.audits.two_stage_membership.facts import ROWS_LINKED
from fedaudit.results import Estimate, Underpowered
from fedaudit.stats import combine, intervals, roc
from fedaudit.trace import Truth

if TYPE_CHECKING:
    from fedaudit.audits.two_stage_membership.audit import TwoStageMembership
    from fedaudit.audits.two_stage_membership.survey import RoundSurvey, Survey


RATES = (0.01, 0.001)
"""False-positive rates at which an ROC curve is read."""


def statistics_of(guess: Survey) -> dict[str, Floats]:
    """Membership statistics (P, n), greater means member, the headline of this view first.

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
        out["own model against other clients', all rounds"] = _stouffer(calibrated)
        out["own model against other clients', last round"] = _latest(calibrated)
    if plain := rounds(r.own for r in guess.rounds):
        worst = rounds(r.isolated for r in guess.rounds)
        out["update on top of the others, all rounds (Eq. 16)"] = _stouffer(plain)
        out["update alone, all rounds (Eq. 11)"] = _stouffer(worst)
    if linked := of("anonymous"):
        hidden = [r for r in guess.rounds if r.seen == "anonymous"]
        best = rounds(_best_row(r, guess.present) for r in hidden)
        out["row linked by a client's candidates against other rows, all rounds"] = _stouffer(
            linked
        )
        out["row linked by a client's candidates against other rows, last round"] = _latest(linked)
        out["best anonymous row, all rounds"] = _stouffer(best)
    if aggregate := rounds(r.aggregate for r in guess.rounds if not r.personal):
        out["what the model moved by, all rounds (Eq. 12)"] = _stouffer(aggregate)
        out["what the model moved by, last round (Eq. 12)"] = aggregate[-1]
    if np.isfinite(guess.final).any():
        out["score of the final model"] = _centred(guess.final, guess)
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


def _shrunk(spread: Floats, present: Bools) -> Floats:
    """Shrink spreads halfway to their median: a spread over a few clients is itself uncertain."""
    usable = present & np.isfinite(spread)
    typical = float(np.median(spread[usable])) if usable.any() else 0.0
    return np.sqrt(0.5 * spread**2 + 0.5 * typical**2)


def _in_spreads(apart: Floats, spread: Floats, present: Bools) -> Floats:
    """Distances in units of a spread; unscaled if the spread is 0 (a model that did not move)."""
    scale = _shrunk(spread, present)
    return np.where(scale > 0, apart / np.where(scale > 0, scale, 1.0), apart)


def _deviation_of(rows: Floats) -> Floats:
    """Deviation over the first axis; zero for a single row."""
    return rows.std(axis=0, ddof=1) if len(rows) > 1 else np.zeros(rows.shape[1:])


def _likelihood_ratio(survey: RoundSurvey, present: Bools) -> Floats:
    assert survey.local is not None
    assert survey.reference is not None
    assert survey.spread is not None
    return _in_spreads(survey.local - survey.reference, survey.spread, present)


def linked_rows(survey: RoundSurvey, present: Bools) -> npt.NDArray[np.int64]:
    """The anonymous row of each client (P,), -1 for none.

    Half of a client's candidates are its own records: together they stand out under its own model.
    An optimal assignment of rows to clients maximises this.
    """
    from scipy.optimize import linear_sum_assignment

    rows = survey.local_by_row
    assert rows is not None
    apart = _in_spreads(rows - rows.mean(axis=0), _deviation_of(rows), present)
    fit = np.where(present, apart, 0.0).sum(axis=2) / np.maximum(present.sum(axis=1), 1)
    row, party = linear_sum_assignment(fit, maximize=True)
    out = np.full(rows.shape[1], -1, dtype=np.int64)
    out[party] = row
    return out


def _own_row(survey: RoundSurvey, present: Bools) -> Floats:
    """Evidence for a record under its client's linked row, against all other rows."""
    assert survey.local_by_row is not None
    rows = survey.local_by_row
    apart, spread = np.full(rows.shape[1:], np.nan), np.full(rows.shape[1:], np.nan)
    for party, row in enumerate(linked_rows(survey, present)):
        if row >= 0:
            rest = np.delete(rows[:, party], row, axis=0)
            apart[party] = rows[row, party] - rest.mean(axis=0)
            spread[party] = _deviation_of(rest)
    return _in_spreads(apart, spread, present)


def _best_row(survey: RoundSurvey, present: Bools) -> Floats:
    """Evidence for a record under its best row, against the median row."""
    assert survey.local_by_row is not None
    rows = survey.local_by_row
    apart = rows.max(axis=0) - np.median(rows, axis=0)
    return _in_spreads(apart, _deviation_of(rows), present)


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


# -- how well it tells members ---------------------------------------------------------------------


def membership_auc(
    statistic: Floats,
    member: Bools,
    present: Bools,
    classes: npt.NDArray[np.int64],
    confidence: float,
) -> Estimate | Underpowered:
    """AUC over all candidates (P, n). Chance is 1/2: members and others are matched one to one.

    Records are not independent: candidates of one client share its update, and those of one client
    and class are centred together. The interval is the widest of three: DeLong's over records; a t
    interval over the clients' own AUCs; and the deviation of the rank sum when labels are permuted
    within client and class (without a leak, labels are exchangeable there).
    """
    from scipy.special import ndtri, stdtrit

    usable = present & np.isfinite(statistic)
    pooled = roc.auc(statistic[usable], member[usable], confidence=confidence)
    if isinstance(pooled, Underpowered):
        return pooled
    own, weight = [], []
    for p in range(len(statistic)):
        mine = usable[p]
        if member[p][mine].any() and (~member[p][mine]).any():
            own.append(plain_auc(statistic[p][mine], member[p][mine]))
            weight.append(int(mine.sum()))
    method = pooled.method if pooled.method != "DeLong" else "DeLong over records"
    low, high = pooled.low, pooled.high
    others = {
        "labels permuted within client and class": float(ndtri(0.5 + confidence / 2))
        * permutation_error(statistic, member, usable, classes)
    }
    if len(own) >= 3:
        w = np.array(weight) / np.sum(weight)
        spread = np.array(own) - float(w @ own)
        count = len(own)
        error = math.sqrt(float(np.square(w * spread).sum()) * count / (count - 1))
        others["t interval over clients"] = float(stdtrit(count - 1, 0.5 + confidence / 2)) * error
    for name, reach in others.items():
        if pooled.value - reach < low:
            low, method = max(0.0, pooled.value - reach), name
        high = max(high, min(1.0, pooled.value + reach))
    return Estimate(
        value=pooled.value,
        low=min(low, pooled.value),
        high=max(high, pooled.value),
        n=int(usable.sum()),
        confidence=confidence,
        baseline=0.5,
        method=f"{method}, the widest of {1 + len(others)}",
    )


def permutation_error(
    statistic: Floats, member: Bools, usable: Bools, classes: npt.NDArray[np.int64]
) -> float:
    """Standard deviation of the AUC when labels are permuted within client and class.

    The rank sum of m members among N candidates of a group has variance m (N - m) S^2 / N, S^2 the
    sample variance of their ranks; groups add up (the stratified rank-sum test).
    """
    ranks = _midranks(statistic[usable])
    inside = member[usable]
    clients = np.broadcast_to(np.arange(len(classes))[:, None], classes.shape)
    _, group = np.unique(np.stack([clients[usable], classes[usable]]), axis=1, return_inverse=True)
    group = group.reshape(-1)
    size, members = np.bincount(group), np.bincount(group, weights=inside)
    mean = np.bincount(group, weights=ranks) / size
    squares = np.bincount(group, weights=np.square(ranks - mean[group]))
    variance = squares / np.maximum(size - 1, 1)
    total = float((members * (size - members) / size * variance).sum())
    pairs = int(inside.sum()) * int((~inside).sum())
    return math.sqrt(total) / pairs


def _midranks(values: Floats) -> Floats:
    """Ranks from 1, ties averaged (scipy.stats has them too, but takes a second to load)."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[where.reshape(-1)])


def plain_auc(scores: Floats, member: Bools) -> float:
    ranks = _midranks(scores)
    inside = int(member.sum())
    outside = len(member) - inside
    return float((ranks[member].sum() - inside * (inside + 1) / 2) / (inside * outside))


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


def true_positive_rates(
    statistic: Floats, member: Bools, present: Bools, audit: TwoStageMembership
) -> tuple[dict[str, Estimate], list[Underpowered]]:
    usable = present & np.isfinite(statistic)
    out, short = {}, []
    for rate in RATES:
        found = roc.true_positive_rate_at(
            statistic[usable], member[usable], rate, confidence=audit.confidence
        )
        measure = f"true_positive_rate (at {100 * rate:g} %)"
        if isinstance(found, Underpowered):
            short.append(replace(found, measure=measure))
        else:
            out[measure] = found
    return out, short
