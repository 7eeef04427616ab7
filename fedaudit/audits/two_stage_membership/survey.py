"""What the attack asks with, and what it computed: of one round, and of all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.audits.audit import Noise
from fedaudit.audits.two_stage_membership import survival
from fedaudit.trace import View

if TYPE_CHECKING:
    from fedaudit.audits.two_stage_membership.attribution import Path
    from fedaudit.audits.two_stage_membership.scoring import Asked, Scorer

Seen = Literal["named", "anonymous", "sum"]


@dataclass(frozen=True, kw_only=True)
class Inquiry:
    """What stays the same from round to round: who looks, with which scores, at which records.

    `columns`: recorded columns in the model's order, where it differs. `chosen`: party -> numbers
    of the candidates that are looked at closely. `smooth`: whether scores have second derivatives,
    `hearsay` if that was said.
    `named`: updates of these parties bear names in some round. `looked_at`: party -> how often it
    was looked at closely so far, so that all have their turn.
    """

    view: View
    scorer: Scorer
    pools: Asked
    parties: tuple[str, ...]
    noise: Noise | None
    columns: npt.NDArray[np.int64] | None
    chosen: dict[str, npt.NDArray[np.int64]]
    smooth: bool
    hearsay: bool
    named: bool
    rng: np.random.Generator
    looked_at: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RoundSurvey:
    """What the attack computed of one round. P pools of n candidates, padded; K rows.

    `seen`: updates with names, without, or only their sum. `aggregate` (P, n) score increments by
    what the model moved (Eq. 12). Named rows: `own` (P, n) delta of the pool's own update (Eq. 16),
    `isolated` (P, n) increments by u alone (Eq. 11), `local` (P, n) evidence under the client's own
    trained model, `reference` and `spread` (P, n) mean and deviation of the same under other
    clients' models; NaN for clients that did not take part. Where clients were sent different
    models (`personal`) there is no W to add an update to: these three alone, `aggregate` is NaN and
    `stage_one` None. Anonymous rows: `by_row` (K, P, n)
    delta of every row on every pool, `local_by_row` (K, P, n) evidence under every row's model.
    `scale` the server's rate; `sigma` the noise in dW, `shares` (K,) of the rows in the mean;
    `no_derivative` why nothing was looked at along its segment.
    """

    number: int
    seen: Seen
    senders: tuple[str, ...]
    messages: tuple[int, ...]
    stage_one: survival.Survival | None
    threshold: float
    scale: float
    residual: float
    aggregate: Floats
    sigma: float = 0.0
    shares: Floats | None = None
    own: Floats | None = None
    isolated: Floats | None = None
    local: Floats | None = None
    reference: Floats | None = None
    spread: Floats | None = None
    by_row: Floats | None = None
    local_by_row: Floats | None = None
    paths: dict[str, Path] = field(default_factory=dict)
    no_derivative: str = ""
    personal: bool = False


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The attack's answer. `present` (P, n) marks candidates, the rest is padding; `final` (P, n)
    scores of the final model, NaN where there is none for all."""

    parties: tuple[str, ...]
    present: npt.NDArray[np.bool_]
    classes: npt.NDArray[np.int64]
    rounds: tuple[RoundSurvey, ...]
    final: Floats
    checked: dict[str, npt.NDArray[np.int64]]
    rough: tuple[str, ...]
    noise: Noise | None
    notes: tuple[str, ...]
    threshold_rule: str
    vantage: str
    trace_sha256: str
