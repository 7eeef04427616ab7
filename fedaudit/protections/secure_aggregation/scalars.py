"""Scalar release: sums over groups of <template, update>, in place of sums of whole updates.

Attribution by templates needs nothing of a group's sum but its inner products with a few dozen
vectors. So clients compute these themselves, and only the products are summed securely.

A template is a probe: whoever chooses it freely learns whether a client trained on a given record.
Clients therefore hold the owner to what it stated before round 1:

- a hash of its documents. Clients compute every template themselves, from these documents and the
  model that they received; so a template depends on earlier answers through that model alone, which
  a lying server chooses, and documents depend on none;
- a beacon that is stated with that hash. Nobody can tell from the trace that it was drawn later: a
  run takes it from its config or seed, which simulates a public source. Unused keys follow from
  both, and clients make the documents of unused keys themselves;
- at most `MOST_KEYS` keys of the owner and `MOST_TEMPLATES` templates;
- unit length, and effective numbers in every template (`least_spread`);
- groups of at least `threshold` clients, by the ledger that also covers sums of updates.

Formal guarantees: none about the documents. An owner who commits to ordinary records of a client
learns whether it trained on them, within all of these rules. With `scalar_noise` the released
products alone are differentially private for whole clients; the training aggregate is not.

Trust: the owner, as to what its documents are; whoever runs the aggregator, who sees the products
of groups and hands p-values to the owner; the source of public randomness.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le

from fedaudit.arrays import Floats
from fedaudit.errors import ConfigError
from fedaudit.layout import Layout
from fedaudit.protections.secure_aggregation.refusals import QueryRefused
from fedaudit.settings import Count, NonNegative, PositiveFinite
from fedaudit.watermarks.templates import Drawn, MarkTemplates, OwnerDocuments, unit_templates

if TYPE_CHECKING:
    from fedaudit.randomness import Seed

MOST_KEYS = 3
"""Most keys of an owner in one training."""

MOST_TEMPLATES = 63
"""Most templates, of unused keys too: together they span that many directions of an update."""

LEAST_SPREAD = 0.004
"""Fewest effective numbers of a template, as a part of an update's, and at least `FEWEST_NUMBERS`.

Effective numbers are 1 / sum of the fourth powers of a template's numbers. Measured in round 1,
where they are fewest: canaries for a classifier of 610, 1,210 and 4,810 numbers have at least 8.4,
18 and 37 (0.8 to 1.5 %), fictitious knowledge on adapters of 32,768 numbers 819 (2.5 %). Of 4,810
numbers an empty record has 2.6, a record of one bright pixel 38: that one passes.
"""

FEWEST_NUMBERS = 4.0


NOISE_EXCLUDES = (
    "noise on scalars: attribution and client-level privacy exclude each other; of 30 marked "
    "clients in ten rounds 0 were found at epsilon 32, 6 at 64 and 20 at 256"
)
"""Measured: docs/reproductions/attribution.md, five partitions cycled, delta 1e-5."""


@dataclass(frozen=True, kw_only=True)
class ScalarSettings:
    """Settings of `SecureAggregation`, which checks their ranges.

    `release`: what subset sums hold, whole updates ("sums") or inner products with templates
    ("scalars"). `unused_keys`: number of templates that give the null. `records`: most records of a
    key in a template. `beacon`: public randomness drawn after the owner's commitment (default: from
    the run's seed). `scalar_clip`: bound on the norm of a client's products, `scalar_noise`: noise
    on a sum of them in units of that bound.
    """

    release: Literal["sums", "scalars"] = "sums"
    unused_keys: Annotated[int, Ge(20), Le(MOST_TEMPLATES - 1), "the null is estimated on them"] = (
        60
    )
    records: Count = 48
    beacon: str = ""
    scalar_clip: PositiveFinite | None = None
    scalar_noise: NonNegative = 0.0

    def check_release(self, plan: str) -> None:
        """Raise ConfigError for settings that do not fit together."""
        if self.release == "sums":
            if self.scalar_noise or self.scalar_clip is not None:
                raise ConfigError(
                    "noise on scalars without scalars",
                    expected='protections.secure_aggregation.release = "scalars"',
                    got='"sums"',
                    remedy="leave scalar_clip and scalar_noise out, or release scalars",
                )
            return
        if plan in ("none", "paired"):
            raise ConfigError(
                "scalars are released over groups of a safe plan",
                expected='protections.secure_aggregation.plan = "cycled"',
                got=repr(plan),
                remedy='plan = "cycled", or another one of disjoint groups',
            )
        if self.scalar_noise and self.scalar_clip is None:
            raise ConfigError(
                "noise on scalars needs a bound",
                expected="protections.secure_aggregation.scalar_clip, a bound on the norm of a "
                "client's products",
                got="none",
                remedy="scalar_clip = 1.0",
            )


# -- what the owner states before round 1 ----------------------------------------------------------


def commitment_of(documents: Iterable[Drawn], salt: str = "") -> str:
    """SHA-256 of the documents of all keys, in order: shapes, types and contents."""
    found = hashlib.sha256(f"fedaudit documents\0{salt}\0".encode())
    for x, y in documents:
        for part in (x, y):
            rows = np.ascontiguousarray(part.numpy())
            found.update(f"{rows.dtype.str}{rows.shape}\0".encode())
            found.update(rows.tobytes())
    return found.hexdigest()


def unused_key(beacon: str, commitment: str, number: int) -> int:
    """The key that stands for nobody under a `number`: fixed by values that no party chooses."""
    text = f"fedaudit unused key\0{beacon}\0{commitment}\0{number}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


@dataclass(frozen=True, kw_only=True)
class ScalarTerms:
    """What clients were shown before round 1, and hold the owner to."""

    commitment: str
    beacon: str
    keys: int
    unused: int

    def __post_init__(self) -> None:
        if self.keys > MOST_KEYS:
            raise _refused("too many keys of the owner", f"at most {MOST_KEYS}", str(self.keys))
        if self.keys + self.unused > MOST_TEMPLATES:
            raise _refused(
                "too many templates", f"at most {MOST_TEMPLATES}", str(self.keys + self.unused)
            )

    @property
    def layout(self) -> Layout:
        """One number per template, the owner's first."""
        names = [f"key-{n}" for n in range(self.keys)]
        names += [f"unused-{n:02d}" for n in range(self.unused)]
        return Layout.of(((name, ()) for name in names), dtype="float64")

    def check_documents(self, own: Sequence[Drawn]) -> None:
        """Raise QueryRefused for documents other than those committed to."""
        found = commitment_of(own)
        if found != self.commitment:
            raise _refused(
                "the owner's documents are not those it committed to", self.commitment[:16], found
            )

    def check_templates(self, units: npt.NDArray[Any]) -> None:
        """Raise QueryRefused for too many, too long or too narrow templates (S + U, d)."""
        if len(units) != self.keys + self.unused:
            raise _refused(
                "another number of templates", str(self.keys + self.unused), str(len(units))
            )
        size = np.linalg.norm(units, axis=1)
        if not np.allclose(size, 1.0, rtol=0, atol=1e-4):
            raise _refused(
                "a template is not of unit length", "1", f"{size.min():g} to {size.max():g}"
            )
        found, least = float(spread(units).min()), least_spread(units.shape[1])
        if found < least:
            raise _refused(
                "a template reads single numbers of an update",
                f"at least {least:.1f} effective numbers",
                f"{found:.1f}",
                "documents that are not made to move single weights",
            )


def least_spread(width: int) -> float:
    """Fewest effective numbers of a template for updates of `width` numbers."""
    return max(FEWEST_NUMBERS, LEAST_SPREAD * width)


def spread(units: npt.NDArray[Any]) -> Floats:
    """Effective numbers (S + U,) of templates of unit length: 1 for a coordinate, d for all."""
    each: Floats = 1.0 / np.square(np.square(units, dtype=np.float64)).sum(axis=1)
    return each


# -- what clients do in a round --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ScalarRelease:
    """The clients' side: templates of a round, checked against the `terms`, and products."""

    terms: ScalarTerms
    templates: MarkTemplates
    threshold: int
    clip: float | None = None
    noise: float = 0.0

    @classmethod
    def of(
        cls, owner: OwnerDocuments, settings: ScalarSettings, threshold: int, seed: Seed
    ) -> ScalarRelease:
        """What an owner commits to, with unused keys from public randomness."""
        own = [owner.given(key, settings.records) for key in owner.keys]
        commitment = commitment_of(own)
        # stands for public randomness after the commitment; from the run's seed it is a simulation
        beacon = settings.beacon or f"{seed.key('secure_aggregation/beacon'):016x}"
        terms = ScalarTerms(
            commitment=commitment, beacon=beacon, keys=len(own), unused=settings.unused_keys
        )
        made = owner.templates(settings.records, lambda n: unused_key(beacon, commitment, n))
        return cls(terms, made, threshold, settings.scalar_clip, settings.scalar_noise)

    def declare(self) -> dict[str, Any]:
        """Public terms, written into the trace before round 1."""
        return {
            "release": "scalars",
            "commitment": self.terms.commitment,
            "beacon": self.terms.beacon,
            "owner_keys": self.terms.keys,
            "templates": self.terms.keys + self.terms.unused,
            "least_spread": LEAST_SPREAD,
            "scalar_clip": self.clip,
            "scalar_noise": self.noise,
        }

    def units(self, model: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Templates (S + U, d) at a round's model (d,), or QueryRefused."""
        keys, unused = self.terms.keys, self.terms.unused
        self.terms.check_documents(self.templates.documents(0))
        units = unit_templates(self.templates.gradients(model, unused), keys)
        self.terms.check_templates(units)
        return units

    def products(
        self,
        units: npt.NDArray[Any],
        updates: npt.NDArray[Any],
        shares: Floats,
        noise: Sequence[np.random.Generator],
    ) -> Floats:
        """-<template, update> of every client (n, S + U), clipped, times its share, noised, all by
        the client itself.

        `shares` (n,): weights by the largest weight, at most 1, so that the bound stays `clip`. The
        noise comes after them: `threshold` clients together reach what is stated, whatever their
        weights; a sum over more has more.
        """
        found: Floats = -(updates.astype(np.float64) @ units.T.astype(np.float64))
        if self.clip is not None:
            size = np.linalg.norm(found, axis=1, keepdims=True)
            found /= np.maximum(1.0, size / self.clip)
        found *= shares[:, None]
        if self.clip is not None:
            each = self.noise * self.clip / math.sqrt(self.threshold)
            if each:
                found += each * np.stack([rng.standard_normal(len(units)) for rng in noise])
        return found


def _refused(what: str, expected: str, got: str, remedy: str = "") -> QueryRefused:
    return QueryRefused(
        f"scalars were refused: {what}",
        expected=expected,
        got=got,
        remedy=remedy or "state other terms before round 1",
    )
