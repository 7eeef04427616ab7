"""Turn game outcomes into a result: estimates, bounds, curves and notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaudit.arrays import Bools, Floats
from fedaudit.audits.active_membership import ceilings, rates, theory
from fedaudit.audits.active_membership.facts import ADJUSTED_P, ANY_ARCHITECTURE
from fedaudit.results import AuditResult, Bound, Estimate, FamilyTest, Need, Underpowered
from fedaudit.stats import roc
from fedaudit.stats.intervals import clopper_pearson

if TYPE_CHECKING:
    from fedaudit.audits.active_membership.audit import ActiveMembership, Guess

CURVE_POINTS = 200


def score_guess(
    audit: ActiveMembership,
    guess: Guess,
    members: Mapping[str, Bools],
    rng: np.random.Generator,
    shared: Mapping[str, Any],
) -> AuditResult:
    """Estimates, bounds and notes of a guess, given the coins."""
    about, confidence = guess.about, audit.confidence
    clear = not (about["mixed"] or about["noisy"]) or not len(guess.recorded)
    found, in_figure = _success_rates(audit, guess, members, rng, clear=clear)
    at_theory = _at_theory(audit, guess, members["figure"], rng, found, in_figure)
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
    bounds = ceilings.bounds_on(guess, estimates, in_figure, at_theory)
    # behind noise, sums and shuffles there are no games per client
    own = _own_counts(guess, members) if clear else {}
    test: FamilyTest | None = None
    p_of: Mapping[str, float] = {}
    if clear and audit.trials > 1:
        detectable = rates.detectable_by_trials(estimates["success"])
    else:
        played, cut = (guess.figure, guess.cut) if clear else (guess.recorded, 0.0)
        used = members["figure" if clear else "recorded"]
        if "auc" in estimates:
            tested = rates.readings_test(played, used, cut, confidence, rng, own)
            test, p_of, detectable = tested.test, tested.clients, tested.detectable
        else:
            detectable = rates.smallest_success(len(used), confidence)
        lacking += rates.too_few_for_ceilings(len(used), detectable, bounds, confidence)
    curves = _curves(guess, members, clear=clear)
    curves = curves if clear else curves | ceilings.ceiling_curves(about)
    if about["granted"]:
        notes = _notes(audit, guess, clear)
        return _not_in_own_model(about["granted"], estimates, bounds, curves, notes, shared)
    return AuditResult(
        **shared,
        headline="success",
        estimates=estimates,
        test=test,
        underpowered=lacking,
        bounds=bounds,
        per_client=_per_client(own, p_of, confidence),
        curves=curves,
        detectable=detectable,
        notes=(*_notes(audit, guess, clear), *_vacuous(bounds)),
    )


def _not_in_own_model(
    why: str,
    estimates: Mapping[str, Estimate],
    bounds: Mapping[str, Bound],
    curves: Mapping[str, Mapping[str, tuple[float, ...]]],
    notes: tuple[str, ...],
    shared: Mapping[str, Any],
) -> AuditResult:
    """Nothing was planted in the model that clients train: no verdict, but what another gives."""
    return AuditResult(
        **shared,
        status="not_applicable",
        need=Need(
            code="architecture_fixed",
            what="nothing of ours can be planted in the run's own model here",
            expected="linear layers with ReLU or GELU between them, a config that says how clients "
            "train, and no noise or that of DP-SGD",
            got=why,
            remedy='adversary = "fc": counts if clients accept any architecture',
        ),
        estimates={ANY_ARCHITECTURE: estimates["success"]},
        bounds={n: replace(b, of=ANY_ARCHITECTURE) for n, b in bounds.items() if b.of == "success"},
        curves=curves,
        notes=notes,
    )


def _success_rates(
    audit: ActiveMembership,
    guess: Guess,
    members: Mapping[str, Bools],
    rng: np.random.Generator,
    *,
    clear: bool,
) -> tuple[rates.Estimates, str]:
    """Rates of the games, and the name of the success with gradients in the clear.

    `clear`: uploads arrive one by one, named and without noise. Otherwise the headline is that of
    the games through the engine.
    """
    coins, confidence = members["figure"], audit.confidence
    figure = (
        rates.from_trials(guess.figure, coins, guess.trial, guess.cut, confidence, rng)
        if audit.trials > 1
        else rates.from_independent_games(guess.figure, coins, guess.cut, confidence)
    )
    engine: rates.Estimates = {}
    if len(guess.recorded):
        played = members["recorded"]
        engine = rates.from_independent_games(guess.recorded, played, 0.0, confidence, corner=False)
    if clear:
        in_figure = "success"
        through = {"success (through the engine)": engine["success"]} if engine else {}
        found = figure | through
    else:
        in_figure = "success (gradient in the clear)"
        found = engine | {in_figure: figure["success"]}
    if guess.any_architecture is not None:
        values, cut = guess.any_architecture
        if clear:
            found[ANY_ARCHITECTURE] = _success_at(audit, guess, values, cut, coins, rng)
        else:
            counted = rates.Counts.of(values > cut, members["recorded"])
            found[ANY_ARCHITECTURE] = rates.success(counted, confidence)
    return found, in_figure


def _success_at(
    audit: ActiveMembership,
    guess: Guess,
    values: Floats,
    cut: float,
    coins: Bools,
    rng: np.random.Generator,
) -> Estimate | Underpowered:
    """The success of the games with scores `values` at a threshold."""
    if audit.trials > 1:
        played = rates.from_trials(values, coins, guess.trial, cut, audit.confidence, rng)
        return played["success"]
    return rates.success(rates.Counts.of(values > cut, coins), audit.confidence)


def _vacuous(bounds: Mapping[str, Bound]) -> tuple[str, ...]:
    return tuple(
        f"{name} says nothing here: guessing reaches its lower bound of {100 * b.value:.1f} %"
        for name, b in bounds.items()
        if b.kind == "lower" and theory.is_vacuous(b.value)
    )


def _at_theory(
    audit: ActiveMembership,
    guess: Guess,
    coins: Bools,
    rng: np.random.Generator,
    found: rates.Estimates,
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
    least = cut if audit.trials > 1 else cut + 1e-12
    found[name] = _success_at(audit, guess, guess.figure, least, coins, rng)
    return name


def _right_client(
    marked: Floats, whose: Bools, confidence: float, *, noisy: bool
) -> rates.Estimates:
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


def _own_counts(guess: Guess, members: Mapping[str, Bools]) -> dict[str, rates.Counts]:
    """Outcomes of the games against every client."""
    own = {
        party: rates.Counts.of(values > guess.cut, members[f"own/{party}"])
        for party, values in guess.own.items()
    }
    return {party: c for party, c in own.items() if c.members and c.others}


def _per_client(
    own: Mapping[str, rates.Counts], p_of: Mapping[str, float], confidence: float
) -> dict[str, dict[str, float | int | str | None]]:
    out: dict[str, dict[str, float | int | str | None]] = {}
    for party, c in own.items():
        e = rates.success(c, confidence)
        assert isinstance(e, Estimate)
        row: dict[str, float | int | str | None] = {
            "share": e.value,
            "low": e.low,
            "high": e.high,
            "members_found": c.found / c.members,
            "others_cleared": c.cleared / c.others,
            "games": c.games,
        }
        out[party] = row | ({ADJUSTED_P: p_of[party]} if party in p_of else {})
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


ANY_MODEL = (
    "this holds if clients accept any architecture that the server sends, and take one step on all "
    "their records"
)
PLANTED = {
    "own_model": "this was planted in the run's own model, and clients took their own local steps"
}
"""Adversary -> what has to be true of clients for its attack; the first note."""


def _notes(audit: ActiveMembership, guess: Guess, clear: bool) -> tuple[str, ...]:
    about = guess.about
    exact, claimed = float(about["exact_epsilon"]), float(about["claimed_epsilon"])
    out = [PLANTED.get(about["adversary"], ANY_MODEL)]
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
    elif about["beta"] is not None:
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
