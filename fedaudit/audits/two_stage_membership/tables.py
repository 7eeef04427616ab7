"""Tables beside the estimates: one row per client, curves over rounds, notes in words.

The energy of a round is split as in [TwoStage] Lemma 2. The other numbers come from `survival`,
`risk`, `attack` and `lemmas`, client by client and round by round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaudit.arrays import Bools, Floats
from fedaudit.audits.records.areas import membership_auc
from fedaudit.audits.two_stage_membership import (
    by_update,
    detection,
    lemmas,
    prediction,
    survival,
    theory,
)
from fedaudit.audits.two_stage_membership.attack import READINGS
from fedaudit.audits.two_stage_membership.facts import BY_LINKAGE
from fedaudit.audits.two_stage_membership.risk import (
    Contribution,
    ratio_of,
    share_above_zero,
    survives,
)
from fedaudit.randomness import Seed
from fedaudit.results import Estimate, Underpowered
from fedaudit.stats import intervals, roc

if TYPE_CHECKING:
    from fedaudit.audits.two_stage_membership.attribution import UpdateSegment
    from fedaudit.audits.two_stage_membership.audit import TwoStageMembership
    from fedaudit.audits.two_stage_membership.detection import Strength
    from fedaudit.audits.two_stage_membership.survey import Survey


def per_client(
    audit: TwoStageMembership,
    guess: Survey,
    parts: list[Contribution],
    statistic: Floats,
    member: Bools,
    strength: Strength | None = None,
) -> dict[str, dict[str, float | int | str | None]]:
    """Client -> columns. The AUC's interval is that of `membership_auc` for one client alone.

    An interval that takes centred records as independent is too narrow: it would call clients
    exposed more often than its confidence says.
    """
    out: dict[str, dict[str, float | int | str | None]] = {}
    for p, party in enumerate(guess.parties):
        one_only = slice(p, p + 1)
        own = membership_auc(
            statistic[one_only],
            member[one_only],
            guess.present[one_only],
            guess.classes[one_only],
            audit.confidence,
        )
        row: dict[str, float | int | str | None] = {
            "members_asked": int(member[p].sum()),
            "AUC": own.value if isinstance(own, Estimate) else None,
            "low": own.low if isinstance(own, Estimate) else None,
            "high": own.high if isinstance(own, Estimate) else None,
            "chance": 0.5 if isinstance(own, Estimate) else None,
        }
        numbers = [i for i, c in enumerate(parts) if c.party == party]
        mine = [parts[i] for i in numbers]
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
                **_snr_columns(audit, mine, None if strength is None else strength.take(numbers)),
                "J": float(np.mean([theory.phi(c.delta[c.member]).mean() for c in mine])),
                "J_of_non_members": float(
                    np.mean([theory.phi(c.delta[~c.member]).mean() for c in mine])
                ),
            }
        seen = [s.segments[party] for s in guess.rounds if party in s.segments]
        gammas = [
            lemmas.geometry(segment, lemmas.members_of(guess, member, party)) for segment in seen
        ]
        found = [g["gamma"] for g in gammas if g]
        if found:
            row["gamma"] = float(np.mean(found))
        published = [segment.calibrated.max() for segment in seen if segment.norm > 0]
        if published:
            row["L_as_published"] = float(np.max(published))
        hessian = [
            float(segment.smoothness.max()) for segment in seen if segment.smoothness is not None
        ]
        if hessian:
            row["L_by_Hessian"] = max(hessian)
        out[party] = row
    return out


def _snr_columns(
    audit: TwoStageMembership, mine: list[Contribution], strength: Strength | None
) -> dict[str, float | int | str | None]:
    """SNR of one client, mean over its rounds, with B known and without.

    If its own noise hides the length of its updates: the SNR of all of them together, None if that
    cannot be told from 0, and an upper limit.
    """
    if strength is None:
        return {"SNR": None, "SNR_without_B": None}
    stages = [(c.survey.stage_one, c.row, c.survey.sigma) for c in mine]
    # |u| / spread, from |u| / sigma
    apart = [n / float(o.spread[r]) for o, r, n in stages if o is not None and n > 0]
    if not detection.readable(strength, audit):
        found = detection.pooled(strength, audit.confidence)
        snr = found.snr if found.above_zero else None
        blind = None if snr is None else snr * float(np.mean(apart))
        return {"SNR": snr, "SNR_without_B": blind, "SNR_at_most": found.high}
    if not apart:  # without noise an update is found with certainty
        plain = [float(o.blind[r]) for o, r, _ in stages if o is not None]
        return {"SNR": float(np.mean(strength.snr)), "SNR_without_B": float(np.mean(plain))}
    blind = float(np.mean(strength.snr * np.array(apart)))
    return {"SNR": float(np.mean(strength.snr)), "SNR_without_B": blind}


def curves(
    audit: TwoStageMembership,
    guess: Survey,
    parts: list[Contribution],
    statistic: Floats,
    member: Bools,
    streams: Seed,
    strength: Strength | None = None,
) -> dict[str, dict[str, tuple[float, ...]]]:
    out: dict[str, dict[str, tuple[float, ...]]] = {}
    usable = guess.present & np.isfinite(statistic)
    found = roc.curve(statistic[usable], member[usable])
    if not isinstance(found, Underpowered):
        # both corners, and at most 200 points
        keep = np.unique(
            np.linspace(0, len(found.threshold) - 1, min(200, len(found.threshold))).astype(int)
        )
        out["ROC"] = {
            "false positives": tuple(map(float, found.false_positive_rate[keep])),
            "true positives": tuple(map(float, found.true_positive_rate[keep])),
        }
    if not parts:
        return out
    out |= _risk_by_round(audit, parts, streams)
    out |= _energy(parts)
    out |= by_update.tables(audit, guess, parts, member, strength)
    stage = [(c.survey.stage_one, c.row) for c in parts if c.survey.stage_one is not None]
    points = [
        (float(s.alignment[r]), float(s.magnitude_ratio[r]), float(s.ratio[r])) for s, r in stage
    ]
    points = [p for p in points if all(map(math.isfinite, p))]
    if points:
        lam, r, sur = zip(*points, strict=True)
        out["survival"] = {"lambda": lam, "r": r, "SUR": sur}
    bound = [
        point
        for survey in guess.rounds
        for segment in survey.segments.values()
        for point in _bound_points(segment)
    ]
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


def _bound_points(segment: UpdateSegment) -> list[tuple[float, ...]]:
    """The columns of "bound check" for every record of a segment; none without curvature."""
    if segment.smoothness is None or segment.directional is None:
        return []
    return [
        (
            segment.norm,
            float(abs(segment.increment[i] - segment.slope[i])),
            float(abs(segment.remainder[i])),
            float(segment.error[i]),
            float(theory.remainder_bound(segment.smoothness[i], segment.norm)),
            float(theory.remainder_bound(segment.directional[i], segment.norm)),
        )
        for i in range(len(segment.slope))
    ]


def _risk_by_round(
    audit: TwoStageMembership, parts: list[Contribution], streams: Seed
) -> dict[str, dict[str, tuple[float, ...]]]:
    """TS-MIA, SUR and J of every round: mean over its clients, with an interval over them.

    Also TS-MIA and J of records that nobody trained on.
    """
    rounds: dict[int, list[Contribution]] = {}
    for c in sorted(parts, key=lambda c: c.round):
        if math.isfinite(ratio_of(c)):
            rounds.setdefault(c.round, []).append(c)
    columns: dict[str, list[float]] = {"round": [float(t) for t in rounds]}

    def add(name: str, values: list[float], *, share: bool = False) -> None:
        found = _over_clients(values, audit.confidence, share=share)
        for column, value in zip((name, f"{name} low", f"{name} high"), found, strict=True):
            columns.setdefault(column, []).append(value)

    for own in rounds.values():
        at_risk = {
            inside: [survives(c) * share_above_zero(c, inside, audit.sample, streams) for c in own]
            for inside in (True, False)
        }
        j = {
            inside: [float(theory.phi(c.delta[c.member == inside]).mean()) for c in own]
            for inside in (True, False)
        }
        add("TS-MIA", at_risk[True], share=True)
        columns.setdefault("TS-MIA of nobody's", []).append(float(np.mean(at_risk[False])))
        add("SUR", [ratio_of(c) for c in own])
        add("J", j[True])
        columns.setdefault("J of nobody's", []).append(float(np.mean(j[False])))
    return {"risk by round": {n: tuple(v) for n, v in columns.items()}} if rounds else {}


def _over_clients(
    values: list[float], confidence: float, *, share: bool
) -> tuple[float, float, float]:
    """Mean over the clients of one round, at least two, and its interval."""
    mean = float(np.mean(values))
    if share:
        found = intervals.clustered_share(values, np.ones(len(values)), confidence)
        return mean, min(float(found.low or 0.0), mean), max(float(found.high or 0.0), mean)
    of = intervals.mean(values, confidence)
    if isinstance(of, Underpowered) or of.low is None or of.high is None:
        return mean, mean, mean
    return mean, of.low, of.high


def _energy(parts: list[Contribution]) -> dict[str, dict[str, tuple[float, ...]]]:
    """Parts of |dW|^2 of each round, as shares of it, mean over clients: the update's own energy,
    the background's, and what the two share (below 0: they cancel). [TwoStage] Lemma 2
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
    estimates: Mapping[str, Estimate],
    strength: Strength | None = None,
) -> tuple[str, ...]:
    out = [
        f"candidates: {int(member.sum())} records of {len(guess.parties)} clients, and as many of "
        "the same classes that nobody trained on",
        f"attack: {READINGS[headline]}, centred over the candidates of a client and class",
        *guess.notes,
        *_visibility_notes(guess),
    ]
    if parts:
        out += [prediction.answer(estimates), f"tau = {_threshold(guess)} ({guess.threshold_rule})"]
        out += _noise_notes(audit, guess, strength)
        out += _movement_notes(guess, parts)
    out += _derivative_notes(audit, guess)
    out += lemmas.conditions(guess, member)
    return tuple(out)


def _visibility_notes(guess: Survey) -> list[str]:
    """Notes on rounds without named single updates."""
    out = []
    kinds = {r.seen for r in guess.rounds}
    sums = [r.number for r in guess.rounds if r.seen == "sum"]
    if kinds == {"sum"}:
        out.append(
            "single updates of these clients are not observable from here: neither stage can be "
            "measured, and the attack uses what the model moved by"
        )
    elif sums:
        out.append(
            f"single updates are not observable in {_rounds(sums)}: these count only by what the "
            "model moved by"
        )
    personal = [r.number for r in guess.rounds if r.personal]
    if personal:
        out.append(
            f"clients were sent different models in {_rounds(personal)}: the attack uses each "
            "client's own trained model; updates have no common model, so neither stage is "
            "measured there"
        )
    if "anonymous" in kinds:
        out.append(
            "senders are hidden: rows are linked to clients by the scores of their candidates, "
            "half of them members, under each row"
        )
    return out


def _noise_notes(audit: TwoStageMembership, guess: Survey, strength: Strength | None) -> list[str]:
    """Notes on the noise in force."""
    if guess.noise is None:
        return ["no noise is declared: an update is found with certainty if B is known"]
    least = "" if guess.noise.complete else "at least "
    sizes = [r.sigma / r.scale for r in guess.rounds if r.stage_one is not None]
    stated = "" if guess.noise.complete else ": the power of stage I is not stated"
    out = [f"noise per number {least}{_range(sizes)} ({guess.noise.rule}){stated}"]
    hidden = detection.note(strength, audit) if strength is not None else ""
    return [*out, hidden] if hidden else out


def _movement_notes(guess: Survey, parts: list[Contribution]) -> list[str]:
    """Notes on updates without movement, and on movement beyond the updates."""
    out = []
    undefined = sum(not math.isfinite(ratio_of(c)) for c in parts)
    if undefined:
        out.append(f"{undefined} updates are in rounds without movement: SUR is undefined")
    still = sum(float(c.survey.stage_one.own[c.row]) == 0 for c in parts)  # type: ignore[union-attr]
    if still:
        out.append(f"{still} updates are zero: they move nothing")
    residual = max(r.residual for r in guess.rounds)
    if residual > 1e-3:
        out.append(
            f"the model moved by more than the updates' sum (up to {100 * residual:.1f} %): "
            "noise or momentum of the server counts as background"
        )
    return out


def _derivative_notes(audit: TwoStageMembership, guess: Survey) -> list[str]:
    """Notes on paths found by linkage, and on missing derivatives along updates."""
    out = []
    if guess.rough and any(r.segments for r in guess.rounds):
        out.append(
            "smoothness is not applicable: no known second derivative in "
            + ", ".join(guess.rough)
            + ("" if audit.smooth else " (set smooth = true if they have one)")
        )
    linked = sum(len(r.segments) for r in guess.rounds if r.paths_linked)
    if linked:
        out.append(
            f"stage II was checked along {linked} {BY_LINKAGE}: their rows have no names, and some "
            "may be another client's (rows_linked says how many)"
        )
    kinked = sum(segment.kinked for r in guess.rounds for segment in r.segments.values())
    if kinked:
        out.append(
            f"smooth = true is set, but slopes jump as at a ReLU along {kinked} checked updates: "
            "no bound is stated there"
        )
    reasons = [r.no_derivative for r in guess.rounds if r.no_derivative]
    if reasons:
        out.append(f"no derivatives along an update: {reasons[0]}")
    return out


def noise_known(guess: Survey) -> bool:
    return guess.noise is None or guess.noise.complete


def _threshold(guess: Survey) -> str:
    values = [r.threshold for r in guess.rounds if math.isfinite(r.threshold)]
    if not values:
        return "infinite"
    return _range(values)


def _rounds(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:6])) + (", ..." if len(numbers) > 6 else "")
    return f"round {shown}" if len(numbers) == 1 else f"{len(numbers)} rounds ({shown})"


def _range(values: Sequence[float]) -> str:
    low, high = (f"{v:.3g}" for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
