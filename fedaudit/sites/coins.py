"""Guess which canaries the sites inserted, from the server's recording; count; merge."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from fedaudit.accounting import Exposure, from_opacus, opacus_history
from fedaudit.audits.epsilon import EpsilonAudit
from fedaudit.audits.epsilon.canaries import CanaryVectors, Promise, Rehearsal
from fedaudit.audits.epsilon.checks import compared
from fedaudit.audits.epsilon.facts import CHECKED
from fedaudit.audits.epsilon.instruments import noise_checks
from fedaudit.audits.epsilon.observed import Sighting, observe
from fedaudit.audits.epsilon.outcome import (
    at_least,
    bound_of,
    ceiling_of,
    declared_bounds,
    dominating,
    share_of_declared,
)
from fedaudit.errors import UsageError
from fedaudit.layout import Layout
from fedaudit.results import AuditResult
from fedaudit.sites.canaries import vectors_of
from fedaudit.sites.files import CANARIES, read, sha256
from fedaudit.stats import epsilon as statistics
from fedaudit.stats.combine import holm
from fedaudit.study.promised import opacus_states
from fedaudit.trace import Trace, View

NO_NOISE = (
    "the noise was not measured: that needs plain SGD with one learning rate, and accountants that "
    "count the same steps for every upload that arrived"
)


def guess_coins(
    audit: EpsilonAudit,
    view: View,
    trace: Trace,
    rng: np.random.Generator,
    files: Sequence[str | os.PathLike[str]],
    accountants: Sequence[str | os.PathLike[str]],
    delta: float,
) -> dict[str, Any]:
    """Calls on every site's canaries (1 inserted, -1 not, 0 withheld), and the measured noise."""
    raw = [read(file, CANARIES) for file in files]
    sites = [one["site"] for one in raw]
    if len(set(sites)) < len(sites):
        raise UsageError(
            "a site's canaries are given twice",
            expected="one file per site",
            got=", ".join(sites),
            remedy="leave one out",
        )
    histories = _histories(accountants, sites)
    promises = tuple(
        _promise(one, histories[one["site"]], _rounds(view, one["site"]), delta) for one in raw
    )
    rates = [
        one["rate"] if _one_to_one(histories[one["site"]], _rounds(view, one["site"])) else None
        for one in raw
    ]
    rehearsal = Rehearsal(
        view=view,
        canaries=_together([_on(trace.layout, one) for one in raw]),
        promises=promises,
        clients=tuple(sites),
        scale=None if None in rates else np.array(rates, dtype=np.float64),
        batches=np.zeros((0, 5), dtype=np.int64),
        single=False,
    )
    seen = observe(rehearsal, rng)
    hashes = [sha256(file) for file in files]
    owner = rehearsal.canaries.client
    return {
        "calls": {h: [int(v) for v in seen.call[owner == c]] for c, h in enumerate(hashes)},
        "declared": {
            h: {
                "site": site,
                **asdict(p.exposure),
                "noise_multiplier": p.multiplier,
                "clip": p.clip,
                "delta": p.delta,
                "epsilon": p.epsilon,
            }
            for h, site, p in zip(hashes, sites, promises, strict=True)
        },
        "noise": _noise_result(audit, view, seen),
    }


def _noise_result(audit: EpsilonAudit, view: View, seen: Sighting) -> str | None:
    """The measured noise as the JSON of a result; None if uploads are no sums of noisy steps."""
    estimates, bounds = compared(list(noise_checks([seen])), audit.false_alarms)
    if not estimates:
        return None
    found = AuditResult(
        audit=audit.name,
        question=audit.question,
        vantage=view.vantage,
        headline=next(iter(estimates)),
        estimates=estimates,
        bounds=bounds,
    )
    return found.to_json()


def _rounds(view: View, site: str) -> int:
    """Rounds in which a site's upload arrived; all of them if names are hidden."""
    found = sum(any(m.sender == site for m in view.messages(n)) for n in view.rounds)
    return found or len(view.rounds)


def _one_to_one(state: Any, rounds: int) -> bool:
    """Whether an accountant counts as many steps for each upload, and no other.

    An upload that was lost, or one history of all rounds, leaves open how much noise a row holds.
    """
    counted = [n for _, _, n in opacus_history(state)]
    return len(counted) == rounds and len(set(counted)) == 1


IN_CANARIES = "the files of canaries"


def _histories(files: Sequence[str | os.PathLike[str]], sites: Sequence[str]) -> Mapping[str, Any]:
    """Site -> state of its accountant.

    From one file for all sites, or one file per site in their order.
    """
    if len(files) == 1:
        return opacus_states(files[0], sites, IN_CANARIES)
    if len(files) != len(sites):
        raise UsageError(
            "accountants and canaries do not go together",
            expected=f"one file of accountants, or {len(sites)} in the order of the canaries",
            got=str(len(files)),
            remedy="`opacus`: an accountant.json for every file of `canaries`",
        )
    return {
        s: opacus_states(file, [s], IN_CANARIES)[s] for s, file in zip(sites, files, strict=True)
    }


def _promise(raw: Mapping[str, Any], state: Any, rounds: int, delta: float) -> Promise:
    """What an accountant's history declares of a site; its worst step stands for all."""
    given = from_opacus(state, delta)
    history = [(z, q, n) for z, q, n in opacus_history(state) if n and q]
    total = sum(n for _, _, n in history)
    if not history or min(z for z, _, _ in history) == 0:
        raise UsageError(
            f"the accountant of {raw['site']} declares no epsilon",
            expected="steps with noise",
            got=f"{total} steps" + (", some without noise" if history else ""),
            remedy="save accountant.state_dict() after the last round",
        )
    return Promise(
        exposure=Exposure(
            sampling_rate=max(q for _, q, _ in history),
            steps=max(1, math.ceil(total / rounds)),
            rounds=rounds,
        ),
        multiplier=min(z for z, _, _ in history),
        clip=float(raw["clip"]),
        epsilon=given.epsilon,
        delta=delta,
        unit=given.unit,
        relation=given.relation,
        records=0,
    )


def _on(layout: Layout, raw: Mapping[str, Any]) -> CanaryVectors:
    """A site's canaries on the columns of the recorded model."""
    own, canaries = vectors_of(raw)
    known = {e.name: e for e in layout.entries}
    columns = np.zeros(own.width, dtype=np.int64)
    for e in own.entries:
        there = known.get(e.name)
        if there is None or there.size != e.size:
            raise UsageError(
                f"the recorded model has no tensor {e.name} of shape {list(e.shape)}",
                expected=f"the tensors that {raw['site']} trains",
                got=", ".join(f"{k} {list(v.shape)}" for k, v in list(known.items())[:6]),
                remedy="record all tensors of the model that the sites train",
            )
        columns[e.columns] = np.arange(there.offset, there.offset + there.size)
    return replace(canaries, columns=columns[canaries.columns])


def _together(parts: Sequence[CanaryVectors]) -> CanaryVectors:
    """The canaries of all sites."""
    wide = max(p.columns.shape[1] for p in parts)
    fitted = [((0, 0), (0, wide - p.columns.shape[1])) for p in parts]
    return replace(
        parts[0],
        columns=np.concatenate([np.pad(p.columns, w) for p, w in zip(parts, fitted, strict=True)]),
        unit=np.concatenate([np.pad(p.unit, w) for p, w in zip(parts, fitted, strict=True)]),
        norm=np.concatenate([p.norm for p in parts]),
        client=np.repeat(np.arange(len(parts)), [len(p) for p in parts]),
        kind=np.concatenate([p.kind for p in parts]),
        tensor=np.concatenate([p.tensor for p in parts]),
    )


def count_coins(guess: Mapping[str, Any], key: Mapping[str, Any]) -> dict[str, Any]:
    """A site's counts: coins, guesses that were not withheld, and right ones."""
    calls = guess["calls"].get(key["asked_sha256"])
    coins = np.array(key["member"], dtype=bool)
    if calls is None or len(calls) != len(coins):
        raise UsageError(
            "the guesses do not cover the canaries of this site",
            expected=f"calls on {len(coins)} canaries",
            got="none" if calls is None else str(len(calls)),
            remedy="send canaries.json of this key to the server, and ask it to attack again",
        )
    call = np.array(calls)
    made = call != 0
    right = int(((call > 0) == coins)[made].sum())
    return {"guessed": {"coins": len(coins), "guesses": int(made.sum()), "right": right}}


def merge_coins(
    guess: Mapping[str, Any], counts: Mapping[str, Mapping[str, int]], confidence: float
) -> dict[str, Any]:
    """Estimates, bounds and table of an epsilon audit; `counts`: site -> its counts."""
    declared = {d["site"]: d for d in guess["declared"].values()}
    promises = {site: _declared(declared[site]) for site in counts if site in declared}
    if not promises:
        raise UsageError(
            "no site that answered has canaries in these guesses",
            expected=", ".join(declared),
            got=", ".join(counts),
            remedy="score again under the name that the canaries bear",
        )
    weakest = dominating(list(promises.values()))
    m, r, v = (sum(counts[s][k] for s in promises) for k in ("coins", "guesses", "right"))
    said = f"{v} of {r} guesses on {m} coins right"
    delta = weakest.delta
    low = bound_of(m, r, v, weakest, confidence)
    any_low = statistics.coins_bound(m, r, v, delta=delta, confidence=confidence)
    noise = None if guess["noise"] is None else AuditResult.from_json(guess["noise"])
    p_values = []
    for site, p in promises.items():
        own = [counts[site][k] for k in ("coins", "guesses", "right")]
        p_values.append(statistics.f_dp_p_value(own[0], own[1], own[2], p.curve().least_false))
    rows = {
        site: {
            "declared": p.epsilon if math.isfinite(p.epsilon) else None,
            "guessed": counts[site]["right"] / max(1, counts[site]["guesses"]),
            "right": counts[site]["right"],
            "coins": counts[site]["coins"],
            "p": float(adjusted),
        }
        for (site, p), adjusted in zip(promises.items(), holm(p_values), strict=True)
    }
    least = max(p.epsilon for p in promises.values())
    declared_are = declared_bounds(weakest, least)
    # the checks of noise, made by the server, have shared out the same error
    shared_out = [1 - e.confidence for e in noise.estimates.values()] if noise else []
    tail = min((t for t in shared_out if t > 0), default=guess["settings"]["false_alarms"])
    checked = bound_of(m, r, v, weakest, 1 - tail)
    most = ceiling_of(m, r, weakest, confidence)
    return {
        "headline": "epsilon",
        "estimates": {
            "epsilon": at_least(low, m, confidence, f"{said}; [FDPOneRun]"),
            "share_of_declared": share_of_declared(
                low, declared_are["declared"].value, m, confidence
            ),
            "epsilon_any_mechanism": at_least(any_low, m, confidence, f"{said}; [OneRun]"),
            CHECKED: at_least(checked, m, 1 - tail, f"{said}; [FDPOneRun]"),
            **(noise.estimates if noise else {}),
        },
        "bounds": {**(noise.bounds if noise else {}), **declared_are},
        "per_client": rows,
        "detectable": statistics.least_shown(m, confidence),
        "notes": (
            f"declared {least:.3g}; at least {low:.2g} was measured ({guess['vantage']}, {m:,} "
            f"canaries; at most {most:.2g} measurable)",
            "sites drew the coins and returned how many guesses were right",
            *((NO_NOISE,) if noise is None else ()),
        ),
    }


def _declared(raw: Mapping[str, Any]) -> Promise:
    return Promise(
        exposure=Exposure(
            sampling_rate=raw["sampling_rate"], steps=raw["steps"], rounds=raw["rounds"]
        ),
        multiplier=raw["noise_multiplier"],
        clip=raw["clip"],
        epsilon=raw["epsilon"],
        delta=raw["delta"],
        unit="record",
        relation="add_or_remove",
        records=0,
    )
