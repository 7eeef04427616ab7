"""The page: published and measured side by side, from stored results alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedaudit.files import write_atomically
from fedaudit.reporting.plots import Line, lines
from reproductions.fingerprint import prose, short
from reproductions.fingerprint import wide as wider
from reproductions.fingerprint.linking import METHODS, NAMES, chance, merge
from reproductions.fingerprint.setting import Scale
from reproductions.fingerprint.short import PAPER_SET

Measured = Mapping[str, Any]
BOUNDS = {"0.25": "50", "0.5": "100", "0.9": "200"}  # quantile here -> bound there, by rank


class Results:
    """Stored measurements, merged over seeds."""

    def __init__(self, raw: Measured) -> None:
        self.raw, self.scale = raw, raw["scale"]
        self.start: Measured = raw["start"]
        self.corpora = [c for c in self.scale["corpora"] if c in self.start]

    def of(self, experiment: str, corpus: str, variant: object = "") -> dict[str, Any] | None:
        """The merged result of one variant, or nothing if no seed has been measured."""
        head = f"{experiment}/{corpus}/{variant}/"
        found = [v for k, v in self.raw["measured"].items() if k.startswith(head)]
        return merge(found) if found else None

    def variants(self, experiment: str, corpus: str) -> list[str]:
        head = f"{experiment}/{corpus}/"
        keys = (k for k in self.raw["measured"] if k.startswith(head))
        return list(dict.fromkeys(k[len(head) :].rpartition("/")[0] for k in keys))

    def seeds(self, *experiments: str) -> str:
        """How many seeds stand behind a table: a number, or a range."""
        counts: dict[str, int] = {}
        for k in self.raw["measured"]:
            if k.split("/")[0] in experiments:
                head = k.rpartition("/")[0]
                counts[head] = counts.get(head, 0) + 1
        low, high = min(counts.values(), default=0), max(counts.values(), default=0)
        return f"{low} to {high} seeds" if low != high else f"{low} seed" + "s" * (low != 1)

    def count(self, corpus: str) -> int:
        return min(max(self.scale["clients"]), int(self.start[corpus]["owners"]))


# -- markdown -------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = [f"| {' | '.join(r)} |" for r in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *body]) + "\n"


def cell(score: Measured | None) -> str:
    """Purity with its interval, Rand index, mutual information."""
    if not score:
        return "–"
    purity, half = score["purity"]
    rest = " / ".join(f"{score[name][0]:.3f}" for name in NAMES[1:])
    return f"{purity:.3f} ± {half:.3f} / {rest}"


def printed(triple: Sequence[float] | None) -> str:
    return "–" if triple is None else " / ".join(f"{v:.3f}" for v in triple)


def by_chance(clients: int, rounds: int, each: int | None = None) -> str:
    found = chance(clients, rounds, each)
    return " / ".join(f"{found[n]:.3f}" for n in NAMES)


def compare(
    published: Mapping[str, Any], measured: Mapping[str, Measured | None], methods: Sequence[str]
) -> list[list[str]]:
    """Rows (what, where, one cell per method) of published, then measured, per setting."""
    out = []
    for name, row in published.items():
        out.append([name, "published", *(printed(row.get(m)) for m in methods)])
    for name, score in measured.items():
        if score:
            out.append([name, "measured", *(cell(score.get(m)) for m in methods)])
    return out


# -- sections -------------------------------------------------------------------------------------


def clients_section(r: Results, published: Measured) -> str:
    out = ["## Tables 2 and 3: number of clients\n", prose.CLIENTS, ""]
    for c in r.corpora:
        paper = "table 2" if c == "newsgroups" else "table 3"
        counts = sorted({*map(int, r.variants("clients", c)), r.count(c)})
        rows: list[list[str]] = []
        for k in counts:
            base = r.of("base", c)
            score = (base or {}).get("clients") if k == r.count(c) else r.of("clients", c, k)
            known = published[paper].get(str(k))
            if known:
                rows += compare({str(k): known}, {}, METHODS)
            rows += compare({}, {str(k): score}, METHODS)
            rows.append([str(k), "chance", by_chance(k, r.scale["rounds"]), *[""] * 5])
        out += [f"`{c}` beside {prose.PAPER_NAME[c]} ({r.seeds('clients', 'base')}):\n"]
        out.append(table(["clients", "", *METHODS], rows))
    return "\n".join(out)


def inside_section(r: Results, published: Measured) -> str:
    """Figure 2, tables 4 and 5: all from one long federation."""
    out = ["## Figure 2: number of rounds\n", prose.ROUNDS, ""]
    for c in r.corpora:
        base = r.of("base", c)
        if base is None:
            continue
        rows = [
            [n, *(cell(score.get(m)) for m in METHODS[1:]), by_chance(r.count(c), int(n))]
            for n, score in base["rounds"].items()
        ]
        out += [f"`{c}`:\n", table(["rounds", *METHODS[1:], "chance"], rows)]
    out.append("![Purity over rounds](fingerprint-rounds.svg)\n")
    some = ("spectral", "greedy", "joint")
    for title, key, paper in (
        ("Table 4: features", "features", "table 4"),
        ("Table 5: layers", "layers", "table 5"),
    ):
        out += [f"## {title}\n", prose.INSIDE[key], ""]
        for c in r.corpora:
            base = r.of("base", c)
            if base is None:
                continue
            rows = compare(published[paper][PAPER_SET[c]], base[key], some)
            out += [
                f"`{c}` beside {prose.PAPER_NAME[c]}, {r.count(c)} clients:\n",
                table([key, "", *some], rows),
            ]
    return "\n".join(out)


def rate_section(r: Results, published: Measured) -> str:
    out = ["## Table 9: server learning rate\n", prose.RATE, ""]
    methods = METHODS[1:]
    for c in r.corpora:
        base, frozen = r.of("base", c), f"{1e-4:g}"
        own: dict[str, Measured | None] = {frozen: (base or {}).get("clients")}
        own |= {v: r.of("rate", c, v) for v in r.variants("rate", c)}
        rows = compare(published["table 9"][PAPER_SET[c]], own, methods)
        out += [f"`{c}` beside {prose.PAPER_NAME[c]}:\n", table(["rate", "", *methods], rows)]
    return "\n".join(out)


def determinism_section(r: Results) -> str:
    out = ["## Same batches every round, or independent ones\n", prose.SAME, ""]
    rows = []
    for c in r.corpora:
        if not r.variants("same", c):
            continue
        for rate, batches in ((1e-4, "same"), (1e-4, "independent"), (1.0, "same"), (1.0, "indep")):
            if batches == "same":
                score = r.of("same", c, rate)
            else:
                score = (
                    (r.of("base", c) or {}).get("clients") if rate < 1 else r.of("rate", c, rate)
                )
            kind = "same" if batches == "same" else "independent"
            cells = [cell((score or {}).get(m)) for m in METHODS[1:]]
            rows.append([c, f"{rate:g}", kind, *cells])
    return "\n".join([*out, table(["set", "server rate", "batches", *METHODS[1:]], rows)])


def half_section(r: Results) -> str:
    out = ["## Half of the clients take part\n", prose.HALF, ""]
    rows = []
    for c in r.corpora:
        for v in r.variants("half", c):
            score = r.of("half", c, v) or {}
            each = -(-r.count(c) // 2)
            rows += [
                [c, v, m, cell(score[m]), "{:.3f} ± {:.3f}".format(*score[m]["links"])]
                for m in METHODS
            ]
            rows.append([c, v, "chance", by_chance(r.count(c), r.scale["long_rounds"], each), ""])
    return "\n".join(
        [*out, table(["set", "server rate", "method", "purity / RI / MI", "links found"], rows)]
    )


def momentum_section(r: Results) -> str:
    c = r.corpora[0]
    if not r.variants("momentum", c):
        return ""
    named = {"none": (r.of("base", c) or {}).get("clients")}
    named |= {"none, noise": r.of("grid", c, "0.5 1")}
    named |= {v: r.of("momentum", c, v) for v in r.variants("momentum", c)}
    some = ("kmeans", "greedy", "tracking", "joint")
    rows = [
        [
            name,
            *("{:.3f} ± {:.3f} ({:.3f})".format(*s[m]["purity"], s[m]["false"][0]) for m in some),
        ]
        for name, s in named.items()
        if s
    ]
    head = ["momentum", *(f"{m}: purity (false links)" for m in some)]
    return "\n".join(["## Footnote 4: momentum\n", prose.MOMENTUM, "", table(head, rows)])


def grid_section(r: Results, published: Measured) -> str:
    out = ["## Tables 6, 10 and 11: clipping and noise\n", prose.GRID, ""]
    eps = r.raw["epsilons"]
    rows = []
    for name, values in eps.items():
        which, noise = name.split()
        shown = published["epsilon"][which].get(noise)
        cells = ["∞" if v is None else f"{v:.3f}" for v in values.values()]
        rows.append([which, noise, "∞" if shown is None else f"{shown:g}", *cells])
    out.append(
        table(
            [
                "schedule",
                "z",
                "published",
                *(f"{by} {n}" for n in (1, 10) for by in ("rdp", "pld")),
            ],
            rows,
        )
    )
    methods = METHODS[1:]
    for c in r.corpora:
        if not r.variants("grid", c):
            continue
        paper = published["table 10" if c == "newsgroups" else "table 11"]
        rows = [["no DP", "", "published", *(printed(paper["no DP"].get(m)) for m in methods), ""]]
        base = (r.of("base", c) or {}).get("clients") or {}
        once = ((r.of("rate", c, "1.0") or {}).get("loss") or {}).get("1")
        shown = f"{once[0]:.3f}" if once else ""
        rows.append(["no DP", "", "measured", *(cell(base.get(m)) for m in methods), shown])
        for v in sorted(r.variants("grid", c), key=lambda v: [float(x) for x in v.split()]):
            quantile, z = v.split()
            score = r.of("grid", c, v) or {}
            clip = r.start[c]["norms"][quantile]
            known = paper.get(f"{BOUNDS[quantile]} {float(z):g}", {})
            rows.append(
                [BOUNDS[quantile], z, "published", *(printed(known.get(m)) for m in methods), ""]
            )
            loss = score.get("loss", {}).get("1", [math.nan])[0]
            cells = [cell(score.get(m)) for m in methods]
            rows.append([f"{clip:.2f}", z, "measured", *cells, f"{loss:.3f}"])
        chance_row = by_chance(r.count(c), r.scale["rounds"])
        rows.append(["chance", "", "", chance_row, *[""] * len(methods)])
        before = next(
            iter((r.of("grid", c, v) or {})["loss"]["0"][0] for v in r.variants("grid", c))
        )
        out += [
            f"`{c}` beside {prose.PAPER_NAME[c]} ({r.seeds('grid')}); held-out loss before any "
            f"training {before:.3f}:\n",
            table(["clip", "z", "", *methods, "loss after a round"], rows),
        ]
    return "\n".join(out)


def fine_section(r: Results) -> str:
    c = r.corpora[0]
    if not r.variants("fine", c):
        return ""
    rows = []
    for z, score in fine(r):
        rows.append([f"{z:g}", *(cell(score.get(m)) for m in METHODS[1:])])
    head = ["z", *METHODS[1:]]
    return "\n".join(
        [
            "## Where linkage ends\n",
            prose.FINE.format(corpus=c, chance=by_chance(r.count(c), r.scale["rounds"])),
            "",
            table(head, rows),
            "![Purity over noise](fingerprint-noise.svg)\n",
        ]
    )


def fine(r: Results) -> list[tuple[float, Measured]]:
    """Median clip: every noise level that was measured, in order."""
    c = r.corpora[0]
    found = [(float(v), r.of("fine", c, v) or {}) for v in r.variants("fine", c)]
    for v in r.variants("grid", c):
        quantile, z = v.split()
        if quantile == "0.5":
            found.append((float(z), r.of("grid", c, v) or {}))
    return sorted(found, key=lambda pair: pair[0])


def curve_section(r: Results) -> str:
    c = r.corpora[0]
    curves = {v: (r.of("curve", c, v) or {})["loss"] for v in r.variants("curve", c)}
    if not curves:
        return ""
    plain = [v[0] for v in curves.get("no DP", next(iter(curves.values()))).values()]
    target = min(plain)
    noisy = [[v[0] for v in losses.values()] for name, losses in curves.items() if "z =" in name]
    cost = min((values[-1] - values[0] for values in noisy), default=float("nan"))
    rows = []
    for name, losses in curves.items():
        values = [v[0] for v in losses.values()]
        hit = next((t for t, v in enumerate(values) if t and v <= target), None)
        rows.append(
            [
                name,
                f"{values[0]:.3f}",
                f"{values[-1]:.3f}",
                f"{min(values[1:]):.3f}",
                "not within the run" if hit is None else str(hit),
            ]
        )
    head = ["", "loss before", "loss at the end", "lowest after a round"]
    return "\n".join(
        [
            "## Figure 3: held-out loss\n",
            prose.CURVE.format(target=target, gain=plain[0] - target, cost=cost),
            "",
            table([*head, "rounds to the lowest loss without DP"], rows),
            "![Held-out loss over rounds](fingerprint-loss.svg)\n",
        ]
    )


# -- figures and page -----------------------------------------------------------------------------


def figures(r: Results) -> dict[str, str]:
    out = {}
    c = r.corpora[0]
    base = r.of("base", c)
    if base:
        series = [
            Line(m, tuple(_point(int(n), s[m]["purity"]) for n, s in base["rounds"].items()))
            for m in METHODS[1:]
        ]
        out["fingerprint-rounds.svg"] = lines(series, x_label=f"rounds, {c}", y_label="purity")
    levels = [(z, s) for z, s in fine(r) if z > 0 and s]
    if r.variants("fine", c):
        series = [
            Line(m, tuple(_point(round(math.log10(z), 2), s[m]["purity"]) for z, s in levels))
            for m in ("spectral", "greedy", "tracking", "joint")
        ]
        out["fingerprint-noise.svg"] = lines(
            series,
            x_label=f"log10 of the noise multiplier, {c}, median clip",
            y_label="purity",
            baseline=chance(r.count(c), r.scale["rounds"])["purity"],
        )
    curves = {v: (r.of("curve", c, v) or {})["loss"] for v in r.variants("curve", c)}
    if curves:
        series = [
            Line(name, tuple(_point(int(t), v) for t, v in losses.items()))
            for name, losses in curves.items()
        ]
        out["fingerprint-loss.svg"] = lines(series, x_label="rounds", y_label="held-out loss")
    return out


def _point(x: float, pair: Sequence[float]) -> tuple[float, float, float, float]:
    value, half = pair
    return x, value, value - half, value + half


def render(
    results: Measured,
    published: Measured,
    missing: Sequence[str],
    lacking: Sequence[str] = (),
    wide: tuple[Measured, Scale] | None = None,
) -> str:
    """The whole page as markdown. `wide`: measurements of the wide scale, and that scale."""
    r = Results(results)
    beside = "" if wide is None else wider.section(Results(wide[0]), wide[1])
    if not r.corpora:  # nothing else was measured yet
        return beside
    sections = [
        prose.head(r.scale, r.start, missing, lacking),
        short.summary(r, published),
        clients_section(r, published),
        inside_section(r, published),
        rate_section(r, published),
        determinism_section(r),
        grid_section(r, published),
        fine_section(r),
        beside,
        curve_section(r),
        momentum_section(r),
        half_section(r),
    ]
    return "\n".join(s for s in sections if s).rstrip() + "\n"


def write(
    results: Measured,
    published: Path,
    folder: Path,
    missing: Sequence[str],
    lacking: Sequence[str] = (),
    wide: tuple[Measured, Scale] | None = None,
) -> Path:
    """Write the page and its figures into `folder`; returns the page.

    `missing`: data sets that are not on this machine; `lacking`: keys not measured yet.
    """
    known = json.loads(published.read_text(encoding="utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "fingerprint.md"
    write_atomically(page, render(results, known, missing, lacking, wide))
    for name, svg in figures(Results(results)).items() if results["start"] else ():
        write_atomically(folder / name, svg)
    return page
