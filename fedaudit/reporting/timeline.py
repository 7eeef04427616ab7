"""The page over many runs: a figure per measure, what changed between neighbours, links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedaudit.reporting import plots
from fedaudit.reporting.environment import html
from fedaudit.reporting.findings import interval
from fedaudit.reporting.page import inlined, policy_of
from fedaudit.results import Estimate, Verdict

SIZE = (608, 300)


@dataclass(frozen=True)
class Moment:
    """One measure in one run; no estimate where it was not measured there."""

    run: str
    estimate: Estimate | None = None
    verdict: Verdict | None = None
    words: str = ""


@dataclass(frozen=True)
class TimeLine:
    """One measure over all runs. `limits`: (name, value) from a policy."""

    label: str
    title: str
    percent: bool
    moments: tuple[Moment, ...]
    limits: tuple[tuple[str, float], ...] = ()

    @property
    def svg(self) -> Markup:
        """Values with their intervals as a band, chance and limits as dashed lines."""
        known = [(i, m.estimate) for i, m in enumerate(self.moments, 1) if m.estimate is not None]
        values = [v for _, e in known for v in (e.value, e.low, e.high)]
        chance = next((e.baseline for _, e in known if e.baseline is not None), None)
        values += [] if chance is None else [chance]
        values += [value for _, value in self.limits]
        layers: list[plots.Layer] = [] if chance is None else [plots.Guide("chance", chance)]
        layers += [plots.Guide(f"limit {name}", value) for name, value in self.limits]
        points = tuple((float(i), e.value, e.low, e.high) for i, e in known)
        layers += [plots.Band("", points), plots.Line("", points)]
        return Markup(
            plots.draw(
                plots.PlotAxis("run", 0.5, len(self.moments) + 0.5),
                plots.PlotAxis.around("", values, zero=True),
                layers,
                width=SIZE[0],
                height=SIZE[1],
                inline=True,
                marks=list(range(1, len(self.moments) + 1)),
            )
        )

    @property
    def flat(self) -> bool:
        """Whether every run measured exactly the same: a sentence says more than a figure."""
        known = {(m.estimate, m.words) for m in self.moments}
        return len(known) == 1 and self.moments[0].estimate is not None

    @property
    def cells(self) -> list[tuple[str, str, str]]:
        """(verdict, its words, value with interval) per run."""
        return [
            ("not_asked", "not measured", "")
            if m.estimate is None
            else (m.verdict or "", m.words, interval(m.estimate, self.percent))
            for m in self.moments
        ]


@dataclass(frozen=True)
class NeighbouringRuns:
    """What changed from one run to the next, in sentences."""

    first: str
    second: str
    changes: tuple[str, ...]


def timeline_page(
    links: Sequence[tuple[str, str]],
    lines: Sequence[TimeLine],
    changes: Sequence[NeighbouringRuns],
    left_out: Sequence[str] = (),
) -> str:
    """The page; `links` are (run, its report), the report empty if there is none."""
    whole = (
        html()
        .get_template("timeline.html")
        .render(
            policy=policy_of(script=False),
            style=inlined("page.css")[0],
            links=links,
            lines=lines,
            changes=changes,
            left_out=left_out,
        )
    )
    return whole.encode("utf-8", "replace").decode("utf-8")
