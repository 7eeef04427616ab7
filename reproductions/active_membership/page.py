"""The page: what was published and what was measured, from stored results alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedaudit.report.plots import Line, lines
from fedaudit.trace.store import write_atomically
from reproductions.active_membership import experiments, prose

Measured = Mapping[str, Any]
MECHANISMS = ("bitrand", "grr", "rappor", "dbitflip", "ome")


class Results:
    """Stored measurements by experiment, set and variant."""

    def __init__(self, raw: Measured) -> None:
        self.raw, self.scale = raw, raw["scale"]

    def of(self, experiment: str, data: str, variant: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.raw["measured"].get(f"{experiment}/{data}/{variant}")
        return found

    def variants(self, experiment: str, data: str) -> list[str]:
        head = f"{experiment}/{data}/"
        found = [k[len(head) :] for k in self.raw["measured"] if k.startswith(head)]
        return sorted(found, key=lambda v: [_sortable(w) for w in v.split()])

    def sets(self, experiment: str) -> list[str]:
        order = dict.fromkeys(
            k.split("/")[1] for k in self.raw["measured"] if k.startswith(f"{experiment}/")
        )
        return list(order)


def _sortable(word: str) -> tuple[int, float, str]:
    try:
        return 0, float(word), ""
    except ValueError:
        return 1, 0.0, word


# -- markdown -------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = [f"| {' | '.join(r)} |" for r in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *body]) + "\n"


def cell(triple: Sequence[float] | None) -> str:
    """A value with its interval."""
    if triple is None:
        return "–"
    value, low, high = triple
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


# -- sections -------------------------------------------------------------------------------------


def floor_section(r: Results) -> str:
    out = ["## Figures 5 and 6: the floor of Theorem 3\n", prose.FLOOR, ""]
    for kind in ("one-hot", "spherical"):
        variants = r.variants("floor", kind)
        if not variants:
            continue
        sizes = [f"{v:g}" for v in r.scale["noise"]]
        rows = []
        for variant in variants:
            n, d = variant.split()
            found = r.of("floor", kind, variant) or {}
            for which in ("spare", "random"):
                cells = []
                for s in sizes:
                    value = found.get(s, {}).get(which)
                    if not isinstance(value, list):
                        cells.append("no floor")
                    else:
                        cells.append(f"{value[0]:.3f} ({value[1]:.3f})")
                rows.append([n, f"{int(d):,}", which, *cells])
        head = ["N", "d", "left out", *(f"L1 noise {s}" for s in sizes)]
        out += [f"{kind.capitalize()} patterns:\n", table(head, rows)]
    return "\n".join(out)


def fc_section(r: Results) -> str:
    out = ["## Figures 7, 8 and 15: the fully connected adversary\n", prose.FC, ""]
    for name in r.sets("fc"):
        rows = []
        for mechanism in MECHANISMS:
            for variant in r.variants("fc", name):
                if variant.split()[0] != mechanism:
                    continue
                v = r.of("fc", name, variant) or {}
                rows.append(
                    [
                        mechanism,
                        variant.split()[1],
                        f"{v['claimed']:,.4g} / {v['exact']:,.4g}",
                        cell(v["tuned"]),
                        cell(v["published"]),
                        cell(v["theory"]),
                        cell(v["AUC"]),
                        number(v["P_M"][0]),
                        f"{v['theorem 1'][1]:.3f}",
                        number(v["theorem 2 claimed"]),
                        number(v["theorem 2"]),
                        number(v["total variation"]),
                        cell(v["accuracy"]),
                    ]
                )
        if not rows:
            continue
        one = r.of("fc", name, r.variants("fc", name)[0]) or {}
        out += [
            f"`{name}`, universe of {one['universe']:,} records, Delta = {one['radius']:.4g} "
            f"(bitwise); accuracy without protection {cell(one['accuracy without'])}:\n",
            table(
                [
                    "mechanism",
                    "eps",
                    "claimed / exact",
                    "success, tuned",
                    "midpoint",
                    "tau = Delta",
                    "AUC",
                    "P_M",
                    "Theorem 1",
                    "Theorem 2, claimed",
                    "exact",
                    "total variation",
                    "accuracy",
                ],
                rows,
            ),
            f"![Success over epsilon](active_membership-{name}.svg)\n",
        ]
    return "\n".join(out)


def attention_section(r: Results) -> str:
    out = ["## Figure 9: the attention adversary\n", prose.ATTENTION, ""]
    for name in r.sets("attention"):
        rows = []
        for variant in r.variants("attention", name):
            count, batch, mechanism, epsilon = variant.split()
            v = r.of("attention", name, variant) or {}
            rows.append(
                [
                    count,
                    batch,
                    mechanism,
                    epsilon,
                    f"{v['beta']:.4g}",
                    cell(v["success"]),
                    cell(v["AUC"]),
                    cell(v["TPR at 1 % FPR"]),
                    cell(v["TNR at 1 % FNR"]),
                ]
            )
        head = ["N", "batch", "mechanism", "eps", "beta found", "success", "AUC"]
        out += [
            f"`{name}` patches:\n",
            table([*head, "TPR at 1 % FPR", "TNR at 1 % FNR"], rows),
        ]
    out.append(prose.ROC)
    return "\n".join(out)


def beta_section(r: Results) -> str:
    out = ["## Figure 10 and table 3: beta\n", prose.BETA, ""]
    for name in r.sets("beta"):
        for variant in r.variants("beta", name):
            v = r.of("beta", name, variant) or {}
            count, batch, mechanism, epsilon = variant.split()
            rows = [
                [b, cell(found["success"]), cell(found["AUC"])]
                for b, found in v.items()
                if b != "theory"
            ]
            needed = v["theory"]["beta"]
            why = (
                "no beta at all: the separation of protected patterns is not positive"
                if needed is None
                else f"beta of at least {needed:g}"
            )
            out += [
                f"`{name}`, N = {count}, batch {batch}, {mechanism} at eps = {epsilon}. Theorem 3 "
                f"would need {why} (separation {v['theory']['separation']:g}):\n",
                table(["beta", "success", "AUC"], rows),
            ]
    return "\n".join(out)


def grr_section() -> str:
    curves = experiments.grr_curves()
    rows = [
        [epsilon, *(f"{v[k]:.4f}" for k in ("theorem 4", "exact", "total variation", "theorem 2"))]
        for epsilon, v in curves.items()
        if float(epsilon) % 1 == 0
    ]
    head = ["eps", "Theorem 4", "exact, this adversary", "total variation", "Theorem 2"]
    return "\n".join(
        [
            "## Figure 13: GRR, in closed form\n",
            prose.GRR,
            "",
            table(head, rows),
            "![Advantage under GRR](active_membership-grr.svg)\n",
        ]
    )


# -- figures and page -----------------------------------------------------------------------------


def figures(r: Results) -> dict[str, str]:
    out = {}
    curves = experiments.grr_curves()
    names = ("theorem 4", "exact", "total variation", "theorem 2")
    out["active_membership-grr.svg"] = lines(
        [Line(n, tuple((float(e), v[n], v[n], v[n]) for e, v in curves.items())) for n in names],
        x_label="epsilon, d = 100, n = 64",
        y_label="advantage",
    )
    for name in r.sets("fc"):
        series = []
        for mechanism in MECHANISMS:
            points = []
            for variant in r.variants("fc", name):
                if variant.split()[0] == mechanism:
                    value, low, high = (r.of("fc", name, variant) or {})["tuned"]
                    points.append((float(variant.split()[1]), value, low, high))
            if points:
                series.append(Line(mechanism, tuple(points)))
        if series:
            out[f"active_membership-{name}.svg"] = lines(
                series,
                x_label=f"epsilon (of a record: bitrand, ome; of a feature: others), {name}",
                y_label="success",
                baseline=0.5,
            )
    return out


def render(results: Measured, missing: Sequence[str], lacking: Sequence[str] = ()) -> str:
    """The whole page as markdown."""
    r = Results(results)
    sections = [
        prose.head(r.scale, missing, lacking),
        fc_section(r),
        attention_section(r),
        beta_section(r),
        floor_section(r),
        grr_section(),
        prose.LEFT_OUT,
    ]
    return "\n".join(sections).rstrip() + "\n"


def write(
    results: Measured, folder: Path, missing: Sequence[str], lacking: Sequence[str] = ()
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "active_membership.md"
    write_atomically(page, render(results, missing, lacking))
    for name, svg in figures(Results(results)).items():
        write_atomically(folder / name, svg)
    return page
