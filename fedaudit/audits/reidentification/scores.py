"""Score names against senders: rates with intervals, one test, membership, tables and notes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaudit.arrays import Bools, Floats
from fedaudit.audits.amplification import notes_on_promises
from fedaudit.audits.reidentification import planning, theory
from fedaudit.audits.reidentification.facts import (
    BY_NAME,
    BY_RECORDS,
    BY_ROUNDS,
    GAIN,
    NAMED_AUC,
    NAMING,
    SET,
    SURE,
)
from fedaudit.results import AuditResult, Bound, Estimate, FamilyTest, Underpowered
from fedaudit.stats import intervals, naming
from fedaudit.stats.links import links_until_sure
from fedaudit.stats.roc import plain_auc
from fedaudit.trace import Truth

if TYPE_CHECKING:
    from fedaudit.audits.reidentification.audit import NamedRows, Reidentification

OF_THE_REST = " (anonymous updates)"
"""Suffix of the attack's measures, if other updates have names."""
TABLE = dict[str, dict[str, float | int | str | None]]


def senders_of(guess: NamedRows, truth: Truth) -> list[list[str]] | None:
    """The true sender of every row, round by round; None if the truth does not know them."""
    out = []
    for number, own in zip(guess.rounds, guess.messages, strict=True):
        known = truth.senders(number)
        if any(i not in known for i in own):
            return None
        out.append([known[i] for i in own])
    return out


def score_names(
    audit: Reidentification,
    guess: NamedRows,
    senders: Sequence[Sequence[str]],
    truth: Truth,
    rng: np.random.Generator,
    shared: Mapping[str, Any],
) -> AuditResult:
    named = {r: words_of(guess, numbers) for r, numbers in guess.names.items()}
    test = naming.naming_test(senders, named, level=(1 - audit.confidence) / 2, rng=rng)
    sizes = [len(own) for own in senders]
    total, chance = sum(sizes), theory.chance([len(a) for a in guess.asked], sizes)
    hits = {r: hits_of(senders, given) for r, given in named.items()}
    estimates = {
        r: intervals.clustered_exact(
            [sum(h) for h in by_client.values()],
            [len(h) for h in by_client.values()],
            audit.confidence,
            baseline=chance,
        )
        for r, by_client in hits.items()
    }
    family = FamilyTest(
        adjusted=test.p,
        decided=test.decided,
        level=test.level,
        method=f"max-T over readings, senders permuted within rounds {test.draws:,} times; "
        "single clients exactly; Holm over both",
    )
    estimates |= _anonymity(guess, senders, rng, audit.confidence)
    more, short = _membership(guess, truth, audit.confidence)
    found = "named" if family.significant else ""
    return AuditResult(
        **shared,
        headline=NAMING,
        estimates=estimates | more,
        test=family,
        underpowered=short,
        bounds=_ceilings(guess, truth, sizes),
        per_client=_per_client(audit, guess, senders, hits[NAMING], test, chance),
        curves=_curves(audit, guess, senders, estimates, hits[NAMING], chance),
        detectable=test.least / total if test.least <= total else math.inf,
        notes=(
            *_notes(guess, test, sizes),
            *notes_on_promises(
                truth.facts.get("guarantees", {}),
                guess.declared,
                sizes,
                "named" if found else "",
            ),
        ),
    )


def words_of(guess: NamedRows, numbers: Sequence[Any]) -> list[list[str]]:
    """Client names of the rows, round by round; an empty string for a row without a name."""
    return [[guess.parties[i] if i >= 0 else "" for i in own.tolist()] for own in numbers]


def hits_of(
    senders: Sequence[Sequence[str]], named: Sequence[Sequence[str]]
) -> dict[str, list[bool]]:
    """Client -> for each of its rows in time order, whether it was named correctly."""
    out: dict[str, list[bool]] = {}
    for own, given in zip(senders, named, strict=True):
        for sender, name in zip(own, given, strict=True):
            out.setdefault(sender, []).append(sender == name)
    return out


# -- estimates ------------------------------------------------------------------------------------


def _anonymity(
    guess: NamedRows,
    senders: Sequence[Sequence[str]],
    rng: np.random.Generator,
    confidence: float,
) -> dict[str, Estimate]:
    """Mean perplexity of P(client | row), with an interval over clients."""
    values = np.concatenate([naming.anonymity_set(p) for p in guess.posterior])
    number: dict[str, int] = {}
    clusters = [number.setdefault(s, len(number)) for own in senders for s in own]
    uniform = np.concatenate([np.full(len(p), p.shape[1]) for p in guess.posterior]).mean()
    found = intervals.cluster_mean(
        values, clusters, rng=rng, confidence=confidence, baseline=float(uniform)
    )
    return {} if isinstance(found, Underpowered) else {SET: found}


def _membership(
    guess: NamedRows, truth: Truth, confidence: float
) -> tuple[dict[str, Estimate], tuple[Underpowered, ...]]:
    """AUC of membership with the named rows, and its gain over the best that needs no names.

    Clients are the units. The better one of two attacks without names is the baseline, so that the
    gain is not that over a weak one.
    """
    if not all(p in truth.members for p in guess.holders):
        return {}, ()
    member = np.zeros_like(guess.present)
    for i, party in enumerate(guess.holders):
        member[i, : len(truth.members[party])] = truth.members[party]
    each = {name: _aucs(s, member, guess.present) for name, s in guess.statistics.items()}
    usable = np.isfinite(np.stack([*each.values()])).all(axis=0)
    if usable.sum() < 2:
        lack = Underpowered(
            what="what naming adds (clients)", have=int(usable.sum()), needed=2, measure=GAIN
        )
        return {}, (lack,)
    own = each.pop("named")[usable]
    other = max((v[usable] for v in each.values()), key=lambda v: float(v.mean()))
    out = {}
    for name, values, baseline in ((NAMED_AUC, own, 0.5), (GAIN, own - other, 0.0)):
        found = intervals.mean(values, confidence=confidence, baseline=baseline)
        if isinstance(found, Underpowered):
            continue
        out[name] = replace(found, method=f"{found.method} over clients")
    return out, ()


def _aucs(statistic: Floats, member: Bools, present: Bools) -> Floats:
    """AUC of every client's candidates (P,); NaN without members or without others."""
    out = np.full(len(statistic), np.nan)
    for i, values in enumerate(statistic):
        usable = present[i] & np.isfinite(values)
        inside = member[i][usable]
        if inside.any() and not inside.all():
            out[i] = plain_auc(values[usable], inside)
    return out


# -- ceiling --------------------------------------------------------------------------------------

ASSUMES = (
    "a shuffler orders every round at random, nothing beside an update tells clients apart, and "
    "clients keep no state besides their data. The adversary may know all data: then other rounds "
    "add nothing, so one round's loss counts, for a swap of two clients"
)


def _ceilings(guess: NamedRows, truth: Truth, sizes: Sequence[int]) -> dict[str, Bound]:
    """Ceilings on the naming rate from guarantees for replacing a client's whole data."""
    out = {}
    for name, given in truth.facts.get("guarantees", {}).items():
        promises = [
            g for g in given.values() if g["unit"] == "client" and g.get("relation") == "replace"
        ]
        if len(promises) != len(given) or not promises:
            continue
        own: Mapping[str, Any] = next((d for d in guess.declared if d.get("name") == name), {})
        multiplier = own.get("noise_multiplier", 0.0)
        if isinstance(multiplier, int | float) and multiplier > 0:
            delta = theory.swapped_gaussians(float(multiplier))
            covers = f"one round, noise multiplier {multiplier:g}, two clients swapped"
        else:
            weakest = max(promises, key=lambda g: float(g["epsilon"]))
            delta = theory.swapped(float(weakest["epsilon"]), float(weakest["delta"]))
            covers = "the whole run, two clients swapped"
        limits = {k: theory.ceiling(k, delta) for k in set(sizes)}
        out[f"ceiling of {name}"] = Bound(
            value=sum(k * limits[k] for k in sizes) / sum(sizes),
            kind="upper",
            of=NAMING,
            source="composed privacy losses of a swap (ours)",
            assumes=ASSUMES,
            unit="client",
            relation="replace",
            covers=covers,
        )
    return out


# -- tables ---------------------------------------------------------------------------------------


def _per_client(
    audit: Reidentification,
    guess: NamedRows,
    senders: Sequence[Sequence[str]],
    hits: Mapping[str, Sequence[bool]],
    test: naming.NamingTest,
    chance: float,
) -> TABLE:
    sets: dict[str, list[float]] = {}
    for own, posterior in zip(senders, guess.posterior, strict=True):
        for sender, size in zip(own, naming.anonymity_set(posterior).tolist(), strict=True):
            sets.setdefault(sender, []).append(size)
    out: TABLE = {}
    for name in sorted(hits):
        own_hits = hits[name]
        share = intervals.wilson(sum(own_hits), len(own_hits), confidence=audit.confidence)
        out[name] = {
            "rows": len(own_hits),
            "named": sum(own_hits),
            "share": share.value,
            "low": share.low,
            "high": share.high,
            "chance": chance,
            "p": test.clients[name],
            SURE: links_until_sure(own_hits, chance, audit.confidence, len(hits)),
            "anonymity_set": float(np.mean(sets[name])),
        }
    return out


def _curves(
    audit: Reidentification,
    guess: NamedRows,
    senders: Sequence[Sequence[str]],
    estimates: Mapping[str, Estimate],
    hits: Mapping[str, Sequence[bool]],
    chance: float,
) -> dict[str, dict[str, tuple[float | int, ...]]]:
    """The rate by records held (candidates alone), and by rounds seen."""
    whole = next((r for r in guess.held if r.endswith("s)") and "candidate" in r), NAMING)
    of_count = {m: r for r, m in guess.held.items() if "candidate" in r}
    of_count.setdefault(guess.held[whole], whole)
    counts = [0, *sorted(of_count)]
    rates = [estimates[of_count[m]] for m in counts[1:]]
    out: dict[str, dict[str, tuple[float | int, ...]]] = {
        BY_RECORDS: {
            "records per site": tuple(counts),
            NAMING: (chance, *(e.value for e in rates)),
            "low": (chance, *(e.low for e in rates)),
            "high": (chance, *(e.high for e in rates)),
            "chance": (chance,) * len(counts),
        }
    }
    if guess.so_far:
        at = [guess.rounds.index(t) for t in guess.so_far]
        right = [
            float(np.mean([s == n for s, n in zip(senders[i], words, strict=True)]))
            for i, (words,) in zip(
                at, (words_of(guess, [names]) for names in guess.so_far.values()), strict=True
            )
        ]
        sure = _sure_by_round(audit, senders, hits, chance)
        out[BY_ROUNDS] = {
            "round": tuple(guess.so_far),
            NAMING: tuple(right),
            "clients named for sure": tuple(sure[i] for i in at),
            "chance": (chance,) * len(at),
        }
    return out


def _sure_by_round(
    audit: Reidentification,
    senders: Sequence[Sequence[str]],
    hits: Mapping[str, Sequence[bool]],
    chance: float,
) -> list[float]:
    """Share of clients for which chance is ruled out by their rows up to each round."""
    where: dict[str, list[int]] = {}
    for t, own in enumerate(senders):
        for sender in own:
            where.setdefault(sender, []).append(t)
    since = []
    for name, own_hits in hits.items():
        sure = links_until_sure(own_hits, chance, audit.confidence, len(hits))
        since.append(math.inf if sure is None else where[name][sure - 1])
    return [float(np.mean([s <= t for s in since])) for t in range(len(senders))]


def _notes(guess: NamedRows, test: naming.NamingTest, sizes: Sequence[int]) -> list[str]:
    notes = [*guess.notes]
    most = max(guess.held.values())
    notes.append(f"the adversary holds up to {most} candidate records of each site, half its own")
    if any("enrolled" in r for r in guess.held):
        notes.append(f"{NAMING} also uses records that it knows to be the site's")
    if any("without links" in r for r in guess.held):
        notes.append(f"links were trusted to be right with a chance of {guess.trust:.0%}")
    if not math.isfinite(test.least) or test.least > sum(sizes):
        needed = planning.rounds_to_alarm(min(sizes), test.level / 2)
        notes.append(
            f"nothing could have been seen: with {min(sizes)} rows a round, even names that are "
            f"all right could be chance. {needed} rounds would do"
        )
    return notes


def guesses_of(guess: NamedRows) -> dict[str, dict[str, Any]]:
    """Client -> the rows that the attack assigns to it, surest first."""
    rows: dict[int, list[tuple[float, int, int]]] = {}
    first = next(iter(guess.names.values()))
    for number, messages, own, given, p in zip(
        guess.rounds, guess.messages, guess.asked, first, guess.posterior, strict=True
    ):
        for i, (message, name) in enumerate(zip(messages, given.tolist(), strict=True)):
            if name >= 0:
                column = int(np.flatnonzero(own == name)[0])
                rows.setdefault(name, []).append((float(p[i, column]), number, message))
    return {
        guess.parties[name]: {
            "rows_assigned": len(found),
            "mean_probability": float(np.mean([q for q, _, _ in found])),
            "messages": " ".join(
                f"{t}:{m}" for _, t, m in sorted(found, key=lambda f: (-f[0], f[1:]))
            ),
        }
        for name, found in rows.items()
    }


# -- known outright -------------------------------------------------------------------------------


def known_outright(
    guess: NamedRows, found: AuditResult | None, shared: Mapping[str, Any]
) -> AuditResult:
    """Names on updates are a leak at its full value; what the attack found stands beside it."""
    count, total = len(guess.outright), len(guess.outright) + guess.hidden
    clients = max(len(guess.parties), len(set(guess.outright.values())))
    full = Estimate(
        value=1.0,
        low=1.0,
        high=1.0,
        n=count,
        confidence=1.0,
        baseline=1.0 / max(2, clients),
        method="read from the messages: no attack needed",
    )
    estimates = {NAMING: full}
    where = "every message" if count == total else f"{count} of {total} messages"
    notes = [f"by name, on {where}"]
    per_client: TABLE = {}
    for name in dict.fromkeys(guess.outright.values()):
        rows = sum(n == name for n in guess.outright.values())
        per_client[name] = {"rows": rows, "named": rows, "share": 1.0, "low": 1.0, "high": 1.0}
        per_client[name] |= {"chance": full.baseline, SURE: 0, "anonymity_set": 1.0}
    test = None
    if count < total:
        estimates[BY_NAME] = replace(
            full, value=count / total, low=count / total, high=count / total, n=total, baseline=0.0
        )
    if found is not None:
        estimates |= {f"{name}{OF_THE_REST}": e for name, e in found.estimates.items()}
        notes += found.notes
        per_client = {**found.per_client, **per_client}  # type: ignore[dict-item]
    elif count < total:
        notes.append(f"{total - count} anonymous updates were not scored")
    return AuditResult(
        **shared,
        known=True,
        headline=NAMING,
        estimates=estimates,
        test=test,
        per_client=per_client,
        curves={} if found is None else found.curves,
        detectable=0.0,
        notes=tuple(notes),
    )
