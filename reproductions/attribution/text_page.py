"""The part of the page on marked text: Table 1, the safe plan, sweeps and overhead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from reproductions.attribution.tables import rate, rows_of, table

CELLS = {
    "text/fictitious/fedit": "fictitious knowledge, FedIT",
    "text/fictitious/flora": "fictitious knowledge, FLoRA",
    "text/kgw/fedit": "green lists, FedIT",
    "text/kgw/flora": "green lists, FLoRA",
}
METHODS = (
    "published threshold",
    "calibrated",
    "safe plan",
    "direct oracle",
    "FLDetector",
    "FLForensics, HDBSCAN",
    "FLForensics, k-means",
)


def lines(results: Mapping[str, Any]) -> list[str]:
    """All sections that were measured."""
    parts = (_table_1, _safe, _sweeps, _overhead, _smollm)
    return [line for part in parts for line in part(results)]


def _table_1(results: Mapping[str, Any]) -> list[str]:
    measured = {label: rows_of(results, name) for name, label in CELLS.items()}
    measured = {label: runs for label, runs in measured.items() if runs}
    if not measured:
        return []
    rows, facts = [], []
    for label, runs in measured.items():
        for m in METHODS:
            own = [r[m] for r in runs]
            name = label if m == METHODS[0] else ""
            rows.append((name, m, rate(own, "hits", "marked"), rate(own, "alarms", "benign")))
        z = [v for r in runs for v in r["global z"]]
        seen = np.mean([r["z"] for r in runs], axis=0)
        spent = np.array([[r["seconds"][k] for k in ("training", "attribution")] for r in runs])
        facts.append(
            (
                label,
                str(len(runs)),
                f"{seen[0]:.1f} / {seen[1]:.1f}",
                f"{min(z):.1f} to {max(z):.1f}",
                f"{np.mean([r['quality'] for r in runs]):.2f}",
                f"{spent[:, 0].mean():.0f} + {spent[:, 1].mean():.0f}",
            )
        )
    head = ("marks, aggregation", "method", "marked clients found", "benign clients flagged")
    about = (
        "marks, aggregation",
        "seeds",
        "published Z, marked / benign",
        "z of the last model",
        "loss per token",
        "seconds: training + attribution",
    )
    return [
        "## Marked text: all methods on the same runs (Table 1)",
        "",
        "Paper, all four cells: 100 % found, 0 % flagged. Adapters of rank 8 on all linear layers,",
        "12 Adam steps of 8 windows a round. *Published threshold*: Z above 4 on Eq. (4)'s",
        "estimates. *Calibrated*: unused keys and Holm at 5 %, on the updates that the published",
        "plan's sums determine. *Safe plan*: partitions into groups of 5, calibrated alike; five",
        "rounds are few for it (least squares would need 9). The last four read plaintext updates,",
        "adapted as below.",
        "",
        *table(head, rows),
        *table(about, facts),
        "Fictitious knowledge is read by the likelihood of planted values among random tuples,",
        "green lists by the probability of green tokens in one pass over held-out text. Where the",
        "tiny model differs: it does not learn all marks in so little training (a client sees 96",
        "windows a round, a fifth of them marked), and its Z under green lists stays far below 4.",
        "What a round teaches it changes the probability of green tokens by a sixth of what unused",
        "keys differ by in the model it started from, and a difference of two z-scores is in units",
        "of the latter. Unused keys scored on the *change* are the right unit. The direct oracle,",
        "which takes no difference, sees the others' marks in the common model: it flags benign",
        "clients where a mark is strong.",
        "",
        "How these settings came about: the fourth root in the score of fictitious knowledge was",
        "picked among nine powers and five other forms on a run of seed 1, which is one of the",
        "seeds above; seeds 2 and 3 had no part in that. Twelve steps a round were set for time,",
        "after a look at 24 (green lists, FedIT, seed 1: 2 of 3 found, as here). Three of the",
        "runs of seed 1 (all but green lists with FLoRA) used the base model's weights in float16,",
        "the others in int8. The sixth was measured on one run.",
        "",
    ]


def _safe(results: Mapping[str, Any]) -> list[str]:
    rows = []
    for kind, label in (("fictitious", "fictitious knowledge"), ("kgw", "green lists")):
        runs = rows_of(results, f"text-trade-off/{kind}")
        for plan in ("published", "safe", "swapped", "fixed") if runs else ():
            cells = [r[plan] for r in runs]
            rows.append(
                (
                    label if plan == "published" else "",
                    plan,
                    rate(cells, "hits", "marked"),
                    rate(cells, "alarms", "benign"),
                    f"{np.mean([c['queries'] for c in cells]):.0f}",
                    str(min(c["smallest"] for c in cells)),
                    f"{np.mean([c['within'] for c in cells]):.2f}",
                    f"{np.mean([c['across'] for c in cells]):.2f}",
                )
            )
    if not rows:
        return []
    head = (
        "marks", "plan", "found", "false alarms", "sums a round", "smallest group",
        "cosine in a round", "cosine over rounds",
    )  # fmt: skip
    return ["## Marked text: plans over 10 rounds, FedIT", "", *table(head, rows)]


def _sweeps(results: Mapping[str, Any]) -> list[str]:
    rows = []
    for start, label, published in (
        ("text-marked/{}/0", "r = 0, {}", "- / 0"),
        ("text-M/{}/2", "M = 2, {}", "100 / 29"),
        ("text-K/{}/100", "K = 100, N = 4, r = 30, {}", "100 / 0"),
    ):
        for kind in ("fictitious", "kgw"):
            runs = rows_of(results, start.format(kind))
            if runs:
                rows.append(
                    (
                        label.format(kind),
                        published,
                        rate([r["published"] for r in runs], "hits", "marked"),
                        rate([r["published"] for r in runs], "alarms", "benign"),
                        rate([r["calibrated"] for r in runs], "hits", "marked"),
                        rate([r["calibrated"] for r in runs], "alarms", "benign"),
                    )
                )
    if not rows:
        return []
    head = (
        "setting", "paper: TPR / FPR in %", "gamma = 4: found", "false alarms",
        "calibrated: found", "false alarms",
    )  # fmt: skip
    return ["## Marked text: other settings, FedIT", "", *table(head, rows)]


def _overhead(results: Mapping[str, Any]) -> list[str]:
    runs = rows_of(results, "overhead")
    if not runs:
        return []
    plain = float(np.mean([r["none"]["run"] for r in runs]))
    rows = []
    for name, label in (
        ("none", "no protection"),
        ("total", "secure sum of all"),
        ("published", "published pairs"),
        ("safe", "partitions"),
    ):
        own = {k: float(np.mean([r[name][k] for r in runs])) for k in runs[0][name]}
        protocol = 100 * (own["run"] - plain) / plain
        rows.append(
            (
                label,
                f"{own['run']:.1f}",
                f"{protocol:+.0f} %" if name != "none" else "-",
                f"{own['attribution']:.1f}" if own["attribution"] > 0.05 else "-",
                f"{100 * own['attribution'] / plain:.0f} %" if own["attribution"] > 0.05 else "-",
                f"{own['megabytes']:.1f}",
            )
        )
    head = (
        "plan", "run, s a round", "against no protection", "attribution, s a round",
        "against no protection", "trace, MB a round",
    )  # fmt: skip
    return [
        "## Overhead with the real protocol (Tables 18 and 19)",
        "",
        "Paper: 6.3 % of the training time, subset sums taken to be free. Here one process plays",
        "ten clients (65,536 trained numbers each) and the server, with masks of all pairs for",
        "every sum; processor seconds, fictitious knowledge, two rounds. Training is short here,",
        "so that shares are large; seconds are what carries over.",
        "",
        *table(head, rows),
    ]


def _smollm(results: Mapping[str, Any]) -> list[str]:
    rows = []
    for kind, label in (("fictitious", "fictitious knowledge"), ("kgw", "green lists")):
        for r in rows_of(results, f"smollm/{kind}"):
            for name in ("published", "calibrated"):
                rows.append(
                    (
                        label,
                        name,
                        rate([r[name]], "hits", "marked"),
                        rate([r[name]], "alarms", "benign"),
                        f"{r['seconds']['training']:.0f} + {r['seconds']['attribution']:.0f}",
                    )
                )
    if not rows:
        return []
    head = ("marks", "method", "found", "false alarms", "seconds: run + attribution")
    return [
        "## SmolLM2-135M, K=5, T=5, two marked, one seed",
        "",
        "`make reproduce-attribution-smollm`. N=3, M=5, 12 steps of 4 windows a round, FedIT.",
        "",
        *table(head, rows),
    ]
