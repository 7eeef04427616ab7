"""The audit: both stages of every client and round, the attack, and their scores."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fedaudit import foreign
from fedaudit.audits.audit import Candidates, Knowledge, Noise, columns_for
from fedaudit.audits.two_stage_membership import scores, survival
from fedaudit.audits.two_stage_membership.theory import detection_power
from fedaudit.errors import ConfigError, NotApplicable, NotObservable
from fedaudit.results import AuditResult
from fedaudit.trace import ANONYMOUS, PUBLIC, Truth, View

if TYPE_CHECKING:
    from fedaudit.audits.two_stage_membership.attribution import Path
    from fedaudit.audits.two_stage_membership.scoring import Asked, Scorer

Floats = npt.NDArray[np.float64]
Seen = Literal["named", "anonymous", "sum"]

CHECKED_CLIENTS = 3
"""So many clients of a checked round are looked at along their whole segment."""


class Unusable(NotApplicable):
    """One round that cannot be surveyed; the others may be."""


@dataclass(frozen=True, kw_only=True)
class Inquiry:
    """What stays the same from round to round: who looks, with which scores, at which records.

    `columns`: recorded columns in the model's order, where it differs. `chosen`: party -> numbers
    of the candidates that are looked at closely. `smooth`: whether scores have second derivatives.
    """

    view: View
    scorer: Scorer
    pools: Asked
    parties: tuple[str, ...]
    noise: Noise | None
    columns: npt.NDArray[np.int64] | None
    chosen: dict[str, npt.NDArray[np.int64]]
    smooth: bool
    rng: np.random.Generator


@dataclass(frozen=True, kw_only=True)
class RoundSurvey:
    """What the attack computed of one round. P pools of n candidates, padded; K rows.

    `seen`: updates with names, without, or only their sum. `aggregate` (P, n) score increments by
    what the model moved (Eq. 12). Named rows: `own` (P, n) delta of the pool's own update (Eq. 16),
    `isolated` (P, n) increments by u alone (Eq. 11), `local` (P, n) evidence under the client's own
    trained model, `reference` and `spread` (P, n) mean and deviation of the same under other
    clients' models; NaN for clients that did not take part. Anonymous rows: `by_row` (K, P, n)
    delta of every row on every pool, `local_by_row` (K, P, n) evidence under every row's model.
    `scale` the server's rate; `no_derivative` why nothing was looked at along its segment.
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
    own: Floats | None = None
    isolated: Floats | None = None
    local: Floats | None = None
    reference: Floats | None = None
    spread: Floats | None = None
    by_row: Floats | None = None
    local_by_row: Floats | None = None
    paths: dict[str, Path] = field(default_factory=dict)
    no_derivative: str = ""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The attack's answer. `present` (P, n) marks candidates, the rest is padding."""

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


@dataclass(frozen=True, kw_only=True)
class TwoStageMembership:
    """Whether a client's update survives the sum and raises the scores of its own records.

    `records`: candidates per client, at most (as many others are matched to them). `threshold`:
    tau of stage I, or "noise" to derive it from the noise in force. `sample`: m of TS-MIA_m.
    `noise_draws`: draws of a score's own random numbers (autoencoders), the same for all models.
    `references`: other clients' updates against which one is calibrated. `false_positive_rate`: at
    which stage I's detection power is stated. `checked_rounds`, `checked_records`: where curvature
    and the bound of Theorem 1 are measured. `score_by`: "package.module:function" in place of the
    task's own score: (task, parameters, x, y, noise) to one number per record.
    """

    name: ClassVar[str] = "two_stage_membership"
    question: ClassVar[str] = (
        "Does a client's contribution survive aggregation, and point back at its data?"
    )
    source: ClassVar[str] = "[TwoStage] Eqs. (8), (30), (32)"
    needs: ClassVar[tuple[str, ...]] = ("records",)
    vantage: str = "server"
    records: int = 64
    threshold: float | Literal["noise"] = 0.1
    sample: int = 16
    noise_draws: int = 4
    references: int = 8
    false_positive_rate: float = 0.05
    checked_rounds: int = 2
    checked_records: int = 8
    score_by: str | None = None
    confidence: float = 0.95

    def __post_init__(self) -> None:
        for key, fine, expected in (
            ("records", self.records >= 2, "at least 2"),
            (
                "threshold",
                self.threshold == "noise" or self.threshold > 0,
                'a positive number, or "noise"',
            ),
            ("sample", self.sample >= 1, "at least 1"),
            ("noise_draws", self.noise_draws >= 1, "at least 1"),
            ("references", self.references >= 2, "at least 2"),
            ("false_positive_rate", 0 < self.false_positive_rate < 1, "between 0 and 1"),
            ("checked_rounds", self.checked_rounds >= 0, "0 or more"),
            ("checked_records", self.checked_records >= 2, "at least 2"),
            ("confidence", 0 < self.confidence < 1, "between 0 and 1"),
        ):
            if not fine:
                raise ConfigError(
                    f"audits.two_stage_membership.{key} is out of range",
                    expected=expected,
                    got=str(getattr(self, key)),
                    remedy="leave it out for its default",
                )

    # -- attack ----------------------------------------------------------------------------------

    def attack(self, view: View, knowledge: Knowledge, rng: np.random.Generator) -> Survey:
        import torch

        from fedaudit.audits.two_stage_membership.scoring import Scorer, rough_layers

        task = knowledge.task
        if not len(view.rounds):
            raise NotApplicable(
                "the trace has no rounds",
                expected="at least one complete round",
                got="none",
                remedy="let the federation run",
            )
        if task is None or not knowledge.candidates:
            raise NotApplicable(
                "membership cannot be asked without records",
                expected="the model and candidate records",
                got="neither of them" if task is None else "no records",
                remedy="audit a run, or give --data and --model",
            )
        columns = columns_for(task.layout, view.layout)
        models = sent_models(view, columns)
        parties = tuple(sorted(knowledge.candidates))
        pools, present = _padded([knowledge.candidates[p] for p in parties], task, self, rng)
        scorer = Scorer(task, _callable(self.score_by))
        rough = rough_layers(task) if self.score_by is None else (self.score_by,)
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
            rng=rng,
        )
        checked = _spread(view.rounds, self.checked_rounds)
        surveyed: list[RoundSurvey] = []
        left: list[tuple[int, Unusable]] = []
        for number in view.rounds:
            try:
                surveyed.append(
                    self._round(
                        about,
                        number,
                        models[number],
                        models.get(number + 1),
                        # momentum has not begun in the first round: the rate shows there
                        scale=next((s.scale for s in surveyed if s.seen != "sum"), None),
                        close=number in checked,
                    )
                )
            except Unusable as error:
                left.append((number, error))
        if not surveyed:
            raise left[0][1]
        last = models[max(models)]
        final = scorer.one(torch.from_numpy(last.copy()), _flat(pools)).view(present.shape)
        return Survey(
            parties=parties,
            present=present,
            classes=pools.y.numpy(),
            rounds=tuple(surveyed),
            final=final.double().numpy(),
            checked=about.chosen,
            rough=rough,
            noise=knowledge.noise,
            notes=(*knowledge.notes, *(f"round {n} was left out: {e.what}" for n, e in left)),
            threshold_rule=_rule(self.threshold, knowledge.noise),
            vantage=view.vantage,
            trace_sha256=view.trace_sha256,
        )

    def _round(
        self,
        about: Inquiry,
        number: int,
        before: npt.NDArray[np.float32],
        after: npt.NDArray[np.float32] | None,
        *,
        scale: float | None,
        close: bool,
    ) -> RoundSurvey:
        """Both stages of one round, as far as this view holds them."""
        import torch

        from fedaudit.audits.two_stage_membership import attribution

        scorer, pools, parties = about.scorer, about.pools, about.parties
        moved = None if after is None else after - before
        try:
            updates = about.view.updates(number)
            rows = _arranged(updates.rows, about.columns)
            parts = survival.contributions(rows, updates.weights, moved, scale)
            senders, messages = updates.senders, tuple(int(i) for i in updates.messages)
        except NotObservable:
            parts, senders, messages = None, (), ()
        if parts is None and moved is None:
            raise Unusable(
                f"{about.view.vantage} sees neither updates nor what the model moved by",
                expected="the server's view, or the models of two rounds",
                got=f"round {number} without them",
                remedy="record downlinks and the released model",
            )
        step = moved if parts is None else parts.moved
        assert step is not None
        start = torch.from_numpy(before.copy())
        end = start + torch.from_numpy(np.ascontiguousarray(step))
        flat, shape = _flat(pools), tuple(pools.y.shape)
        start_scores = scorer.one(start, flat).view(shape)
        end_scores = scorer.one(end, flat).view(shape)
        aggregate = (end_scores.double() - start_scores.double()).numpy()
        asked = [s for s in senders if s in parties or s == ANONYMOUS]
        if parts is None or not asked:
            # a secure sum, or the means of regions: nothing of a single client
            return RoundSurvey(
                number=number, seen="sum", senders=(), messages=(), stage_one=None,
                threshold=math.inf, scale=1.0, residual=0.0, aggregate=aggregate,
            )  # fmt: skip
        if len(parts.u) < 2:
            raise Unusable(
                "a single contribution has no background",
                expected="at least two clients in a round",
                got=f"{len(parts.u)} in round {number}",
                remedy="audit a federation of two clients or more",
            )
        sigma, own_noise = _noise_in(about.noise, senders, parts.scale)
        shared: dict[str, Any] = {
            "number": number,
            "senders": senders,
            "messages": messages,
            "stage_one": survival.survival(parts, sigma, own_noise),
            "threshold": survival.noise_floor(self.threshold, sigma, parts)[0],
            "scale": parts.scale,
            "residual": parts.residual,
            "aggregate": aggregate,
        }
        u = torch.from_numpy(np.ascontiguousarray(parts.u))
        # a gradient becomes a model by the server's step; what is sent as a step is one already
        kinds = {m.kind for i, m in about.view.indexed(number) if i in set(messages)}
        own_step = parts.scale if "gradient" in kinds else 1.0
        trained = start + own_step * torch.from_numpy(np.array(rows))
        if ANONYMOUS in senders:
            pairs: Sequence[Sequence[int]] = [range(len(parties))] * len(u)
            by_row = attribution.leave_one_out(scorer, end, u, pools, pairs, end_scores)
            every = scorer.evidence(attribution.on_pools(scorer, trained, pools, pairs))
            return RoundSurvey(
                seen="anonymous", by_row=by_row, local_by_row=every.double().numpy(), **shared
            )
        known = [(j, parties.index(s)) for j, s in enumerate(senders) if s in parties]
        if len(known) < 2:
            raise Unusable(
                "fewer than two senders have records to be asked about",
                expected="candidate records of at least two of a round's senders",
                got=f"{len(known)} of {len(senders)} in round {number}",
                remedy="give records of more clients, or more held-out records",
            )
        mine, owners = [j for j, _ in known], [p for _, p in known]
        alone = [[p] for p in owners]
        own, isolated = np.full(shape, np.nan), np.full(shape, np.nan)
        own[owners] = attribution.leave_one_out(scorer, end, u[mine], pools, alone, end_scores)[
            :, 0
        ]
        isolated[owners] = attribution.put_on(scorer, start, u[mine], pools, alone, start_scores)[
            :, 0
        ]
        local, reference, spread = self._calibrated(scorer, trained[mine], pools, owners, about.rng)
        paths, no_derivative = self._paths(about, end, u, known) if close else ({}, "")
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
        )

    @staticmethod
    def _paths(
        about: Inquiry, end: Any, u: Any, known: Sequence[tuple[int, int]]
    ) -> tuple[dict[str, Path], str]:
        """A close look at a few clients (row, pool) of a round, and why there is none."""
        from fedaudit.audits.two_stage_membership import attribution

        out = {}
        for j, p in known[:: max(1, len(known) // CHECKED_CLIENTS)][:CHECKED_CLIENTS]:
            party = about.parties[p]
            few = pools_of(about.pools, p, about.chosen[party])
            try:
                out[party] = attribution.path(
                    about.scorer, end - u[j], u[j], few, smooth=about.smooth
                )
            except RuntimeError as error:
                # foreign layers and scores need not have derivatives
                reason = str(error).strip().splitlines() or [type(error).__name__]
                return out, reason[0][:160]
        return out, ""

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
                not_applicable="no truth: the attack guessed, and nothing was scored",
                per_client=guesses_of(guess),
                notes=(
                    "what the attack guessed: the records of a client that score highest are said "
                    "to be its members; how many are, it cannot know",
                    *guess.notes,
                ),
            )
        return scores.scored(self, guess, truth, rng, shared)

    def power(self, stage_one: survival.Survival) -> Floats:
        """Detection power of stage I at the stated false-positive rate, (K,)."""
        return detection_power(stage_one.snr, self.false_positive_rate)


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


def sent_models(
    view: View, columns: npt.NDArray[np.int64] | None = None
) -> dict[int, npt.NDArray[np.float32]]:
    """Round -> the model that was sent at its beginning; after the last round, the released one."""
    found: dict[int, npt.NDArray[np.float32]] = {}
    for number in view.rounds:
        for _, m in view.indexed(number):
            if m.kind != "model" or not m.parts or m.receiver == PUBLIC or m.step:
                continue
            # a client that sends its model up hands nothing down: what counts is what is held
            held = view.received(number, m.receiver, before=1)
            if held is not None:
                found[number] = _arranged(held.astype(np.float32), columns)
                break
        else:
            raise NotApplicable(
                f"{view.vantage} sees no model that was sent in round {number}",
                expected="a model from a server at the beginning of every round",
                got="none (gossip has no server, and a recording may lack downlinks)",
                remedy="audit a federation with a server, and record downlinks",
            )
    with contextlib.suppress(NotObservable):
        found[len(view.rounds) + 1] = _arranged(view.released().astype(np.float32), columns)
    return found


def _arranged(
    rows: npt.NDArray[np.float32], columns: npt.NDArray[np.int64] | None
) -> npt.NDArray[np.float32]:
    """Rows (..., d) in the model's order of tensors."""
    return rows if columns is None else rows[..., columns]


def _rule(threshold: float | Literal["noise"], noise: Noise | None) -> str:
    """What tau of stage I follows from."""
    if threshold != "noise":
        return "given"
    return "sigma sqrt(d) / |dW|, " + (
        "sigma of " + noise.rule if noise is not None else "no noise is known of"
    )


def _noise_in(noise: Noise | None, senders: Sequence[str], scale: float) -> tuple[float, Floats]:
    """Deviation of the noise in dW, and of the part inside each row (K,), as the server steps."""
    if noise is None:
        return 0.0, np.zeros(len(senders))
    # nobody knows whose row this is: the typical amount
    typical = math.sqrt(np.mean(np.square(list(noise.own.values())))) if noise.own else 0.0
    own = [noise.own.get(s, typical if s == ANONYMOUS else 0.0) for s in senders]
    return scale * noise.aggregate, scale * np.array(own)


def pools_of(pools: Asked, which: int, records: npt.NDArray[np.int64]) -> Asked:
    """Some records of one pool, (n, ...)."""
    import torch

    from fedaudit.audits.two_stage_membership.scoring import Asked as Records

    rows = torch.from_numpy(records)
    noise = None if pools.noise is None else pools.noise[:, which][:, rows]
    return Records(pools.x[which][rows], pools.y[which][rows], noise)


def _flat(pools: Asked) -> Asked:
    from fedaudit.audits.two_stage_membership.scoring import Asked as Records

    noise = None if pools.noise is None else pools.noise.flatten(1, 2)
    return Records(pools.x.flatten(0, 1), pools.y.flatten(0, 1), noise)


def _padded(
    pools: Sequence[Candidates], task: Any, audit: TwoStageMembership, rng: np.random.Generator
) -> tuple[Asked, npt.NDArray[np.bool_]]:
    """Pools of equal length (P, n, ...): short ones repeat their records, which are not counted."""
    import torch

    from fedaudit.audits.two_stage_membership.scoring import Asked as Records

    longest = max(len(p) for p in pools)
    present = np.zeros((len(pools), longest), dtype=bool)
    x, y = [], []
    for i, pool in enumerate(pools):
        rows = torch.arange(longest) % len(pool)
        x.append(pool.x[rows])
        y.append(pool.y[rows])
        present[i, : len(pool)] = True
    noise = None
    if task.noise_shape() is not None:
        shape = (audit.noise_draws, len(pools), longest, *task.noise_shape())
        noise = torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
    return Records(torch.stack(x), torch.stack(y), noise), present


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
