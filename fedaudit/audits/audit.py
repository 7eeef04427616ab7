"""What every audit is, and what its adversary brings along.

`attack(view, knowledge, rng)` has no truth; `score(guess, truth, rng)` has no view. A leak of truth
into an attack would show in a signature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

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
    from torch import Tensor

    from fedaudit.tasks.task import Task


@dataclass(frozen=True)
class Candidates:
    """Records of which the adversary asks whether one party trained on them.

    `x` (n, ...), `y` (n,), as the task encodes them, in random order: those that the party trained
    on and those that it did not look alike here. Which is which stands in the truth alone.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Noise that is known to lie on what a server sees, standard deviation per number.

    In the first round: `aggregate` in the mean over clients; `own` party -> within its weighted
    update, as far as it is put on at the client. Of any round, whose weights may be others:
    `uploads` party -> within what it sends, before weighting; `on_sum` on the sum over clients,
    `on_mean` on their mean. `clip`: the norm to which an update was clipped before the noise of
    `uploads` was put on it, where nothing else changed it. `rule` says where the figures come from.
    Not `complete`: there is more, whose size cannot be told.
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
        """Deviation in the mean of a round's K rows, and within each weighted row (K,).

        Of a row without a name: the typical amount, nobody knows whose it is.
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
    """Federations of the adversary's own, of the target's shape, with all their labels.

    Each pass trains the same ones anew, and each is dropped once it was looked at. `prior` says
    how they deal out records, `coupled` whether that ties a class mix to a client's place;
    `classes` there are; `notes` what a reader should know.
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
        """look(number, view, truth) of every federation, in their order.

        Federations may be trained and looked at by other processes: `look` is a plain value with
        a `__call__`, and what it returns is small.
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
    """What the adversary brings: never a label of the target.

    `task` the model's architecture and loss; `candidates` party -> records to be asked about;
    `noise` the noise in force, which is public; `shadows` federations of its own; `notes` what a
    reader should know of all this; `extra` what single audits ask for by name (keys).
    """

    task: Task | None = None
    candidates: Mapping[str, Candidates] = field(default_factory=dict)
    noise: Noise | None = None
    shadows: Shadows | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Audit(Protocol):
    """A frozen keyword-only dataclass that is its own config. Audits derive from it.

    `needs` names the parts of `Knowledge` that it cannot do without; `facts` declares its measures,
    verdicts and words; `on_recording` says how it is asked about a recording of other software.

    What a run plans with has defaults here: `cost`, `missing`, `check_recorded`, `samples` and
    `samples_before`. An audit overrides those about which it can say more.
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

    def cost(self, shape: Shape) -> float:
        """Seconds this audit takes on the machine that the rates in `planning` come from."""
        return CHEAP

    def missing(self, setting: Setting) -> Need | None:
        """What the federation of a config will not give this audit; None where nothing is known
        to be missing. The attack may still find that something is."""
        return None

    def check_recorded(self, layout: Layout) -> None:
        """Raise ConfigError where this audit asks for tensors that are not recorded."""
        return

    @classmethod
    def samples(cls, result: AuditResult, recorded: Recorded, aim: Aim) -> list[SampleSize]:
        """What a result with a headline rests on, and what it needs to show the aim's effect."""
        assert result.headline is not None
        return [from_width(result, result.headline, aim)]

    @classmethod
    def samples_before(cls, aim: Aim) -> list[SampleSize]:
        """What the audit needs to show the aim's effect, before anything is recorded."""
        how = "not known before a run: audit one, then fedaudit power RUN"
        return [SampleSize(audit=cls.name, measure="headline", how=how)]


def columns_for(model: Layout, recorded: Layout) -> npt.NDArray[np.int64] | None:
    """Which recorded columns make up a row of the model, (d,); None where they are the same.

    Other software may record tensors in another order (a state dict has statistics between
    weights). NotApplicable where names or shapes differ.
    """
    want = {e.name: e.shape for e in model.entries}
    have = {e.name: e.shape for e in recorded.entries}
    wrong = [n for n in {**want, **have} if have.get(n) != want.get(n)]
    if wrong:
        first = wrong[0]
        more = f" ({', '.join(wrong[1:4])}, ...)" if len(wrong) > 1 else ""
        raise NotApplicable(
            "the model and the trace do not fit",
            code="other_model",
            expected=f"{first} of shape {want.get(first, 'absent')} (the model)",
            got=f"{have.get(first, 'absent')} (the trace); {len(wrong)} tensors differ{more}",
            remedy="name the model that was trained, and record all of its tensors",
        )
    if model.names == recorded.names:
        return None
    at = {e.name: e for e in recorded.entries}
    return np.concatenate([np.arange(at[n].offset, at[n].offset + at[n].size) for n in model.names])
