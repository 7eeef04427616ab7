"""The page of the attribution reproduction: tables with intervals, the trade-off as a figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit.trace.store import write_atomically
from reproductions.attribution import cells, text_page
from reproductions.attribution.tables import rate, rows_of, swept, table

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
    lines += text_page.lines(results)
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
        "released of 7, which cannot split 10 clients), influence to first order.",
        "",
    ]


def _constants(results: Mapping[str, Any]) -> list[str]:
    runs = [r["constants"] for r in rows_of(results, "methods")]
    if not runs:
        return []
    rows = []
    for name, published in (("signal", "3.3"), ("drift", "1.2"), ("noise", "0.85")):
        each = [f"{v[0]:.2f} [{v[1]:.2f}, {v[2]:.2f}]" for r in runs if (v := r[name])]
        rows.append((name, published, "; ".join(each)))
    return [
        "## Canaries: the constants of Assumption 1 (Figure 2)",
        "",
        *table(("constant", "published", "here, by seed"), rows),
        "With the published ones Theorem 3 bounds false positives at 0.30 for T=5 and says nothing",
        "from T=12 on.",
        "",
    ]


PLANS = {
    "published": "published pairs",
    "safe": "fresh partitions",
    "swapped": "partitions, 40 % swap",
    "fixed": "fixed groups",
}


def _trade_offs(results: Mapping[str, Any], folder: Path) -> list[str]:
    out: list[str] = []
    drawn: dict[str, dict[str, tuple[float, float]]] = {}
    for rounds in ("5", "10", "20"):
        runs = rows_of(results, f"trade-off/{rounds}")
        if not runs:
            continue
        rows = []
        for plan, label in PLANS.items():
            cells = [r[plan] for r in runs]
            mean = {
                k: float(np.mean([c[k] for c in cells]))
                for k in ("queries", "uploads", "within", "across")
            }
            rows.append(
                (
                    label,
                    rate(cells, "hits", "marked"),
                    rate(cells, "alarms", "benign"),
                    f"{mean['queries']:.0f}",
                    f"{mean['uploads']:.0f}",
                    str(min(c["smallest"] for c in cells)),
                    f"{mean['within']:.2f}",
                    f"{mean['across']:.2f}",
                )
            )
            hits = sum(c["hits"] for c in cells) / sum(c["marked"] for c in cells)
            drawn.setdefault(rounds, {})[label] = (mean["within"], hits)
        head = (
            "plan",
            "found",
            "false alarms",
            "sums a round",
            "uploads a client and round",
            "smallest group",
            "cosine in a round",
            "cosine over rounds",
        )
        out += [f"### {rounds} rounds", "", *table(head, rows)]
    if not out:
        return []
    _figure(drawn, folder / "attribution-trade-off.svg")
    return [
        "## Canaries: what attribution costs in privacy, four plans on the same runs",
        "",
        "Named by unused keys at an error rate of 5 % over all clients and keys: pairs by least",
        "squares, groups by exclusion (a key is held by one client; each client is tested on the",
        "groups without every other one). *Smallest group*: the fewest clients in any",
        "combination of a round's sums. *Cosine*: of the server's least-squares guess with a",
        "client's update of a round, and with its mean update over all rounds.",
        "",
        "![Detection against what the server learns of an update](attribution-trade-off.svg)",
        "",
        *out,
    ]


def _figure(drawn: Mapping[str, Mapping[str, tuple[float, float]]], file: Path) -> None:
    """Detection against the cosine within a round; one mark per plan and number of rounds."""
    left, top, wide, high = 60, 20, 420, 260
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 340" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect x="{left}" y="{top}" width="{wide}" height="{high}" fill="none" stroke="#888"/>',
        f'<text x="{left + wide / 2}" y="{top + high + 40}" text-anchor="middle">cosine of the '
        "server's guess with an update, within a round</text>",
        f'<text x="16" y="{top + high / 2}" text-anchor="middle" transform="rotate(-90 16 '
        f'{top + high / 2})">marked clients found</text>',
    ]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = left + tick * wide, top + (1 - tick) * high
        parts.append(f'<text x="{x}" y="{top + high + 18}" text-anchor="middle">{tick:g}</text>')
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{tick:g}</text>')
    colours = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
    for at, (rounds, marks) in enumerate(drawn.items()):
        for colour, (within, hits) in zip(colours, marks.values(), strict=True):
            x, y = left + max(within, 0.0) * wide, top + (1 - hits) * high
            fill = colour if at == 0 else "none"
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{6 + 3 * at}" fill="{fill}" '
                f'stroke="{colour}" stroke-width="2"><title>{rounds} rounds</title></circle>'
            )
    for i, (colour, label) in enumerate(zip(colours, PLANS.values(), strict=True)):
        y = top + 16 + 20 * i
        parts.append(f'<circle cx="500" cy="{y - 4}" r="6" fill="{colour}"/>')
        parts.append(f'<text x="514" y="{y}">{label}</text>')
    sizes = " and ".join(
        f"{r} rounds ({'filled' if i == 0 else 'ring'})" for i, r in enumerate(drawn)
    )
    parts.append(f'<text x="494" y="{top + 110}">{sizes}</text></svg>')
    write_atomically(file, "\n".join(parts) + "\n")


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
