"""Template attribution: gradients of the owner's documents against the sums of a safe plan.

Question: as `audit`. Vantage: as `audit`; the owner computes gradients, and the server's sums meet
them in inner products.
Paper: none. It replaces the model scores of [FedAttr] Section 4 where the plan is safe, and keeps
that paper's question and its null by unused keys.
Differs: a score of a model is not linear in an update, and a group dilutes it. The inner product
of a sum with a fixed vector is exactly linear in the updates, so least squares over rounds
separates clients without dropping any group.
Shapes: queries (Q, K); templates (S + U, d), the owner's S keys first, then U unused ones; rows of
all rounds (R, K) and (R, S + U).

A client that trains on documents moves against the gradient of their loss. So with the gradient
g_k of key k at the round's global model, less the mean over unused keys, and of unit length, the
statistic of a sum is

    y = -<g_k, sum of updates>.

Clients differ in y on any key, and much of that stays from round to round: their own data favour
some keys by chance. `Mixture` measures how much, on unused keys, and weighs rounds accordingly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats, Indices
from fedaudit.audits.attribution.answers import (
    check_size,
    in_model_order,
    model_of,
    updates_of,
)
from fedaudit.audits.attribution.calibration import (
    NamingDecision,
    Parts,
    Sequential,
    error_at_look,
    first_step,
    name_clients,
)
from fedaudit.audits.attribution.ranks import PValues
from fedaudit.errors import UsageError
from fedaudit.stats.plan_design import regression
from fedaudit.trace import View
from fedaudit.trace.ledger import RoundQueries
from fedaudit.trace.schema import SCALARS
from fedaudit.watermarks.templates import unit_templates

VARIATION = 0.4
"""Assumed deviation of a mark's strength between rounds, as a part of its mean: clients learn most
in the first rounds. Chosen on development seeds."""

RIDGE = 1e-4
"""Added to the covariance of rows, as a part of its mean diagonal."""

LEAST_LEFT = 0.05
"""Least part of a client's own information that is left once another client is taken out."""

FEWEST_UNUSED = 20
"""Fewest unused keys from which a mean and a deviation are taken."""

SHARES = np.linspace(0.0, 0.98, 50)
"""Persistent shares that the likelihood is compared at."""

# -- attack ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TemplateRows:
    """One round: `design` (R, K) and `values` (R, S + U), noise of variance about 1 per row.

    The rows of the design are orthonormal and sum to 0: what all clients of the round have in
    common drops out, and clients with independent noise give independent rows.
    """

    design: Floats
    values: Floats


def centred_rows(queries: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Combinations C (R, Q) of a round's answers with orthonormal designs C A (R, K) that sum to 0.

    For groups of equal size this is the deviation from the round's mean over groups, with one group
    dropped, up to a rotation that changes no test. No rows if the answers hold only the total.
    """
    asked = np.asarray(queries, dtype=np.float64)
    left, sizes, right = np.linalg.svd(asked, full_matrices=False)
    kept = sizes > 1e-9 * max(float(sizes.max(initial=0.0)), 1e-300)
    make, rows = (left[:, kept] / sizes[kept]).T, right[kept]
    total = rows.sum(axis=1, keepdims=True)
    if not np.linalg.norm(total) > 1e-9:
        return make, rows
    # the directions orthogonal to what a common update adds to each row
    rotation = np.linalg.svd(total, full_matrices=True)[0][:, 1:].T
    return rotation @ make, rotation @ rows


def round_rows(queries: npt.ArrayLike, inner: npt.ArrayLike, keys: int) -> TemplateRows | None:
    """Rows of one round from -<template, answer> (Q, S + U), in units of its unused keys."""
    make, design = centred_rows(queries)
    if not len(design):
        return None
    values = make @ np.asarray(inner, dtype=np.float64)
    null = values[:, keys:]
    spread = np.sqrt(((null - null.mean(axis=1, keepdims=True)) ** 2).mean())
    return TemplateRows(design, values / spread) if spread > 0 else None


@dataclass(frozen=True)
class Mixture:
    """Rows of all rounds, whitened: F = A' W, N = F A, W the inverse of rho A A' + (1 - rho) I.

    `persistent`: rho, the share of a row's variance on unused keys that clients keep over rounds.
    """

    design: Floats
    rounds: Indices
    filters: Floats
    information: Floats
    persistent: float

    @classmethod
    def of(cls, rows: Sequence[TemplateRows], keys: int) -> Mixture:
        design = np.concatenate([r.design for r in rows])
        null = np.concatenate([r.values[:, keys:] for r in rows])
        number = np.repeat(np.arange(len(rows)), [len(r.design) for r in rows])
        null = null - null.mean(axis=1, keepdims=True)
        scale, turn = np.linalg.eigh(design @ design.T)
        share = persistent_share(np.maximum(scale, 0.0), turn.T @ null)
        each = share * np.maximum(scale, 0.0) + (1 - share)
        inverse = (turn / (each + RIDGE * each.mean())) @ turn.T
        filters = design.T @ inverse
        return cls(design, number, filters, filters @ design, share)

    def contrasts(self, other: int | None) -> tuple[Floats, Bools]:
        """Weights (K, R) of all clients without `other`, 1 at the client; and who has some (K,).

        A mark only adds. So where the client's filter has a positive part of the other's mark, that
        part is taken out; where it has a negative one, the other's mark only lowers the statistic.
        """
        n, f = self.information, self.filters
        own = np.diag(n).copy()
        weights = f
        if other is not None and own[other] > 0:
            part = np.maximum(n[:, other], 0.0) / own[other]
            weights = f - part[:, None] * f[other]
        scale = (weights * self.design.T).sum(axis=1)
        fine = (own > 1e-12 * max(float(own.max()), 1e-300)) & (scale >= LEAST_LEFT * own)
        out = np.divide(weights, scale[:, None], out=np.zeros_like(weights), where=fine[:, None])
        return out, fine

    def strength(self, values: Floats) -> Floats:
        """Strength (K, keys) of each key in each client's rows, as if no other client held it."""
        own = np.diag(self.information)[:, None]
        return np.divide(
            self.filters @ values, own, out=np.zeros((len(own), values.shape[1])), where=own > 0
        )


def persistent_share(scale: Floats, null: Floats) -> float:
    """The most likely share rho of unused keys (R, U), in the basis of eigenvalues `scale` (R,).

    Rows have covariance s (rho scale + 1 - rho), with s unknown: it is profiled out.
    """
    squares = (null**2).mean(axis=1)
    each = SHARES[:, None] * scale + (1 - SHARES)[:, None]
    cost = np.log(each).mean(axis=1) + np.log((squares / each).mean(axis=1))
    return float(SHARES[int(cost.argmin())])


def distances(mixture: Mixture, values: Floats, keys: int) -> Iterator[tuple[int | None, Floats]]:
    """z (K, S) of every client: first as it is, then with each other client's part removed.

    NaN where a client cannot be told from the one taken out. The other's mark has no mean effect
    on the statistic, but it varies over rounds (`VARIATION`), and the rounds' parts of it do not
    cancel: its estimated strength times that variation adds to the variance.
    """
    unused = values.shape[1] - keys
    if unused < FEWEST_UNUSED:
        raise UsageError(
            "a template needs unused keys",
            expected=f"at least {FEWEST_UNUSED}, better 60",
            got=str(unused),
            remedy="make more documents under unused keys",
        )
    centred = values - values[:, keys:].mean(axis=1, keepdims=True)
    strength = np.maximum(mixture.strength(centred)[:, :keys], 0.0)
    in_round = np.eye(int(mixture.rounds.max(initial=0)) + 1)[mixture.rounds]  # (R, T)
    for other in (None, *range(mixture.design.shape[1])):
        weights, fine = mixture.contrasts(other)
        found = weights @ centred
        variance = found[:, keys:].var(axis=1, ddof=1, keepdims=True) * (1 + 1 / unused)
        if other is not None:
            by_round = (weights * mixture.design[:, other]) @ in_round
            left = (by_round**2).sum(axis=1, keepdims=True)
            variance = variance + VARIATION**2 * left * strength[other] ** 2
            fine = fine | (np.arange(len(fine)) == other)
        z = np.divide(
            found[:, :keys], np.sqrt(variance), out=np.zeros((len(found), keys)), where=variance > 0
        )
        yield other, np.where(fine[:, None], z, np.nan)


def excess_spread(z: Floats, other: int) -> Floats:
    """How far (S,) the other clients lie apart on each key, without `other`; at least 1.

    Benign clients spread further on keys that somebody holds than on unused ones: they forget what
    the common model has learnt, each by a different amount. The largest is left out, since it may
    hold the key.
    """
    rest = np.delete(z, other, axis=0)
    rest = np.sort(rest[~np.isnan(rest).any(axis=1)], axis=0)[:-1]
    if len(rest) < 2:
        return np.ones(z.shape[1])
    return np.maximum(1.0, rest.std(axis=0, ddof=1))


def least_distances(mixture: Mixture, values: Floats, keys: int) -> tuple[Floats, Bools]:
    """The smallest z (K, S) of every client over whoever else may hold the key, and who is testable
    (K,). A positive one is divided by the spread of the others."""
    clients = mixture.design.shape[1]
    least = np.full((clients, keys), np.inf)
    spread = np.ones((clients, keys))
    for other, z in distances(mixture, values, keys):
        if other is not None:
            spread[other] = excess_spread(z, other)
            z[other] = np.inf
        least = np.minimum(least, z)  # NaN stays
    testable = ~np.isnan(least).any(axis=1)
    least = np.where(np.isnan(least), 0.0, least)
    return np.where(least > 0, least / spread, least), testable


def decide(rows: Sequence[TemplateRows], keys: int, error: float) -> NamingDecision:
    """Name clients from the rows of all rounds: Student's law, Holm over clients and keys."""
    from scipy.special import stdtr

    values = np.concatenate([r.values for r in rows])
    unused = values.shape[1] - keys
    z, testable = least_distances(Mixture.of(rows, keys), values, keys)
    p = np.where(testable[:, None], stdtr(unused - 1, -z), 1.0)
    found = PValues(p, np.zeros(p.shape, dtype=np.bool_), z, unused)
    return NamingDecision(found, testable, name_clients(p, error, testable=testable))


def smallest_named(testable: Bools, keys: int, unused: int, error: float) -> Floats:
    """The z (K,) from which on a client is named whatever the others hold; infinite if never."""
    from scipy.special import stdtrit

    level = first_step(error, int(testable.sum()), keys)
    return np.where(testable, -float(stdtrit(unused - 1, level)), np.inf)


def tail_note(decision: NamingDecision, keys: int, error: float) -> str:
    """How far p-values reach beyond the unused keys, and how many keys would make them ranks."""
    unused = decision.p_values.unused
    level = first_step(error, int(decision.testable.sum()), keys)
    ranks = math.ceil(1 / level) - 1  # 1 / (U + 1) is the smallest p-value of a rank
    note = f"p-values are Student's, from {unused} unused keys"
    if ranks <= unused:
        return note
    return (
        f"{note}: their statistics are taken to be about normal down to p = {level:.1g}, the first "
        f"step of Holm; {ranks:,} keys would need no such assumption"
    )


def sequential(rows: Sequence[TemplateRows], keys: int, error: float) -> Sequential:
    """Test all rounds so far after every round, as `calibration.sequential` does for scores."""
    first = np.zeros(rows[0].design.shape[1], dtype=np.int64)
    looks = 0
    for t in range(1, len(rows) + 1):
        found = decide(rows[:t], keys, error_at_look(error, looks + 1))
        if not found.testable.any():
            continue  # no client can be tested yet, so no error is spent
        looks += 1
        first[(first == 0) & found.named.flagged] = t
    return Sequential(first, looks)


def parts(rows: Sequence[TemplateRows], keys: int) -> Parts:
    """Strength (K, S + U) of every key in each client's updates, as if no other client held it."""
    mixture = Mixture.of(rows, keys)
    value = mixture.strength(np.concatenate([r.values for r in rows]))
    some = np.asarray(np.diag(mixture.information) > 0, dtype=np.bool_)
    return Parts(value, np.zeros_like(value), 0, some)


# -- audit -----------------------------------------------------------------------------------------


class Templates(Protocol):
    """Gradients of the loss on documents of the owner's `keys` and of `unused` others."""

    @property
    def keys(self) -> Sequence[Any]: ...

    def gradients(self, model: npt.NDArray[Any], unused: int) -> npt.NDArray[np.float32]:
        """(S + U, d) at a model (d,), the owner's keys first; 0 where nothing is trained."""
        ...


def is_safe(ledgers: Sequence[RoundQueries]) -> bool:
    """Whether no round's sums determine a single client's update."""
    return not any(regression(a.answered).identifiable.any() for a in ledgers)


def template_rows(
    view: View,
    ledger: RoundQueries,
    names: Sequence[str],
    templates: Templates,
    unused: int,
    columns: Indices | None,
) -> TemplateRows | None:
    """Rows of one round with one column per name; None if its answers distinguish no client."""
    answered = ledger.answered
    if not len(centred_rows(answered)[1]):
        return None
    start = in_model_order(model_of(view, ledger.round), columns)
    keys = len(templates.keys)
    check_size(keys + unused, len(start))
    units = unit_templates(templates.gradients(start, unused), keys)
    inner = [
        -(units @ in_model_order(one, columns).astype(np.float32)).astype(np.float64)
        for some in updates_of(view, ledger, np.eye(len(answered)), len(start))
        for one in some
    ]
    return _named_rows(ledger, names, np.array(inner), keys)


def scalar_rows(
    view: View, ledger: RoundQueries, names: Sequence[str], keys: int
) -> TemplateRows | None:
    """The same rows from inner products that clients computed themselves: see `secure_aggregation`,
    `release = "scalars"`."""
    inner = [
        view.payload(ledger.round, int(i), layout=SCALARS) for i in ledger.sums[ledger.sums >= 0]
    ]
    return _named_rows(ledger, names, np.array(inner, dtype=np.float64), keys)


def _named_rows(
    ledger: RoundQueries, names: Sequence[str], inner: Floats, keys: int
) -> TemplateRows | None:
    found = round_rows(ledger.answered, inner, keys)
    if found is None:
        return None
    design = np.zeros((len(found.design), len(names)))
    design[:, [names.index(name) for name in ledger.clients]] = found.design
    return TemplateRows(design, found.values)
