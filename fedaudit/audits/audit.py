"""The interface of an audit, and the knowledge that its adversary has.

`attack(view, knowledge, rng)` has no truth; `score(guess, truth, rng)` has no view. A leak of truth
into an attack would show in a signature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import numpy as np
import numpy.typing as npt

from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.planning import (
    CHEAP,
    Aim,
    Recorded,
    SampleSize,
    Setting,
    Shape,
    from_width,
)
from fedaudit.errors import NotApplicable
from fedaudit.layout import Layout
from fedaudit.results import AuditResult, Need
from fedaudit.trace import ANONYMOUS, Truth, View

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from torch import Tensor

    from fedaudit.tasks.task import Task


@dataclass(frozen=True)
class Candidates:
    """Candidate records: did one party train on them?

    `x` (n, ...) and `y` (n,) are encoded by the task, in random order. Members and non-members look
    alike here; only the truth tells them apart.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Known noise on what the server sees, as a standard deviation per number.

    First round only: `aggregate` is the noise in the mean over clients; `own` maps a party to the
    client-side noise in its weighted update. Any round, whatever its weights: `uploads` maps a
    party to the noise in its upload before weighting; `on_sum` is on the sum over clients,
    `on_mean` on their mean. `clip` is the norm bound of an update before its upload noise, if
    nothing else changed it. `rule` names the source of these numbers. `complete` is False if there
    is more noise of unknown size.
    """

    aggregate: float
    own: Mapping[str, float] = field(default_factory=dict)
    rule: str = ""
    complete: bool = True
    uploads: Mapping[str, float] = field(default_factory=dict)
    on_sum: float = 0.0
    on_mean: float = 0.0
    clip: float | None = None

    def in_round(
        self, senders: Sequence[str], weights: npt.ArrayLike
    ) -> tuple[float, npt.NDArray[np.float64]]:
        """Deviation in the mean of a round's K rows, and in each weighted row (K,).

        An anonymous row gets the typical deviation.
        """
        w = np.asarray(weights, dtype=np.float64)
        if not self.uploads and not self.on_sum and not self.on_mean:
            return self.aggregate, _by_sender(self.own, senders)
        own = w / w.sum() * _by_sender(self.uploads, senders)
        parts = (self.on_mean, self.on_sum / len(w), float(np.linalg.norm(own)))
        return math.hypot(*parts), own


def _by_sender(deviations: Mapping[str, float], senders: Sequence[str]) -> npt.NDArray[np.float64]:
    known = np.array(list(deviations.values()), dtype=np.float64)
    typical = math.sqrt(float(np.square(known).mean())) if len(known) else 0.0
    return np.array([deviations.get(s, typical if s == ANONYMOUS else 0.0) for s in senders])


class Shadows(Protocol):
    """The adversary's own federations: same shape as the target, all labels known.

    Each pass trains the same federations again and drops each one after use. `prior` describes how
    they partition records; `coupled` says whether a client's class mix depends on its place in the
    graph; `classes` counts the classes; `notes` are remarks for the reader.
    """

    @property
    def prior(self) -> str: ...

    @property
    def coupled(self) -> bool: ...

    @property
    def classes(self) -> int: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...

    def each(self, look: Callable[[int, View, Truth], Any]) -> Iterator[Any]:
        """Yield look(number, view, truth) for every federation, in order.

        Other processes may train federations and call `look`: it is a plain value with a
        `__call__`, and it returns little data.
        """
        ...

    def rewired(
        self,
        *,
        edges: Sequence[Sequence[tuple[int, int]]],
        organisations: Sequence[Sequence[int] | None],
    ) -> Shadows:
        """The same clients and records under other graphs and organisations, one per shadow."""
        ...


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """Everything the adversary knows besides its view. It contains no label of the target.

    `task`: architecture and loss of the model. `candidates`: party -> candidate records. `noise`:
    the public noise. `shadows`: the adversary's own federations. `extra`: inputs of single audits,
    by name. `notes`: remarks for the reader.
    """

    task: Task | None = None
    candidates: Mapping[str, Candidates] = field(default_factory=dict)
    noise: Noise | None = None
    shadows: Shadows | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Audit(Protocol):
    """Base of all audits: a frozen keyword-only dataclass that is its own config.

    `needs` names the required parts of `Knowledge`. `facts` declares measures, verdicts and words.
    `on_recording` tells a user how to run the audit on a recording of other software.

    The planning methods have defaults: `cost`, `missing`, `check_recorded`, `samples` and
    `samples_before`. An audit overrides those it can answer better.
    """

    name: ClassVar[str]
    question: ClassVar[str]
    source: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    facts: ClassVar[AuditFacts] = AuditFacts()
    on_recording: ClassVar[str] = "with fedaudit audit TRACE"

    @property
    def vantage(self) -> str: ...

    def attack(self, view: View, knowledge: Knowledge, rng: np.random.Generator) -> Any: ...

    def score(self, guess: Any, truth: Truth | None, rng: np.random.Generator) -> AuditResult: ...

    def about(self, guess: Any, **settings: Any) -> dict[str, Any]:
        """The fields that every result of this audit on a guess has in common.

        `settings` replace those of the audit, or come beside them.
        """
        return {
            "audit": self.name,
            "question": self.question,
            "vantage": guess.vantage,
            "settings": {**asdict(cast("DataclassInstance", self)), **settings},
            "source": self.source,
            "trace_sha256": guess.trace_sha256,
        }

    def cost(self, shape: Shape) -> float:
        """Run time in seconds on the reference machine of `planning`."""
        return CHEAP

    def missing(self, setting: Setting) -> Need | None:
        """The first need that a configured federation will not meet, if one is known.

        If it is None, the attack may still find that something is missing.
        """
        return None

    def check_recorded(self, layout: Layout) -> None:
        """Raise ConfigError if this audit selects tensors that are not recorded."""
        return

    @classmethod
    def samples(cls, result: AuditResult, recorded: Recorded, aim: Aim) -> list[SampleSize]:
        """Sample sizes that a result has, and those that it needs to show the aim's effect."""
        assert result.headline is not None
        return [from_width(result, result.headline, aim)]

    @classmethod
    def samples_before(cls, aim: Aim) -> list[SampleSize]:
        """Sample sizes needed to show the aim's effect, before anything is recorded."""
        how = "not known before a run: audit one, then fedaudit power RUN"
        measure = cls.facts.measures[0].name if cls.facts.measures else "headline"
        return [SampleSize(audit=cls.name, measure=measure, how=how)]


def columns_for(model: Layout, recorded: Layout) -> npt.NDArray[np.int64] | None:
    """Recorded columns in the order of the model's row, (d,); None if the order is the same.

    Other software may record tensors in another order (a state dict has statistics between
    weights). Raises NotApplicable if names or shapes differ.
    """
    want = {e.name: e.shape for e in model.entries}
    have = {e.name: e.shape for e in recorded.entries}
    wrong = [n for n in {**want, **have} if have.get(n) != want.get(n)]
    if wrong:
        first = wrong[0]
        more = f" ({', '.join(wrong[1:4])}, ...)" if len(wrong) > 1 else ""
        raise NotApplicable(
            "model and trace do not fit",
            code="other_model",
            expected=f"{first} of shape {want.get(first, 'absent')} (the model)",
            got=f"{have.get(first, 'absent')} (the trace); {len(wrong)} tensors differ{more}",
            remedy="name the model that was trained, and record all of its tensors",
        )
    if model.names == recorded.names:
        return None
    at = {e.name: e for e in recorded.entries}
    return np.concatenate([np.arange(at[n].offset, at[n].offset + at[n].size) for n in model.names])
