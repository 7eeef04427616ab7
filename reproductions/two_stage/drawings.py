"""The figures of the page, from stored results alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedaudit.audits.two_stage_membership.theory import detection_power
from fedaudit.reporting import plots
from fedaudit.reporting.curves import cancellation, survival_map
from reproductions.two_stage.experiments import NOISE
from reproductions.two_stage.geometry import MAGNITUDES
from reproductions.two_stage.results import (
    Floats,
    Measured,
    Results,
    band,
    hits,
    table,
)
from reproductions.two_stage.setting import SCENARIOS, TAU


def maps() -> dict[str, str]:
    """Figure 1 on the published axes, and power beside it."""
    x, y = plots.PlotAxis("alignment lambda", -1.0, 1.0), plots.PlotAxis("r = |B| / |u|", 0.01, 6.0)
    shape = (80, 60)
    power = detection_power(3.0 / np.array([y.value((i + 0.5) / 60) for i in range(60)]), 0.05)
    cells = plots.Cells(
        tuple((float(p),) * shape[0] for p in power), plots.PlotAxis("power", 0.0, 1.0)
    )
    return {
        "two_stage-survival.svg": plots.draw(
            x, y, [survival_map(x, y, shape), cancellation()], width=480, height=340
        ),
        "two_stage-power.svg": plots.draw(x, y, [cells, cancellation()], width=480, height=340),
    }


def drawings(r: Results) -> dict[str, str]:
    out = maps() if r.of("surface", "synthetic") else {}
    for name in r.sets:
        for kind, made in (
            ("bound", _bound_figure(r, name)),
            ("alignment", _alignment_figure(r, name)),
            ("risk", _risk_figure(r, name)),
            ("non-iid", _non_iid_figure(r, name)),
            ("faults", faults_figure(r, name)),
        ):
            if made:
                out[f"two_stage-{kind}-{name}.svg"] = made
        for shown in r.of("example", name)[:1]:
            out[f"two_stage-example-{name}.svg"] = _example_figure(shown)
    made = _cancel_figure(r)
    return out | ({"two_stage-cancel.svg": made} if made else {})


def _bound_figure(r: Results, name: str) -> str:
    found = r.of("bound", name, "start")
    if not found:
        return ""
    sizes, errors, limits = (np.concatenate(v) for v in zip(*found[0]["points"], strict=True))
    both = [*errors[errors > 0], *limits]
    layers = [
        plots.Dots("bound by curvature", tuple(zip(sizes, limits, strict=True)), size=3.5),
        plots.Dots("remainder", tuple(zip(sizes, errors, strict=True)), size=3.5),
    ]
    return plots.draw(
        plots.PlotAxis.around(f"length of the step, {name}", list(sizes), log=True),
        plots.PlotAxis.around("|delta - <H(0), v>|", both, log=True),
        layers,
    )


def _alignment_figure(r: Results, name: str) -> str:
    found = r.of("alignment", name, "start")
    if not found:
        return ""
    cosines = found[0]["cosines"]
    layers: list[plots.Layer] = []
    for m in MAGNITUDES:
        values = found[0]["j"][f"{m:g}"]
        layers.append(plots.Polyline(f"m = {m:g}", tuple(zip(cosines, values, strict=True))))
    for m in MAGNITUDES:
        proxy = 0.5 * np.tanh(0.5 * m * np.array(cosines))
        layers.append(_Plain(tuple(zip(cosines, proxy.tolist(), strict=True))))
    x = plots.PlotAxis(
        f"alignment with the score gradient, {name} (dashed: linear proxy)", -1.0, 1.0
    )
    return plots.draw(x, plots.PlotAxis("J", -0.5, 0.5), layers)


class _Plain(plots.Polyline):
    """A thin dashed line in the colour of the text, without a name."""

    def __init__(self, points: tuple[tuple[float, float], ...]) -> None:
        super().__init__("", points, True)

    def svg(self, frame: plots.Frame, colour: str) -> str:
        return super().svg(frame, "currentColor").replace('width="2"', 'width="1"')


def _bands(curves: Mapping[str, Floats]) -> list[plots.Layer]:
    out: list[plots.Layer] = []
    for name, values in curves.items():
        rows = zip(*band(values), strict=True)
        points = tuple((float(t), *map(float, v)) for t, v in enumerate(rows, start=1))
        out.append(plots.Band(name, points))  # type: ignore[arg-type]
    return out


def _rounds(r: Results, name: str) -> plots.PlotAxis:
    return plots.PlotAxis(f"round, {name}", 1, max(2, r.scale["rounds"]))


def _risk_figure(r: Results, name: str) -> str:
    curves = {
        scenario: hits(found)
        for scenario in SCENARIOS
        if (found := r.of("trajectory", name, scenario))
    }
    if not curves:
        return ""
    found = r.of("trajectory", name, "IID")
    if found:
        curves["IID, nobody's records"] = hits(found, "j others")
    faulty = r.of("faults", name, "IID")
    if faulty:
        own = [{"rounds": one["as published"]} for one in faulty]
        curves["IID with the published faults"] = hits(own)
    return plots.draw(_rounds(r, name), plots.PlotAxis("TS-MIA", 0.0, 1.05), _bands(curves))


def _non_iid_figure(r: Results, name: str) -> str:
    found = r.of("trajectory", name, "non-IID")
    if not found:
        return ""
    curves = {
        "TS-MIA": hits(found),
        "SUR": table(found, "sur"),
        "J": table(found, "j"),
        "J of nobody's records": table(found, "j others"),
        "AUC of increments": table(found, "auc"),
    }
    return plots.draw(_rounds(r, name), plots.PlotAxis("non-IID", 0.0, 1.05), _bands(curves))


def faults_figure(r: Results, name: str) -> str:
    found = r.of("faults", name, "IID")
    if not found or len(found[0]) < 2:
        return ""
    curves = {variant: hits([{"rounds": one[variant]} for one in found]) for variant in found[0]}
    return plots.draw(_rounds(r, name), plots.PlotAxis("TS-MIA, IID", 0.0, 1.05), _bands(curves))


def _example_figure(shown: Measured) -> str:
    """One image, rows from the top."""
    pixels = shown["pixels"]
    rows = tuple(tuple(row) for row in reversed(pixels))
    cells = plots.Cells(rows, plots.PlotAxis("pixel", 0.0, 1.0))
    x = plots.PlotAxis(f"client 0, label {shown['label']}", 0, len(pixels[0]))
    return plots.draw(
        x, plots.PlotAxis("", 0, len(pixels)), [cells], width=300, height=260, marks=()
    )


def _cancel_figure(r: Results) -> str:
    found = r.of("cancel", r.sets[0]) if r.sets else []
    if not found:
        return ""
    own = {k: np.mean([one[k] for one in found], axis=0) for k in found[0]}
    lam = own["lambda"]
    curves = {"SUR": own["sur"], "SNR": own["own"] / NOISE, "power, by trial": own["found"]}
    layers: list[plots.Layer] = [plots.Guide("tau", TAU)]
    layers += [plots.Polyline(n, tuple(zip(lam, v, strict=True))) for n, v in curves.items()]
    return plots.draw(
        plots.PlotAxis("alignment lambda", -1.0, max(float(lam.max()), -0.9)),
        plots.PlotAxis("", 0.05, 12.0, log=True),
        layers,
    )
