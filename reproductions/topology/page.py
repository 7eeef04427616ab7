"""The page: published and measured side by side, words made from the numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedaudit.files import write_atomically
from fedaudit.reporting.plots import Cells, Guide, Line, PlotAxis, Polyline, draw, lines
from reproductions.topology import elsewhere, utility
from reproductions.topology.experiments import BUDGETS, ETAS, GRAPHS, WINDOWS, epsilon_of

Measured = Mapping[str, Any]
CHANNELS = ("A1", "A2-topo", "A2-org", "A2-full", "topo", "org")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines_ = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines_, *("| " + " | ".join(r) + " |" for r in rows)]) + "\n"


def number(triple: Sequence[float] | None, digits: int = 4) -> str:
    """Value and interval, or a dash."""
    if triple is None:
        return "—"
    value, low, high = (0.0 if abs(v) < 10.0**-digits / 2 else v for v in triple)
    return f"{value:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


def share(triple: Sequence[float] | None) -> str:
    if triple is None:
        return "—"
    value, low, high = (round(100 * min(v, 1.0)) for v in triple)
    return f"{value} % [{low}, {high}]"


def of(measured: Measured, experiment: str, variant: object) -> Any:
    return measured.get(f"{experiment}/{variant}")


def head(scale: Measured, lacking: Sequence[str]) -> str:
    clients = sum(scale["cliques"])
    z = (scale["budget"] / clients) ** 0.5 * scale["batch"]
    missing = ""
    if lacking:
        kinds = sorted({k.split("/")[0] for k in lacking})
        missing = f"\nNot measured yet: {len(lacking)} pieces ({', '.join(kinds)}).\n"
    return f"""# Topology inference and noise allocation: published and measured

Written by `python -m reproductions.topology.run` (`--render` writes it again from
`reproductions/topology/results.json`; `--quick` is a tiny version). Source: *Topology-Aware
Differential Privacy in Federated Learning*, figures 3 to 6 and table II.
{missing}
## Setting

- **Allocation** (figures 3 and 4) is closed form: nothing is trained. Batch sizes 32 (A), 16 (B)
  and 64 (C) are those that reproduce the published bounds.
- **Channels** are measured on `digits`, not on CIFAR-10 or FLamby: {clients} clients in cliques of
  {", ".join(map(str, scale["cliques"]))} joined by their first members,
  Delta_i = (1 - eta) Dirichlet({scale["alpha"]:g}) + eta e_c with c the clique's number, MLP
  64-{scale["hidden"]}-10, {scale["rounds"]} rounds, one local epoch, batches of {scale["batch"]}.
- **Noise** sigma² = U / n on the mean with U = {scale["budget"]:g}, which is z = sigma · batch =
  {z:.2g} on the sum. The released runs passed sigma as z.
- **Shadows**: {scale["shadows"]} federations per cell, trained on held-out records with the same
  protection; a regressor (LightGBM) is validated by federation. {scale["runs"]} target runs per
  cell deal the training records anew; no shadow is ever a target. Intervals are over target runs.
- **Sensitive class** 0, which lives in the largest clique. Organisations are the cliques.
- Cliques ask for more records of a class than there are; what a client lacks is filled at random,
  so eta = 1 here is not a clique of one class. The variance of p is stated.
"""


def figure_3(m: Measured, published: Measured) -> str:
    rows = []
    for name in GRAPHS:
        found = of(m, "gap", name)
        if found is None:
            continue
        own = [f"{v:.3f}" for v in found["mean"]]
        if "low" in found:
            spans = zip(found["mean"], found["low"], found["high"], strict=True)
            own = [f"{v:.3f} ± {(high - low) / 2:.3f}" for v, low, high in spans]
        wrong = max(
            abs(a - published["figure 3"]["gap"][name][f"{eta:g}"])
            for a, eta in zip(found["published degrees"], ETAS, strict=True)
        )
        rows.append([name, *(f"{v:.3f}" for v in found["published degrees"]), f"{wrong:.4f}", *own])
    if not rows:
        return ""
    etas = [f"eta {e:g}" for e in ETAS]
    text = "\n## Figure 3: gap of the allocation, nats (n = 50, U = 0.5, T = 100)\n\n"
    text += (
        "First the degrees of the published runs, with the largest distance from the published\n"
    )
    text += (
        "cells; then graphs drawn here, random ones averaged over seeds with a 95 % interval.\n\n"
    )
    text += "![gap by topology and eta](topology-gap.svg)\n\n"
    drawn = [f"{e}, drawn" for e in etas]
    text += table(["topology", *etas, "distance", *drawn], rows)
    random = {n: of(m, "gap", n) for n in ("ER p=0.3", "ER p=0.5", "ER p=0.7")}
    if all(random.values()):
        ends = [random[n]["mean"][-1] for n in random]
        order = "falls" if ends[0] > ends[1] > ends[2] else "does not fall"
        text += (
            "\nPublished: the Erdős-Rényi gap peaks at p = 0.5. That holds for the published "
            f"seed; over {random['ER p=0.3']['seeds']} seeds the mean gap at eta = 1 is "
            f"{ends[0]:.3f}, {ends[1]:.3f} and {ends[2]:.3f} for p = 0.3, 0.5 and 0.7: it {order} "
            "with p.\n"
        )
    return text


def figure_4(m: Measured, published: Measured) -> str:
    rows = []
    for name in "ABC":
        found = of(m, "pareto", name)
        if found is None:
            continue
        known = published["figure 4"][name]
        # the published grid of A begins at 0.05; that of B reaches further down
        budgets = [u for u in BUDGETS if u >= (0.025 if name == "B" else 0.05)]
        gaps = {
            (t, u): (un - al, (un - al) / un)
            for t in WINDOWS
            for u, al, un in zip(
                BUDGETS, found[str(t)]["allocated"], found[str(t)]["uniform"], strict=True
            )
            if u in budgets
        }
        top = max(gaps, key=lambda k: gaps[k][0])
        rel = max(gaps, key=lambda k: gaps[k][1])
        rows.append(
            [
                name,
                f"{known['largest gap']:.3f}, {100 * known['share']:.1f} %",
                f"{gaps[top][0]:.3f}, {100 * gaps[top][1]:.1f} % (T = {top[0]}, U = {top[1]:g})",
                f"{100 * gaps[rel][1]:.1f} % (T = {rel[0]}, U = {rel[1]:g})",
                str(max(found[str(t)]["clients with less noise"] for t in WINDOWS)),
            ]
        )
    if not rows:
        return ""
    text = "\n## Figure 4: worst case over the budget\n\n"
    text += "Settings A and B from the published site sizes, C from the cliques at eta = 0.5.\n\n"
    text += "".join(
        f"![worst case, setting {n}](topology-pareto-{n}.svg)\n"
        for n in "ABC"
        if of(m, "pareto", n)
    )
    text += "\n" + table(
        [
            "setting",
            "published largest gap, share",
            "largest gap",
            "largest share",
            "clients with less noise than uniform",
        ],
        rows,
    )
    return text + (
        "\nThe paper prints no grid of budgets; those of its tables for A begin at 0.05, and B's "
        "largest gap needs a smaller one. All of these are the published bounds, which are no "
        "guarantees: [what they are worth](../noise-allocation.md).\n"
    )


def table_2(m: Measured, scale: Measured, published: Measured) -> str:
    rows = []
    cells = [("utility", "digits", t, f"{t}") for t in scale["utility_rounds"]]
    cells += [
        ("elsewhere", name, t, f"{name} {t}")
        for name, own in elsewhere.OWN.items()
        for t in own.rounds
    ]
    for experiment, name, t, start in cells:
        pairs = [
            found
            for u in scale["budgets"]
            for s in scale["utility_seeds"]
            if (found := of(m, experiment, f"{start} {u:g} {s}"))
        ]
        if len(pairs) < 2:
            continue
        r = utility.row(pairs)
        verdict = "equivalent" if r["equivalent"] else "not shown"
        rows.append(
            [
                f"{name}, T = {t}",
                f"{r['mean absolute']:.3f}",
                f"[{r['low']:+.3f}, {r['high']:+.3f}]",
                f"{r['t']:.3g}",
                f"{r['tost']:.2g}",
                verdict,
                f"{r['accuracy']:.1f} %",
                str(r["n"]),
            ]
        )
    if not rows:
        return ""
    known = [
        [f"{s}, T = {t} (published)", f"{v[0]:.3f}", f"[{v[1]:+.3f}, {v[2]:+.3f}]",
         f"{v[3]:.3g}", f"{v[4]:.2g}", "equivalent", "", str(v[5])]
        for s, by in published["table 2"].items()
        for t, v in by.items()
    ]  # fmt: skip
    text = "\n## Table II: accuracy with allocated against uniform noise\n\n"
    text += (
        "Pairs at equal budget and seed: the same deal, batches, first model and random numbers; "
        f"budgets {', '.join(f'{u:g}' for u in scale['budgets'])}, "
        f"{len(scale['utility_seeds'])} seeds, rate {scale['utility_rate']:g} (`digits`) or "
        f"{elsewhere.OWN['adult'].rate:g}. Percentage points; TOST at ±0.5. `digits` and `cifar10` "
        f"({elsewhere.OWN['cifar10'].records:,} images, the same fully connected model, which "
        "learns little of them) are dealt to the cliques at eta = 0.5, leverage by degree. `adult` "
        "is a CSV file with a client column: sites are occupations, leverage by size, as in A and "
        "B.\n\n"
    )
    first = [
        "data, rounds",
        "mean abs. difference",
        "95 % interval",
        "paired t p",
        "TOST p",
        "within ±0.5",
    ]
    return text + table([*first, "mean accuracy", "pairs"], [*rows, *known])


def figures_5_6(m: Measured, scale: Measured, published: Measured) -> str:
    cells = {eta: of(m, "channels", f"{eta:g}") for eta in scale["etas"]}
    cells = {eta: c for eta, c in cells.items() if c}
    if not cells:
        return ""
    text = "\n## Figures 5 and 6: lift and AUROC by channel and eta\n\n"
    text += (
        "Mean over target runs with a 95 % interval (the wider of bootstrap and t over runs). "
        "`topo` and `org` are the channels alone, which the paper has not.\n\n"
        "![lift by eta](topology-lift.svg)\n"
        "![AUROC by eta](topology-auroc.svg)\n\n"
    )
    etas = [f"eta {e:g}" for e in cells]
    for features, words in (
        ("published", "Lift over the true mean, **features of the paper**"),
        ("all", "Lift over the true mean, **all features** (rows of the last layer too)"),
    ):
        rows = [
            [c, *(number(cell[features]["lift"].get(c)) for cell in cells.values())]
            for c in CHANNELS
            if any(c in cell[features]["lift"] for cell in cells.values())
        ]
        text += f"{words}:\n\n" + table(["channel", *etas], rows) + "\n"
    rows = [["variance of p", *(f"{cell['variance']:.4f}" for cell in cells.values())]]
    rows += [
        [
            f"{c}, share explained",
            *(share(cell["all"]["explained"].get(c)) for cell in cells.values()),
        ]
        for c in CHANNELS
    ]
    rows += [
        [f"{c}, AUROC", *(_area(cell["all"]["auroc"].get(c)) for cell in cells.values())]
        for c in CHANNELS
    ]
    text += "All features:\n\n" + table(["", *etas], rows) + "\n"
    names = {
        "topology contribution": "topology_contribution",
        "structure's part": "structure_part",
        "organisation's part": "organisation_part",
    }
    rows = [
        [title, *(number(cell["published"]["contribution"].get(n)) for cell in cells.values())]
        for title, n in names.items()
    ]
    text += "No lift with the paper's features, p-values over runs after Holm's correction:\n\n"
    adjusted = [
        [c, *(f"{cell['published']['p'][f'lift ({c})']:.2g}" for cell in cells.values())]
        for c in CHANNELS[:4]
    ]
    text += table(["channel", *etas], adjusted) + "\n"
    text += "What knowing the place adds to the paper's features, L(A1) - L(A2-full) and parts:\n\n"
    text += table(["", *etas], rows) + "\n" + _claims(cells, published)
    return text + _other_priors(m, scale, cells)


def _either(cell: Any, what: str) -> dict[str, Any]:
    """With the paper's features, and for channels without parameters the only ones."""
    return {**cell["all"][what], **cell["published"][what]}


def _area(triple: Sequence[float] | None) -> str:
    if triple is None:
        return "—"
    value, low, high = triple
    return f"{value:.3f} [{max(low, 0.0):.3f}, {min(high, 1.0):.3f}]"


def _claims(cells: Mapping[float, Any], published: Measured) -> str:
    """The paper's claims, and what these runs say of them."""

    def sign(cell: Any, features: str, channel: str) -> str:
        _, low, high = cell[features]["lift"][channel]
        return "above 0" if low > 0 else "below 0" if high < 0 else "not told from 0"

    first, last = min(cells), max(cells)
    known = published["figure 6"]
    largest = max(v for c in cells.values() for v in c["null"].values())
    out = [
        f"- Published: the parameter channel has negative lift at every eta "
        f"({known['A1']['0']:+.3f} to {known['A1']['1']:+.3f}). "
        "Measured with the paper's features: "
        + ", ".join(f"eta {e:g} {sign(c, 'published', 'A1')}" for e, c in cells.items())
        + ". With all features: "
        + ", ".join(f"eta {e:g} {sign(c, 'all', 'A1')}" for e, c in cells.items())
        + ".",
        f"- Published: the organisation channel rises from {known['A2-org']['0']:+.3f} to "
        f"{known['A2-org']['1']:+.3f}, AUROC 1 from eta = {known['AUROC 1 from eta']:g} on. "
        "Measured, organisation alone: "
        f"{number(cells[first]['all']['lift']['org'])} at eta = {first:g}, "
        f"{number(cells[last]['all']['lift']['org'])} at eta = {last:g}; AUROC "
        + ", ".join(_area(c["all"]["auroc"].get("org")) for c in cells.values())
        + ".",
        f"- Null: at eta = {first:g} structure alone is {sign(cells[first], 'all', 'topo')} and "
        f"organisation alone {sign(cells[first], 'all', 'org')}; with p dealt at random the "
        f"largest lift of any channel and eta on shadows is {largest:.2g}.",
    ]
    return "\n".join(out) + "\n"


def _other_priors(m: Measured, scale: Measured, cells: Mapping[float, Any]) -> str:
    text = ""
    last = f"{scale['etas'][-1]:g}"
    wrong = of(m, "mismatched", last)
    if wrong:
        rows = [
            [
                c,
                number(wrong["all"]["lift"].get(c)),
                number(cells[float(last)]["all"]["lift"].get(c)),
            ]
            for c in CHANNELS
            if float(last) in cells
        ]
        text += (
            f"\n### A prior that does not match (eta = {last})\n\nShadows that deal by Dirichlet "
            "shares learn nothing of places, and still read parameters.\n\n"
            + table(["channel", "Dirichlet shadows", "matched shadows"], rows)
        )
    found = {e: of(m, "published", f"{e:g}") for e in scale["etas"]}
    found = {e: c for e, c in found.items() if c}
    if found:
        rows = [[c, *(number(_either(r, "lift").get(c)) for r in found.values())] for c in CHANNELS]
        rows += [
            [f"{c}, AUROC", *(_area(cell["published"]["auroc"].get(c)) for cell in found.values())]
            for c in ("A1", "A2-org", "A2-full")
        ]
        text += (
            "\n### As published: classes by client index, and that index as organisation\n\n"
            "The released settings gave every client a label of its own. A regressor then learns "
            "by heart which index holds the class; nothing is said about organisations. Features "
            "of the paper.\n\n" + table(["channel", *(f"eta {e:g}" for e in found)], rows)
        )
    return text


def noise(m: Measured, scale: Measured) -> str:
    found = {z: of(m, "noise", f"{z:g}") for z in scale["noises"]}
    found = {z: c for z, c in found.items() if c}
    if not found:
        return ""
    rows = [
        [
            f"{z:g}",
            f"{spent:.3g}" if (spent := epsilon_of(scale, z)) < math.inf else "infinite",
            share(c["published"]["explained"].get("A1")),
            share(c["all"]["explained"].get("A1")),
        ]
        for z, c in found.items()
    ]
    text = (
        "\n## Beyond: what noise does to the parameter channel (eta = 0.5)\n\n"
        "Share of the variance of p that A1 explains in a target run, mean over runs with a 95 % "
        "interval; epsilon per record at delta 1e-5 over the whole run. DP-SGD hides single "
        "records; a class mix is a property of all of a client's records, and the last layer's "
        "biases move with it in every step.\n\n"
    )
    head_ = ["noise multiplier z", "epsilon", "features of the paper", "all features"]
    text += table(head_, rows)
    loudest = max(found)
    theirs, ours = (found[loudest][f]["explained"]["A1"] for f in ("published", "all"))
    if theirs[1] > 0 and ours[1] <= 0:
        text += (
            f"\nAt z = {loudest:g} nothing is left in the updates, and the paper's A1 still "
            f"explains {share(theirs)}: its list has the cosine to the neighbours' updates, whose "
            "spread over rounds gives the degree away, and with it the clique. That is structure, "
            "not parameters; here only A2-topo and A2-full have it.\n"
        )
    return text


# -- figures ---------------------------------------------------------------------------------------


def figures(m: Measured, scale: Measured) -> dict[str, str]:
    out = {}
    rows = [of(m, "gap", n) for n in GRAPHS]
    if all(rows):
        values = tuple(tuple(r["published degrees"]) for r in rows)
        top = max(max(v) for v in values)
        out["topology-gap.svg"] = draw(
            PlotAxis("eta 0.25 to 1", 0.125, 1.125),
            PlotAxis("ring to star, in the order of the table", 0.5, len(values) + 0.5),
            [Cells(values, PlotAxis("nats", 0.0, top))],
            marks=ETAS,
        )
    for name in "ABC":
        found = of(m, "pareto", name)
        if found:
            curves = [
                Polyline(
                    f"{which}, T = {t}",
                    tuple(zip(BUDGETS, found[str(t)][which], strict=True)),
                    dashed=which == "uniform",
                )
                for t in WINDOWS
                for which in ("allocated", "uniform")
            ]
            every = [v for t in WINDOWS for w in ("allocated", "uniform") for v in found[str(t)][w]]
            out[f"topology-pareto-{name}.svg"] = draw(
                PlotAxis.around(f"budget U, setting {name}", BUDGETS, log=True),
                PlotAxis.around("worst case, nats", every, log=True),
                curves,
            )
    cells = {eta: of(m, "channels", f"{eta:g}") for eta in scale["etas"]}
    cells = {eta: c for eta, c in cells.items() if c}
    if len(cells) > 1:
        lift = [
            Line(name, tuple((e, *c[f]["lift"][ch]) for e, c in cells.items()))
            for name, f, ch in (
                ("A1, paper's features", "published", "A1"),
                ("A1, all features", "all", "A1"),
                ("organisation alone", "all", "org"),
                ("structure alone", "all", "topo"),
                ("A2-full, paper's features", "published", "A2-full"),
            )
        ]
        out["topology-lift.svg"] = lines(lift, x_label="eta", y_label="lift", baseline=0.0)
        area = [
            Line(name, tuple((e, *c[f]["auroc"][ch]) for e, c in cells.items()))
            for name, f, ch in (
                ("A1, paper's features", "published", "A1"),
                ("A1, all features", "all", "A1"),
                ("organisation alone", "all", "org"),
                ("structure alone", "all", "topo"),
            )
            if all(ch in c[f]["auroc"] for c in cells.values())
        ]
        if area:
            every = [v for a in area for p in a.points for v in p[1:]]
            out["topology-auroc.svg"] = draw(
                PlotAxis.around("eta", list(cells)),
                PlotAxis.around("AUROC", [*every, 0.4, 1.0]),
                [Guide("chance", 0.5), *area],
                marks=list(cells),
            )
    return out


def render(results: Measured, published: Measured, lacking: Sequence[str] = ()) -> str:
    m, scale = results["measured"], results["scale"]
    parts = [
        head(scale, lacking),
        figure_3(m, published),
        figure_4(m, published),
        table_2(m, scale, published),
        figures_5_6(m, scale, published),
        noise(m, scale),
    ]
    drawn = figures(m, scale)
    text = "".join(parts).rstrip().split("\n")
    # no link to a figure that is not there
    kept = [t for t in text if not t.endswith(".svg)") or t.split("](")[1][:-1] in drawn]
    return "\n".join(kept) + "\n"


def write(
    results: Measured, published: Measured, folder: Path, lacking: Sequence[str] = ()
) -> Path:
    """Write the page and its figures into `folder`; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "topology.md"
    drawn = figures(results["measured"], results["scale"])
    write_atomically(page, render(results, published, lacking))
    for name, svg in drawn.items():
        write_atomically(folder / name, svg)
    return page
