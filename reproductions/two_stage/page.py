"""The page: published and measured side by side, from stored results alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit.files import write_atomically
from fedaudit.stats import intervals
from reproductions.two_stage import prose, short
from reproductions.two_stage.drawings import drawings, faults_figure
from reproductions.two_stage.experiments import CLIP, NOISE, TRIALS
from reproductions.two_stage.geometry import MAGNITUDES
from reproductions.two_stage.results import (
    ATTACK,
    Floats,
    Measured,
    Results,
    estimate,
    hits,
    mean_text,
    share,
    table,
    whole_share,
)
from reproductions.two_stage.setting import SCENARIOS, TAU

SURVIVES = "stage_1_survival"
WORDS = {"trajectory": "whole batch", "many": "clients:", "noise": "noise z ="}
TABLED = (1, 5, 10, 15, 20)  # rounds that stand in a table


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = [f"| {' | '.join(r)} |" for r in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *body]) + "\n"


def around(hit: Floats) -> str:
    """Share of clients at risk (seeds, T, K) over all seeds and rounds, with its interval."""
    e = share(hit)
    return f"{e.value:.2f} [{e.low:.2f}, {e.high:.2f}]"


def span(values: Floats) -> str:
    return f"{float(values.min()):.3g} to {float(values.max()):.3g}"


# -- figures 1 to 3 -------------------------------------------------------------------------------


def surface_section(r: Results, published: Measured) -> str:
    found = r.of("surface", "synthetic")
    if not found:
        return ""
    one = found[0]
    within = published["figure 1"]["cancelled within"]
    least = one["least in the cancelled region"]
    said = (
        f"{one['points']:,} pairs; the largest relative distance from the closed form is "
        f"{one['worst']:.1e}. Of the {one['cancelled']} pairs in the cancellation region "
        f"(|dW| < {within:g}), {one['cancelled above tau']} have SUR > {TAU:g} and pass the "
        "published stage I."
    )
    if least is not None:
        said += f" The smallest SUR in there is {least:.2f}."
    maps = (
        "![SUR over alignment and magnitude ratio](two_stage-survival.svg)\n\n"
        "![Power to find the update, over the same](two_stage-power.svg)\n"
    )
    return "\n".join(["## Figure 1: survival\n", prose.SURFACE, "", said, "", maps])


def bound_section(r: Results, published: Measured) -> str:
    known = published["figure 2"]
    low, high = known["wilson"]
    rows = [
        [
            "PathMNIST",
            "start",
            "published",
            f"{100 * known['violation rate']:.1f} % [{100 * low:.1f}, {100 * high:.1f}]",
            "–",
            "–",
            f"{known['median L']:.3g}",
        ]
    ]
    for name in r.sets:
        for variant in r.variants("bound", name):
            one = r.of("bound", name, variant)[0]
            each = one["test points"]
            for how, counts in one["violated"].items():
                trials = each * (2 if how == "curvature" else 1)
                pooled = intervals.wilson(sum(counts), trials * len(counts))
                apart = intervals.clustered_share(counts, [trials] * len(counts))
                most = f"{sum(c == 1 for c in counts)} of {len(counts)}"
                rows.append(
                    [
                        name,
                        variant,
                        how,
                        f"{100 * pooled.value:.1f} % [{100 * pooled.low:.1f}, "
                        f"{100 * pooled.high:.1f}]",
                        f"[{100 * apart.low:.1f}, {100 * apart.high:.1f}]",
                        most,
                        f"{one['L' if how == 'curvature' else 'published L']:.3g}",
                    ]
                )
    head = [
        "set",
        "model",
        "L by",
        "violations (Wilson)",
        "over images",
        "images with exactly one",
        "median L",
    ]
    figures = _pictures(r, "bound", "Remainders and bounds", ("start",))
    return "\n".join(
        ["## Figure 2: the smoothness bound\n", prose.BOUND, "", grid(head, rows), *figures]
    )


def _pictures(r: Results, kind: str, words: str, variants: Sequence[str]) -> list[str]:
    """Links to the drawings of every set for which one of the variants was measured."""
    experiment = {"non-iid": "trajectory"}.get(kind, kind)
    return [
        f"![{words}, {name}](two_stage-{kind}-{name}.svg)\n"
        for name in r.sets
        if any(v in variants for v in r.variants(experiment, name))
    ]


def alignment_section(r: Results) -> str:
    rows = []
    for name in r.sets:
        for variant in r.variants("alignment", name):
            apart = r.of("alignment", name, variant)[0]["apart"]
            own = (mean_text(apart[f"{m:g}"], ".4f") for m in MAGNITUDES)
            rows.append([name, variant, str(len(next(iter(apart.values())))), *own])
    if not rows:
        return ""
    head = ["set", "model", "images", *(f"largest distance, m = {m:g}" for m in MAGNITUDES)]
    return "\n".join(
        [
            "## Figure 3: J against alignment\n",
            prose.ALIGNMENT,
            "",
            grid(head, rows),
            *_pictures(r, "alignment", "J over alignment", ("start",)),
        ]
    )


# -- figures 4 and 5 ------------------------------------------------------------------------------


def trajectory_section(r: Results, published: Measured) -> str:
    s = r.scale
    words = prose.TRAJECTORY.format(clients=s["clients"], rounds=s["rounds"], epochs=s["epochs"])
    out = ["## Figure 4: risk over rounds\n", words, ""]
    rounds = [t for t in TABLED if t <= s["rounds"]] or [1, s["rounds"]]
    head = [
        "",
        "published",
        "seeds",
        *(f"round {t}" for t in rounds),
        "all rounds",
        "baseline",
        "attack",
        "increments' AUC",
    ]
    for name in r.sets:
        rows = []
        for scenario in SCENARIOS:
            found = r.of("trajectory", name, scenario)
            if not found:
                continue
            risks, others = hits(found), hits(found, "j others")
            middle = risks.mean(axis=(0, 2))
            rows.append(
                [
                    scenario,
                    published["figure 4"][scenario],
                    str(len(found)),
                    *(f"{middle[t - 1]:.2f}" for t in rounds),
                    around(risks),
                    around(others),
                    estimate(found, ATTACK),
                    f"{table(found, 'auc').mean():.3f}",
                ]
            )
            if scenario == "inverted":
                target = hits(found, client=0)
                rows.append(
                    [
                        "inverted, target",
                        "–",
                        str(len(found)),
                        *(f"{target.mean(axis=(0, 2))[t - 1]:.2f}" for t in rounds),
                        around(target),
                        around(hits(found, "j others", 0)),
                        "–",
                        "–",
                    ]
                )
        if rows:
            out += [f"`{name}`:\n", grid(head, rows)]
            out.append(f"![Risk over rounds, {name}](two_stage-risk-{name}.svg)\n")
    return "\n".join(out)


def non_iid_section(r: Results, published: Measured) -> str:
    known = published["figure 5"]
    low, high = known["SUR"]
    rows = [
        [
            "PathMNIST, published",
            "1.0",
            "–",
            f"{known['mean SUR']:.2f} ({low:.2f} to {high:.2f})",
            f"{known['J'][0]:.3f} to {known['J'][1]:.2f}",
            "–",
            "–",
        ]
    ]
    for name in r.sets:
        found = r.of("trajectory", name, "non-IID")
        if not found:
            continue
        sur, j, others = (table(found, k).mean(axis=0) for k in ("sur", "j", "j others"))
        rows.append(
            [
                name,
                around(hits(found)),
                around(hits(found, "j others")),
                f"{sur.mean():.2f} ({sur.min():.2f} to {sur.max():.2f})",
                span(j),
                span(others),
                estimate(found, ATTACK),
            ]
        )
    head = ["", "risk", "baseline", "SUR", "J", "J of nobody's records", "attack"]
    figures = _pictures(r, "non-iid", "Risk, SUR and J over rounds", ("non-IID",))
    for name in r.sets:
        for shown in r.of("example", name)[:1]:
            words = f"A record of client 0, label {shown['label']}, {name}"
            figures.append(f"![{words}](two_stage-example-{name}.svg)\n")
    return "\n".join(
        ["## Figure 5: non-IID, round by round\n", prose.NON_IID, "", grid(head, rows), *figures]
    )


def faults_section(r: Results) -> str:
    out = ["## What the faults do\n", prose.FAULTS, ""]
    half = r.scale["rounds"] // 2
    head = ["set", "scenario", "seeds", "", "risk, first half", "second half", "last round", "J"]
    rows = []
    for name in r.sets:
        for scenario in r.variants("faults", name):
            found = r.of("faults", name, scenario)
            for variant in found[0]:
                own = [{"rounds": one[variant]} for one in found]
                risks, j = hits(own), table(own, "j")
                rows.append(
                    [
                        name,
                        scenario,
                        str(len(own)),
                        variant,
                        around(risks[:, :half]),
                        around(risks[:, half:]),
                        around(risks[:, -1:]),
                        span(j.mean(axis=0)),
                    ]
                )
    if not rows:
        return ""
    drawn = [
        f"![IID risk, fault by fault, {name}](two_stage-faults-{name}.svg)\n"
        for name in r.sets
        if faults_figure(r, name)
    ]
    return "\n".join([*out, grid(head, rows), *drawn])


def batches_section(r: Results) -> str:
    rows = []
    for name in r.sets:
        for how in ("trajectory", "batches", "long"):
            for scenario in r.variants(how, name):
                found = r.of(how, name, scenario)
                rows.append(
                    [
                        name,
                        WORDS.get(how, how),
                        scenario,
                        str(len(found)),
                        around(hits(found)),
                        around(hits(found, "j others")),
                        mean_text(table(found, "j")[:, -1], ".4f", (-0.5, 0.5)),
                        mean_text(table(found, "j others")[:, -1], ".4f", (-0.5, 0.5)),
                        estimate(found, ATTACK),
                        estimate(found, "rank_correlation (J)", -1.0),
                        estimate(found, "rank_correlation (TS-MIA)", -1.0),
                    ]
                )
    head = [
        *("set", "training", "scenario", "seeds", "TS-MIA", "baseline", "J, last round"),
        *(
            "nobody's",
            "attack",
            "rank correlation of J with the attack on other records",
            "of TS-MIA with it",
        ),
    ]
    s = r.scale
    words = prose.BATCHED.format(epochs=s["epochs"], long=s["long_epochs"])
    return "\n".join(["## Does TS-MIA predict the attack?\n", words, "", grid(head, rows)])


# -- stage I --------------------------------------------------------------------------------------


def many_section(r: Results) -> str:
    name = r.sets[0]
    counts = sorted(map(int, r.variants("many", name)))
    if not counts:
        return ""
    rows = []
    for k in counts:
        found = r.of("many", name, k)
        first = [np.array(one["rounds"]["r"])[0] for one in found]
        rows.append(
            [
                str(k),
                str(len(found)),
                f"{np.mean(first):.3g}",
                estimate(found, "SUR", most=math.inf),
                whole_share(found, SURVIVES, k * r.scale["rounds"]),
                whole_share(found, "ts_mia", k * r.scale["rounds"]),
                f"{np.mean([one['estimates']['ts_mia'][3] for one in found]):.3f}",
                estimate(found, ATTACK),
            ]
        )
    head = ["clients", "seeds", "r, round 1", "SUR", "P(S)", "TS-MIA", "baseline", "attack"]
    each = round(0.8 * 1797 / counts[-1])
    words = prose.MANY.format(many=counts[-1], each=each, long=r.scale["long_epochs"])
    return "\n".join(["## Where stage I binds: many clients\n", words, "", grid(head, rows)])


def noise_section(r: Results) -> str:
    name = r.sets[0]
    levels = sorted(r.variants("noise", name), key=float)
    if not levels:
        return ""
    rows = []
    for z in levels:
        found = r.of("noise", name, z)
        snr = [[v for row in one["rounds"]["snr"] for v in row] for one in found]
        power = "update_detection_power (at 5 %)"
        trials = r.scale["clients"] * r.scale["rounds"]
        rows.append(
            [
                z,
                estimate(found, "SUR", most=math.inf),
                whole_share(found, SURVIVES, trials),
                mean_text([one["derived"] for one in found], ".2f"),
                "∞"
                if any(None in own for own in snr)
                else mean_text([float(np.mean(own)) for own in snr], ".2f"),
                "1" if any(None in own for own in snr) else estimate(found, power),
                whole_share(found, "ts_mia", trials),
                f"{np.mean([one['estimates']['ts_mia'][3] for one in found]):.3f}",
                estimate(found, ATTACK),
            ]
        )
    head = [
        *("z", "SUR", "P(S), tau = 0.1", "P(S), tau from noise", "SNR", "power"),
        *("TS-MIA", "baseline", "attack"),
    ]
    s = r.scale
    words = prose.NOISE.format(clip=CLIP, clients=s["clients"], long=s["long_epochs"])
    return "\n".join(["## Where stage I binds: noise\n", words, "", grid(head, rows)])


READINGS = {
    "membership_auc": "calibrated, all rounds",
    "auc (own_model_last_round)": "calibrated, last round",
    "auc (update_on_the_others)": "on top of the others (Eq. 16)",
    "auc (update_alone)": "update alone (Eq. 11)",
    "auc (model_change)": "what the model moved by (Eq. 12)",
    "auc (final_model)": "final model",
}
"""Estimates of the audit on named updates, and what the page calls them."""


def readings_section(r: Results) -> str:
    """All rounds against the last one, and calibrated against not, on the same recordings."""
    rows = []
    for name in r.sets:
        for how in ("trajectory", "batches", "long", "many", "noise"):
            for variant in r.variants(how, name):
                found = r.of(how, name, variant)
                every, last = (
                    np.array([one["estimates"][k][0] for one in found]) for k in list(READINGS)[:2]
                )
                rows.append(
                    [
                        f"{name}, {WORDS.get(how, how)} {variant}",
                        str(len(found)),
                        *(estimate(found, k) for k in READINGS),
                        mean_text(every - last) if len(found) > 1 else "–",
                    ]
                )
    if not rows:
        return ""
    head = ["", "seeds", *READINGS.values(), "all minus last round, paired"]
    return "\n".join(["## Which reading finds most?\n", prose.READINGS, "", grid(head, rows)])


def protected_section(r: Results) -> str:
    rows = []
    for name in r.sets:
        for variant in r.variants("protected", name):
            found = r.of("protected", name, variant)
            spent = found[0]["epsilon"]
            rows.append(
                [
                    variant,
                    str(len(found)),
                    "–" if spent is None else f"{spent:.3g}",
                    estimate(found, ATTACK),
                    whole_share(found, "ts_mia", r.scale["clients"] * r.scale["rounds"]),
                    mean_text([one["loss"][0] for one in found], ".1f"),
                ]
            )
    if not rows:
        return ""
    head = ["protection", "seeds", "epsilon", "attack", "TS-MIA", "held-out loss, nats"]
    words = prose.PROTECTED.format(clients=r.scale["clients"], long=r.scale["long_epochs"])
    return "\n".join(["## Behind protections\n", words, "", grid(head, rows)])


def cancel_section(r: Results) -> str:
    found = r.of("cancel", r.sets[0])
    if not found:
        return ""
    rows = []
    for i, number in enumerate(found[0]["round"]):
        own = {k: np.mean([one[k][i] for one in found]) for k in found[0]}
        rows.append(
            [
                f"{number:g}",
                f"{own['lambda']:.3f}",
                f"{own['r']:.3f}",
                f"{own['sur']:.2f}",
                f"{own['own'] / NOISE:.2f}",
                f"{own['power']:.3f}",
                f"{own['found']:.3f}",
                f"{own['false']:.3f}",
            ]
        )
    head = ["round", "lambda", "r", "SUR", "SNR", "power", "by trial", "false alarms"]
    words = prose.CANCEL.format(noise=NOISE, trials=TRIALS)
    return "\n".join(
        [
            "## Where SUR and SNR part: lambda goes to -1\n",
            f"{words} Means over {len(found)} seeds.",
            "",
            grid(head, rows),
            "![SUR and SNR over lambda](two_stage-cancel.svg)\n",
        ]
    )


# -- page -----------------------------------------------------------------------------------------


def render(
    results: Measured, published: Measured, missing: Sequence[str], lacking: Sequence[str] = ()
) -> str:
    """The whole page as markdown."""
    r = Results(results)
    sections = [
        prose.head(r.scale, published, missing, lacking),
        short.summary(r, published),
        surface_section(r, published),
        bound_section(r, published) if r.sets else "",
        alignment_section(r) if r.sets else "",
        trajectory_section(r, published) if r.sets else "",
        non_iid_section(r, published) if r.sets else "",
        faults_section(r) if r.sets else "",
        batches_section(r) if r.sets else "",
        many_section(r) if r.sets else "",
        noise_section(r) if r.sets else "",
        readings_section(r) if r.sets else "",
        protected_section(r) if r.sets else "",
        cancel_section(r) if r.sets else "",
    ]
    return "\n".join(s for s in sections if s).rstrip() + "\n"


def write(
    results: Measured,
    published: Path,
    folder: Path,
    missing: Sequence[str],
    lacking: Sequence[str] = (),
) -> Path:
    """Write the page and its figures into `folder`; returns the page.

    `missing`: data sets that are not on this machine; `lacking`: keys not measured yet.
    """
    known: dict[str, Any] = json.loads(published.read_text(encoding="utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "two_stage.md"
    write_atomically(page, render(results, known, missing, lacking))
    for name, svg in drawings(Results(results)).items():
        write_atomically(folder / name, svg)
    return page
