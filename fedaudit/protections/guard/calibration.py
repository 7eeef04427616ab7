"""Calibration on honest models: the largest value of every check in each of many honest runs.

A run is one federation from its first to its last model. It counts once, because its models
resemble each other. A new model is ranked among whole runs: at level 1 %, at most one honest run in
a hundred of the same kind raises an alarm in any of its rounds.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.codec import to_json
from fedaudit.errors import DataError, FormatError
from fedaudit.files import Unreadable, read_json

SHIPPED = Path(__file__).with_name("calibration.json")
FORMAT = 2
ENOUGH = 20
"""Least number of runs with a value for a check before models are ranked by it."""


@dataclass(frozen=True)
class HonestRun:
    """One honest run: its description, the largest value of each check over its models, and the
    most rows and the widest row of every kind of layer."""

    kind: str
    largest: Mapping[str, float]
    layers: Mapping[str, tuple[int, int]] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Calibration:
    """Scale and ranks of every check. `centre` and `spread` come from separate runs; models are
    ranked among `runs`; `source` describes their origin. `layers`: per kind of layer the most rows
    and the widest row of all runs; larger layers are not ranked. None: all are."""

    centre: Mapping[str, float]
    spread: Mapping[str, float]
    runs: tuple[HonestRun, ...]
    source: Mapping[str, Any] = field(default_factory=dict)
    layers: Mapping[str, tuple[int, int]] | None = None

    @classmethod
    def of(
        cls,
        scaling: Sequence[HonestRun],
        runs: Sequence[HonestRun],
        units: Mapping[str, float],
        source: Mapping[str, Any] | None = None,
    ) -> Calibration:
        """Make a calibration: `scaling` runs set the scale of every check, `runs` the ranks.

        `spread` is the largest distance of a scaling run from their median, at least `units`: one
        step of a check that hardly varies among honest models.
        """
        centre, spread = {}, {}
        for check, unit in units.items():
            values = [r.largest[check] for r in scaling if check in r.largest]
            centre[check] = float(np.median(values)) if values else 0.0
            spread[check] = max(unit, max(values) - centre[check]) if values else unit
        return cls(
            centre, spread, tuple(runs), dict(source or {}), together([*scaling, *runs]) or None
        )

    def knows(self, kind: str, shape: tuple[int, int]) -> bool:
        """Whether honest runs have layers of this kind that are at least as large; "": any kind."""
        if self.layers is None or not kind:
            return True
        rows, width = self.layers.get(kind, (0, 0))
        return shape[0] <= rows and shape[1] <= width

    def standard(self, check: str, value: float) -> float:
        """A value in units of the spread of honest runs; larger is more unusual."""
        return (value - self.centre[check]) / self.spread[check]

    def value(self, check: str, standard: float) -> float:
        """The inverse of `standard`."""
        return self.centre[check] + standard * self.spread[check]

    def covers(self, check: str) -> bool:
        """Whether enough runs have a value for this check to rank models by it."""
        have = sum(check in r.largest for r in self.runs)
        return check in self.centre and have >= max(1, min(ENOUGH, len(self.runs)))

    def attains(self, level: float) -> bool:
        """Whether there are enough runs for an alarm at this level."""
        return level * (len(self.runs) + 1) + 1e-9 >= 1

    @cached_property
    def _columns(self) -> dict[str, npt.NDArray[np.float64]]:
        """Check -> the runs' values in spreads (K,); -inf for a run without a value."""
        return {
            c: np.array([self.standard(c, r.largest.get(c, -np.inf)) for r in self.runs])
            for c in self.centre
        }

    def ranked(self, checks: Sequence[str]) -> npt.NDArray[np.float64]:
        """The largest standardised value of some checks in every run (K,), ascending."""
        columns = [self._columns[c] for c in checks]
        return np.sort(np.max([np.full(len(self.runs), -np.inf), *columns], axis=0))

    def p_value(self, values: Mapping[str, float]) -> float:
        """(1 + runs at least as unusual) / (K + 1): at most `level` in a share `level` of honest
        runs, if they are exchangeable with these."""
        strangest = max((self.standard(c, v) for c, v in values.items()), default=-math.inf)
        ranks = self.ranked(list(values))
        above = len(ranks) - int(np.searchsorted(ranks, strangest, side="left"))
        return (1 + above) / (len(ranks) + 1)

    def cut(self, checks: Sequence[str], level: float) -> float:
        """Alarm threshold in spreads, for the most unusual check of a model."""
        if not self.attains(level):
            return math.inf
        allowed = math.floor(level * (len(self.runs) + 1) + 1e-9) - 1
        ranks = self.ranked(checks)
        return float(ranks[len(ranks) - 1 - allowed])

    def write(self, path: str | os.PathLike[str]) -> None:
        head = {
            "format": FORMAT,
            "source": dict(self.source),
            "layers": None if self.layers is None else {k: list(v) for k, v in self.layers.items()},
            "centre": {k: _short(v) for k, v in self.centre.items()},
            "spread": {k: _short(v) for k, v in self.spread.items()},
        }
        lines = [
            json.dumps({"kind": r.kind, **{k: _short(v) for k, v in r.largest.items()}})
            for r in self.runs
        ]
        rows = ",\n  ".join(lines)
        text = f'{to_json(head)[:-2]},\n "runs": [\n  {rows}\n ]\n}}\n'
        Path(path).write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, path: str | os.PathLike[str] = SHIPPED) -> Calibration:
        file = Path(path)
        try:
            raw = read_json(file)
        except Unreadable as error:
            raise DataError(
                f"{file} is not a calibration",
                expected="a file with a calibration, as `fedaudit guard` writes it",
                got=error.got,
                remedy="leave it out to use fedaudit's own calibration",
            ) from None
        try:
            if raw["format"] != FORMAT:
                raise ValueError(f"format {raw['format']}")
            runs = []
            for each in raw["runs"]:
                kind = str(each.pop("kind"))
                runs.append(HonestRun(kind, {k: float(v) for k, v in each.items()}))
            centre = {k: float(v) for k, v in raw["centre"].items()}
            spread = {k: float(v) for k, v in raw["spread"].items()}
            if set(centre) != set(spread) or not all(v > 0 for v in spread.values()):
                raise ValueError("centre and spread do not fit together")
            layers = raw["layers"]
            if layers is not None:
                layers = {str(k): (int(r), int(w)) for k, (r, w) in layers.items()}
            return cls(centre, spread, tuple(runs), dict(raw["source"]), layers)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(
                f"{file} is not a calibration of this version",
                expected=f"format {FORMAT}: centre, spread, layers, runs, source",
                got=f"{type(error).__name__}: {error}",
                remedy="calibrate again with `fedaudit guard`",
            ) from None


def together(runs: Sequence[HonestRun]) -> dict[str, tuple[int, int]]:
    """The largest layers of every kind over several runs."""
    out: dict[str, tuple[int, int]] = {}
    for run in runs:
        for kind, (rows, width) in run.layers.items():
            before = out.get(kind, (0, 0))
            out[kind] = (max(before[0], rows), max(before[1], width))
    return dict(sorted(out.items()))


@lru_cache(maxsize=1)
def shipped() -> Calibration:
    """The calibration that comes with fedaudit."""
    return Calibration.read()


def _short(value: float) -> float:
    return float(f"{value:.5g}")
