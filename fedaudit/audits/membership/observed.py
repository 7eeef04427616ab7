"""Scores of candidates under everything that a view shows: the same for target and shadows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats
from fedaudit.audits.records.pools import flatten_pools
from fedaudit.audits.records.seen import (
    EVERYBODY,
    in_model_order,
    kinds_of,
    one_model_for_all,
    rows_of,
    sent_models,
)
from fedaudit.errors import NotApplicable, NotObservable
from fedaudit.trace import ANONYMOUS, Truth, View

if TYPE_CHECKING:
    from fedaudit.audits.records.scoring import RecordBatch
    from fedaudit.tasks.task import Task


@dataclass(frozen=True)
class FederationScores:
    """Scores of P clients' n candidates in one federation.

    `final` (P, n) and `population` (Z,): log-probabilities under the last model. `models`
    (T, P, n): evidence (log-odds) under the model of every round, NaN where clients got several.
    `own` (T, P, n): evidence under each client's own trained model, NaN where it is not seen.
    `unnamed` (T, P, n): the largest evidence under a model that one row without a name leads to,
    shuffled or one of several sums; NaN where there is none.
    `last` (P, n): evidence under the last model.
    `inside` (P, n): whether clients trained on them, None for the target.
    """

    final: Floats
    population: Floats
    last: Floats
    models: Floats
    own: Floats
    unnamed: Floats
    inside: Bools | None = None


@dataclass(frozen=True)
class Look:
    """Score one federation's view; a plain value, so that workers can call it."""

    task: Task
    pools: RecordBatch
    population: RecordBatch
    parties: tuple[str, ...]
    columns: npt.NDArray[np.int64] | None = None

    def __call__(self, number: int, view: View, truth: Truth) -> FederationScores:
        inside = np.zeros(tuple(self.pools.y.shape), dtype=bool)
        for i, party in enumerate(self.parties):
            own = truth.members.get(party)
            if own is not None:
                # a short pool repeats its records
                inside[i] = np.resize(own, inside.shape[1])
        seen = self.at(view)
        return FederationScores(**{**seen.__dict__, "inside": inside})

    def at(self, view: View) -> FederationScores:
        """Scores of the target, or of one shadow."""
        from fedaudit.audits.records.scoring import Models, Scorer, score_pools

        scorer, shape = Scorer(self.task), tuple(self.pools.y.shape)
        rounds, final = models_seen(view, self.columns)
        flat = flatten_pools(self.pools)
        last = scorer.one(_tensor(final), flat).view(shape)
        models = np.full((len(view.rounds), *shape), np.nan)
        own, unnamed = models.copy(), models.copy()
        if rounds:
            numbers = [i for i, t in enumerate(view.rounds) if t + 1 in rounds]
            after = np.stack([rounds[view.rounds[i] + 1] for i in numbers])
            pairs = [range(shape[0])] * len(after)
            seen = scorer.evidence(score_pools(scorer, _tensor(after), self.pools, pairs))
            models[numbers] = seen.view(len(after), *shape).double().numpy()
        for i, t in enumerate(view.rounds):
            if t not in rounds:
                continue
            mine, rows = self._named_rows(view, t)
            if mine:
                trained = Models(rounds[t], rows)
                scored = score_pools(scorer, trained, self.pools, [[p] for p in mine])
                own[i, mine] = scorer.evidence(scored)[:, 0].double().numpy()
            for row in unnamed_rows(view, t):
                model = rounds[t] + in_model_order(row, self.columns)
                under = scorer.evidence(scorer.one(_tensor(model), flat).view(shape))
                unnamed[i] = np.fmax(unnamed[i], under.double().numpy())
        return FederationScores(
            final=last.double().numpy(),
            population=scorer.one(_tensor(final), self.population).double().numpy(),
            last=scorer.evidence(last).double().numpy(),
            models=models,
            own=own,
            unnamed=unnamed,
        )

    def _named_rows(self, view: View, t: int) -> tuple[list[int], Any]:
        """Clients whose update of round t arrives under their name, and these updates (K, d)."""
        try:
            updates = view.updates(t)
        except NotObservable:
            return [], None
        known = [j for j, s in enumerate(updates.senders) if s in self.parties]
        messages = [int(updates.messages[j]) for j in known]
        if not known or "gradient" in kinds_of(view, t, messages):
            return [], None  # the step that a gradient is multiplied with is not known
        rows = in_model_order(np.asarray(updates.rows)[known], self.columns)
        return [self.parties.index(updates.senders[j]) for j in known], rows


def unnamed_rows(view: View, t: int) -> npt.NDArray[np.float32]:
    """Rows (m, d) of a round whose sender is hidden, or its sums; none where a row is the step that
    the next model takes anyway."""
    try:
        rows, senders = rows_of(view, t)
    except NotObservable:
        return np.zeros((0, 0), dtype=np.float32)
    hidden = [j for j, s in enumerate(senders) if s in (EVERYBODY, ANONYMOUS)]
    if "gradient" in kinds_of(view, t, [i for i, _ in view.indexed(t)]):
        hidden = []  # the step that a gradient is multiplied with is not known
    return np.asarray(rows)[hidden if len(hidden) > 1 else []]


def models_seen(
    view: View, columns: npt.NDArray[np.int64] | None
) -> tuple[dict[int, npt.NDArray[np.float32]], npt.NDArray[np.float32]]:
    """Round -> the model that all clients received at its beginning; and the final model.

    If no models were sent: an empty mapping, and the released model.
    """
    try:
        sent = sent_models(view, columns)
    except NotApplicable:
        released = in_model_order(view.released().astype(np.float32), columns)
        return {}, released
    last = view.rounds[-1]
    shared = {t: m for t, m in sent.items() if t > last or one_model_for_all(view, t)}
    if not shared:
        raise NotApplicable(
            "every client is sent a model of its own",
            code="no_model",
            expected="one model for all, or a released one",
            got="models that differ within every round",
            remedy="let the run finish: the model is released after the last round",
        )
    return shared, shared[max(shared)]


def _tensor(values: npt.NDArray[np.float32]) -> Any:
    import torch

    return torch.from_numpy(np.array(values, dtype=np.float32))
