"""From what the attack computed to numbers with intervals: the risk, the attack, the bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedaudit.audits.two_stage_membership import survival, theory
from fedaudit.results import AuditResult, Bound, Estimate, Underpowered
from fedaudit.trace import Truth

if TYPE_CHECKING:
    from fedaudit.audits.two_stage_membership.attribution import Path
    from fedaudit.audits.two_stage_membership.audit import RoundSurvey, Survey, TwoStageMembership

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

RESAMPLES = 200
"""Draws of m records behind every Pr(J_m > 0)."""
SPLITS = 4
"""Times that a client's candidates are halved to ask whether the risk predicts the attack."""
TOSSES_AT_ONCE = 20
"""Tosses of signs that are ranked in one go."""
RATES = (0.01, 0.001)
"""False-positive rates at which an ROC curve is read."""


@dataclass(frozen=True)
class Contribution:
    """One client's update in one round: its row, and the candidates' increments delta (n,).

    `deviation` (n,) the empirical minus the true score advantage, where rows bear names;
    `evidence` (n,) the headline attack's statistic of this round, `classes` (n,) of the candidates.
    """

    round: int
    party: str
    row: int
    survey: RoundSurvey
    delta: Floats
    member: Bools
    deviation: Floats | None
    evidence: Floats
    classes: npt.NDArray[np.int64]


def scored(
    audit: TwoStageMembership,
    guess: Survey,
    truth: Truth,
    rng: np.random.Generator,
    shared: dict[str, Any],
) -> AuditResult:
    """All estimates of a survey."""
    member = np.zeros_like(guess.present)
    for i, party in enumerate(guess.parties):
        own = truth.members[party]
        member[i, : len(own)] = own
    parts = list(contributions(guess, truth, member))
    statistics = statistics_of(guess)
    headline = next(iter(statistics))
    estimates: dict[str, Estimate] = {}
    short: list[Underpowered] = []
    bounds: dict[str, Bound] = {}
    for name, statistic in statistics.items():
        found = membership_auc(statistic, member, guess.present, guess.classes, audit.confidence)
        if isinstance(found, Underpowered):
            short.append(found)
        else:
            estimates["membership_auc" if name == headline else f"auc, {name}"] = found
    rates, lacking = true_positive_rates(statistics[headline], member, guess.present, audit)
    estimates |= rates
    short += lacking
    if parts:
        estimates |= risk(audit, parts, rng, noise_known=_noise_known(guess))
        estimates |= prediction(parts, audit, rng)
        estimates |= linkage(guess, truth, audit)
        checks, of_checks = bound_checks(guess, member)
        estimates |= checks | violations(guess, audit)
        bounds |= of_checks
    if "membership_auc" not in estimates:
        lack = next(s for s in short)
        return AuditResult(
            **shared, source=audit.source, not_applicable=f"{lack}", underpowered=tuple(short)
        )
    auc = estimates["membership_auc"]
    return AuditResult(
        **shared,
        source=f"{audit.source}; the attack ({headline}) is ours",
        headline="membership_auc",
        estimates=estimates,
        underpowered=tuple(short),
        bounds=bounds,
        per_client=per_client(audit, guess, parts, statistics[headline], member),
        curves=curves(audit, guess, parts, statistics[headline], member, rng),
        # the low end must come to lie above one half
        detectable=min(1.0, 0.5 + (auc.value - auc.low)) if auc.high > auc.low else None,
        notes=notes(audit, guess, parts, headline, member),
    )


def contributions(guess: Survey, truth: Truth, member: Bools):  # type: ignore[no-untyped-def]
    """Every (round, client) whose single update was seen, with the client's own candidates."""
    for survey, evidence in zip(guess.rounds, round_statistics(guess), strict=True):
        if survey.seen == "sum":
            continue
        # names are on the wire, or in the truth alone
        senders = {} if survey.seen == "named" else truth.senders(survey.number)
        for row, message in enumerate(survey.messages):
            party = senders.get(message, survey.senders[row])
            if party not in guess.parties:
                continue
            p = guess.parties.index(party)
            keep, deviation = guess.present[p], None
            if survey.seen == "named":
                assert survey.own is not None
                assert survey.isolated is not None
                delta = survey.own[p]
                deviation = (survey.aggregate[p] - survey.isolated[p])[keep]
            else:
                assert survey.by_row is not None
                delta = survey.by_row[row, p]
            yield Contribution(
                round=survey.number,
                party=party,
                row=row,
                survey=survey,
                delta=delta[keep],
                member=member[p][keep],
                deviation=deviation,
                evidence=evidence[p][keep],
                classes=guess.classes[p][keep],
            )


# -- the attack ----------------------------------------------------------------------------------


def statistics_of(guess: Survey) -> dict[str, Floats]:
    """Membership statistics (P, n), greater means member, the strongest of this view first.

    Calibrated: evidence for a record under the client's own trained model against the same under
    other clients' models, in their spread: a likelihood ratio of two Gaussians of equal spread,
    with the leave-one-client-out federation as reference. All are centred over the candidates of
    one client and class, whose labels are not needed for it. Rounds are added up (Stouffer).
    """
    out: dict[str, Floats] = {}
    kinds = {r.seen for r in guess.rounds}

    def rounds(values: list[Floats]) -> list[Floats]:
        return _comparable(values, guess)

    if kinds == {"named"}:
        calibrated = round_statistics(guess)
        plain = rounds([r.own for r in guess.rounds if r.own is not None])
        worst = rounds([r.isolated for r in guess.rounds if r.isolated is not None])
        out["own model against other clients', all rounds"] = _stouffer(calibrated)
        out["own model against other clients', last round"] = _latest(calibrated)
        out["update on top of the others, all rounds (Eq. 16)"] = _stouffer(plain)
        out["update alone, all rounds (Eq. 11)"] = _stouffer(worst)
    elif kinds == {"anonymous"}:
        linked = round_statistics(guess)
        best = rounds([_best_row(r, guess.present) for r in guess.rounds])
        out["row linked by a client's candidates against other rows, all rounds"] = _stouffer(
            linked
        )
        out["row linked by a client's candidates against other rows, last round"] = _latest(linked)
        out["best anonymous row, all rounds"] = _stouffer(best)
    aggregate = rounds([r.aggregate for r in guess.rounds])
    out["what the model moved by, all rounds (Eq. 12)"] = _stouffer(aggregate)
    out["what the model moved by, last round (Eq. 12)"] = aggregate[-1]
    out["score of the final model"] = _centred(guess.final, guess)
    return out


def round_statistics(guess: Survey) -> list[Floats]:
    """The headline attack's statistic of every single round, (P, n) each."""
    kinds = {r.seen for r in guess.rounds}
    if kinds == {"named"}:
        values = [_likelihood_ratio(r, guess.present) for r in guess.rounds]
    elif kinds == {"anonymous"}:
        values = [_own_row(r, guess.present) for r in guess.rounds]
    else:
        values = [r.aggregate for r in guess.rounds]
    return _comparable(values, guess)


def _comparable(values: list[Floats], guess: Survey) -> list[Floats]:
    """Rounds (P, n) centred over client and class, in units of their spread."""
    return [_standardised(_centred(v, guess), guess.present) for v in values]


def _centred(values: Floats, guess: Survey) -> Floats:
    """Minus the mean over the candidates of the same client and class."""
    groups = guess.classes + (int(guess.classes.max()) + 1) * np.arange(len(values))[:, None]
    usable = guess.present & np.isfinite(values)
    size = int(groups.max()) + 1
    totals = np.bincount(groups[usable], weights=values[usable], minlength=size)
    counts = np.bincount(groups[usable], minlength=size)
    return np.asarray(values - (totals / np.maximum(counts, 1))[groups])


def _standardised(values: Floats, present: Bools) -> Floats:
    """Divided by the spread over all candidates, so that rounds count alike."""
    usable = present & np.isfinite(values)
    spread = float(values[usable].std()) if usable.any() else 0.0
    return values / spread if spread > 0 else np.where(usable, 0.0, values)


def _shrunk(spread: Floats, present: Bools) -> Floats:
    """A spread from a few strangers is itself uncertain: half the weight goes to the typical."""
    usable = present & np.isfinite(spread)
    typical = float(np.median(spread[usable])) if usable.any() else 0.0
    return np.sqrt(0.5 * spread**2 + 0.5 * typical**2)


def _in_spreads(apart: Floats, spread: Floats, present: Bools) -> Floats:
    """Distances in units of a spread; those that agree exactly (a model that did not move) say
    nothing of scale."""
    scale = _shrunk(spread, present)
    return np.where(scale > 0, apart / np.where(scale > 0, scale, 1.0), apart)


def _deviation_of(rows: Floats) -> Floats:
    """Deviation over the first axis; zero where there is one row only."""
    return rows.std(axis=0, ddof=1) if len(rows) > 1 else np.zeros(rows.shape[1:])


def _likelihood_ratio(survey: RoundSurvey, present: Bools) -> Floats:
    assert survey.local is not None
    assert survey.reference is not None
    assert survey.spread is not None
    return _in_spreads(survey.local - survey.reference, survey.spread, present)


def linked_rows(survey: RoundSurvey, present: Bools) -> npt.NDArray[np.int64]:
    """The anonymous row of each client (P,), -1 for none.

    Half of a client's candidates are its own: together they stand out under its own model, and
    the rows are dealt to the clients so that they do so most (an optimal assignment).
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
    """A record under the row that is linked to its client, against all other rows."""
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
    """The row under whose model a record stands out most from the other rows."""
    assert survey.local_by_row is not None
    rows = survey.local_by_row
    apart = rows.max(axis=0) - np.median(rows, axis=0)
    return _in_spreads(apart, _deviation_of(rows), present)


def _stouffer(values: list[Floats]) -> Floats:
    """Sum over the rounds a client took part in, over the root of their number."""
    stack = np.stack(values)
    seen = np.isfinite(stack)
    count = seen.sum(axis=0)
    total = np.where(seen, stack, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.sqrt(np.maximum(count, 1)), np.nan)


def _latest(values: list[Floats]) -> Floats:
    """The last round in which each client took part."""
    out = np.full_like(values[-1], np.nan)
    for v in values:
        out = np.where(np.isfinite(v), v, out)
    return out


def membership_auc(
    statistic: Floats,
    member: Bools,
    present: Bools,
    classes: npt.NDArray[np.int64],
    confidence: float,
) -> Estimate | Underpowered:
    """AUC over all candidates (P, n); chance is 1/2, since members and others are matched one to
    one.

    Candidates of one client share its update, and those of one client and class were centred
    together, so that records are not independent. The interval is the widest of three: DeLong's
    over records; the spread of the clients' own AUCs; and, since labels are exchangeable within a
    client and class if nothing leaks, the deviation of the rank sum under such permutations.
    """
    from scipy.special import ndtri, stdtrit

    from fedaudit.stats import roc

    usable = present & np.isfinite(statistic)
    pooled = roc.auc(statistic[usable], member[usable], confidence=confidence)
    if isinstance(pooled, Underpowered):
        return pooled
    own, weight = [], []
    for p in range(len(statistic)):
        mine = usable[p]
        if member[p][mine].any() and (~member[p][mine]).any():
            own.append(_plain_auc(statistic[p][mine], member[p][mine]))
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
    """Ranks from 1, those of ties averaged (scipy.stats has them too, at a second of loading)."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[where.reshape(-1)])


def _plain_auc(scores: Floats, member: Bools) -> float:
    ranks = _midranks(scores)
    inside = int(member.sum())
    outside = len(member) - inside
    return float((ranks[member].sum() - inside * (inside + 1) / 2) / (inside * outside))


def linkage(guess: Survey, truth: Truth, audit: TwoStageMembership) -> dict[str, Estimate]:
    """How often an anonymous row was linked to the client that sent it, over clients and rounds."""
    from fedaudit.stats import intervals

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
        "rows linked to their client by its candidates": intervals.clustered_share(
            [sum(hits) for hits in right.values()],
            [len(hits) for hits in right.values()],
            audit.confidence,
            baseline=float(np.mean(chances)),
        )
    }


def true_positive_rates(
    statistic: Floats, member: Bools, present: Bools, audit: TwoStageMembership
) -> tuple[dict[str, Estimate], list[Underpowered]]:
    from fedaudit.stats import roc

    usable = present & np.isfinite(statistic)
    out, short = {}, []
    for rate in RATES:
        found = roc.true_positive_rate_at(
            statistic[usable], member[usable], rate, confidence=audit.confidence
        )
        if isinstance(found, Underpowered):
            short.append(found)
        else:
            out[f"true_positive_rate at {100 * rate:g} %"] = found
    return out, short


# -- the risk as published -----------------------------------------------------------------------


def risk(
    audit: TwoStageMembership,
    parts: list[Contribution],
    rng: np.random.Generator,
    *,
    noise_known: bool = True,
) -> dict[str, Estimate]:
    """TS-MIA_m and its two stages over rounds and clients. [TwoStage] Eqs. (28), (31), (32)

    The baseline of TS-MIA, of Pr(A | S) and of J is the same quantity on matched records that
    nobody trained on: what is not above it says nothing about membership.
    """
    from fedaudit.stats import intervals

    parts = [c for c in parts if np.isfinite(_ratio(c))]
    if not parts:
        return {}
    clients = [c.party for c in parts]
    survives = np.array([_survives(c) for c in parts], dtype=float)
    inside = np.array([positive_share(c.delta[c.member], audit.sample, rng) for c in parts])
    outside = np.array([positive_share(c.delta[~c.member], audit.sample, rng) for c in parts])
    advantage = np.array([float(theory.phi(c.delta[c.member]).mean()) for c in parts])
    foreign = np.array([float(theory.phi(c.delta[~c.member]).mean()) for c in parts])
    ratio = np.array([_ratio(c) for c in parts])
    out: dict[str, Estimate] = {}

    def add(name: str, values: Floats, baseline: float | None, keep: Bools | None = None) -> None:
        chosen = np.ones(len(values), bool) if keep is None else keep
        if not chosen.any():
            return
        found = intervals.cluster_mean(
            values[chosen],
            np.array(clients)[chosen],
            rng=rng,
            confidence=audit.confidence,
            baseline=baseline,
        )
        if isinstance(found, Estimate):
            out[name] = found

    add("ts_mia", survives * inside, float((survives * outside).mean()))
    add("stage I: share of updates that survive", survives, None)
    held = survives > 0
    given = float(outside[held].mean()) if held.any() else None
    add("stage II: share of draws with J > 0, given survival", inside, given, held)
    add("J on members", advantage, float(foreign.mean()))
    if all(c.deviation is not None for c in parts):
        apart = np.array([_deviation(c, c.member) for c in parts])
        abroad = float(np.mean([_deviation(c, ~c.member) for c in parts]))
        add("empirical from true score advantage (Eqs. 11, 12)", apart, abroad)
    add("SUR", ratio, None)
    if not noise_known:
        return out
    power = np.array([float(_power(audit, c)) for c in parts])
    add(
        f"power to find an update at {100 * audit.false_positive_rate:g} % false positives",
        power,
        audit.false_positive_rate,
    )
    return out


def positive_share(delta: Floats, sample: int, rng: np.random.Generator) -> float:
    """Pr(J_m > 0) over draws of m records with replacement. [TwoStage] Eqs. (30), (31)"""
    values = theory.phi(delta)
    draws = values[rng.integers(0, len(values), size=(RESAMPLES, sample))].mean(axis=1)
    return float((draws > 0).mean())


def _deviation(c: Contribution, of: Bools) -> float:
    """Mean |advantage under the aggregate - under u alone|. [TwoStage] Eqs. (11), (12)"""
    assert c.deviation is not None
    return float(np.abs(c.deviation[of]).mean())


def _ratio(c: Contribution) -> float:
    assert c.survey.stage_one is not None
    return float(c.survey.stage_one.ratio[c.row])


def _survives(c: Contribution) -> bool:
    return _ratio(c) > c.survey.threshold


def _power(audit: TwoStageMembership, c: Contribution) -> float:
    assert c.survey.stage_one is not None
    return float(audit.power(c.survey.stage_one)[c.row])


def prediction(
    parts: list[Contribution], audit: TwoStageMembership, rng: np.random.Generator
) -> dict[str, Estimate]:
    """Does the risk predict the attack? Rank correlation over (client, round) of J on members, and
    of TS-MIA, with the AUC of the headline attack.

    The risk is that of one half of a client's candidates, the AUC that of the other: on the same
    records both would rise with the same lucky draw, whether anything leaks or not.
    """
    tables = crossed(parts, audit, rng)
    names = sorted(tables)
    out: dict[str, Estimate] = {}
    for column, risk_name in enumerate(("J", "TS-MIA")):
        groups = [tables[n][..., [column, 2]] for n in names]
        both = np.concatenate(groups) if groups else np.zeros((0, 0, 2))
        if len(names) < 3 or any(len(np.unique(both[..., i])) < 3 for i in (0, 1)):
            continue
        out[f"rank correlation of {risk_name} with the attack's AUC"] = _correlation(
            groups, audit.confidence, rng
        )
    return out


def crossed(
    parts: list[Contribution], audit: TwoStageMembership, rng: np.random.Generator
) -> dict[str, Floats]:
    """Party -> (rounds, 2 SPLITS, 3): J and TS-MIA on one half of its candidates, AUC on the other.

    A client is halved alike in all rounds: records carry their luck from round to round.
    """
    mine: dict[str, list[Contribution]] = {}
    for c in parts:
        if np.isfinite(_ratio(c)) and np.isfinite(c.evidence).all():
            mine.setdefault(c.party, []).append(c)
    out = {}
    for party, own in mine.items():
        sides = [
            side for _ in range(SPLITS) for side in _halved(own[0].member, own[0].classes, rng)
        ]
        if sides:
            out[party] = np.array([[_risk_and_auc(c, *s, audit, rng) for s in sides] for c in own])
    return out


def _halved(
    member: Bools, classes: npt.NDArray[np.int64], rng: np.random.Generator
) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Numbers of one half of the candidates and of the other, and the same turned round.

    Pairs of a member and another of its class stay together, so that whichever of a pair is the
    member in one half, nothing follows for the other half. Nothing where there is one pair only.
    """
    pairs = []
    for kind in np.unique(classes):
        inside = rng.permutation(np.flatnonzero(member & (classes == kind)))
        outside = rng.permutation(np.flatnonzero(~member & (classes == kind)))
        pairs += list(zip(inside, outside, strict=False))  # who finds no partner is left out
    if len(pairs) < 2:
        return []
    mixed = rng.permutation(np.array(pairs))
    one, other = mixed[: len(mixed) // 2].ravel(), mixed[len(mixed) // 2 :].ravel()
    return [(one, other), (other, one)]


def _risk_and_auc(
    c: Contribution,
    one: npt.NDArray[np.int64],
    other: npt.NDArray[np.int64],
    audit: TwoStageMembership,
    rng: np.random.Generator,
) -> tuple[float, float, float]:
    """J and TS-MIA of one half, AUC of the other."""
    delta = c.delta[one][c.member[one]]
    risk_of = _survives(c) * positive_share(delta, audit.sample, rng)
    j = float(theory.phi(delta).mean())
    return j, risk_of, _plain_auc(c.evidence[other], c.member[other])


def _correlation(groups: list[Floats], confidence: float, rng: np.random.Generator) -> Estimate:
    """Spearman's correlation of two columns of clients (rounds, halvings, 2), mean over halvings.

    The interval is the wider of two. Clients resampled: far too narrow where they are few. And the
    spread that is left if the second column goes up or down from its mean at the toss of a coin
    per client, as it does if the first says nothing about it.
    """
    from scipy.special import ndtri

    from fedaudit.stats import intervals

    alpha = intervals.check_confidence(confidence)
    count, halvings = len(groups), groups[0].shape[1]

    def of(chosen: npt.NDArray[np.int64]) -> float:
        both = np.concatenate([groups[i] for i in chosen])
        ranks = _column_ranks(np.concatenate([both[..., 0], both[..., 1]], axis=1))
        return float(_products(ranks[:, :halvings], ranks[:, halvings:]).mean())

    value = of(np.arange(count))
    drawn = [of(rng.integers(0, count, count)) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [alpha / 2, 1 - alpha / 2])
    both = np.concatenate(groups)
    client = np.repeat(np.arange(count), [len(g) for g in groups])
    first, apart = _column_ranks(both[..., 0]), both[..., 1] - both[..., 1].mean()
    tossed = []
    for _ in range(RESAMPLES // TOSSES_AT_ONCE):
        signs = rng.choice([-1.0, 1.0], (count, TOSSES_AT_ONCE))[client]
        ranks = _column_ranks((apart[:, None] * signs[:, :, None]).reshape(len(both), -1))
        products = _products(np.tile(first, TOSSES_AT_ONCE), ranks)
        tossed += [products.reshape(TOSSES_AT_ONCE, halvings).mean(axis=1)]
    reach = float(ndtri(1 - alpha / 2)) * math.sqrt(np.square(tossed).mean())
    return Estimate(
        value=value,
        low=max(-1.0, min(float(low), value - reach)),
        high=min(1.0, max(float(high), value + reach)),
        n=count,
        confidence=confidence,
        baseline=0.0,
        method="Spearman on disjoint halves of a client's candidates; the wider of a bootstrap "
        "over clients and of signs tossed per client",
    )


def _column_ranks(values: Floats) -> Floats:
    """Ranks within every column of (n, m), centred and of length one; zero where all are equal."""
    ranks = _midranks_of_columns(values)
    ranks -= ranks.mean(axis=0)
    size = np.linalg.norm(ranks, axis=0)
    return np.asarray(ranks / np.where(size > 0, size, 1.0))


def _midranks_of_columns(values: Floats) -> Floats:
    """`_midranks` of all columns (n, m) at once: resampling asks for thousands."""
    order = np.argsort(values, axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    at = np.arange(1.0, len(values) + 1)[:, None]
    fresh = np.ones(values.shape, bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    # a run of ties has the mean of its first and its last place
    first = np.maximum.accumulate(np.where(fresh, at, 0.0), axis=0)
    ends = np.ones(values.shape, bool)
    ends[:-1] = fresh[1:]
    last = np.minimum.accumulate(np.where(ends, at, np.inf)[::-1], axis=0)[::-1]
    out = np.empty(values.shape)
    np.put_along_axis(out, order, (first + last) / 2, axis=0)
    return out


def _products(first: Floats, second: Floats) -> Floats:
    """Correlations (m,), column by column, of ranks (n, m) that `_column_ranks` made."""
    return np.asarray((first * second).sum(axis=0))


# -- the bound -----------------------------------------------------------------------------------


def bound_checks(guess: Survey, member: Bools) -> tuple[dict[str, Estimate], dict[str, Bound]]:
    """How far measured J and increments lie beyond Theorem 1, Lemma 7 and Lemma 6, worst case over
    all checked clients and rounds; the interval is the numerical error of the quadrature."""
    theorem, concentrated, lemma = [], [], []
    for survey in guess.rounds:
        for party, path in survey.paths.items():
            if path.smoothness is None:
                continue
            inside = _members_of(guess, member, party)
            off = np.abs(path.increment - path.slope)
            smooth = float(path.smoothness.max())
            slack = float(theory.remainder_bound(smooth, path.norm))
            lemma += list(zip(off - slack, path.error, strict=True))
            if inside.any():
                j = float(theory.phi(path.increment[inside]).mean())
                proxy = float(theory.phi(path.slope[inside]).mean())
                error = float(path.error[inside].mean()) / 4
                theorem.append((abs(j - proxy) - slack / 4, error))
                mean, variance = float(path.slope[inside].mean()), float(path.slope[inside].var())
                wide = float(theory.mean_score_slack(variance, smooth, path.norm))
                concentrated.append((abs(j - float(theory.phi(mean))) - wide, error))
    estimates, bounds = {}, {}
    for name, found, source in (
        ("J beyond Theorem 1", theorem, "[TwoStage] Eq. (23), Theorem 1"),
        ("J beyond Lemma 7", concentrated, "[TwoStage] Lemma 7"),
        ("increment beyond Lemma 6", lemma, "[TwoStage] Eq. (19), Lemma 6"),
    ):
        if not found:
            continue
        # the worst is what is surely outside, not what may be
        value, error = max(found, key=lambda f: f[0] - f[1])
        estimates[name] = Estimate(
            value=float(value),
            low=float(value - error),
            high=float(value + error),
            n=len(found),
            method="worst of all checked clients and rounds; interval: quadrature error",
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

    As the paper calibrates it, on shorter steps along the same segment ([TwoStage] Section 6.2):
    no bound. And the curvature along u alone, sup |u' Hess u| / |u|^2: sharper than L and a bound
    as well, but of a supremum on five points it leaves no margin. Hence neither is a disagreement.
    """
    from fedaudit.stats import intervals

    constants: dict[str, list[tuple[Path, npt.ArrayLike]]] = {
        "the published L": [],
        "the curvature along u": [],
    }
    for survey in guess.rounds:
        for path in survey.paths.values():
            if path.norm == 0:
                continue
            constants["the published L"].append((path, path.calibrated))
            if path.directional is not None:
                constants["the curvature along u"].append((path, path.directional))
    out = {}
    for name, found in constants.items():
        beyond = [
            np.abs(path.increment - path.slope) - path.error
            > theory.remainder_bound(constant, path.norm)
            for path, constant in found
        ]
        if beyond:
            every = np.concatenate(beyond)
            out[f"increments beyond Lemma 6 with {name}"] = intervals.wilson(
                int(every.sum()), len(every), audit.confidence
            )
    return out


def _members_of(guess: Survey, member: Bools, party: str) -> Bools:
    """Which of the checked records of a client are members."""
    return np.asarray(member[guess.parties.index(party)][guess.checked[party]])


def geometry(path: Path, inside: Bools) -> dict[str, float]:
    """|s|, gamma = cos(u, s), Var of directional scores, over members. [TwoStage] Eqs. (24), (25)

    <s, u> is the mean slope; |s|^2 the mean inner product of the members' score gradients.
    """
    if not inside.any() or path.norm == 0:
        return {}
    slope = path.slope[inside]
    size = math.sqrt(max(float(path.products[np.ix_(inside, inside)].mean()), 0.0))
    mean = float(slope.mean())
    gamma = mean / (size * path.norm) if size > 0 else 0.0
    return {"score": size, "gamma": gamma, "mean": mean, "variance": float(slope.var())}


# -- tables and figures --------------------------------------------------------------------------


def per_client(
    audit: TwoStageMembership,
    guess: Survey,
    parts: list[Contribution],
    statistic: Floats,
    member: Bools,
) -> dict[str, dict[str, float | int | str | None]]:
    from fedaudit.stats import roc

    out: dict[str, dict[str, float | int | str | None]] = {}
    for p, party in enumerate(guess.parties):
        usable = guess.present[p] & np.isfinite(statistic[p])
        own = roc.auc(statistic[p][usable], member[p][usable], confidence=audit.confidence)
        row: dict[str, float | int | str | None] = {
            "members asked": int(member[p].sum()),
            "AUC": own.value if isinstance(own, Estimate) else None,
            "low": own.low if isinstance(own, Estimate) else None,
            "high": own.high if isinstance(own, Estimate) else None,
            "chance": 0.5 if isinstance(own, Estimate) else None,
        }
        mine = [c for c in parts if c.party == party]
        if mine:
            one = [c.survey.stage_one for c in mine]
            rows = [c.row for c in mine]

            def mean(name: str, one: Any = one, rows: Any = rows) -> float | None:
                values = [float(getattr(s, name)[r]) for s, r in zip(one, rows, strict=True)]
                known = [v for v in values if not math.isnan(v)]
                return float(np.mean(known)) if known else None

            row |= {
                "SUR": mean("ratio"),
                "lambda": mean("alignment"),
                "r": mean("magnitude_ratio"),
                "SNR": mean("snr") if _noise_known(guess) else None,
                "SNR without B": mean("blind") if _noise_known(guess) else None,
                "J": float(np.mean([theory.phi(c.delta[c.member]).mean() for c in mine])),
                "J of nobody's": float(
                    np.mean([theory.phi(c.delta[~c.member]).mean() for c in mine])
                ),
            }
        seen = [s.paths[party] for s in guess.rounds if party in s.paths]
        gammas = [geometry(path, _members_of(guess, member, party)) for path in seen]
        found = [g["gamma"] for g in gammas if g]
        if found:
            row["gamma"] = float(np.mean(found))
        published = [path.calibrated for path in seen if path.norm > 0]
        if published:
            row["L as published"] = float(np.max(published))
        hessian = [float(path.smoothness.max()) for path in seen if path.smoothness is not None]
        if hessian:
            row["L by Hessian"] = max(hessian)
        out[party] = row
    return out


def curves(
    audit: TwoStageMembership,
    guess: Survey,
    parts: list[Contribution],
    statistic: Floats,
    member: Bools,
    rng: np.random.Generator,
) -> dict[str, dict[str, tuple[float, ...]]]:
    from fedaudit.stats import roc

    out: dict[str, dict[str, tuple[float, ...]]] = {}
    usable = guess.present & np.isfinite(statistic)
    found = roc.curve(statistic[usable], member[usable])
    if not isinstance(found, Underpowered):
        # both corners, and no more points than an eye can tell apart
        keep = np.unique(
            np.linspace(0, len(found.threshold) - 1, min(200, len(found.threshold))).astype(int)
        )
        out["ROC"] = {
            "false positives": tuple(map(float, found.false_positive_rate[keep])),
            "true positives": tuple(map(float, found.true_positive_rate[keep])),
        }
    if not parts:
        return out
    rounds = sorted({c.round for c in parts})
    by_round = {t: [c for c in parts if c.round == t and math.isfinite(_ratio(c))] for t in rounds}
    by_round = {t: own for t, own in by_round.items() if own}
    out["risk by round"] = {
        "round": tuple(by_round),
        "TS-MIA": tuple(
            float(
                np.mean(
                    [
                        _survives(c) * positive_share(c.delta[c.member], audit.sample, rng)
                        for c in own
                    ]
                )
            )
            for own in by_round.values()
        ),
        "SUR": tuple(float(np.mean([_ratio(c) for c in own])) for own in by_round.values()),
        "J": tuple(
            float(np.mean([theory.phi(c.delta[c.member]).mean() for c in own]))
            for own in by_round.values()
        ),
        "J of nobody's": tuple(
            float(np.mean([theory.phi(c.delta[~c.member]).mean() for c in own]))
            for own in by_round.values()
        ),
    }
    out |= _energy(parts)
    stage = [(c.survey.stage_one, c.row) for c in parts if c.survey.stage_one is not None]
    points = [
        (float(s.alignment[r]), float(s.magnitude_ratio[r]), float(s.ratio[r])) for s, r in stage
    ]
    points = [p for p in points if all(map(math.isfinite, p))]
    if points:
        lam, r, sur = zip(*points, strict=True)
        out["survival"] = {"lambda": lam, "r": r, "SUR": sur}
    bound = [
        (path.norm, float(abs(path.increment[i] - path.slope[i])), float(abs(path.remainder[i])),
         float(path.error[i]), float(theory.remainder_bound(path.smoothness[i], path.norm)),
         float(theory.remainder_bound(path.directional[i], path.norm)))
        for s in guess.rounds for path in s.paths.values()
        if path.smoothness is not None and path.directional is not None
        for i in range(len(path.slope))
    ]  # fmt: skip
    if bound:
        norm, off, integral, error, limit, along = zip(*bound, strict=True)
        out["bound check"] = {
            "|u|": norm,
            "remainder": off,
            "by quadrature": integral,
            "its error": error,
            "L |u|^2 / 2": limit,
            "sup |u' Hess u| / 2": along,
        }
    return out


def _energy(parts: list[Contribution]) -> dict[str, dict[str, tuple[float, ...]]]:
    """Of what |dW|^2 of each round is made, in its own units, mean over clients: the update's own
    energy, the background's, and what the two share (below 0: they cancel). [TwoStage] Lemma 2
    """
    rows: dict[int, list[tuple[float, float, float, float]]] = {}
    for c in parts:
        stage = c.survey.stage_one
        if stage is None or not stage.moved[c.row] > 0:
            continue
        of = survival.energy(stage)
        rows.setdefault(c.round, []).append(
            (of.own[c.row], of.background[c.row], of.shared[c.row], of.total[c.row])
        )
    if not rows:
        return {}
    means = np.array([np.mean(rows[t], axis=0) for t in sorted(rows)])
    names = ("|u|^2 / |dW|^2", "|B|^2 / |dW|^2", "2 <u, B> / |dW|^2", "sum")
    columns = {n: tuple(map(float, means[:, i])) for i, n in enumerate(names)}
    return {"energy by round": {"round": tuple(map(float, sorted(rows))), **columns}}


def notes(
    audit: TwoStageMembership,
    guess: Survey,
    parts: list[Contribution],
    headline: str,
    member: Bools,
) -> tuple[str, ...]:
    out = [
        f"{int(member.sum())} records of {len(guess.parties)} clients were asked about, and as "
        "many of the same classes that nobody trained on",
        f"attack: {headline}, centred over the candidates of a client and class",
        *guess.notes,
    ]
    kinds = {r.seen for r in guess.rounds}
    if "sum" in kinds:
        out.append(
            "single updates of these clients are not observable from here: neither stage can be "
            "measured, and the attack uses what the model moved by"
        )
    if "anonymous" in kinds:
        out.append(
            "senders are hidden: rows are linked to clients by how their candidates, of whom half "
            "are members, score under each"
        )
    if parts:
        out.append(f"tau = {_threshold(guess)} ({guess.threshold_rule})")
        if guess.noise is None:
            out.append("no noise is declared: an update is found with certainty if B is known")
        else:
            least = "" if guess.noise.complete else "at least "
            out.append(
                f"noise per number {least}{guess.noise.aggregate:.3g} ({guess.noise.rule})"
                + ("" if guess.noise.complete else ": the power of stage I is not stated")
            )
        undefined = sum(not math.isfinite(_ratio(c)) for c in parts)
        if undefined:
            out.append(f"{undefined} updates stand in rounds without movement: SUR is undefined")
        still = sum(float(c.survey.stage_one.own[c.row]) == 0 for c in parts)  # type: ignore[union-attr]
        if still:
            out.append(f"{still} updates are zero: they move nothing")
        residual = max(r.residual for r in guess.rounds)
        if residual > 1e-3:
            out.append(
                f"the model moved by more than the updates' sum (up to {100 * residual:.1f} %): "
                "noise or momentum of the server counts as background"
            )
    if guess.rough and any(r.paths for r in guess.rounds):
        out.append(
            "smoothness is not applicable: no second derivative, or none known, in "
            + ", ".join(guess.rough)
        )
    reasons = [r.no_derivative for r in guess.rounds if r.no_derivative]
    if reasons:
        out.append(f"no derivatives along an update: {reasons[0]}")
    out += _conditions(guess, member)
    return tuple(out)


def _noise_known(guess: Survey) -> bool:
    return guess.noise is None or guess.noise.complete


def _threshold(guess: Survey) -> str:
    values = [r.threshold for r in guess.rounds if math.isfinite(r.threshold)]
    if not values:
        return "infinite"
    low, high = min(values), max(values)
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


def _conditions(guess: Survey, member: Bools) -> list[str]:
    """How often Lemma 8 holds as printed and in its sound form, and what J then is."""
    checked = published = wrong = sound = 0
    for survey in guess.rounds:
        for party, path in survey.paths.items():
            inside = _members_of(guess, member, party)
            g = geometry(path, inside)
            if not g or path.smoothness is None:
                continue
            checked += 1
            smooth = float(path.smoothness.max())
            j = float(theory.phi(path.increment[inside]).mean())
            if theory.published_condition(path.norm, g["score"], g["gamma"], smooth):
                published += 1
                wrong += j <= 0
            sound += theory.sound_condition(g["mean"], g["variance"], smooth, path.norm)
    if not checked:
        return []
    return [
        f"Lemma 8 as printed holds for {published} of {checked} checked updates (J <= 0 in {wrong} "
        f"of them); its sound form for {sound}"
    ]
