"""What is shown beside the estimates: one row per client, curves over rounds, notes in words.

The energy of a round is split as in [TwoStage] Lemma 2; the other numbers are those of `survival`,
`risk`, `attack` and `lemmas`, client by client and round by round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedaudit.audits.two_stage_membership import lemmas, prediction, survival, theory
from fedaudit.audits.two_stage_membership.attack import membership_auc
from fedaudit.audits.two_stage_membership.risk import (
    Contribution,
    positive_share,
    ratio_of,
    survives,
)
from fedaudit.results import Estimate, Underpowered

if TYPE_CHECKING:
    from fedaudit.audits.two_stage_membership.audit import Survey, TwoStageMembership

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def per_client(
    audit: TwoStageMembership,
    guess: Survey,
    parts: list[Contribution],
    statistic: Floats,
    member: Bools,
) -> dict[str, dict[str, float | int | str | None]]:
    """Client -> columns. Its AUC has the interval of `membership_auc` for one client alone: one
    that takes its centred records as independent is too narrow, and would name clients as exposed
    more often than it says."""
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
                "SNR": mean("snr") if noise_known(guess) else None,
                "SNR without B": mean("blind") if noise_known(guess) else None,
                "J": float(np.mean([theory.phi(c.delta[c.member]).mean() for c in mine])),
                "J of nobody's": float(
                    np.mean([theory.phi(c.delta[~c.member]).mean() for c in mine])
                ),
            }
        seen = [s.paths[party] for s in guess.rounds if party in s.paths]
        gammas = [lemmas.geometry(path, lemmas.members_of(guess, member, party)) for path in seen]
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
    by_round = {
        t: [c for c in parts if c.round == t and math.isfinite(ratio_of(c))] for t in rounds
    }
    by_round = {t: own for t, own in by_round.items() if own}
    out["risk by round"] = {
        "round": tuple(by_round),
        "TS-MIA": tuple(
            float(
                np.mean(
                    [
                        survives(c) * positive_share(c.delta[c.member], audit.sample, rng)
                        for c in own
                    ]
                )
            )
            for own in by_round.values()
        ),
        "SUR": tuple(float(np.mean([ratio_of(c) for c in own])) for own in by_round.values()),
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
    estimates: Mapping[str, Estimate],
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
        out.append(prediction.answer(estimates))
        out.append(f"tau = {_threshold(guess)} ({guess.threshold_rule})")
        if guess.noise is None:
            out.append("no noise is declared: an update is found with certainty if B is known")
        else:
            least = "" if guess.noise.complete else "at least "
            out.append(
                f"noise per number {least}{guess.noise.aggregate:.3g} ({guess.noise.rule})"
                + ("" if guess.noise.complete else ": the power of stage I is not stated")
            )
        undefined = sum(not math.isfinite(ratio_of(c)) for c in parts)
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
    out += lemmas.conditions(guess, member)
    return tuple(out)


def noise_known(guess: Survey) -> bool:
    return guess.noise is None or guess.noise.complete


def _threshold(guess: Survey) -> str:
    values = [r.threshold for r in guess.rounds if math.isfinite(r.threshold)]
    if not values:
        return "infinite"
    low, high = min(values), max(values)
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
