"""The attack's inputs and its results, of one round and of all rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.audits.audit import Noise
from fedaudit.audits.two_stage_membership import survival
from fedaudit.randomness import Seed
from fedaudit.trace import View

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.audits.records.scoring import RecordBatch, Scorer
    from fedaudit.audits.two_stage_membership.attribution import UpdateSegment

Visibility = Literal["named", "anonymous", "sum"]


@dataclass(frozen=True, kw_only=True)
class SurveyContext:
    """Inputs that are the same for all rounds: the view, the scores and the records.

    `columns`: recorded columns in the model's order, where it differs. `present` (P, n) marks
    candidates, the rest is padding. `checked`: party -> numbers
    of the candidates that are looked at closely. `smooth`: whether scores have second derivatives,
    `claimed_smooth` if the user declared it. `named`: updates of these parties carry names in some
    round. `streams`: one stream of random numbers per method. `times_checked`: party -> how often
    its segments were measured, so that all have a turn.
    """

    view: View
    scorer: Scorer
    pools: RecordBatch
    parties: tuple[str, ...]
    noise: Noise | None
    columns: npt.NDArray[np.int64] | None
    present: npt.NDArray[np.bool_]
    checked: dict[str, npt.NDArray[np.int64]]
    smooth: bool
    claimed_smooth: bool
    named: bool
    streams: Seed
    times_checked: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WeightedUpdates:
    """Single updates of one round: `rows` (K, d) with `weights`, `senders` and `messages` (K,).

    `parts`: the rows as weighted contributions. `own_step`: factor that turns a row into the step
    of its sender's own model.
    """

    number: int
    rows: npt.NDArray[np.float32]
    weights: Floats
    parts: survival.Contributions
    senders: tuple[str, ...]
    messages: tuple[int, ...]
    own_step: float


@dataclass(frozen=True, kw_only=True)
class RoundModels:
    """The models (d,) before and after a round, and their scores (P, n) on all pools."""

    start: Tensor
    end: Tensor
    start_scores: Tensor
    end_scores: Tensor

    @property
    def aggregate(self) -> Floats:
        """Score increments (P, n) by what the model moved. [TwoStage] Eq. (12)"""
        out: Floats = (self.end_scores.double() - self.start_scores.double()).numpy()
        return out


@dataclass(frozen=True, kw_only=True)
class RoundSurvey:
    """Results of the attack on one round. P pools of n candidates, padded; K rows.

    `seen`: updates with names, without, or only their sum. `aggregate` (P, n): score increments by
    what the model moved (Eq. 12). `scale`: the server's rate; `sigma`: the noise in dW; `shares`
    (K,) of the rows in the mean; `no_derivative`: why segments are missing.

    Named rows: `own` (P, n) delta of the pool's own update (Eq. 16), `isolated` (P, n) increments
    by u alone (Eq. 11), `local` (P, n) evidence under the client's own trained model, `reference`
    and `spread` (P, n) its mean and deviation under other clients' models; NaN for absent clients.
    If clients were sent different models (`personal`), only the last three exist: there is no
    common W, `aggregate` is NaN and `stage_one` None.

    Anonymous rows: `by_row` (K, P, n) delta of every row on every pool, `local_by_row` (K, P, n)
    evidence under every row's model. `segments` belong to named rows, or to the anonymous rows that
    the attack links to a client (`paths_linked`).
    """

    number: int
    seen: Visibility
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
    segments: dict[str, UpdateSegment] = field(default_factory=dict)
    no_derivative: str = ""
    personal: bool = False

    @property
    def paths_linked(self) -> bool:
        """Whether the attack linked the paths to their clients; else names are on the messages."""
        return self.seen == "anonymous"


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The attack's answer.

    `present` (P, n) marks candidates, the rest is padding. `final` (P, n): scores of the final
    model, NaN if clients have no common one.
    """

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
