"""The audit: both stages of every client and round, the attack, and their scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedaudit import foreign
from fedaudit.arrays import Floats
from fedaudit.audits.audit import Audit, Knowledge, Noise, columns_for
from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.planning import Aim, Recorded, SampleSize, Setting, Shape
from fedaudit.audits.two_stage_membership import planning, scores, survival
from fedaudit.audits.two_stage_membership.facts import FACTS
from fedaudit.audits.two_stage_membership.pools import flat, padded, pools_of
from fedaudit.audits.two_stage_membership.seen import (
    Unusable,
    arranged,
    kinds_of,
    known_rows,
    one_model_for_all,
    senders_in,
    sent_models,
)
from fedaudit.audits.two_stage_membership.survey import Inquiry, RoundSurvey, Survey
from fedaudit.errors import ConfigError, FedauditError, NotApplicable, NothingToSay, NotObservable
from fedaudit.results import NO_TRUTH, AuditResult, Need
from fedaudit.settings import AtLeastTwo, Count, Fraction, Positive, Whole, checked
from fedaudit.trace import ANONYMOUS, Truth, View

if TYPE_CHECKING:
    import torch

    from fedaudit.audits.two_stage_membership.attribution import Path
    from fedaudit.audits.two_stage_membership.scoring import Asked, Scorer


@dataclass(frozen=True, kw_only=True)
@checked("audits.two_stage_membership")
class TwoStageMembership(Audit):
    """Whether a client's update survives the sum and raises the scores of its own records.

    `records`: candidates per client, at most (as many others are matched to them). `threshold`:
    tau of stage I, or "noise" to derive it from the noise in force. `sample`: m of TS-MIA_m.
    `noise_draws`: draws of a score's own random numbers (autoencoders), the same for all models.
    `references`: other clients' updates against which one is calibrated. `false_positive_rate`: at
    which stage I's detection power is stated. `checked_rounds`, `checked_clients` (in turn) and
    `checked_records` of each: where curvature and the bound of Theorem 1 are measured. `score_by`:
    "package.module:function" in place of the task's own score: (task, parameters, x, y, noise) to
    one number per record. `smooth` says that modules (and a score) of your own have second
    derivatives, which cannot be told from their names.
    """

    name: ClassVar[str] = "two_stage_membership"
    question: ClassVar[str] = (
        "Does a client's contribution survive aggregation, and point back at its data?"
    )
    source: ClassVar[str] = "[TwoStage] Eqs. (8), (30), (32)"
    needs: ClassVar[tuple[str, ...]] = ("records",)
    facts: ClassVar[AuditFacts] = FACTS
    on_recording: ClassVar[str] = "with --model package.module:function and --data FILE"
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
        from fedaudit.audits.two_stage_membership.scoring import Scorer, rough_layers

        task = knowledge.task
        if not len(view.rounds):
            raise NothingToSay(
                "the trace has no rounds",
                code="nothing_arrived",
                expected="at least one complete round",
                got="none",
                remedy="let the federation run",
            )
        if task is None or not knowledge.candidates:
            raise NotApplicable(
                "membership cannot be asked without records",
                code="no_records",
                expected="the model and candidate records",
                got="neither of them" if task is None else "no records",
                remedy="audit a run, or give --data and --model",
            )
        columns = columns_for(task.layout, view.layout)
        models = sent_models(view, columns)
        parties = tuple(knowledge.candidates)
        pools, present = padded(
            [knowledge.candidates[p] for p in parties], task, self.noise_draws, rng
        )
        scorer = Scorer(task, _callable(self.score_by))
        rough = rough_layers(task, said_smooth=self.smooth)
        if self.score_by is not None and not self.smooth:
            rough = (self.score_by,)
        about = Inquiry(
            view=view,
            scorer=scorer,
            pools=pools,
            parties=parties,
            noise=knowledge.noise,
            columns=columns,
            chosen={
                p: np.sort(rng.permutation(int(present[i].sum()))[: self.checked_records])
                for i, p in enumerate(parties)
            },
            smooth=not rough,
            hearsay=self.smooth,
            named=any(s in parties for t in view.rounds for s in senders_in(view, t)),
            rng=rng,
        )
        checked = _spread(view.rounds, self.checked_rounds)
        surveyed: list[RoundSurvey] = []
        left: list[tuple[int, Unusable]] = []
        end: torch.Tensor | None = None
        for number in view.rounds:
            end = None
            try:
                one, end = self._round(
                    about,
                    number,
                    models[number],
                    models.get(number + 1),
                    # momentum has not begun in the first round: the rate shows there
                    scale=next((s.scale for s in surveyed if s.stage_one is not None), None),
                    close=number in checked,
                )
                surveyed.append(one)
            except Unusable as error:
                left.append((number, error))
        if not surveyed:
            raise left[0][1]
        final, about_final = self._final(about, models, end, surveyed)
        return Survey(
            parties=parties,
            present=present,
            classes=pools.y.numpy(),
            rounds=tuple(surveyed),
            final=final,
            checked=about.chosen,
            rough=rough,
            noise=knowledge.noise,
            notes=(
                *knowledge.notes,
                *(f"round {n} was left out: {e.what}" for n, e in left),
                *about_final,
            ),
            threshold_rule=_rule(self.threshold, knowledge.noise),
            vantage=view.vantage,
            trace_sha256=view.trace_sha256,
        )

    @staticmethod
    def _final(
        about: Inquiry,
        models: Mapping[int, npt.NDArray[np.float32]],
        end: torch.Tensor | None,
        surveyed: Sequence[RoundSurvey],
    ) -> tuple[Floats, tuple[str, ...]]:
        """Scores (P, n) of the final model: the released one, or what the last round ended with."""
        import torch

        last, notes = about.view.rounds[-1], tuple[str, ...]()
        shape = tuple(about.pools.y.shape)
        if last + 1 in models:
            end = torch.from_numpy(models[last + 1].copy())
        elif end is None and any(s.personal for s in surveyed):
            return np.full(shape, np.nan), ()
        elif end is None:
            end = torch.from_numpy(models[last].copy())
            notes = (f"the final model is the one sent in round {last}: no later one was recorded",)
        return about.scorer.one(end, flat(about.pools)).view(shape).double().numpy(), notes

    def _round(
        self,
        about: Inquiry,
        number: int,
        before: npt.NDArray[np.float32],
        after: npt.NDArray[np.float32] | None,
        *,
        scale: float | None,
        close: bool,
    ) -> tuple[RoundSurvey, torch.Tensor | None]:
        """Both stages of one round, as far as this view holds them; the model it ended with."""
        import torch

        from fedaudit.audits.two_stage_membership import attribution
        from fedaudit.audits.two_stage_membership.scoring import Models

        scorer, pools, parties = about.scorer, about.pools, about.parties
        if not one_model_for_all(about.view, number):
            return self._personal_round(about, number), None
        moved = None if after is None else after - before
        try:
            updates = about.view.updates(number)
            rows = arranged(updates.rows, about.columns)
            size = 0.0 if moved is None else float(np.linalg.norm(before))
            parts = survival.contributions(rows, updates.weights, moved, scale, size)
            senders, messages = updates.senders, tuple(int(i) for i in updates.messages)
        except NotObservable:
            parts, senders, messages = None, (), ()
        if parts is None and moved is None:
            raise Unusable(
                f"{about.view.vantage} sees neither updates nor what the model moved by",
                code="no_single_updates_or_models",
                expected="the server's view, or the models of two rounds",
                got=f"round {number} without them",
                remedy="record downlinks and the released model",
            )
        step = moved if parts is None else parts.moved
        assert step is not None
        start = torch.from_numpy(before.copy())
        end = start + torch.from_numpy(np.ascontiguousarray(step))
        everyone, shape = flat(pools), tuple(pools.y.shape)
        start_scores = scorer.one(start, everyone).view(shape)
        end_scores = scorer.one(end, everyone).view(shape)
        aggregate = (end_scores.double() - start_scores.double()).numpy()
        asked = [s for s in senders if s in parties or s == ANONYMOUS]
        if parts is None or not (asked or about.named):
            # a secure sum, or the means of regions: nothing of a single client
            return RoundSurvey(
                number=number, seen="sum", senders=(), messages=(), stage_one=None,
                threshold=math.inf, scale=1.0, residual=0.0, aggregate=aggregate,
            ), end  # fmt: skip
        if len(parts.u) < 2:
            raise Unusable(
                "a single contribution has no background",
                code="too_few_clients",
                expected="at least two clients in a round",
                got=f"{len(parts.u)} in round {number}",
                remedy="audit a federation of two clients or more",
            )
        sigma, own_noise = _noise_in(about.noise, senders, updates.weights, parts.scale)
        shared: dict[str, Any] = {
            "number": number,
            "senders": senders,
            "messages": messages,
            "stage_one": survival.survival(parts, sigma, own_noise),
            "threshold": survival.noise_floor(self.threshold, sigma, parts)[0],
            "scale": parts.scale,
            "sigma": sigma,
            "shares": updates.weights / updates.weights.sum(),
            "residual": parts.residual,
            "aggregate": aggregate,
        }
        u = torch.from_numpy(np.ascontiguousarray(parts.u))
        # a gradient becomes a model by the server's step; what is sent as a step is one already
        own_step = parts.scale if "gradient" in kinds_of(about.view, number, messages) else 1.0
        if ANONYMOUS in senders:
            pairs: Sequence[Sequence[int]] = [range(len(parties))] * len(u)
            by_row = attribution.leave_one_out(scorer, end, u, pools, pairs, end_scores)
            trained = Models(start, rows, own_step)
            every = scorer.evidence(attribution.on_pools(scorer, trained, pools, pairs))
            return RoundSurvey(
                seen="anonymous", by_row=by_row, local_by_row=every.double().numpy(), **shared
            ), end
        mine, owners = known_rows(parties, senders, number)
        alone = [[p] for p in owners]
        own, isolated = np.full(shape, np.nan), np.full(shape, np.nan)
        of_known = u if len(mine) == len(u) else u[mine]
        own[owners] = attribution.leave_one_out(scorer, end, of_known, pools, alone, end_scores)[
            :, 0
        ]
        isolated[owners] = attribution.put_on(scorer, start, of_known, pools, alone, start_scores)[
            :, 0
        ]
        trained = Models(start, rows, own_step, tuple(mine))
        local, reference, spread = self._calibrated(scorer, trained, pools, owners, about.rng)
        pairs_known = list(zip(mine, owners, strict=True))
        paths, no_derivative = self._paths(about, end, u, pairs_known) if close else ({}, "")
        return RoundSurvey(
            seen="named",
            own=own,
            isolated=isolated,
            local=local,
            reference=reference,
            spread=spread,
            paths=paths,
            no_derivative=no_derivative,
            **shared,
        ), end

    def _personal_round(self, about: Inquiry, number: int) -> RoundSurvey:
        """A round in which clients were sent different models: everyone's own trained model.

        There is no one W that all updates add up on: what each does to it cannot be asked.
        """
        from fedaudit.audits.two_stage_membership.scoring import Models

        view, parties = about.view, about.parties
        try:
            updates = view.updates(number)
        except NotObservable:
            updates = None
        if updates is None or ANONYMOUS in updates.senders:
            raise Unusable(
                "clients were sent different models, and nobody knows whose update is whose",
                code="different_models",
                expected="one model for all, or updates with names",
                got=f"round {number} with neither",
                remedy="audit the view of somebody who sees single updates",
            )
        messages = tuple(int(i) for i in updates.messages)
        if "gradient" in kinds_of(view, number, messages):
            raise Unusable(
                "clients were sent different models, and sent gradients back",
                code="different_models",
                expected="models or their changes",
                got=f"round {number} with gradients: how far a client went is not known",
                remedy="record what clients trained",
            )
        mine, owners = known_rows(parties, updates.senders, number)
        held = [view.received(number, updates.senders[j]) for j in mine]
        if any(h is None for h in held):
            raise Unusable(
                "clients were sent different models, of which some are not seen",
                code="different_models",
                expected="the model that every client was sent",
                got=f"round {number} without {sum(h is None for h in held)} of {len(held)}",
                remedy="record all downlinks",
            )
        base = arranged(np.stack([h for h in held if h is not None]), about.columns)
        rows = arranged(updates.rows, about.columns)[mine]
        local, reference, spread = self._calibrated(
            about.scorer, Models(base, rows), about.pools, owners, about.rng
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
            aggregate=np.full(tuple(about.pools.y.shape), np.nan),
            local=local,
            reference=reference,
            spread=spread,
            personal=True,
        )

    def _paths(
        self, about: Inquiry, end: Any, u: Any, known: Sequence[tuple[int, int]]
    ) -> tuple[dict[str, Path], str]:
        """A close look at a few clients (row, pool) of a round, those first that were looked at
        least; and why there is none."""
        from fedaudit.audits.two_stage_membership import attribution

        out, reason = {}, ""
        turn = sorted(known, key=lambda one: about.looked_at.get(about.parties[one[1]], 0))
        for j, p in sorted(turn[: self.checked_clients]):
            party = about.parties[p]
            about.looked_at[party] = about.looked_at.get(party, 0) + 1
            few = pools_of(about.pools, p, about.chosen[party])
            try:
                out[party] = attribution.path(
                    about.scorer,
                    end - u[j],
                    u[j],
                    few,
                    smooth=about.smooth,
                    hearsay=about.hearsay,
                )
            except (RuntimeError, ConfigError, NotApplicable) as error:
                # foreign layers and scores need not have derivatives, nor take double precision
                reason = reason or _said(error)
        return out, reason

    def _calibrated(
        self,
        scorer: Scorer,
        models: Any,
        pools: Asked,
        owners: Sequence[int],
        rng: np.random.Generator,
    ) -> tuple[Floats, Floats, Floats]:
        """Evidence under a client's own model, and its mean and spread under others', (P, n) each.

        Model j is asked about its own pool and the pools of the next clients on a ring, so that
        every pool is seen by as many strangers, at a cost that is linear in clients.
        """
        from fedaudit.audits.two_stage_membership import attribution

        count = len(owners)
        strangers = min(self.references, count - 1)
        ring = rng.permutation(count)
        place = np.argsort(ring)
        # pairs[j][i]: the pool of the client i places further on the ring; i = 0 is its own
        pairs = [
            [owners[ring[(place[j] + i) % count]] for i in range(strangers + 1)]
            for j in range(count)
        ]
        scored = attribution.on_pools(scorer, models, pools, pairs)
        evidence = scorer.evidence(scored).double().numpy()
        shape = tuple(pools.y.shape)
        own, reference, spread = (np.full(shape, np.nan) for _ in range(3))
        foreign: dict[int, list[Floats]] = {}
        for j in range(count):
            own[owners[j]] = evidence[j, 0]
            for i in range(1, strangers + 1):
                foreign.setdefault(pairs[j][i], []).append(evidence[j, i])
        for pool, values in foreign.items():
            stack = np.stack(values)
            reference[pool] = stack.mean(axis=0)
            spread[pool] = stack.std(axis=0, ddof=1) if len(stack) > 1 else 0.0
        return own, reference, spread

    # -- score -----------------------------------------------------------------------------------

    def score(self, guess: Survey, truth: Truth | None, rng: np.random.Generator) -> AuditResult:
        shared: dict[str, Any] = {
            "audit": self.name,
            "question": self.question,
            "vantage": guess.vantage,
            "settings": asdict(self),
            "trace_sha256": guess.trace_sha256,
        }
        if truth is None or not truth.members:
            return AuditResult(
                **shared,
                source=self.source,
                status="blind",
                need=NO_TRUTH,
                per_client=guesses_of(guess),
                notes=(
                    "what the attack guessed: the records of a client that score highest are said "
                    "to be its members; how many are, it cannot know",
                    *guess.notes,
                ),
            )
        return scores.scored(self, guess, truth, rng, shared)


SHOWN = 8
"""Records per client that are named where nothing can be scored."""


def guesses_of(guess: Survey) -> dict[str, dict[str, Any]]:
    """Client -> which of its candidates the strongest attack takes for members, surest first.

    Candidates are counted from 1 in the order in which they were asked about; beside each its
    score, in spreads of all candidates.
    """
    statistic = next(iter(scores.statistics_of(guess).values()))
    out: dict[str, dict[str, Any]] = {}
    for p, party in enumerate(guess.parties):
        usable = np.flatnonzero(guess.present[p] & np.isfinite(statistic[p]))
        surest = usable[np.argsort(-statistic[p][usable], kind="stable")][:SHOWN]
        out[party] = {
            "candidates": len(usable),
            "likeliest members (candidate:score)": " ".join(
                f"{i + 1}:{statistic[p][i]:.2f}" for i in surest
            ),
        }
    return out


def _said(error: Exception) -> str:
    """The first line of an error."""
    if isinstance(error, FedauditError):
        return f"{error.what}: {error.got}"[:160]
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def _rule(threshold: float | Literal["noise"], noise: Noise | None) -> str:
    """What tau of stage I follows from."""
    if threshold != "noise":
        return "given"
    return "sigma sqrt(d) / |dW|, " + (
        "sigma of " + noise.rule if noise is not None else "no noise is known of"
    )


def _noise_in(
    noise: Noise | None, senders: Sequence[str], weights: Floats, scale: float
) -> tuple[float, Floats]:
    """Deviation of the noise in dW, and of the part inside each row (K,), as the server steps."""
    if noise is None:
        return 0.0, np.zeros(len(senders))
    sigma, own = noise.in_round(senders, weights)
    return scale * sigma, scale * own


def _spread(rounds: range, count: int) -> set[int]:
    """`count` rounds from the first to the last."""
    if not count:
        return set()
    at = np.linspace(rounds[0], rounds[-1], min(count, len(rounds)))
    return {round(float(v)) for v in at}


def _callable(where: str | None) -> Any:
    if where is None:
        return None
    expected = "a function (task, parameters, x, y, noise) to one number per record"
    found = foreign.load_function(where, expected=expected, example='"myscore:score"')
    return partial(foreign.call, where, found, expected=expected)
