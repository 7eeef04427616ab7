"""Score a guess: estimates, bounds, and a row for every client."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedaudit.audits.attribution import calibration, scoring, theory
from fedaudit.audits.attribution.constants import assumption_constants
from fedaudit.audits.attribution.guess import AttributionGuess
from fedaudit.errors import count_of
from fedaudit.results import AuditResult, Bound, Estimate, Underpowered
from fedaudit.stats import intervals
from fedaudit.trace import Truth

if TYPE_CHECKING:
    from fedaudit.audits.attribution.audit import Attribution

ENOUGH = 300
"""Fewest tests under the null for which a false-alarm rate is stated."""


def score_guess(audit: Attribution, guess: AttributionGuess, truth: Truth | None) -> AuditResult:
    clients, tested = len(guess.names), int(guess.decision.testable.sum())
    flagged = guess.decision.named.flagged
    estimates: dict[str, Estimate] = {
        "clients_named": Estimate(
            value=float(flagged.sum()),
            low=float(flagged.sum()),
            high=float(clients),
            n=clients,
            confidence=1 - audit.error,
            baseline=0.0,
            method=f"Holm over {tested} clients and {guess.keys} keys: a lower limit",
            one_sided=True,
        )
    }
    estimates |= _on_unused(audit, guess)
    underpowered: list[Underpowered] = []
    bounds: dict[str, Bound] = {}
    facts = None if truth is None else truth.facts.get("marked")
    marked = None
    if isinstance(facts, Mapping):
        marked = np.array([name in facts for name in guess.names])
        found, short = _against(audit, guess, marked)
        estimates |= found
        underpowered += short
        found, short, bounds = _constants(audit, guess, marked)
        estimates |= found
        underpowered += short
    if guess.drawn is not None:
        bounds = {**bounds, "theorem_4_leakage": theory.leakage_bound(*guess.drawn)}
    return AuditResult(
        **audit.about(guess),
        headline="clients_named",
        estimates=estimates,
        underpowered=tuple(underpowered),
        bounds=bounds,
        per_client=_per_client(audit, guess, marked, estimates),
        curves={"by_round": _by_round(guess)},
        detectable=_detectable(audit, guess, marked),
        notes=(*_notes(guess, marked), *_named_from(audit, guess, marked)),
    )


def _detectable(
    audit: Attribution, guess: AttributionGuess, marked: npt.NDArray[np.bool_] | None
) -> float | None:
    """The smallest detectable effect: one named client.

    None if the sums do not tell all clients apart or a marked client was missed; infinite if no
    score could have named a client.
    """
    if guess.keys and np.isinf(guess.named_from(audit.error)).all():
        return math.inf if guess.decision.testable.any() else None
    missed = marked is not None and (marked & ~guess.decision.named.flagged).any()
    return 1.0 if guess.decision.testable.all() and not missed else None


def _named_from(
    audit: Attribution, guess: AttributionGuess, marked: npt.NDArray[np.bool_] | None
) -> list[str]:
    """A note on the smallest mark that names a client."""
    if not guess.keys or not guess.decision.testable.any():
        return []
    far, tested = guess.named_from(audit.error), guess.decision.testable
    far = far[tested & ~np.isnan(far)]
    if not len(far):
        return []
    far = far[np.isfinite(far)]
    if not len(far):
        return [
            "no mark could have named a client: with "
            f"{guess.decision.p_values.unused} unused keys no p-value falls to "
            f"{calibration.first_step(audit.error, int(tested.sum()), guess.keys):.2g}"
        ]
    ends = f"{far.min():.1f}" + (f" to {far.max():.1f}" if far.max() > far.min() else "")
    missed = 0 if marked is None else int((marked & ~guess.decision.named.flagged).sum())
    unseen = "weaker marks may go unseen"
    if missed:
        unseen = f"{missed} marked clients stay below, so no smallest detectable mark is stated"
    return [
        f"a client is named, whatever the others hold, if its mark stands out by {ends} deviations "
        f"of unused keys: {unseen}"
    ]


def _above(
    audit: Attribution, guess: AttributionGuess, k: int, z: float, estimates: Mapping[str, Estimate]
) -> dict[str, float | int | str | None]:
    """Whether a client's published score is above thresholds that stay valid as rounds add up.

    By Theorem 3 with the constants of this run: after the rounds with this client, and after any
    number of rounds.
    """
    assert guess.published is not None
    if not {"drift", "noise"} <= estimates.keys():
        return {}
    rounds = int((~np.isnan(guess.published[:, k, 0])).sum())
    by = {name: estimates[name].value for name in ("drift", "noise")}
    return {
        "published_above_growing": int(
            z > theory.growing_threshold(rounds, error=audit.error, **by)
        ),
        "published_above_anytime": int(
            z > theory.anytime_threshold(rounds, error=audit.error, **by)
        ),
    }


def _on_unused(audit: Attribution, guess: AttributionGuess) -> dict[str, Estimate]:
    """False-alarm rates on keys that nobody trained on, over hundreds of client tests.

    Half of the unused keys are tested as if they were the owner's, with the other half as null, at
    the level of Holm's first step, where the tail decides. Published: above the threshold. Tests of
    one key share its probes, so keys are the clusters.
    """
    out = {}
    testable = guess.decision.testable
    tested = len(guess.blocks[0].null) // 2
    if guess.whole and testable.sum() * tested >= ENOUGH:
        level = calibration.first_step(audit.error, int(testable.sum()), guess.keys)
        found = [guess.decided(b.null, tested, audit.error) for b in guess.blocks]
        alarms = np.concatenate([f.p_values.p[testable] <= level for f in found], axis=1)
        out["false_alarm_rate_per_test"] = intervals.clustered_share(
            alarms.sum(axis=0),
            np.full(alarms.shape[1], len(alarms)),
            audit.confidence,
            baseline=level,
        )
    if guess.published is not None:
        total = scoring.stouffer_by_client(guess.published)[:, guess.keys :]
        total = total[~np.isnan(total).any(axis=1)]
        if total.size >= ENOUGH:
            out["published_false_alarm_rate_per_test"] = intervals.clustered_share(
                (total > audit.threshold).sum(axis=0),
                np.full(total.shape[1], len(total)),
                audit.confidence,
                baseline=NormalDist().cdf(-audit.threshold),
            )
    return out


def _against(
    audit: Attribution, guess: AttributionGuess, marked: npt.NDArray[np.bool_]
) -> tuple[dict[str, Estimate], list[Underpowered]]:
    """Detection rates, and false-alarm rates if there are enough benign clients."""
    readings = {"": (guess.decision.named.flagged, audit.error)}
    if guess.published is not None:
        # the chance of an unmarked client to be above gamma on some key, if scores were normal
        chance = 1 - NormalDist().cdf(audit.threshold) ** guess.keys
        readings["published_"] = (_published_flags(audit, guess), chance)
    out, short = {}, []
    for label, (flags, chance) in readings.items():
        if marked.any():
            out[f"{label}detected"] = intervals.wilson(
                int(flags[marked].sum()),
                int(marked.sum()),
                audit.confidence,
                baseline=chance,
            )
        benign = int((~marked).sum())
        if benign >= ENOUGH:
            out[f"{label}false_alarms"] = intervals.wilson(
                int(flags[~marked].sum()), benign, audit.confidence, baseline=chance
            )
        else:
            name = f"{label}false_alarms"
            what = f"{name}: benign clients for a false-alarm rate"
            short.append(Underpowered(what=what, have=benign, needed=ENOUGH, measure=name))
    return out, short


def _published_flags(audit: Attribution, guess: AttributionGuess) -> npt.NDArray[np.bool_]:
    """Above gamma on any key of the owner: the paper does not assign keys to clients."""
    assert guess.published is not None
    own = scoring.stouffer_by_client(guess.published[:, :, : guess.keys])
    return np.asarray((own > audit.threshold).any(axis=1))  # False for clients without a score


def _constants(
    audit: Attribution, guess: AttributionGuess, marked: npt.NDArray[np.bool_]
) -> tuple[dict[str, Estimate], list[Underpowered], dict[str, Bound]]:
    """m, eps and nu of Assumption 1, and the bounds of Theorem 3 with them.

    A benign client holds no key: it is scored by the key with its highest mean score.
    """
    if guess.published is None or not guess.keys:
        return {}, [], {}
    own = guess.published[:, :, : guess.keys]
    estimated = ~np.isnan(own).all(axis=(0, 2))
    if not estimated.any():
        return {}, [], {}
    own, marked = own[:, estimated], marked[estimated]
    fitting = np.nanmean(own, axis=0).argmax(axis=1)
    z = np.take_along_axis(own, fitting[None, :, None], axis=2)[:, :, 0]
    found = assumption_constants(z, marked, confidence=audit.confidence)
    out, short = {}, []
    # the baseline of each is its value for standard normal scores without a mark
    for name, value, unmarked in (
        ("signal", found.signal, 0.0),
        ("drift", found.drift, 0.0),
        ("noise", found.noise, 1.0),
    ):
        if isinstance(value, Underpowered):
            short.append(replace(value, what=f"{name}: {value.what}", measure=name))
        else:
            out[name] = replace(value, baseline=unmarked)
    taken = (~np.isnan(z)).sum(axis=0)[~marked]
    bounds = {}
    if len(taken) and "drift" in out and "noise" in out and out["noise"].value > 0:
        bounds = _theorem_3(audit, int(taken.max()), out["drift"].value, out["noise"].value)
    return out, short, bounds


def _theorem_3(audit: Attribution, rounds: int, drift: float, noise: float) -> dict[str, Bound]:
    """A benign client's chance to be flagged after `rounds` rounds, and two thresholds."""
    assumed = "Assumption 1 with the constants estimated on this run"
    by = {"drift": drift, "noise": noise}
    errors = theory.error_bounds(rounds, audit.threshold, signal=0.0, **by)
    found = {
        "theorem_3_false_positive": (
            "published_false_alarms",
            errors.false_positive,
            f"{assumed}, {rounds} rounds with a benign client; a bound of 1 says nothing",
        ),
        "growing_threshold": (
            "published_z",
            theory.growing_threshold(rounds, error=audit.error, **by),
            f"{assumed}: after {rounds} rounds a benign client is above it on one key with a "
            f"chance of at most {audit.error:g}",
        ),
        "anytime_threshold": (
            "published_z",
            theory.anytime_threshold(rounds, error=audit.error, **by),
            f"{assumed}: a benign client is ever above it on one key, after {rounds} or any other "
            f"number of rounds, with a chance of at most {audit.error:g}",
        ),
    }
    return {
        name: Bound(
            value=value, kind="reference", of=of, source="[FedAttr] Theorem 3", assumes=assumes
        )
        for name, (of, value, assumes) in found.items()
    }


def _per_client(
    audit: Attribution,
    guess: AttributionGuess,
    marked: npt.NDArray[np.bool_] | None,
    estimates: Mapping[str, Estimate],
) -> dict[str, dict[str, float | int | str | None]]:
    from scipy.special import stdtrit

    published = None
    if guess.published is not None:
        published = scoring.stouffer_by_client(guess.published[:, :, : guess.keys])
    blocks = guess.blocks if guess.apart else guess.blocks * max(guess.keys, 1)
    unit = np.stack([guess.parts.value[:, b.null].std(axis=1, ddof=1) for b in blocks], 1)
    centre = np.stack([guess.parts.value[:, b.null].mean(axis=1) for b in blocks], 1)
    far = guess.named_from(audit.error) if guess.keys else np.full(len(guess.names), np.inf)
    out: dict[str, dict[str, float | int | str | None]] = {}
    for k, name in enumerate(guess.names):
        s = int(guess.decision.named.key[k])
        row: dict[str, float | int | str | None] = {"named": int(guess.decision.named.flagged[k])}
        row["adjusted_p"] = float(guess.decision.named.adjusted[k])
        if not guess.decision.testable[k]:
            row["adjusted_p"] = None
        if np.isfinite(far[k]):
            row["stands_out"] = float(guess.decision.p_values.distance[k, s])
            row["named_from"] = float(far[k])
        if guess.parts.identifiable[k] and guess.keys and unit[k, s] > 0:
            value = (guess.parts.value[k, s] - centre[k, s]) / unit[k, s]
            row |= {"key": s, "part": float(value)}
            if guess.parts.freedom:
                t = float(stdtrit(guess.parts.freedom, 0.5 + audit.confidence / 2))
                half = t * float(guess.parts.deviation[k, s]) / unit[k, s]
                row |= {"low": float(value - half), "high": float(value + half)}
        look = int(guess.sequential.first[k])
        row["named_after_round"] = guess.rounds[look - 1] if look else None
        row["sums_per_round"] = float(guess.uploads[k])
        if published is not None and guess.keys and not np.isnan(published[k]).any():
            row["published_z"] = float(published[k].max())
            row |= _above(audit, guess, k, float(published[k].max()), estimates)
        if marked is not None:
            row["marked"] = int(marked[k])
        out[name] = row
    return out


def _by_round(guess: AttributionGuess) -> dict[str, tuple[float, ...]]:
    first = guess.sequential.first
    done = [int(((first > 0) & (first <= t)).sum()) for t in range(1, len(guess.rounds) + 1)]
    return {
        "round": tuple(float(r) for r in guess.rounds),
        "named_so_far": tuple(float(n) for n in done),
        "queries": tuple(float(q) for q in guess.queries),
    }


def _notes(guess: AttributionGuess, marked: npt.NDArray[np.bool_] | None) -> tuple[str, ...]:
    who = [n for n, f in zip(guess.names, guess.decision.named.flagged, strict=True) if f]
    notes = ["named: " + ", ".join(who[:10]) + (" and more" if len(who) > 10 else "")] * bool(who)
    notes += guess.notes
    notes.append(f"read from {guess.reading}, {count_of(len(guess.rounds), 'round')}")
    late = int((guess.decision.named.flagged & (guess.sequential.first == 0)).sum())
    if late:
        notes.append(
            f"a test that may stop after any round pays for every look: it would not yet name "
            f"{late} of the {len(who)} named clients"
        )
    unknown = int((~guess.decision.testable).sum())
    if unknown:
        notes.append(
            f"{unknown} of {len(guess.names)} clients cannot be tested: the sums so far do not "
            "tell them from others"
        )
    if guess.published is not None:
        none = int(np.isnan(guess.published).all(axis=(0, 2)).sum())
        if none:
            notes.append(
                f"{none} clients have no published score: they took no part, or subsets with or "
                "without them were not answered"
            )
    p, flagged = guess.decision.p_values, guess.decision.named.flagged
    by_tail, whole = int((p.tail.any(axis=1) & flagged).sum()), len(guess.blocks[0].null)
    if by_tail:
        notes.append(
            f"{by_tail} of the {len(who)} named clients lie beyond all {p.unused} unused keys"
            + (" that were ranked (others measure the noise)" if p.unused < whole else "")
            + ": their p-values rest on an extrapolated tail, and are at most "
            f"{p.floor:.2g} in any case"
        )
    if marked is not None:
        for kind, these in (("marked", marked), ("benign", ~marked)):
            if these.any():
                named = int(flagged[these].sum())
                notes.append(f"{named} of {int(these.sum())} {kind} clients were named")
    return tuple(notes)
