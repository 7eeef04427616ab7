"""The reference adversaries: the features of each one, and how it learns from shadows.

    A0        one guess for all: the federation's mean
    A1        parameters
    A2-topo   parameters, structure (degree, distance to the root, betweenness), and the similarity
              of the update to those of the neighbours
    A2-org    parameters and organisation
    A2-full   all three
    topo, org the channel alone, without parameters (not in the paper)

[TopologyAwareDP] Sections III-D and IV. Each adversary has its own regressor, all on the same
shadows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.audits.audit import Shadows
from fedaudit.audits.topology_inference import features, regressors, scores
from fedaudit.audits.topology_inference.features import Observed, Place
from fedaudit.errors import FedauditError, NotApplicable, NotObservable
from fedaudit.stats.combine import holm
from fedaudit.trace import Truth, View

Table = npt.NDArray[np.float32]
Channel = Literal["A1", "A2-topo", "A2-org", "A2-full", "topo", "org"]

PARTS: dict[str, tuple[str, ...]] = {
    "A1": ("parameters",),
    "A2-topo": ("parameters", "neighbours", "structure"),
    "A2-org": ("parameters", "organisation"),
    "A2-full": ("parameters", "neighbours", "structure", "organisation"),
    "topo": ("structure",),
    "org": ("organisation",),
}
ALARM = 1e-3
"""Level of the null check, over all channels together."""


def share_of(truth: Truth, clients: Sequence[str], sensitive: Sequence[int]) -> Floats:
    """p (n,): every client's share of records in the sensitive classes. [TopologyAwareDP]
    Section III-B"""
    rows = []
    for name in clients:
        histogram = truth.clients.get(name, {}).get("classes")
        if not histogram or sum(histogram) == 0:
            raise NotApplicable(
                f"the truth does not say which classes {name} holds",
                code="no_histograms",
                expected="a class histogram of every client",
                got="none",
                remedy="audit a run of fedaudit, whose truth has them",
            )
        rows.append(sum(histogram[c] for c in sensitive) / sum(histogram))
    return np.array(rows)


# -- signals of the shadows ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Labelled federations: signals (F, T, n, S) of single updates and of sums, and p (F, n).

    `places` (F,) of their clients, usually all the same.
    """

    places: tuple[Place, ...]
    single: Table | None
    sums: Table | None
    names: tuple[str, ...]
    p: Floats
    seen: str

    @property
    def federations(self) -> int:
        return len(self.p)

    @property
    def mean(self) -> float:
        return float(self.p.mean())

    @property
    def variance(self) -> float:
        """Mean variance of p within a federation."""
        return float(self.p.var(axis=1).mean())

    def row_federation(self) -> npt.NDArray[np.int64]:
        """(F n,) the federation of every row."""
        return np.repeat(np.arange(self.federations), self.p.shape[1])


def gather(
    shadows: Shadows,
    where: Place | Sequence[Place],
    sensitive: Sequence[int],
    *,
    parameters: bool = True,
    sums: bool = False,
) -> Corpus:
    """Signals and labels of all shadows; each federation is dropped after reading."""
    places = (where,) * len(shadows) if isinstance(where, Place) else tuple(where)
    regressors.require_enough(len(shadows), len(shadows) * places[0].n)
    look = ShadowReader(places, shadows.classes, tuple(sensitive), parameters, sums)
    found = list(shadows.each(look))
    single = [one.single for one in found if one.single is not None]
    return Corpus(
        places=places,
        single=np.stack([own.values for own in single]) if single else None,
        sums=np.stack([one.sums for one in found if one.sums is not None]) if sums else None,
        names=single[-1].names if single else (),
        p=np.stack([one.p for one in found]),
        seen=single[-1].seen if single else "nothing",
    )


class ShadowSignals(NamedTuple):
    """Signals of one shadow: p (n,), signals (T, n, S) of single updates and of sums."""

    p: Floats
    single: Observed | None
    sums: Table | None


@dataclass(frozen=True)
class ShadowReader:
    """Reads signals and labels of one shadow, in the process that trained it."""

    places: tuple[Place, ...]
    classes: int
    sensitive: tuple[int, ...]
    parameters: bool
    sums: bool

    def __call__(self, number: int, view: View, truth: Truth) -> ShadowSignals:
        place = self.places[number]
        p = share_of(truth, place.clients, self.sensitive)
        if not self.parameters:
            return ShadowSignals(p, None, None)
        own = observe(view, place, self.classes, self.sensitive)
        if not self.sums:
            return ShadowSignals(p, own, None)
        summed = observe(view, place, self.classes, self.sensitive, sums=True)
        return ShadowSignals(p, own, summed.values)


def observe(
    view: View, place: Place, classes: int, sensitive: Sequence[int], *, sums: bool = False
) -> Observed:
    return features.observe(view, place, classes=classes, sensitive=sensitive, sums=sums)


def missing_parts(
    place: Place, parameters: NotObservable | None, differs: str | None = None
) -> dict[str, str]:
    """Missing part -> why no adversary has it here."""
    out = {}
    if parameters is not None:
        out["parameters"] = parameters.what
    elif differs is not None:
        out["parameters"] = differs
    if not place.edges:
        out["neighbours"] = out["structure"] = "the clients have no edges among themselves"
    elif not place.has_structure():
        out["structure"] = "all places are alike (equal degree, distance and betweenness)"
    if place.organisations is None:
        out["organisation"] = "no organisations are known"
    elif not place.has_groups():
        groups = len(set(place.organisations))
        out["organisation"] = (
            "all clients are in one organisation"
            if groups == 1
            else "every organisation has one member only: its label would name the client"
        )
    return out


def usable(channel: str, missing: Mapping[str, str]) -> bool:
    """Whether a channel has its parameters, and at least one of its other parts."""
    parts = PARTS[channel]
    if "parameters" in parts and "parameters" in missing:
        return False
    beyond = [part for part in parts if part != "parameters"]
    return not beyond or any(part not in missing for part in beyond)


# -- tables per adversary --------------------------------------------------------------------------


@dataclass(frozen=True)
class FeatureTables:
    """Feature blocks of the shadows (F n, D) and of the target (n, D), by part."""

    shadows: dict[str, Table]
    target: dict[str, Table]

    def of(self, channel: str) -> tuple[Table, Table]:
        parts = [part for part in PARTS[channel] if part in self.shadows]
        return (
            np.concatenate([self.shadows[part] for part in parts], axis=1),
            np.concatenate([self.target[part] for part in parts], axis=1),
        )


def tables(
    corpus: Corpus,
    target: Table | None,
    *,
    noise: Floats | None = None,
    rounds: int | None = None,
    published: bool = False,
    sums: bool = False,
) -> FeatureTables:
    """All available feature blocks. `target` (T, n, S): its signals, of the same kind as the
    shadows'; without it the first shadow stands in for the target."""
    blocks: dict[str, Table] = {}
    own: dict[str, Table] = {}
    signals = corpus.sums if sums else corpus.single
    if signals is not None:
        last = signals[0] if target is None else target
        seen = min(signals.shape[1], len(last), rounds or len(last))
        # together, so that both have the same columns
        both = np.concatenate([signals[:, :seen], last[None, :seen]])
        wanted: dict[str, features.Which] = {"parameters": "own", "neighbours": "neighbours"}
        if published:
            wanted = {"parameters": "published"}
        for part, which in wanted.items():
            x, _ = features.summarise(both, corpus.names, which=which)
            if part == "parameters" and noise is not None:
                x = np.concatenate([x, np.broadcast_to(noise, (*x.shape[:-1], 1))], axis=-1)
            if x.shape[-1]:
                x = x.astype(np.float32)
                blocks[part], own[part] = x[:-1].reshape(-1, x.shape[-1]), x[-1]
    places = corpus.places
    fixed = {}
    if places[-1].has_structure():
        fixed["structure"] = [p.structure for p in places]
    if places[-1].has_groups():
        fixed["organisation"] = [p.one_hot() for p in places]
    for part, values in fixed.items():
        # the target has the same places as its shadows
        own[part] = values[-1].astype(np.float32)
        blocks[part] = np.concatenate(values).astype(np.float32)
    return FeatureTables(blocks, own)


# -- learning and its null -------------------------------------------------------------------------


def cross_validated(kind: regressors.Kind, x: Table, p: Floats, rng: np.random.Generator) -> Floats:
    """Guesses (F, n) for every federation, by a regressor trained on others."""
    federation = np.repeat(np.arange(len(p)), p.shape[1])
    return regressors.out_of_fold(kind, x, p.ravel(), federation, rng).reshape(p.shape)


def permute_shares(p: Floats, rng: np.random.Generator) -> Floats:
    """Permute p (F, n) across the clients of each federation, which keeps only mean and spread."""
    return rng.permuted(p, axis=1)


def check_null(lifts: dict[str, Floats], what: str) -> None:
    """Raise if a channel has lift under the null: then no lift of this audit can be trusted.

    `lifts`: channel -> (F,) lifts of federations. One-sided t tests over federations, corrected for
    the number of channels (Holm), at level 0.001.
    """
    if not lifts:
        return
    adjusted = holm([scores.not_above_zero(v) for v in lifts.values()])
    wrong = [(c, float(q)) for c, q in zip(lifts, adjusted, strict=True) if q <= ALARM]
    if wrong:
        shown = ", ".join(f"{c} {lifts[c].mean():.3g} (p = {q:.2g})" for c, q in wrong)
        raise FedauditError(
            f"topology_inference fails its own null: {what}",
            expected=f"no channel with lift (one-sided, Holm, level {ALARM:g})",
            got=f"lift of {shown}",
            remedy="do not trust any lift of this audit: labels reach the features, or p depends "
            "on something that the null takes as independent",
        )
