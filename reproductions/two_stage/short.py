"""The page's summary: sentences made from the numbers, so that no rerun makes them wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from reproductions.two_stage.experiments import NOISE
from reproductions.two_stage.results import (
    ATTACK,
    Results,
    estimate,
    mean_of,
    over_seeds,
    table,
    trajectories,
    whole_share,
)
from reproductions.two_stage.setting import SCENARIOS


def summary(r: Results, published: Mapping[str, Any]) -> str:
    """Every claim of the paper that was tried, and what came out."""
    out = ["## In short\n"]
    for name in r.sets:
        lines = [*_scenarios(r, name, published), *_faults(r, name), *_bound(r, name)]
        if lines:
            out += [f"**`{name}`**\n", *lines, ""]
    out += [*_long(r), *_predicts(r), *_many(r), *_noise(r), *_cancel(r)]
    return "\n".join(out) + "\n"


def falls(first: float, last: float) -> str:
    return "falls" if last < first - 0.05 else "does not fall"


def _scenarios(r: Results, name: str, published: Mapping[str, Any]) -> list[str]:
    out = []
    for scenario in SCENARIOS:
        found = r.of("trajectory", name, scenario)
        if not found:
            continue
        risks = trajectories(found).mean(axis=0)
        others = float(trajectories(found, "j others").mean())
        out.append(
            f"- {scenario} (published: {published['figure 4'][scenario]}): TS-MIA "
            f"{falls(risks[0], risks[-1])} ({risks[0]:.2f} at first, {risks[-1]:.2f} at the end; "
            f"{others:.2f} on records that nobody trained on; attack {estimate(found, ATTACK)})."
        )
    return out


def _faults(r: Results, name: str) -> list[str]:
    found = r.of("faults", name, "IID")
    if not found:
        return []
    last = {
        variant: float(trajectories([{"rounds": one[variant]} for one in found])[:, -5:].mean())
        for variant in found[0]
    }
    words = "; ".join(f"{variant} {value:.2f}" for variant, value in last.items())
    return [f"- IID risk of the published loop, mean of the last five rounds: {words}."]


def _bound(r: Results, name: str) -> list[str]:
    found = r.of("bound", name, "start")
    if not found:
        return []
    one = found[0]
    counts = {how: sum(v) for how, v in one["violated"].items()}
    total = one["images"] * one["test points"]
    both = [a + b for a, b in zip(*list(one["violated"].values())[:2], strict=True)]
    once = sum(v == 1 for v in both)
    return [
        f"- Bound, untrained model: {counts['published']} of {total} violations by the published "
        f"split, {counts['swapped']} with its halves swapped, {counts['curvature']} by curvature. "
        f"In {once} of {one['images']} images the two splits have one violation together: the step "
        "with the largest ratio lies in one half or the other."
    ]


def _long(r: Results) -> list[str]:
    name = r.sets[0] if r.sets else ""
    found = {s: r.of("long", name, s) for s in SCENARIOS if r.of("long", name, s)}
    if not found:
        return []
    words = "; ".join(
        f"{s} {trajectories(v).mean():.2f} (baseline {trajectories(v, 'j others').mean():.2f}), "
        f"attack {estimate(v, ATTACK)}"
        for s, v in found.items()
    )
    return [
        f"- With {r.scale['long_epochs']} epochs in batches of 16, TS-MIA is {words}. "
        f"{_most(found)}"
    ]


def _most(found: Mapping[str, list[dict[str, Any]]]) -> str:
    """Which scenario the attack finds most in, where its interval parts from all others."""
    spans = {s: over_seeds([one["estimates"][ATTACK][0] for one in v]) for s, v in found.items()}
    known = {s: e for s, e in spans.items() if e is not None}
    if len(known) < 2:
        return "One seed gives no order of risk."
    first = max(known, key=lambda s: known[s].value)
    parted = all(known[first].low > e.high for s, e in known.items() if s != first)
    if parted:
        return f"The attack finds most in {first}, beyond the intervals of the others."
    return "The attack's intervals overlap: they give no order of risk."


def _predicts(r: Results) -> list[str]:
    """Does TS-MIA, or J, rank clients and rounds as the attack on other records does?"""
    out = []
    for words, name in (
        ("J", "rank_correlation (J)"),
        ("TS-MIA", "rank_correlation (TS-MIA)"),
    ):
        own = [
            one["estimates"][name]
            for key, one in r.raw["measured"].items()
            if key.split("/")[0] in ("trajectory", "batches", "long")
            and name in one.get("estimates", {})
        ]
        if not own:
            continue
        up, down = sum(e[1] > 0 for e in own), sum(e[2] < 0 for e in own)
        out.append(
            f"{words} in {up} of {len(own)} runs (interval above 0; {down} below 0, mean "
            f"{np.mean([e[0] for e in own]):.2f})"
        )
    if not out:
        return []
    return [
        f"- Does the metric predict the attack, client by client and round by round? "
        f"{'; '.join(out)}. Where TS-MIA is the same for all, it ranks nobody."
    ]


def _many(r: Results) -> list[str]:
    name = r.sets[0] if r.sets else ""
    counts = sorted(map(int, r.variants("many", name)))
    if not counts:
        return []
    found = r.of("many", name, counts[-1])
    risk = whole_share(found, "ts_mia", counts[-1] * r.scale["rounds"])
    return [
        f"- {counts[-1]} clients: SUR {estimate(found, 'SUR', most=math.inf)}, TS-MIA {risk}, "
        f"attack {estimate(found, ATTACK)}. A server that sees single updates does not need them "
        "to survive the sum."
    ]


def _noise(r: Results) -> list[str]:
    name = r.sets[0] if r.sets else ""
    levels = sorted(r.variants("noise", name), key=float)
    if len(levels) < 2:
        return []
    none, most = r.of("noise", name, levels[0]), r.of("noise", name, levels[-1])
    sur = [float(table(v, "sur").mean()) for v in (none, most)]
    power = [float(table(v, "power").mean()) for v in (none, most)]
    auc = [mean_of(v, ATTACK) for v in (none, most)]
    return [
        f"- Noise from z = {levels[0]} to {levels[-1]}: SUR {sur[0]:.2f} to {sur[1]:.2f}, power to "
        f"find an update {power[0]:.2f} to {power[1]:.2f}, attack {auc[0]:.2f} to {auc[1]:.2f}."
    ]


def _cancel(r: Results) -> list[str]:
    found = r.of("cancel", r.sets[0]) if r.sets else []
    if not found:
        return []
    ends = {k: np.mean([[one[k][0], one[k][-1]] for one in found], axis=0) for k in found[0]}
    return [
        f"- As lambda goes from {ends['lambda'][0]:.2f} to {ends['lambda'][1]:.3f}, SUR rises from "
        f"{ends['sur'][0]:.2f} to {ends['sur'][1]:.2f}, while SNR falls from "
        f"{ends['own'][0] / NOISE:.1f} to {ends['own'][1] / NOISE:.1f} and the power to find the "
        f"update from {ends['power'][0]:.2f} to {ends['power'][1]:.2f} (by trial "
        f"{ends['found'][1]:.2f})."
    ]
