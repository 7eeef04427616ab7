"""The page: published and measured side by side, from stored results alone."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from fedaudit.files import write_atomically
from fedaudit.reporting import plots
from reproductions.pieces import Results

PUBLISHED = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))

HEAD = """# Reconstruction and membership: published and measured

Written by `python -m reproductions.records.run` (`--render` writes it again from
`reproductions/records/results.json`; `--peers DIR` repeats the comparison with other packages). The
attacks are the functions that the audits call. Square brackets: 95 % t intervals over images,
batches or targets. †: quoted from memory of the paper, not checked against its text.
"""


def write(results: Results, file: Path) -> None:
    """The page and its figure."""
    found = results["measured"]
    parts = [HEAD, inverted(found), tables(found), membership(found, file.parent), beside(found)]
    write_atomically(file, "\n".join(filter(None, parts)))


def row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def head(*cells: str) -> list[str]:
    return [row(*cells), row(*["---"] * len(cells))]


def prose(*lines: str) -> str:
    """One paragraph."""
    return textwrap.fill(" ".join(lines), width=100, break_on_hyphens=False)


def mean(values: Sequence[float], scale: float = 1.0, digits: int = 1) -> str:
    """Mean with its t interval."""
    v = scale * np.asarray(values, dtype=float)
    if len(v) < 2:
        return f"{v.mean():.{digits}f}"
    reach = float(student.ppf(0.975, len(v) - 1)) * v.std(ddof=1) / np.sqrt(len(v))
    return f"{v.mean():.{digits}f} [{v.mean() - reach:.{digits}f}, {v.mean() + reach:.{digits}f}]"


def spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"


# -- images ----------------------------------------------------------------------------------------


def inverted(found: Results) -> str:
    rows = []
    for variant in ("untrained", "trained"):
        one = found.get(f"inversion/{variant}")
        if one is None:
            continue
        rows.append(
            row(
                variant
                + ("" if one["accuracy"] is None else f" (accuracy {100 * one['accuracy']:.0f} %)"),
                PUBLISHED[f"inversion/{variant}"],
                spread(one["psnr"]),
                mean(one["psnr"]),
                mean(one["mean_colour"]),
                f"{one['cosine']:.4f}",
                str(len(one["psnr"])),
            )
        )
    if not rows:
        return ""
    return "\n".join(
        [
            "## Images: [Geiping] Table 1, LeNet (Zhu)",
            "",
            prose(
                "CIFAR-10, the first test images, each from the gradient of itself alone; cosine",
                "and total variation 0.01, signed Adam with steps of 0.1 in normalised colours,",
                "4,800 steps, one start, as published. PSNR in dB, mean ± standard deviation over",
                "images, for the paper's 100 first images and for fewer of them here.",
            ),
            "",
            *head(
                "network", "published", "measured", "interval", "mean colour alone", "cosine", "n"
            ),
            *rows,
            "",
        ]
    )


# -- tables ----------------------------------------------------------------------------------------


def tables(found: Results) -> str:
    one = found.get("table")
    if one is None:
        return ""
    return "\n".join(
        [
            "## Tables: TabLeak (Vero et al., ICML 2023), Table 1, Adult, eight records",
            "",
            prose(
                "One gradient of eight records of Adult in a network of two hidden layers of 100",
                "units. A number counts as right within 0.319 standard deviations, a category if",
                "its column is the largest; records are matched one to one. The published attack",
                "searches by gradient matching with 30 starts and is given the labels; here the",
                "zeros of ReLU units separate the records, and matching is tried only where they",
                "do not.",
            ),
            "",
            *head("", "published", "measured", "n"),
            row(
                "features right, %",
                PUBLISHED["table"],
                f"{spread([100 * v for v in one['right']])}, {mean(one['right'], 100)}",
                f"{len(one['right'])} batches",
            ),
            row(
                "without the gradient, %",
                f"{PUBLISHED['table/random']} (drawn at random)",
                f"{mean(one['constant'], 100)} (median of each column)",
                "",
            ),
            "",
            f"{one['separated']} of {one['separated'] + one['matched']} records were separated,",
            f"{one['matched']} found by gradient matching.",
            "",
        ]
    )


# -- membership ------------------------------------------------------------------------------------


def membership(found: Results, folder: Path) -> str:
    one = found.get("shadows")
    if one is None:
        return ""
    rows = []
    for key, measured in one["rates"].items():
        name, shadows = key.split("/")
        cells = [mean(measured[k], 100) for k in ("0.001", "0.01", "balanced")]
        rows.append(
            row(name, "" if name == "loss" else shadows, *cells, mean(measured["auc"], digits=3))
        )
    sure = [100 * one["accuracy"][k] for k in ("trained on", "others")]
    targets = len(next(iter(one["rates"].values()))["auc"])
    told = PUBLISHED["shadows/online"], PUBLISHED["shadows/loss"]
    draw(one["curve"], folder / "records-lira.svg")
    return "\n".join(
        [
            "## Membership: [LiRA] Table I and the number of shadow models",
            "",
            prose(
                "Fashion-MNIST, 3,000 records, an MLP 784-128-10 trained on half of them for 30",
                "epochs (it gives more than half of the probability to the right class of",
                f"{sure[0]:.0f} % of its own records and {sure[1]:.0f} % of the others); {targets}",
                "targets, each",
                "with the other models as shadows. The published figures are of wide residual",
                "networks on CIFAR-10 with 256 shadows, so only the shape can agree: at few false",
                "positives the ratio finds many times what the loss finds (published",
                f"{told[0]['0.001']} against {told[1]['0.001']} at 0.1 %; balanced accuracy",
                f"{told[0]['balanced']} against {told[1]['balanced']}), online more than offline,",
                "and more shadows find more.",
            ),
            "",
            "![true positives over false positives](records-lira.svg)",
            "",
            *head(
                "attack",
                "shadows",
                "true positives at 0.1 %, %",
                "at 1 %, %",
                "balanced accuracy, %",
                "AUC",
            ),
            *rows,
            "",
        ]
    )


def draw(curves: dict[str, Any], file: Path) -> None:
    layers: list[plots.Layer] = [plots.Guide("chance")]
    for name, (x, y) in curves.items():
        points = tuple((a, b) for a, b in zip(x, y, strict=True) if b > 0)
        layers.append(plots.Polyline(name, points))
    axes = (
        plots.PlotAxis("false positives", 0.001, 1.0, log=True),
        plots.PlotAxis("true positives", 0.001, 1.0, log=True),
    )
    write_atomically(file, plots.draw(*axes, layers) + "\n")


# -- other packages --------------------------------------------------------------------------------

UNITS = {"MLP, Adult": "share of columns within 5 %", "embedding, text": "share of tokens"}


def beside(found: Results) -> str:
    rows, cases = [], [k for k in found if k.startswith("peers/") and "clients" in found[k]]
    for key in cases:
        case, one = key.removeprefix("peers/"), found[key]
        own = one["fedaudit"]
        for name, other in one.items():
            if not isinstance(other, dict):
                continue
            rows.append(
                row(
                    case if name == "fedaudit" else "",
                    name,
                    mean(other["quality"], digits=2 if case in UNITS else 1),
                    UNITS.get(case, "PSNR, dB"),
                    f"{1e3 * other['seconds']:.3g}",
                    f"{other['seconds'] / own['seconds']:.1f}x",
                    str(len(other["quality"])),
                )
            )
    if not rows:
        return ""
    scores = found.get("peers/membership scores")
    told = []
    if scores:
        told = [
            "## Beside sacroml 2.0",
            "",
            prose(
                "Equal log-odds of 20,000 records and 80 shadows in: the likelihood ratios differ",
                f"by at most {scores['lira']:.1g}, the AUC by {scores['auc']:.1g}, true-positive",
                f"rates at 0.1, 1 and 5 % by at most {max(scores['rates'].values()):.1g}. (Its",
                "`nanstd` divides by n, ours by n - 1; the comparison gives both the same spread.)",
                "The package privacy-guard 0.1.0 masks fields of records; it has no membership",
                "attack to compare with.",
            ),
            "",
        ]
    return "\n".join(
        [
            "## Beside breaching 0.1.2",
            "",
            prose(
                "Equal models and gradients of 20 clients, of which breaching inverts the first 4,",
                "one after another; one record each, four for the MLPs. breaching is given the",
                "true labels, and searches as many steps (800) as the audit's default takes from",
                "two",
                "starts; its presets ask for up to 24,000, which were not run. *light*: with the",
                "audit's weight of total variation, because the preset's own is made for",
                "photographs. Records are matched one to one.",
                "Processor milliseconds per record in one run, on a machine that did other work:",
                "only ratios count.",
            ),
            "",
            *head("case", "attack", "quality", "unit", "ms per record", "time", "n"),
            *rows,
            "",
            *told,
        ]
    )
