"""The page's figures as SVG, from stored results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedaudit.reporting.plots import Guide, Layer, Line, PlotAxis, Polyline, draw, lines
from reproductions.active_membership import experiments
from reproductions.active_membership.results import MECHANISMS, Results, named

HEAD = "active_membership"
COMPANION = "digits"
"""Not the paper's data: one figure is enough."""
Found = Sequence[tuple[float, Mapping[str, Any]]]


def figures(r: Results) -> dict[str, str]:
    """File name -> SVG, of everything that was measured."""
    out = {f"{HEAD}-grr.svg": _grr()}
    for name in r.sets("fc"):
        out |= _fc(r, name)
    for name in r.sets("attention"):
        out |= _attention(r, name)
    for name in r.sets("beta"):
        out |= _beta(r, name)
    for kind in r.sets("floor"):
        out |= _floor(r, kind)
    for name in r.sets("text"):
        out |= _text(r, name)
    return out


def _grr() -> str:
    curves = experiments.grr_curves()
    keys = ("theorem 4", "exact", "total variation", "theorem 2")
    return draw(
        PlotAxis.around("epsilon, d = 100, n = 64", [float(e) for e in curves]),
        PlotAxis("advantage", 0.0, 1.0),
        [
            Polyline(k, tuple((float(e), v[k]) for e, v in curves.items() if v[k] >= 0))
            for k in keys
        ],
    )


def _points(found: Found, key: str) -> tuple[tuple[float, float, float, float], ...]:
    return tuple((x, *v[key]) for x, v in found if v.get(key) is not None)


def _fc(r: Results, name: str) -> dict[str, str]:
    """One figure per mechanism, as Figures 7 and 15 have them, and one of all."""
    out, every = {}, []
    for mechanism in MECHANISMS:
        found = r.over("fc", name, mechanism)
        if not found:
            continue
        every.append(Line(named(mechanism), _points(found, "tuned")))
        if name == COMPANION or len(found) < 2:
            continue
        xs = [x for x, _ in found]
        layers: list[Layer] = [
            Guide("chance", 0.5),
            Line("success, tau tuned", _points(found, "tuned")),
            Line("success, tau = Delta", _points(found, "theory")),
            Line("accuracy", _points(found, "accuracy")),
            Polyline("Theorem 1", tuple((x, v["theorem 1"][1]) for x, v in found), dashed=True),
            Polyline(
                "Theorem 2, claimed",
                tuple((x, v["theorem 2 claimed"]) for x, v in found),
                dashed=True,
            ),
        ]
        whose = "a record" if mechanism in ("bitrand", "ome") else "a feature"
        out[f"{HEAD}-{name}-{mechanism}.svg"] = draw(
            PlotAxis.around(f"epsilon of {whose}, {named(mechanism)}, {name}", xs),
            PlotAxis("share", 0.0, 1.0),
            layers,
            marks=xs,
        )
    if every:
        out[f"{HEAD}-{name}.svg"] = lines(
            every,
            x_label=f"epsilon (of a record: BitRand, OME; of a feature: others), {name}",
            y_label="success",
            baseline=0.5,
        )
    return out


def _attention(r: Results, name: str) -> dict[str, str]:
    found: dict[tuple[str, str, str], list[float]] = {}
    for variant in r.variants("attention", name):
        count, batch, mechanism, epsilon = variant.split()
        found.setdefault((count, batch, mechanism), []).append(float(epsilon))
    by_batch, by_mechanism = [], []
    first = str(r.scale["batches"][0])
    smallest = min((k[0] for k in found), key=int, default="")
    for count, batch, mechanism in found:
        points = _points(r.over("attention", name, count, batch, mechanism), "success")
        if mechanism == "bitrand":
            by_batch.append(Line(f"batch {batch}, N = {count}", points))
        if batch == first and count == smallest:
            by_mechanism.append(Line(named(mechanism), points))
    out = {}
    for ending, series in (("batches", by_batch), ("mechanisms", by_mechanism)):
        if series:
            out[f"{HEAD}-attention-{name}-{ending}.svg"] = lines(
                series, x_label=f"epsilon, {name} patches", y_label="success", baseline=0.5
            )
    return out


def _beta(r: Results, name: str) -> dict[str, str]:
    layers: list[Layer] = [Guide("chance", 0.5)]
    xs: set[float] = set()
    for variant in r.variants("beta", name):
        v = r.of("beta", name, variant) or {}
        points = tuple((float(b), *f["success"]) for b, f in v.items() if b != "theory")
        xs |= {p[0] for p in points}
        layers.append(Line(f"epsilon {variant.split()[-1]}", points))
    if len(xs) < 2:
        return {}
    ordered = sorted(xs)
    return {
        f"{HEAD}-beta-{name}.svg": draw(
            PlotAxis.around("beta, BitRand", ordered, log=True),
            PlotAxis("success", 0.4, 1.0),
            layers,
            marks=ordered,
        )
    }


def _floor(r: Results, kind: str) -> dict[str, str]:
    """The floor over the noise for the fewest patterns, from -1 (below 0 it says nothing)."""
    layers: list[Layer] = [Guide("says nothing", 0.0)]
    patterns = min((int(v.split()[0]) for v in r.variants("floor", kind)), default=0)
    sizes = [float(s) for s in r.scale["finer" if kind == "one-hot" else "noise"]]
    for variant in r.variants("floor", kind):
        n, d = map(int, variant.split())
        if n != patterns:
            continue
        v = r.of("floor", kind, variant) or {}
        rows = [(s, v.get(f"{s:g}", {}).get("spare")) for s in sizes]
        points = tuple((s, row[0], row[1], row[0]) for s, row in rows if isinstance(row, list))
        layers.append(Line(f"d = {d:,}", points))
    if len(layers) == 1 or len(sizes) < 2:
        return {}
    return {
        f"{HEAD}-floor-{kind}.svg": draw(
            PlotAxis.around(f"L1 norm of the noise, {kind}, N = {patterns}", sizes),
            PlotAxis("floor of the advantage", -1.0, 1.0),
            layers,
            marks=sizes,
        )
    }


def _text(r: Results, name: str) -> dict[str, str]:
    """Figure 16: ROC curves of the attention adversary."""
    out = {}
    for epsilon in ("6", "8"):
        layers: list[Layer] = [Guide("chance")]
        for mechanism in ("grr", "rappor", "dbitflip"):
            v = r.of("text", name, f"attention {mechanism} {epsilon}")
            if v and v["ROC"]:
                label = f"{named(mechanism)}, AUC {v['AUC'][0]:.3f}"
                layers.append(Polyline(label, tuple((x, y) for x, y in v["ROC"])))
        if len(layers) > 1:
            out[f"{HEAD}-roc-{epsilon}.svg"] = draw(
                PlotAxis(f"false positive rate, epsilon {epsilon} of a token", 0.0, 1.0),
                PlotAxis("true positive rate", 0.0, 1.0),
                layers,
                height=420,
            )
    return out
