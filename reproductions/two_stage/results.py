"""Stored measurements, over seeds: means, intervals, and curves with bands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.results import Estimate
from fedaudit.stats import intervals
from reproductions.two_stage.setting import TAU

Floats = npt.NDArray[np.float64]
Measured = Mapping[str, Any]

ATTACK = "membership_auc"


class Results:
    """Everything measured so far."""

    def __init__(self, raw: Measured) -> None:
        self.raw, self.scale = raw, raw["scale"]
        keys = [k.split("/") for k in raw["measured"]]
        seen = dict.fromkeys(k[1] for k in keys if k[1] != "synthetic")
        order = [*self.scale["sets"], *seen]
        self.sets = [s for s in dict.fromkeys(order) if s in seen]

    def of(self, experiment: str, name: str, variant: object = "") -> list[dict[str, Any]]:
        """The results of one variant, one per seed."""
        head = f"{experiment}/{name}/{variant}/"
        found = [(int(k[len(head) :]), v) for k, v in self.raw["measured"].items() if _of(k, head)]
        return [v for _, v in sorted(found, key=lambda pair: pair[0])]

    def variants(self, experiment: str, name: str) -> list[str]:
        head = f"{experiment}/{name}/"
        keys = (k for k in self.raw["measured"] if k.startswith(head))
        return list(dict.fromkeys(k[len(head) :].rpartition("/")[0] for k in keys))


def _of(key: str, head: str) -> bool:
    return key.startswith(head) and "/" not in key[len(head) :]


def hits(found: Sequence[Measured], of: str = "j", client: int | None = None) -> Floats:
    """Clients at risk (seeds, T, K), 0 or 1: SUR > tau and J > 0. [TwoStage] Eq. (32)

    `of` says whose J: "j" of members, "j others" of records that nobody trained on. With `client`
    that one alone, (seeds, T, 1).
    """
    some = slice(None) if client is None else slice(client, client + 1)
    each = [one["rounds"] for one in found]
    return np.stack(
        [(np.array(t["sur"]) > TAU)[:, some] & (np.array(t[of]) > 0)[:, some] for t in each]
    ).astype(float)


def trajectories(found: Sequence[Measured], of: str = "j", client: int | None = None) -> Floats:
    """TS-MIA of every round (seeds, T): share of clients at risk."""
    return np.asarray(hits(found, of, client).mean(axis=2))


def table(found: Sequence[Measured], name: str) -> Floats:
    """Mean over clients of a quantity, (seeds, T)."""
    return np.stack([np.mean(np.array(one["rounds"][name], float), axis=1) for one in found])


def share(hit: Floats) -> Estimate:
    """Share of clients at risk (seeds, T, K) over rounds, with an interval over seeds.

    Rounds and clients of a seed hang together. Seeds that agree count as one trial each: resampling
    them would give a point, however few they are.
    """
    per_seed = hit.reshape(len(hit), -1)
    return intervals.clustered_share(per_seed.sum(axis=1), np.full(len(hit), per_seed.shape[1]))


def band(curves: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean over seeds and its band, (T,) each: of clients at risk (seeds, T, K) that of `share`,
    of other curves (seeds, T) Student's t."""
    if curves.ndim == 3:
        each = [share(curves[:, [t]]) for t in range(curves.shape[1])]
        low, high = (np.array([getattr(e, end) for e in each]) for end in ("low", "high"))
        return np.array([e.value for e in each]), low, high
    middle = curves.mean(axis=0)
    if len(curves) < 2:
        return middle, middle, middle
    from scipy.special import stdtrit

    many = len(curves)
    half = stdtrit(many - 1, 0.975) * curves.std(axis=0, ddof=1) / np.sqrt(many)
    return middle, middle - half, middle + half


def whole_share(found: Sequence[Measured], name: str, trials: int) -> str:
    """An audit's share over seeds as text: each has so many trials, clients times rounds."""
    own = [one["estimates"][name][0] for one in found if name in one["estimates"]]
    if not own:
        return "–"
    e = intervals.clustered_share([round(v * trials) for v in own], [trials] * len(own))
    return f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]"


def mean_text(
    values: Sequence[float] | Floats,
    digits: str = ".3f",
    ends: tuple[float, float] = (-math.inf, math.inf),
) -> str:
    """A mean over seeds or images with Student's t interval, which ends where values do."""
    e = over_seeds(values)
    if e is None:
        return f"{values[0]:{digits}}"
    low, high = max(e.low, ends[0]), min(e.high, ends[1])
    return f"{e.value:{digits}} [{low:{digits}}, {high:{digits}}]"


def over_seeds(values: Sequence[float] | Floats) -> Estimate | None:
    """Student's t interval over seeds; None for a single one."""
    if len(values) < 2:
        return None
    found = intervals.mean(np.array(values))
    return found if isinstance(found, Estimate) else None


def estimate(found: Sequence[Measured], name: str, least: float = 0.0, most: float = 1.0) -> str:
    """An audit's estimate over seeds as text, with its interval, which ends where values do."""
    own = [one["estimates"][name] for one in found if name in one["estimates"]]
    if not own:
        return "–"
    whole = over_seeds([row[0] for row in own])
    value, low, high = own[0][:3] if whole is None else (whole.value, whole.low, whole.high)
    return f"{value:.3f} [{max(low, least):.3f}, {min(high, most):.3f}]"


def mean_of(found: Sequence[Measured], name: str) -> float:
    return float(np.mean([one["estimates"][name][0] for one in found]))
