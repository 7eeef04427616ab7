"""The audit: both stages of every client and round, the attack, and their scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedaudit import foreign
from fedaudit.arrays import Floats
from fedaudit.audits.audit import Audit, Knowledge, Noise, columns_for
from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.outright import need_rounds
from fedaudit.audits.planning import Aim, Recorded, SampleSize, Setting, Shape
from fedaudit.audits.records.pools import flatten_pools, pad_pools, take_records
from fedaudit.audits.records.seen import (
    UnusableRound,
    in_model_order,
    kinds_of,
    known_rows,
    one_model_for_all,
    senders_in,
    sent_models,
)
from fedaudit.audits.two_stage_membership import planning, scores, survival
from fedaudit.audits.two_stage_membership.attack import link_rows
from fedaudit.audits.two_stage_membership.facts import FACTS
from fedaudit.audits.two_stage_membership.survey import (
    RoundModels,
    RoundSurvey,
    Survey,
    SurveyContext,
    WeightedUpdates,
)
from fedaudit.errors import ConfigError, FedauditError, NotApplicable, NotObservable
from fedaudit.randomness import Seed
from fedaudit.results import NO_TRUTH, AuditResult, Need
from fedaudit.settings import AtLeastTwo, Count, Fraction, Positive, Whole, checked
from fedaudit.trace import ANONYMOUS, Truth, View

if TYPE_CHECKING:
    import torch

    from fedaudit.audits.records.scoring import RecordBatch, Scorer
    from fedaudit.audits.two_stage_membership.attribution import UpdateSegment


@dataclass(frozen=True, kw_only=True)
@checked("audits.two_stage_membership")
class TwoStageMembership(Audit):
    """Whether a client's update survives the sum and raises the scores of its own records.

    `records`: most members per client that are candidates, with as many matched non-members.
    `threshold`: tau of stage I, or "noise" to derive it from the noise in force. `sample`: m of
    TS-MIA_m. `noise_draws`: draws of a score's own random numbers (autoencoders), the same for all
    models. `references`: other clients' updates that calibrate one client's score.
    `false_positive_rate`: rate at which stage I's detection power is stated. `checked_rounds`,
    `checked_clients` (in turn) and `checked_records`: where curvature and the bound of Theorem 1
    are measured. `score_by`: "package.module:function" in place of the task's own score, from
    (task, parameters, x, y, noise) to one number per record. `smooth`: your own modules and score
    have second derivatives, which their names cannot show.
    """

    name: ClassVar[str] = "two_stage_membership"
    question: ClassVar[str] = (
        "Does a client's contribution survive aggregation, and point back at its data?"
    )
    source: ClassVar[str] = "[TwoStage] Eqs. (8), (30), (32)"
    needs: ClassVar[tuple[str, ...]] = ("records",)
    facts: ClassVar[AuditFacts] = FACTS
    on_recording: ClassVar[str] = "with your model and records (`model`, `data`)"
    vantage: str = "server"
    records: AtLeastTwo = 64
    threshold: Positive | Literal["noise"] = 0.1
    sample: Count = 16
    noise_draws: Count = 4
    references: AtLeastTwo = 8
    false_positive_rate: Fraction = 0.05
    checked_rounds: Whole = 2
    checked_clients: Count = 3
    checked_records: AtLeastTwo = 8
    score_by: str | None = None
    smooth: bool = False
    confidence: Fraction = 0.95

    # -- planning --------------------------------------------------------------------------------

    def cost(self, shape: Shape) -> float:
        return planning.cost(self, shape)

    def missing(self, setting: Setting) -> Need | None:
        return setting.lacks_tensors()

    @classmethod
    def samples(cls, result: AuditResult, recorded: Recorded, aim: Aim) -> list[SampleSize]:
        return planning.samples(result, aim)

    @classmethod
    def samples_before(cls, aim: Aim) -> list[SampleSize]:
        return planning.samples_before(cls.name, aim)

    # -- attack ----------------------------------------------------------------------------------

    def attack(self, view: View, knowledge: Knowledge, rng: np.random.Generator) -> Survey:
        from fedaudit.audits.records.scoring import rough_layers

        task = _require_task(view, knowledge)
        streams = Seed(int(rng.integers(2**63)))
        columns = columns_for(task.layout, view.layout)
        models = sent_models(view, columns)
        parties = tuple(knowledge.candidates)
        pools, present = pad_pools(
            [knowledge.candidates[p] for p in parties],
            task,
            self.noise_draws,
            streams.generator("noise of scores"),
        )
        scorer = self._scorer(task)
        rough = rough_layers(task, claimed_smooth=self.smooth)
        if self.score_by is not None and not self.smooth:
            rough = (self.score_by,)
        context = SurveyContext(
            view=view,
            scorer=scorer,
            pools=pools,
            parties=parties,
            noise=knowledge.noise,
            columns=columns,
            checked={
                p: _some_of(int(present[i].sum()), self.checked_records, streams, i)
                for i, p in enumerate(parties)
            },
            smooth=not rough,
            claimed_smooth=self.smooth,
            present=present,
            named=any(s in parties for t in view.rounds for s in senders_in(view, t)),
            streams=streams,
        )
        surveyed, unusable, end = self._survey_rounds(context, models)
        final, final_notes = self._final(context, models, end, surveyed)
        return Survey(
            parties=parties,
            present=present,
            classes=pools.y.numpy(),
            rounds=tuple(surveyed),
            final=final,
            checked=context.checked,
            rough=rough,
            noise=knowledge.noise,
            notes=(
                *knowledge.notes,
                *(f"round {n} was left out: {e.what}" for n, e in unusable),
                *final_notes,
            ),
            threshold_rule=_threshold_rule(self.threshold, knowledge.noise),
            vantage=view.vantage,
            trace_sha256=view.trace_sha256,
        )

    def _scorer(self, task: Any) -> Scorer:
        from fedaudit.audits.records.scoring import Scorer

        return Scorer(task, _load_score(self.score_by))

    def _survey_rounds(
        self, context: SurveyContext, models: Mapping[int, npt.NDArray[np.float32]]
    ) -> tuple[list[RoundSurvey], list[tuple[int, UnusableRound]], torch.Tensor | None]:
        """Surveys of the usable rounds, the unusable rounds, and the model the last round ended
        with.

        Raises the first reason if no round is usable.
        """
        checked = _evenly_spaced(context.view.rounds, self.checked_rounds)
        surveyed: list[RoundSurvey] = []
        unusable: list[tuple[int, UnusableRound]] = []
        end: torch.Tensor | None = None
        for number in context.view.rounds:
            end = None
            try:
                one, end = self._round(
                    context,
                    number,
                    models[number],
                    models.get(number + 1),
                    # the first round has no momentum yet: it shows the server's rate
                    scale=next((s.scale for s in surveyed if s.stage_one is not None), None),
                    check_segments=number in checked,
                )
                surveyed.append(one)
            except UnusableRound as error:
                unusable.append((number, error))
        if not surveyed:
            raise unusable[0][1]
        return surveyed, unusable, end

    @staticmethod
    def _final(
        context: SurveyContext,
        models: Mapping[int, npt.NDArray[np.float32]],
        end: torch.Tensor | None,
        surveyed: Sequence[RoundSurvey],
    ) -> tuple[Floats, tuple[str, ...]]:
        """Scores (P, n) of the final model: the released one, or the one after the last round."""
        import torch

        last, notes = context.view.rounds[-1], tuple[str, ...]()
        shape = tuple(context.pools.y.shape)
        if last + 1 in models:
            end = torch.from_numpy(models[last + 1].copy())
        elif end is None and any(s.personal for s in surveyed):
            return np.full(shape, np.nan), ()
        elif end is None:
            end = torch.from_numpy(models[last].copy())
            notes = (f"the final model is the one sent in round {last}: no later one was recorded",)
        return context.scorer.one(end, flatten_pools(context.pools)).view(
            shape
        ).double().numpy(), notes

    def _round(
        self,
        context: SurveyContext,
        number: int,
        before: npt.NDArray[np.float32],
        after: npt.NDArray[np.float32] | None,
        *,
        scale: float | None,
        check_segments: bool,
    ) -> tuple[RoundSurvey, torch.Tensor | None]:
        """Both stages of one round, as far as the view shows them, and the model it ended with."""
        if not one_model_for_all(context.view, number):
            return self._personal_round(context, number), None
        moved = None if after is None else after - before
        updates = _updates_in(context, number, before, moved, scale)
        step = moved if updates is None else updates.parts.moved
        if step is None:
            raise UnusableRound(
                f"{context.view.vantage} sees neither updates nor what the model moved by",
                code="no_single_updates_or_models",
                expected="the server's view, or the models of two rounds",
                got=f"round {number} without them",
                remedy="record downlinks and the released model",
            )
        models = _round_models(context, before, step)
        senders = () if updates is None else updates.senders
        of_clients = any(s in context.parties or s == ANONYMOUS for s in senders)
        if updates is None or not (of_clients or context.named):
            # a secure sum, or the means of regions: nothing about a single client
            return RoundSurvey(
                number=number, seen="sum", senders=(), messages=(), stage_one=None,
                threshold=math.inf, scale=1.0, residual=0.0, aggregate=models.aggregate,
            ), models.end  # fmt: skip
        if len(updates.parts.u) < 2:
            raise UnusableRound(
                "a single contribution has no background",
                code="too_few_clients",
                expected="at least two clients in a round",
                got=f"{len(updates.parts.u)} in round {number}",
                remedy="audit a federation of two clients or more",
            )
        found = self._stage_one(context, updates) | {"aggregate": models.aggregate}
        if ANONYMOUS in senders:
            found |= self._anonymous_rows(context, updates, models, check_segments)
        else:
            found |= self._named_rows(context, updates, models, check_segments)
        return RoundSurvey(**found), models.end

    def _stage_one(self, context: SurveyContext, updates: WeightedUpdates) -> dict[str, Any]:
        """The fields of a `RoundSurvey` that stage I gives."""
        parts, weights = updates.parts, updates.weights
        sigma, own_noise = _noise_in(context.noise, updates.senders, weights, parts.scale)
        return {
            "number": updates.number,
            "senders": updates.senders,
            "messages": updates.messages,
            "stage_one": survival.survival(parts, sigma, own_noise),
            "threshold": survival.noise_floor(self.threshold, sigma, parts)[0],
            "scale": parts.scale,
            "sigma": sigma,
            "shares": weights / weights.sum(),
            "residual": parts.residual,
        }

    def _named_rows(
        self,
        context: SurveyContext,
        updates: WeightedUpdates,
        models: RoundModels,
        check_segments: bool,
    ) -> dict[str, Any]:
        """The fields of a `RoundSurvey` that updates with senders give."""
        import torch

        from fedaudit.audits.records.scoring import Models
        from fedaudit.audits.two_stage_membership import attribution

        scorer, pools, shape = context.scorer, context.pools, tuple(context.pools.y.shape)
        mine, owners = known_rows(context.parties, updates.senders, updates.number)
        alone = [[p] for p in owners]
        own, isolated = np.full(shape, np.nan), np.full(shape, np.nan)
        u = torch.from_numpy(np.ascontiguousarray(updates.parts.u))
        known = u if len(mine) == len(u) else u[mine]
        own[owners] = attribution.leave_one_out(
            scorer, models.end, known, pools, alone, models.end_scores
        )[:, 0]
        isolated[owners] = attribution.update_alone(
            scorer, models.start, known, pools, alone, models.start_scores
        )[:, 0]
        trained = Models(models.start, updates.rows, updates.own_step, tuple(mine))
        ring = context.streams.generator("references", updates.number)
        local, reference, spread = self._calibrated(scorer, trained, pools, owners, ring)
        segments: dict[str, UpdateSegment] = {}
        no_derivative = ""
        if check_segments:
            rows = list(zip(mine, owners, strict=True))
            segments, no_derivative = self._segments(context, models.end, u, rows)
        return {
            "seen": "named",
            "own": own,
            "isolated": isolated,
            "local": local,
            "reference": reference,
            "spread": spread,
            "segments": segments,
            "no_derivative": no_derivative,
        }

    def _anonymous_rows(
        self,
        context: SurveyContext,
        updates: WeightedUpdates,
        models: RoundModels,
        check_segments: bool,
    ) -> dict[str, Any]:
        """The fields of a `RoundSurvey` that updates without senders give.

        Segments are those of the rows that the attack links to clients: no names are known.
        """
        import torch

        from fedaudit.audits.records.scoring import Models, score_pools
        from fedaudit.audits.two_stage_membership import attribution

        scorer, pools = context.scorer, context.pools
        u = torch.from_numpy(np.ascontiguousarray(updates.parts.u))
        pairs: Sequence[Sequence[int]] = [range(len(context.parties))] * len(u)
        by_row = attribution.leave_one_out(scorer, models.end, u, pools, pairs, models.end_scores)
        trained = Models(models.start, updates.rows, updates.own_step)
        every = scorer.evidence(score_pools(scorer, trained, pools, pairs))
        evidence = every.double().numpy()
        segments: dict[str, UpdateSegment] = {}
        no_derivative = ""
        if check_segments:
            linked = link_rows(evidence, context.present)
            rows = [(int(j), p) for p, j in enumerate(linked) if j >= 0]
            segments, no_derivative = self._segments(context, models.end, u, rows)
        return {
            "seen": "anonymous",
            "by_row": by_row,
            "local_by_row": evidence,
            "segments": segments,
            "no_derivative": no_derivative,
        }

    def _personal_round(self, context: SurveyContext, number: int) -> RoundSurvey:
        """A round in which clients were sent different models: each client's own trained model.

        The updates have no common W to add to, so neither stage is defined.
        """
        from fedaudit.audits.records.scoring import Models

        view, parties = context.view, context.parties
        try:
            updates = view.updates(number)
        except NotObservable:
            updates = None
        if updates is None or ANONYMOUS in updates.senders:
            raise UnusableRound(
                "clients were sent different models, and the senders of updates are unknown",
                code="different_models",
                expected="one model for all, or updates with names",
                got=f"round {number} with neither",
                remedy="audit the view of a party that sees single updates with names",
            )
        messages = tuple(int(i) for i in updates.messages)
        if "gradient" in kinds_of(view, number, messages):
            raise UnusableRound(
                "clients were sent different models, and sent gradients back",
                code="different_models",
                expected="models or their changes",
                got=f"round {number} with gradients, which do not show how far a client went",
                remedy="record the models that clients trained",
            )
        mine, owners = known_rows(parties, updates.senders, number)
        held = [view.received(number, updates.senders[j]) for j in mine]
        if any(h is None for h in held):
            raise UnusableRound(
                "clients were sent different models, and this view does not show all of them",
                code="different_models",
                expected="the model that every client was sent",
                got=f"round {number} without {sum(h is None for h in held)} of {len(held)}",
                remedy="record all downlinks",
            )
        base = in_model_order(np.stack([h for h in held if h is not None]), context.columns)
        rows = in_model_order(updates.rows, context.columns)[mine]
        ring = context.streams.generator("references", number)
        local, reference, spread = self._calibrated(
            context.scorer, Models(base, rows), context.pools, owners, ring
        )
        return RoundSurvey(
            number=number,
            seen="named",
            senders=updates.senders,
            messages=messages,
            stage_one=None,
            threshold=math.inf,
            scale=1.0,
            residual=0.0,
            aggregate=np.full(tuple(context.pools.y.shape), np.nan),
            local=local,
            reference=reference,
            spread=spread,
            personal=True,
        )

    def _segments(
        self, context: SurveyContext, end: Any, u: Any, known: Sequence[tuple[int, int]]
    ) -> tuple[dict[str, UpdateSegment], str]:
        """Segments of a few clients (row, pool) of a round, least checked clients first, and the
        first reason why a segment is missing."""
        from fedaudit.audits.two_stage_membership import attribution

        out, reason = {}, ""
        turn = sorted(known, key=lambda one: context.times_checked.get(context.parties[one[1]], 0))
        for j, p in sorted(turn[: self.checked_clients]):
            party = context.parties[p]
            context.times_checked[party] = context.times_checked.get(party, 0) + 1
            few = take_records(context.pools, p, context.checked[party])
            try:
                out[party] = attribution.measure_segment(
                    context.scorer,
                    end - u[j],
                    u[j],
                    few,
                    smooth=context.smooth,
                    claimed_smooth=context.claimed_smooth,
                )
            except (RuntimeError, ConfigError, NotApplicable) as error:
                # user layers and scores may lack derivatives or refuse double precision
                reason = reason or _first_line(error)
        return out, reason

    def _calibrated(
        self,
        scorer: Scorer,
        models: Any,
        pools: RecordBatch,
        owners: Sequence[int],
        rng: np.random.Generator,
    ) -> tuple[Floats, Floats, Floats]:
        """Evidence under a client's own model, and its mean and spread under others', (P, n) each.

        Model j scores its own pool and the pools of the next clients on a ring. So every pool has
        equally many references, at a cost that is linear in clients.
        """
        from fedaudit.audits.records.scoring import score_pools

        count = len(owners)
        others = min(self.references, count - 1)
        ring = rng.permutation(count)
        place = np.argsort(ring)
        # pairs[j][i]: pool of the client i places further on the ring; i = 0 is its own
        pairs = [
            [owners[ring[(place[j] + i) % count]] for i in range(others + 1)] for j in range(count)
        ]
        scored = score_pools(scorer, models, pools, pairs)
        evidence = scorer.evidence(scored).double().numpy()
        shape = tuple(pools.y.shape)
        own, reference, spread = (np.full(shape, np.nan) for _ in range(3))
        foreign: dict[int, list[Floats]] = {}
        for j in range(count):
            own[owners[j]] = evidence[j, 0]
            for i in range(1, others + 1):
                foreign.setdefault(pairs[j][i], []).append(evidence[j, i])
        for pool, values in foreign.items():
            stack = np.stack(values)
            reference[pool] = stack.mean(axis=0)
            spread[pool] = stack.std(axis=0, ddof=1) if len(stack) > 1 else 0.0
        return own, reference, spread

    # -- score -----------------------------------------------------------------------------------

    def score(self, guess: Survey, truth: Truth | None, rng: np.random.Generator) -> AuditResult:
        shared = self.about(guess)
        if truth is None or not truth.members:
            return AuditResult(
                **shared,
                status="blind",
                need=NO_TRUTH,
                per_client=guesses_of(guess),
                notes=(
                    "guess only: the records of a client that score highest are its likeliest "
                    "members; the attack does not know how many are members",
                    *guess.notes,
                ),
            )
        streams = Seed(int(rng.integers(2**63)))
        return scores.score_guess(self, guess, truth, streams, shared)


def _require_task(view: View, knowledge: Knowledge) -> Any:
    """The adversary's task; raises if there are no rounds, no task or no candidate records."""
    need_rounds(view)
    if knowledge.task is None or not knowledge.candidates:
        raise NotApplicable(
            "a membership attack needs records",
            code="no_records",
            expected="the model and candidate records",
            got="neither of them" if knowledge.task is None else "no records",
            remedy="audit a run, or give `data` and `model`",
        )
    return knowledge.task


def _updates_in(
    context: SurveyContext,
    number: int,
    before: npt.NDArray[np.float32],
    moved: npt.NDArray[np.float32] | None,
    scale: float | None,
) -> WeightedUpdates | None:
    """Single updates of a round; None if the view does not show them."""
    try:
        updates = context.view.updates(number)
        rows = in_model_order(updates.rows, context.columns)
        size = 0.0 if moved is None else float(np.linalg.norm(before))
        parts = survival.contributions(rows, updates.weights, moved, scale, size)
        messages = tuple(int(i) for i in updates.messages)
    except NotObservable:
        return None
    # a gradient becomes a model by the server's step; other updates already are steps
    own_step = parts.scale if "gradient" in kinds_of(context.view, number, messages) else 1.0
    return WeightedUpdates(
        number=number,
        rows=rows,
        weights=updates.weights,
        parts=parts,
        senders=updates.senders,
        messages=messages,
        own_step=own_step,
    )


def _round_models(
    context: SurveyContext, before: npt.NDArray[np.float32], step: npt.NDArray[np.float32]
) -> RoundModels:
    """The models before and after a round, with their scores on all pools."""
    import torch

    start = torch.from_numpy(before.copy())
    end = start + torch.from_numpy(np.ascontiguousarray(step))
    everyone, shape = flatten_pools(context.pools), tuple(context.pools.y.shape)
    start_scores, end_scores = (
        context.scorer.one(model, everyone).view(shape) for model in (start, end)
    )
    return RoundModels(start=start, end=end, start_scores=start_scores, end_scores=end_scores)


SHOWN = 8
"""Records per client that a blind result lists."""


def guesses_of(guess: Survey) -> dict[str, dict[str, Any]]:
    """Client -> its likeliest members by the strongest attack, surest first.

    Candidates are numbered from 1 in their given order, each with its score in spreads of all
    candidates.
    """
    statistic = next(iter(scores.statistics_of(guess).values()))
    out: dict[str, dict[str, Any]] = {}
    for p, party in enumerate(guess.parties):
        usable = np.flatnonzero(guess.present[p] & np.isfinite(statistic[p]))
        surest = usable[np.argsort(-statistic[p][usable], kind="stable")][:SHOWN]
        out[party] = {
            "candidates": len(usable),
            "likeliest_members": " ".join(f"{i + 1}:{statistic[p][i]:.2f}" for i in surest),
        }
    return out


def _first_line(error: Exception) -> str:
    """The first line of an error."""
    if isinstance(error, FedauditError):
        return f"{error.what}: {error.got}"[:160]
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def _threshold_rule(threshold: float | Literal["noise"], noise: Noise | None) -> str:
    """The rule behind tau of stage I."""
    if threshold != "noise":
        return "given"
    return "sigma sqrt(d) / |dW|, " + (
        "sigma of " + noise.rule if noise is not None else "no noise is known"
    )


def _noise_in(
    noise: Noise | None, senders: Sequence[str], weights: Floats, scale: float
) -> tuple[float, Floats]:
    """Deviation of the noise in dW and of the part inside each row (K,), at the server's rate."""
    if noise is None:
        return 0.0, np.zeros(len(senders))
    sigma, own = noise.in_round(senders, weights)
    return scale * sigma, scale * own


def _some_of(count: int, most: int, streams: Seed, pool: int) -> npt.NDArray[np.int64]:
    """Numbers of at most `most` of a pool's candidates, in ascending order."""
    drawn = streams.generator("checked records", pool).permutation(count)
    return np.sort(drawn[:most])


def _evenly_spaced(rounds: range, count: int) -> set[int]:
    """`count` rounds, evenly spaced from the first to the last."""
    if not count:
        return set()
    at = np.linspace(rounds[0], rounds[-1], min(count, len(rounds)))
    return {round(float(v)) for v in at}


def _load_score(where: str | None) -> Any:
    if where is None:
        return None
    expected = "a function (task, parameters, x, y, noise) to one number per record"
    found = foreign.load_function(where, expected=expected, example='"myscore:score"')
    return partial(foreign.call, where, found, expected=expected)
