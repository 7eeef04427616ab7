"""The page of the attribution reproduction: tables with intervals, the trade-off as a figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit.files import write_atomically
from reproductions.attribution import cells, figure, template, template_page, text_page
from reproductions.attribution.tables import PLANS, plans_table, rate, rows_of, swept, table

METHODS = (
    "published threshold",
    "published, unit of the change",
    "calibrated",
    "safe plan",
    "direct oracle",
    "FLDetector",
    "FLForensics, HDBSCAN",
    "FLForensics, k-means",
)


def write(results: Mapping[str, Any], folder: Path) -> Path:
    """The page and its figure, from what was measured; what was not is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    seeds = len(results["seeds"])
    lines = [
        "# Attribution through secure aggregation",
        "",
        "What `python -m reproductions.attribution.run` measured. **Text**: ten clients fine-tune",
        "adapters on a built-in tiny GPT, three also on marked documents. **Canaries**: ten",
        "clients train a small classifier (64 hidden units) on `digits`, three also on a canary",
        "set each. The paper [FedAttr] fine-tunes language models of 3 billion parameters.",
        "Defaults as published: K=10, r=3, N=5, M=5, T=5, gamma=4, 20 % marked; up to",
        f"{seeds} seed(s), {results['unused']} unused keys, intervals: Wilson 95 %.",
        "Clients of one run share it: the intervals treat them as independent.",
        "",
    ]
    lines += template_page.lines(template.RESULTS)
    lines += text_page.lines(results, folder)
    lines += _methods(results) + _constants(results) + _trade_offs(results, folder)
    lines += _sweeps(results) + _masking(results)
    file = folder / "attribution.md"
    write_atomically(file, "\n".join(lines).rstrip() + "\n")
    return file


def _methods(results: Mapping[str, Any]) -> list[str]:
    runs = rows_of(results, "methods")
    if not runs:
        return []
    rows = [
        (
            m,
            rate([r[m] for r in runs], "hits", "marked"),
            rate([r[m] for r in runs], "alarms", "benign"),
        )
        for m in METHODS
        if m in runs[0]
    ]
    z = [v for r in runs for v in r["global z"]]
    accuracy = np.mean([r["quality"] for r in runs])
    return [
        "## Canaries: methods on the same runs",
        "",
        *table(("method", "marked clients found", "benign clients flagged"), rows),
        f"The global test on the last model gives z from {min(z):.1f} to {max(z):.1f} for the",
        f"owner's keys: it says that, not who. Held-out accuracy {accuracy:.2f}. The direct oracle",
        "and the last three read plaintext updates. A canary set has random labels and makes",
        "updates unlike others: what was made to find poisoning sees it, as it need not see text",
        "that reads like any other. Adaptations: FLDetector's window is the run, from round 3 on",
        "(as released it gives no score before round 51); FLForensics asks for clusters of 2 (as",
        "released of 7, which cannot split 10 clients), influence to first order, on the owner's",
        "own marked records and on held-out ones (the paper takes questions about them).",
        "",
    ]


def _constants(results: Mapping[str, Any]) -> list[str]:
    rows, broken = [], []
    for name, label in {"methods": "canaries", **text_page.CELLS}.items():
        for r in (r["constants"] for r in rows_of(results, name)):
            each = [r[k] for k in CONSTANTS]
            words = (f"{v[0]:.2f} [{v[1]:.2f}, {v[2]:.2f}]" if v else "-" for v in each)
            rows.append((label, *words))
            if each[0] and each[1] and each[0][0] <= each[1][0]:
                broken.append(label)
    if not rows:
        return []
    published = ("paper", *CONSTANTS.values())
    out = [
        "## The constants of Assumption 1 (Figure 2)",
        "",
        "m: smallest mean score of a marked client; eps: largest absolute mean of a benign one;",
        "nu: deviation within clients. One row a seed.",
        "",
        *table(("marks", "m", "eps", "nu"), [published, *rows]),
        "With the published ones Theorem 3 bounds false positives at 0.30 for T=5 and says nothing",
        "from T=12 on.",
    ]
    if broken:
        where = ", ".join(f"{label} ({broken.count(label)})" for label in dict.fromkeys(broken))
        out.append(
            f"The assumption needs m above eps. It does not hold in {len(broken)} of {len(rows)} "
            f"runs: {where}."
        )
    return [*out, ""]


CONSTANTS = {"signal": "3.3", "drift": "1.2", "noise": "0.85"}
"""Of a stored run, and what the paper shows."""


def _trade_offs(results: Mapping[str, Any], folder: Path) -> list[str]:
    out: list[str] = []
    drawn: dict[str, list[tuple[str, figure.Cells]]] = {}
    for rounds in ("5", "10", "20"):
        runs = rows_of(results, f"trade-off/{rounds}")
        if runs:
            by_plan = {label: [r[plan] for r in runs] for plan, label in PLANS.items()}
            out += [f"### {rounds} rounds", "", *plans_table(by_plan)]
            for label, cells in by_plan.items():
                drawn.setdefault(label, []).append((rounds, cells))
    if not out:
        return []
    write_atomically(folder / "attribution-trade-off.svg", figure.trade_off(drawn))
    return [
        "## Canaries: what attribution costs in privacy, four plans on the same runs",
        "",
        "Named by unused keys at an error rate of 5 % over all clients and keys: pairs by least",
        "squares, groups by exclusion (a key is held by one client; each client is tested on the",
        "groups without every other one).",
        "",
        "Marks in the figure bear the number of rounds.",
        "",
        "![Detection against what the server learns of a client](attribution-trade-off.svg)",
        "",
        *out,
    ]


def _sweeps(results: Mapping[str, Any]) -> list[str]:
    rows = swept(results, cells.CANARY)
    if not rows:
        return []
    return [
        "## Canaries: sweeps of the published plan (after Tables 9 to 12, 14, 17 and 21)",
        "",
        "One setting changed at a time. Benign clients have no key of their own: their Z is the",
        "largest over the owner's keys. N below 5 needs a lower threshold of secure aggregation;",
        "these sums were formed in the clear. T rounds: IID, unlike Table 21.",
        "",
        *rows,
    ]


MASKING = {
    "10/4/5": (0.889, 0.444),
    "10/5/5": (0.889, 0.444),
    "20/4/5": (1.263, 0.632),
    "50/4/5": (1.469, 0.735),
    "50/16/5": (4.310, 2.155),
}
"""[FedAttr] Table 2: K/N/M -> E[c] and the threshold aN."""


def _masking(results: Mapping[str, Any]) -> list[str]:
    runs = rows_of(results, "masking")
    if not runs:
        return []
    rows = []
    for name, (expected, threshold) in MASKING.items():
        cells = [r[name] for r in runs]
        drawn = [c["drawn"] for c in cells]
        low, high = min(c["accepted"][1] for c in cells), max(c["accepted"][2] for c in cells)
        rows.append(
            (
                name.replace("/", ", "),
                f"{expected:.3f}, {threshold:.3f}",
                f"{cells[0]['expected']:.3f}, {cells[0]['expected'] / 2:.3f}",
                f"{np.mean(drawn):.3f} [{min(drawn):.3f}, {max(drawn):.3f}]",
                f"{np.mean([c['accepted'][0] for c in cells]):.3f} [{low:.3f}, {high:.3f}]",
            )
        )
    head = ("K, N, M", "paper: E[c], aN", "formula", "mean c of 4,000 draws", "accepted")
    return [
        "## Masking strength of a draw (Table 2)",
        "",
        "c is the sum of squared weights of all other clients in an estimate. Of draws that",
        "nothing rejects: the mean over seeds and its range, and the share of 100,000 that pass",
        "c >= aN (Wilson 95 %, widest over seeds).",
        "",
        *table(head, rows),
    ]
