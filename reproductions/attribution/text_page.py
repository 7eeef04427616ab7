"""The part of the page on marked text: Table 1, the safe plan, sweeps and overhead."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit.files import write_atomically
from fedaudit.stats.intervals import clustered_share, wilson
from reproductions.attribution import cells, figure, overhead
from reproductions.attribution.tables import PLANS, plans_table, rate, rows_of, swept, table

CELLS = {
    "text/fictitious/fedit": "fictitious knowledge, FedIT",
    "text/fictitious/flora": "fictitious knowledge, FLoRA",
    "text/kgw/fedit": "green lists, FedIT",
    "text/kgw/flora": "green lists, FLoRA",
}
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


def lines(results: Mapping[str, Any], folder: Path) -> list[str]:
    """All sections that were measured; a figure goes into `folder`."""
    parts = (_table_1, _signal, _null, partial(_safe, folder), _sweeps, _overhead, _smollm)
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
        "Paper, all four cells: 100 % found, 0 % flagged. The smaller tiny GPT (2 blocks of width",
        "64), adapters of rank 16 on all linear layers, 72 Adam steps of 8 windows a round: two",
        "passes over a marked client's text, as many as published. *Published threshold*: Z above",
        "4 on Eq. (4)'s estimates. *Unit of the change*: the same sum of differences and the same",
        "4, in units of what unused keys give that sum. *Calibrated*: unused keys and Holm at 5 %,",
        "on the updates that the published plan's sums determine. *Safe plan*: partitions into",
        "groups of 5, calibrated alike; five rounds are few for it (least squares would need 9).",
        "The last four read plaintext updates, adapted as below.",
        "",
        *table(head, rows),
        *table(about, facts),
        "Fictitious knowledge is read by the likelihood of planted values among random tuples, 25",
        "questions for each of 4 attributes. Green lists are read by the probability of green",
        "tokens in one pass over 160 windows that the base model wrote under keys of nobody: what",
        "a client learnt of green lists it applies to text of that kind more than to the corpus.",
        "The direct oracle, which takes no difference, sees others' marks in the common model: it",
        "flags benign clients where a mark is strong.",
        "",
        "How these settings came about: on development seeds 101 and 102, before any of the runs",
        "above; none of them was used to choose. Looked at there: 12, 36 and 72 steps, rates",
        "0.003, 0.005 and 0.01, ranks 8, 16 and 32, both sizes of the model; equal weights of",
        "contexts, by how often they occur and by the root of it; powers 1, 3/4, 1/2 and 1/4 of a",
        "probability; probes from the corpus and written ones. For groups, on seeds 101 to 103:",
        "scores of group means and of sums two, three and five times as far, of differences of",
        "groups, and of what all rounds say of a client, with a share of 0.4, 2/3 and 0.87 of an",
        "update persisting, at the first, the sixth and the last models. Canaries, whose scores",
        "are nearly linear, keep the scores of groups: on development seeds 101 to 106 these named",
        "17 of 18 marked clients in ten rounds, what all rounds say 10 at best. The fourth root in",
        "the score of fictitious knowledge is older: it was picked on a run of seed 1 with other",
        "settings. Groups were read by their scores alone at first; seeds 1 to 3 had been seen",
        "then (4 of 9 and 3 of 6 named in ten rounds), before the reading changed.",
        "",
    ]


def _signal(results: Mapping[str, Any]) -> list[str]:
    """How far a marked client stands out, in each unit: what is there to be found."""
    rows = []
    for name, label in CELLS.items():
        runs = [r["of marked"] for r in rows_of(results, name) if "of marked" in r]
        if runs:
            each = {k: sorted(v for r in runs for v in r[k]) for k in runs[0]}
            rows.append(
                (
                    label,
                    *(
                        f"{each[k][0]:.1f}, {np.median(each[k]):.1f}, {each[k][-1]:.1f}"
                        for k in ("round", "solved", "change", "published")
                    ),
                )
            )
    if not rows:
        return []
    head = ("marks, aggregation", "one round", "5 rounds", "by Eq. (4)", "published unit")
    return [
        "### How far marked clients stand out",
        "",
        "Smallest, middle and largest over marked clients, the best of the owner's keys. *One",
        "round*, *5 rounds*: the change of the score by a client's updates, in units of the same",
        "change under unused keys; Holm over 30 tests asks for about 3. *By Eq. (4)*: that of the",
        "published estimates, which also hold what other clients did. *Published unit*: Z as",
        "published, differences of two z-scores.",
        "",
        *table(head, rows),
        "Five rounds stand out hardly more than one: unused keys that a client's own text happens",
        "to favour are favoured in every round, and noise of this kind does not average out. Where",
        "the tiny model differs: on development seeds a client held 57 marked windows under green",
        "lists, some 2,100 tokens with about 750 different pairs of tokens after 270 contexts; in",
        "the paper it holds some 4,000 documents. About 80 % of the different pairs were green",
        "(87 % if all tokens were equally likely): marks are written as they should be, there are",
        "few of them. The published unit, the spread of unused keys in *one* model, is not the one",
        "of a change: it is mostly smaller for fictitious knowledge, larger for green lists. As",
        "printed (Table 4: tokens are coin flips, each occurrence counts) it would be too small",
        "there as well: on development seed 102 marked clients had Z of 2.4, 8.9 and 27.7 after",
        "three rounds, and unused keys a deviation of 4.4 where 1 is assumed. What Eq. (4)'s",
        "estimates hold of other clients costs a middle client a third of what its own updates",
        "show, and more.",
        "",
    ]


def _null(results: Mapping[str, Any]) -> list[str]:
    """False alarms of owners whose keys nobody used, and of the owner on benign clients."""
    rows = []
    for name, label in CELLS.items():
        runs = [r["pretended"] for r in rows_of(results, name) if "pretended" in r]
        if runs:
            owners = sum(r["owners"] for r in runs)
            alarmed = [r["owners alarmed"] for r in runs]
            share = clustered_share(np.array(alarmed), np.array([r["owners"] for r in runs]))
            rows.append(
                (
                    label,
                    _small(sum(r["alarms"] for r in runs), sum(r["benign"] for r in runs)),
                    f"{sum(alarmed)} of {owners}: {100 * share.value:.1f} % "
                    f"[{100 * share.low:.1f}, {100 * share.high:.1f}]",
                )
            )
    if not rows:
        return []
    head = ("marks, aggregation", "clients flagged, of client tests", "owners with any false flag")
    return [
        "### False alarms of the calibrated reading",
        "",
        "On the same runs, for 100 owners each who have three of the unused keys: whatever they",
        "find is a false alarm. An owner's error rate over all clients and keys is 5 % at most.",
        "A client test is one owner and one client, on three keys. Tests of one run share its",
        "updates, and all owners of a run one null: the intervals of clients treat them as",
        "independent, those of owners take a run for one cluster.",
        "",
        *table(head, rows),
    ]


def _small(count: int, of: int) -> str:
    """A rate far below one per cent."""
    e = wilson(count, of)
    return f"{count} of {of}: {100 * e.value:.2f} % [{100 * e.low:.2f}, {100 * e.high:.2f}]"


def _safe(folder: Path, results: Mapping[str, Any]) -> list[str]:
    out: list[str] = []
    drawn: dict[str, list[tuple[str, figure.Cells]]] = {}
    for kind, label in (("fictitious", "fictitious knowledge"), ("kgw", "green lists")):
        runs = rows_of(results, f"text-trade-off/{kind}")
        if not runs:
            continue
        by_plan = {words: [r[plan] for r in runs] for plan, words in PLANS.items()}
        out += [f"### {label[0].upper()}{label[1:]}", "", *plans_table(by_plan)]
        for words, own in by_plan.items():
            drawn.setdefault(words, []).append((label[0].upper(), own))
    if not out:
        return []
    write_atomically(folder / "attribution-trade-off-text.svg", figure.trade_off(drawn))
    return [
        "## Marked text: what attribution costs in privacy, plans over 10 rounds, FedIT",
        "",
        "*Smallest group*: the fewest clients in any combination of a round's sums. *Cosine*: of",
        "the server's guess with a client's update of a round by least squares; with its mean",
        "update over all rounds by least squares, and by the best linear guess of somebody who",
        "knows how much of an update persists. *Owners without a mark*: of 100 owners a run whose",
        "keys nobody used, those who name anybody at all (at 5 % nominal).",
        "",
        "In the figure F stands for fictitious knowledge, G for green lists.",
        "",
        "![Detection against what the server learns of a client](attribution-trade-off-text.svg)",
        "",
        *out,
        "In the mean of five updates a mark is diluted, and neither adapters nor likelihoods are",
        "linear: on development seed 101 (fictitious knowledge) a marked client added to its",
        "group's score 4 to 12 % of what its own update adds, not 20 %. So groups are not scored",
        "one by one: the sums of all rounds estimate what each client keeps sending, and that is",
        "scored at full strength at the last model, for every other client on the groups without",
        "it. On development seeds 101 to 103 this named 9 of 9 marked clients after ten rounds of",
        "fresh partitions where scores of groups named 6 (fictitious knowledge), and 3 of 9 where",
        "they named 4 (green lists). It is not free of what a plan gives away: the last column is",
        "the very thing that it works with.",
        "",
    ]


def _sweeps(results: Mapping[str, Any]) -> list[str]:
    rows = swept(results, (*cells.TINY, *cells.PARTIAL))
    green = swept(results, cells.GREEN)
    out: list[str] = []
    if rows:
        out += [
            "## Marked text: one setting changed at a time (Tables 9 to 17, 20 and 21)",
            "",
            "Fictitious knowledge, FedIT. Benign clients have no key of their own: their Z is the",
            "largest over the owner's keys. Where N is below 5 the threshold of secure aggregation",
            "would have to be N; these sums were formed in the clear. The base model was made from",
            f"`docs` alone; `{cells.OTHER}` is another corpus, of e-mails, where two words in five",
            "are none of its 1,000. `docs` is too small for more than ten clients with as much",
            "text each: K from 20 on is on the e-mails. Where not all take part in a round, plan",
            "and audit are the package's own, on what it recorded.",
            "",
            *rows,
        ]
    if green:
        out += ["The same for green lists, FedIT:", "", *green]
    return out


def _overhead(results: Mapping[str, Any]) -> list[str]:
    rows = []
    for clients in overhead.CLIENTS:
        runs = rows_of(results, "overhead" if clients == 10 else f"overhead/{clients}")
        if runs:
            rows += _costs(str(clients), runs)
    if not rows:
        return []
    head = (
        "clients", "plan", "run, s a round", "against no protection", "attribution, s a round",
        "against no protection", "trace, MB a round",
    )  # fmt: skip
    return [
        "## Overhead with the real protocol (Tables 18 and 19)",
        "",
        "Paper: 6.3 % of the training time, subset sums taken to be free. Here one process plays",
        "all clients (65,536 trained numbers each) and the server, with masks of all pairs for",
        "every sum; processor seconds, fictitious knowledge, two rounds, the larger tiny GPT with",
        "rank 8 and 12 steps. Training is short here, so that shares are large; seconds are what",
        "carries over. Most of what partitions take is spent once, on all rounds together: every",
        "client is tested with every other left out, beyond 45 clients only those who would be",
        "named with nobody left out. Mean over seeds; more than ten clients: one seed.",
        "",
        *table(head, rows),
    ]


def _costs(clients: str, runs: list[Any]) -> list[tuple[str, ...]]:
    plain = float(np.mean([r["none"]["run"] for r in runs]))
    rows: list[tuple[str, ...]] = []
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
                clients if name == "none" else "",
                label,
                f"{own['run']:.1f}",
                f"{protocol:+.0f} %" if name != "none" else "-",
                f"{own['attribution']:.1f}" if own["attribution"] > 0.05 else "-",
                f"{100 * own['attribution'] / plain:.0f} %" if own["attribution"] > 0.05 else "-",
                f"{own['megabytes']:.1f}",
            )
        )
    return rows


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
        "Seconds by the clock, of a machine that did other work besides. Green lists: a client",
        "sees some 240 windows of 32 tokens in all, a fifth of them marked, of a vocabulary of",
        "49,152. That this is too little to learn its lists from is likely, and was not tested.",
        "",
        *table(head, rows),
    ]
