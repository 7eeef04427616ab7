"""Table II on two further data sets, by the way a user takes: a config, and a file of one's own.

`cifar10`  5,000 images dealt to the same cliques, leverage by degree as on `digits`
`adult`    a CSV file with a column that names the client (people by occupation: sites of unequal
           size), leverage by size as in the published settings A and B
"""

from __future__ import annotations

import csv
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit.federation.topology import hierarchical
from fedaudit.protections.noise_allocation import allocate
from fedaudit.protections.noise_allocation import leverage as proxies
from fedaudit.randomness import Seed
from fedaudit.setup.config import load
from fedaudit.setup.prepare import build, load_data
from reproductions.topology import setting
from reproductions.topology.setting import CLASSES, Scale

ETA = 0.5
SETS = ("cifar10", "adult")
OWNER = "occupation="


@dataclass(frozen=True, kw_only=True)
class Own:
    """What is particular to one set: how many records, the rate, the windows."""

    records: int
    rate: float
    rounds: tuple[int, ...]


OWN = {
    "cifar10": Own(records=5000, rate=0.1, rounds=(25,)),
    "adult": Own(records=6000, rate=0.1, rounds=(25, 50)),
}


def pair(name: str, scale: Scale, rounds: int, budget: float, seed: int) -> dict[str, float]:
    """Held-out accuracy in per cent with uniform and with allocated noise, all else equal."""
    with tempfile.TemporaryDirectory() as folder:
        raw = _cliques(scale) if name == "cifar10" else _sites(Path(folder) / "people.csv")
        raw |= {
            "seed": seed,
            "task": {"kind": "mlp", "hidden": [scale.hidden]},
            "training": {"batch_size": scale.batch, "learning_rate": OWN[name].rate},
        }
        raw["federation"] |= {"rounds": rounds}
        if name == "cifar10":
            graph = hierarchical(scale.clients, Seed(1), sizes=scale.cliques, joined="none")
            leverage = proxies.coupled(graph.degree, coupling=ETA, classes=CLASSES)
        else:
            plain, facts = build(load(raw))
            leverage = proxies.from_size(setting.sizes_of(plain))
            names = [about["name"] for about in facts["clients"].values()]
            raw["allocation"] = {"clients": names}  # whose multiplier stands where
        found = allocate(leverage, rounds=rounds, batch_size=scale.batch, budget=budget)
        out = {"gap": float(found.gap)}
        for what, noise in (
            ("uniform", np.full(len(leverage), found.uniform_noise_multiplier)),
            ("allocated", found.noise_multiplier),
        ):
            protected = {"dp_sgd": {"noise_multiplier": noise.tolist(), "clip": 1.0}}
            federation, _ = build(load({**raw, "protections": protected}))
            out[what] = 100.0 * setting.accuracy(federation)
        return out


def _cliques(scale: Scale) -> dict[str, Any]:
    return {
        "data": {"name": "cifar10", "records": OWN["cifar10"].records},
        "partition": {"kind": "coupled", "eta": ETA, "alpha": scale.alpha, "position": "region"},
        "topology": {"kind": "hierarchical", "sizes": list(scale.cliques), "joined": "none"},
        "federation": {"clients": scale.clients},
    }


def _sites(path: Path) -> dict[str, Any]:
    """The census as a hospital would bring its table: one row per person, one column the site."""
    sites = write_people(path, OWN["adult"].records)
    return {
        "data": {"path": str(path), "label": "income", "client": "occupation"},
        "partition": {"kind": "by_owner"},
        "federation": {"clients": sites},
    }


def write_people(path: Path, records: int) -> int:
    """A CSV file of `records` people, their occupation in one column; returns how many there are.

    Occupations with fewer than 100 of them are left out: a batch must fit the smallest site.
    """
    asked = load({"seed": 1, "data": {"name": "adult", "records": records, "standardise": False}})
    people, _ = load_data(asked, Seed(1))
    names = [c for c in people.columns if not c.startswith(OWNER)]
    at = [i for i, c in enumerate(people.columns) if c.startswith(OWNER)]
    rest = [i for i, c in enumerate(people.columns) if not c.startswith(OWNER)]
    x = np.asarray(people.x)
    site = x[:, at].argmax(axis=1)
    kept = np.flatnonzero(np.bincount(site, minlength=len(at)) >= 100)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "occupation", "income"])
        for row, s, y in zip(x, site, people.y, strict=True):
            if s in kept:
                label = people.columns[at[s]].removeprefix(OWNER)
                writer.writerow([*(f"{v:g}" for v in row[rest]), label, people.classes[int(y)]])
    return len(kept)
