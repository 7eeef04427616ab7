"""Turn game outcomes into success rates and attach bounds.

Independent games: Clopper-Pearson intervals for both rates. Success and F1 grow with each rate, so
their intervals come from the ends of two intervals that share the error rate. Published trials:
games of a trial share data and targets, so the bootstrap resamples whole trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaudit.arrays import Bools, Floats, Indices
from fedaudit.audits.active_membership import theory
from fedaudit.audits.active_membership.attention import MARGIN
from fedaudit.results import AuditResult, Bound, Estimate, Need, Underpowered
from fedaudit.stats import roc
from fedaudit.stats.intervals import bootstrap, clopper_pearson, clopper_pearson_bounds

if TYPE_CHECKING:
    from fedaudit.audits.active_membership.audit import ActiveMembership, Guess

Estimates = dict[str, Estimate | Underpowered]

CURVE_POINTS = 200
MOST_GAMES = 1 << 22
"""Largest number of games to ask for: a ceiling that needs more is as good as chance."""


# -- one set of games -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Counts:
    """Members called members (`found`), and non-members not called (`cleared`)."""

    found: int
    members: int
    cleared: int
    others: int

    @classmethod
    def of(cls, called: Bools, member: Bools) -> Counts:
        return cls(
            int((called & member).sum()),
            int(member.sum()),
            int((~called & ~member).sum()),
            int((~member).sum()),
        )


def success(c: Counts, confidence: float) -> Estimate | Underpowered:
    """(TPR + TNR) / 2, chance 1/2."""
    return _from_both_rates(c, confidence, lambda tpr, tnr: 0.5 * (tpr + tnr), 0.5)


ALWAYS_YES = 2.0 / 3.0
"""F1 of always saying yes, if half of the games have a member."""


def f1(c: Counts, confidence: float) -> Estimate | Underpowered:
    """2 TP / (2 TP + FP + FN) for a fair coin; always saying yes gives 2/3."""
    return _from_both_rates(
        c, confidence, lambda tpr, tnr: 2.0 * tpr / (tpr + 2.0 - tnr), ALWAYS_YES
    )


def _from_both_rates(
    c: Counts, confidence: float, function: Callable[[float, float], float], baseline: float
) -> Estimate | Underpowered:
    """A function that grows with both rates, with a conservative interval."""
    if not c.members or not c.others:
        return Underpowered(what="a success rate", have=min(c.members, c.others), needed=1)
    tail = (1.0 - confidence) / 4.0  # two rates, two sides
    low, high = clopper_pearson_bounds(
        np.array([c.found, c.cleared]), np.array([c.members, c.others]), tail
    )
    return Estimate(
        value=function(c.found / c.members, c.cleared / c.others),
        low=function(float(low[0]), float(low[1])),
        high=function(float(high[0]), float(high[1])),
        n=c.members + c.others,
        confidence=confidence,
        baseline=baseline,
        method="Clopper-Pearson on both rates",
    )


def from_independent_games(
    values: Floats, member: Bools, cut: float, confidence: float, *, corner: bool = True
) -> Estimates:
    """Estimates from independent games with scores `values` (G,).

    `corner` adds the true-positive rate at few false positives.
    """
    c = Counts.of(values > cut, member)
    out: Estimates = {"success": success(c, confidence)}
    if c.members and c.others:
        # a blind guess says yes to members as often as to non-members
        out["true_positive_rate"] = clopper_pearson(
            c.found, c.members, confidence, baseline=1.0 - c.cleared / c.others
        )
        out["true_negative_rate"] = clopper_pearson(
            c.cleared, c.others, confidence, baseline=1.0 - c.found / c.members
        )
    out["f1"] = f1(c, confidence)
    out["auc"] = roc.auc(values, member, confidence=confidence)
    if corner:
        out["true_positive_rate (at 1 %)"] = roc.true_positive_rate_at(
            values, member, 0.01, confidence=confidence
        )
    return out


def from_trials(
    values: Floats,
    member: Bools,
    trial: Indices,
    cut: float,
    confidence: float,
    rng: np.random.Generator,
) -> Estimates:
    """The same for published trials; intervals resample whole trials."""
    called = values > cut
    rows = []
    areas = []
    for t in np.unique(trial):
        own = trial == t
        c = Counts.of(called[own], member[own])
        rows.append([c.found, c.members, c.cleared, c.others])
        area = roc.auc(values[own], member[own], confidence=confidence)
        if isinstance(area, Estimate):
            areas.append(area.value)
    counts = np.array(rows, dtype=np.float64)

    def rates(stack: Floats) -> tuple[Floats, Floats]:
        total = stack.sum(axis=1)
        return total[:, 0] / np.maximum(total[:, 1], 1), total[:, 2] / np.maximum(total[:, 3], 1)

    def resampled(function: Callable[[Floats, Floats], Floats], baseline: float) -> Any:
        found = bootstrap(
            counts,
            lambda stack: function(*rates(stack)),
            rng=rng,
            confidence=confidence,
            baseline=baseline,
        )
        if isinstance(found, Estimate):
            return replace(found, method=f"bootstrap over {len(counts)} trials")
        return found

    tpr, tnr = (float(rate[0]) for rate in rates(counts[None]))
    out: Estimates = {
        "success": resampled(lambda p, q: 0.5 * (p + q), 0.5),
        "true_positive_rate": resampled(lambda p, q: p, 1.0 - tnr),
        "true_negative_rate": resampled(lambda p, q: q, 1.0 - tpr),
        "f1": resampled(lambda p, q: 2.0 * p / (p + 2.0 - q), ALWAYS_YES),
    }
    area = bootstrap(np.array(areas), rng=rng, confidence=confidence, baseline=0.5)
    if isinstance(area, Estimate):
        area = replace(area, method=f"mean over trials, bootstrap over {len(areas)} of them")
    out["auc"] = area
    return out


def smallest_success(members: int, others: int, confidence: float) -> float | None:
    """The smallest success, at equal rates, whose interval would lie above one half."""
    if not members or not others:
        return None
    share = np.arange(0.5, 1.0 + 1e-9, 1.0 / min(members, others))
    tail = (1.0 - confidence) / 4.0
    low = [clopper_pearson_bounds(np.rint(share * n), n, tail)[0] for n in (members, others)]
    seen = np.flatnonzero(0.5 * (low[0] + low[1]) > 0.5)
    return float(share[seen[0]]) if len(seen) else None


def _detectable_by_trials(found: Estimate) -> float | None:
    """The smallest success whose interval would lie above one half, if trials spread like these.

    None if these trials do not spread at all.
    """
    reach = found.value - found.low
    return min(1.0, 0.5 + reach) if reach > 0 else None


def _is_detectable(success: float, each: int, confidence: float) -> bool:
    """Whether `each` members and non-members would show a success just below `success`."""
    just_below = math.ceil(success * each) - 1
    return bool(clopper_pearson_bounds(just_below, each, (1.0 - confidence) / 4.0)[0] > 0.5)


def _too_few(
    games: int, detectable: float | None, bounds: Mapping[str, Bound], confidence: float
) -> tuple[Underpowered, ...]:
    """Underpowered if `games` would not show even an adversary at the ceiling."""
    tops = [b.value for b in bounds.values() if b.kind == "upper" and b.of == "success"]
    if not tops or min(tops) <= 0.5 or (detectable is not None and detectable < min(tops)):
        return ()
    needed = 2 * games
    while needed < MOST_GAMES and not _is_detectable(min(tops), needed // 2, confidence):
        needed *= 2
    what = f"a success of {min(tops):.4g}, the most any adversary can reach here: games"
    return (Underpowered(what=what, have=games, needed=needed, measure="success"),)


# -- the whole result -----------------------------------------------------------------------------


def score_guess(
    audit: ActiveMembership,
    guess: Guess,
    members: Mapping[str, Bools],
    rng: np.random.Generator,
    shared: Mapping[str, Any],
) -> AuditResult:
    """Estimates, bounds and notes of a guess, given the coins."""
    about, confidence = guess.about, audit.confidence
    found: dict[str, Estimate | Underpowered] = {}
    clear = not (about["mixed"] or about["noisy"]) or not len(guess.recorded)
    coins = members["figure"]
    figure = (
        from_trials(guess.figure, coins, guess.trial, guess.cut, confidence, rng)
        if audit.trials > 1
        else from_independent_games(guess.figure, coins, guess.cut, confidence)
    )
    engine = (
        from_independent_games(guess.recorded, members["recorded"], 0.0, confidence, corner=False)
        if len(guess.recorded)
        else {}
    )
    if clear:
        found |= figure
        in_figure = "success"
        if engine:
            found["success (through the engine)"] = engine["success"]
    else:
        found |= engine
        in_figure = "success (gradient in the clear)"
        found[in_figure] = figure["success"]
    at_theory = _at_theory(audit, guess, coins, confidence, rng, found, in_figure)
    if guess.marked.size:
        found |= _right_client(guess.marked, members["marked"], confidence, noisy=about["noisy"])
    estimates = {k: v for k, v in found.items() if isinstance(v, Estimate)}
    lacking = tuple(replace(v, measure=k) for k, v in found.items() if isinstance(v, Underpowered))
    if "success" not in estimates:
        return AuditResult(
            **shared,
            status="nothing_to_say",
            need=Need(code="underpowered", what="too few games for a success rate"),
            underpowered=lacking,
        )
    bounds = _bounds(guess, estimates, in_figure, at_theory)
    if clear and audit.trials > 1:
        detectable = _detectable_by_trials(estimates["success"])
    else:
        used = coins if clear else members["recorded"]
        detectable = smallest_success(int(used.sum()), int((~used).sum()), confidence)
        lacking += _too_few(len(used), detectable, bounds, confidence)
    return AuditResult(
        **shared,
        headline="success",
        estimates=estimates,
        underpowered=lacking,
        bounds=bounds,
        # behind noise, sums and shuffles there are no games per client
        per_client=_per_client(guess, members, confidence) if clear else {},
        curves=_curves(guess, members, clear=clear),
        detectable=detectable,
        notes=(
            *_notes(audit, guess, clear),
            *(
                f"{name} says nothing here: guessing reaches its lower bound of "
                f"{100 * b.value:.1f} %"
                for name, b in bounds.items()
                if b.kind == "lower" and theory.is_vacuous(b.value)
            ),
        ),
    )


def _at_theory(
    audit: ActiveMembership,
    guess: Guess,
    coins: Bools,
    confidence: float,
    rng: np.random.Generator,
    found: dict[str, Estimate | Underpowered],
    in_figure: str,
) -> str | None:
    """Name of the estimate at the threshold of Theorem 1 or 3, added to `found` if needed."""
    if guess.outside is not None:
        cut, name = -guess.radius, "success (tau = Delta)"
    elif guess.floor is not None:
        cut, name = guess.floor.gamma, "success (gamma = 2 Delta-bar)"
    else:
        return None
    if audit.threshold == "theory":
        return in_figure
    # a distance of exactly Delta is outside the ball: a score equal to the cut means no
    if audit.trials > 1:
        found[name] = from_trials(guess.figure, coins, guess.trial, cut, confidence, rng)["success"]
    else:
        found[name] = success(Counts.of(guess.figure > cut + 1e-12, coins), confidence)
    return name


def _right_client(marked: Floats, whose: Bools, confidence: float, *, noisy: bool) -> Estimates:
    """Share of federations with the target in which the right client was named.

    Without noise the server names nobody if no detector answers; with noise it names the most
    likely client.
    """
    inside = whose.any(axis=1)
    right = (marked.argmax(axis=1) == whose.argmax(axis=1)) & (noisy | (marked.max(axis=1) > 0))
    k = whose.shape[1]
    if not inside.any():
        return {"right_client_named": Underpowered(what="who holds a record", have=0, needed=1)}
    return {
        "right_client_named": clopper_pearson(
            int(right[inside].sum()), int(inside.sum()), confidence, baseline=1.0 / k
        )
    }


def _lower_bound(advantage: float, *, of: str, source: str, assumes: str) -> Bound:
    """A lower bound on the success of one adversary, marked if it is vacuous."""
    value = theory.success(advantage)
    if theory.is_vacuous(value):
        assumes += "; says nothing: guessing reaches one half"
    return Bound(value=value, kind="lower", of=of, source=source, assumes=assumes)


def _bounds(
    guess: Guess, estimates: Mapping[str, Estimate], in_figure: str, at_theory: str | None
) -> dict[str, Bound]:
    """Bounds and reference values by name, each on one estimate."""
    about = guess.about
    game = f"Figure 12: {about['records']} of {about['universe']} records, target uniform"
    out: dict[str, Bound] = {}
    if at_theory is not None:
        out |= _floors(guess, game, at_theory)
    if about["balls"] is not None:
        out |= _grr_bounds(about, game, at_theory or in_figure)
    out |= _budget_ceilings(about, game, in_figure)
    if in_figure != "success":
        out |= _noise_ceilings(about)
    if about["ceiling"] is not None:
        value, how = about["ceiling"]
        out["total variation"] = Bound(
            value=theory.success(value),
            kind="upper",
            of=in_figure,
            source=how,
            assumes=f"{game}; any adversary, even one that knows all other records",
        )
    return out


def _floors(guess: Guess, game: str, at_theory: str) -> dict[str, Bound]:
    """Theorems 1 and 3: lower bounds on the estimate at their own threshold."""
    about = guess.about
    n, universe = about["records"], about["universe"]
    out: dict[str, Bound] = {}
    if guess.outside is not None:
        away = guess.outside
        share = f"P_M = {away.value:.4g}" + (
            "" if away.low == away.high else f", at most {away.high:.4g}"
        )
        out["Theorem 1"] = _lower_bound(
            theory.theorem1(away.high, n, universe),
            of=at_theory,
            source="[ActiveMembership] Theorem 1",
            assumes=f"{game}; |X| = {universe}, Delta = {guess.radius:.4g}; {share} "
            f"({away.method})",
        )
    if guess.floor is not None:
        f = guess.floor
        margin = f" with a margin of {100 * MARGIN:g} %" if about["margin"] else ""
        out["Theorem 3"] = _lower_bound(
            f.low,
            of=at_theory,
            source="[ActiveMembership] Theorem 3",
            assumes=f"{game}; independent patterns; Delta, M, R and m_max: extremes over "
            f"{f.sampled:,} sampled records{margin}; P_proj {f.near_target:.4g} "
            f"(target) and {f.near_other:.4g}, P_box {f.in_box:.4g}, unfavourable ends over "
            f"{f.draws:,} draws",
        )
    return out


def _grr_bounds(about: Mapping[str, Any], game: str, of: str) -> dict[str, Bound]:
    """Theorem 4 and the exact value for records of one feature under GRR."""
    n, exact = about["records"], float(about["exact_epsilon"])
    k, balls = about["alphabet"], about["balls"]
    assumes = f"{game}; a record is one of {k} values"
    alone = max(balls) == 1  # else the ball of radius Delta contains values that no record has
    out: dict[str, Bound] = {}
    if alone:
        out["Theorem 4"] = _lower_bound(
            theory.theorem4(exact, n, k),
            of=of,
            source="[ActiveMembership] Theorem 4",
            assumes=assumes,
        )
    out["exact for this adversary"] = Bound(
        value=theory.success(theory.grr_advantage(exact, n, k, balls)),
        kind="reference",
        of=of,
        source="(p - q)(1 - q)^(n - 1)"
        if alone
        else "mean over targets of (p - q)(1 - b q)^(n - 1)",
        assumes=assumes if alone else f"{assumes}, b of them within Delta of the target",
    )
    return out


def _budget_ceilings(about: Mapping[str, Any], game: str, of: str) -> dict[str, Bound]:
    """Theorem 2 at the exact budget and, if the mechanism exceeds its claim, at the claimed one."""
    exact, claimed = float(about["exact_epsilon"]), float(about["claimed_epsilon"])
    if not math.isfinite(exact):
        return {}
    delta = float(about["delta"])
    out = {
        "Theorem 2": Bound(
            value=theory.success(theory.theorem2(exact, delta)),
            kind="upper",
            of=of,
            source="[ActiveMembership] Theorem 2",
            assumes=f"{game}; exact epsilon {exact:,.4g} per record"
            + (f" at delta {delta:g}" if delta else ""),
        )
    }
    if exact > claimed * (1 + 1e-9):
        out["Theorem 2 at the claimed epsilon"] = Bound(
            value=theory.success(theory.theorem2(claimed)),
            kind="reference",
            of=of,
            source="[ActiveMembership] Theorem 2",
            assumes=f"nothing: the mechanism claims {claimed:,.4g}, its exact worst case is "
            f"{exact:,.4g}, so this ceiling does not bind",
        )
    return out


def _noise_ceilings(about: Mapping[str, Any]) -> dict[str, Bound]:
    """Ceilings from Gaussian noise on a step or on an update."""
    out: dict[str, Bound] = {}
    for name, z, moved in (
        ("one step of DP-SGD", about["step_noise"], "a replaced record moves a sum by 2 C"),
        ("one noisy update", about["upload_noise"], "replaced data move a clipped update by 2 C"),
    ):
        if z:
            out[name] = Bound(
                value=theory.gaussian_success(1.0 / z),
                kind="upper",
                of="success",
                source=f"Phi(1/z): {moved}, the noise is z C",
                assumes=f"one full-batch step with z = {z:g}; any adversary",
            )
    return out


def _per_client(
    guess: Guess, members: Mapping[str, Bools], confidence: float
) -> dict[str, dict[str, float | int | str | None]]:
    out: dict[str, dict[str, float | int | str | None]] = {}
    for party, values in guess.own.items():
        c = Counts.of(values > guess.cut, members[f"own/{party}"])
        e = success(c, confidence)
        if isinstance(e, Underpowered):
            continue
        out[party] = {
            "share": e.value,
            "low": e.low,
            "high": e.high,
            "members found": c.found / c.members,
            "others cleared": c.cleared / c.others,
            "games": c.members + c.others,
        }
    return out


def _curves(
    guess: Guess, members: Mapping[str, Bools], *, clear: bool
) -> dict[str, dict[str, tuple[float, ...]]]:
    """ROC curve of the headline's games and, if protected, the curve without the protection."""
    games = {"ROC (gradient in the clear)": (guess.figure, members["figure"])}
    if not clear:
        games = {"ROC (as uploads arrive)": (guess.recorded, members["recorded"])} | {
            "ROC (without the protection of uploads)": next(iter(games.values()))
        }
    out = {}
    for name, (scores, coins) in games.items():
        found = roc.curve(scores, coins)
        if isinstance(found, Underpowered):
            continue
        keep = np.unique(
            np.linspace(0, len(found.threshold) - 1, CURVE_POINTS).round().astype(np.int64)
        )
        x, y = found.false_positive_rate[keep], found.true_positive_rate[keep]
        out[name] = {
            "false positive rate": tuple(float(v) for v in x),
            "true positive rate": tuple(float(v) for v in y),
            "chance": tuple(float(v) for v in x),
        }
    return out


def _notes(audit: ActiveMembership, guess: Guess, clear: bool) -> tuple[str, ...]:
    about = guess.about
    exact, claimed = float(about["exact_epsilon"]), float(about["claimed_epsilon"])
    out = []
    if about["mechanism"] == "none":
        out.append("no local DP: clients train on their records as they are (Figure 11)")
    else:
        at = f" at delta {about['delta']:g}" if about["delta"] else ""
        text = (
            f"local DP by {about['mechanism']}: claimed epsilon {claimed:,.4g} per record{at}, "
            f"exact worst case {exact:,.4g}"
        )
        if exact > claimed * (1 + 1e-9):
            text += "; the claim does not hold, so a ceiling from it does not bind"
        out.append(text)
    out.append(
        f"universe of {about['universe']:,} records of {about['features']} features; a client has "
        f"{about['records']} in a game"
    )
    if about["tau"] is not None:
        out.append(
            f"tau = {about['tau']:.5g} ({audit.threshold}); half the smallest distance is "
            f"{guess.radius:.5g}"
        )
    else:
        out.append(f"beta = {about['beta']:.4g}, gamma = {about['gamma']:.4g} ({audit.threshold})")
    if guess.no_floor:
        out.append(guess.no_floor)
    if len(guess.agreed) and not about["noisy"]:
        out.append(
            f"{int(guess.agreed.sum())} of {len(guess.agreed)} games through the engine agree with "
            "the closed form"
        )
    if not clear:
        how = "as one sum or without names" if about["mixed"] else "with noise"
        out.append(
            f"the headline is for uploads that arrive {how}; there are no values per client, "
            "because these need gradients in the clear"
        )
    return (*out, *guess.notes)
