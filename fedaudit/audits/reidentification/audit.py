"""The audit: read rows, models and receivers off a view, name the rows, score the names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedaudit.arrays import Bools, Floats, Indices, Rows
from fedaudit.audits.audit import Audit, Candidates, Knowledge, columns_for
from fedaudit.audits.facts import AuditFacts
from fedaudit.audits.outright import RoundUpdates, single_updates
from fedaudit.audits.planning import Aim, Recorded, SampleSize, Setting, Shape
from fedaudit.audits.records.pools import pad_pools
from fedaudit.audits.records.seen import in_model_order, kinds_of, one_model_for_all, sent_models
from fedaudit.audits.reidentification import planning, scores
from fedaudit.audits.reidentification.evidence import (
    AskedRounds,
    Pools,
    Reading,
    RoundEvidence,
    membership_statistics,
    read,
    round_evidence,
)
from fedaudit.audits.reidentification.facts import FACTS, NAMING
from fedaudit.audits.rows.directions import Directions
from fedaudit.audits.rows.features import Features, collect, default_features
from fedaudit.audits.rows.linking import combined
from fedaudit.audits.rows.traits import traits_of
from fedaudit.errors import NotApplicable, NothingToSay
from fedaudit.randomness import Seed
from fedaudit.results import NO_TRUTH, AuditResult, Need
from fedaudit.settings import Count, Fraction, Whole, checked
from fedaudit.trace import PUBLIC, Truth, View

if TYPE_CHECKING:
    from fedaudit.tasks.task import Task

MOST_LINKED = 3000
"""Rows that are linked at most: all pairs of them are compared."""
PREFIXES, PREFIX_ROWS = 6, 600
"""How often, and for how many rows at most, the attack is repeated on the first rounds alone."""


@dataclass(frozen=True, kw_only=True)
class NamedRows:
    """The attack's answer.

    `parties`: all clients that may have sent a row. `messages`: anonymous messages of each round.
    `asked`: clients asked in each round, as numbers in `parties`. `names`: reading -> round -> the
    client of each row, -1 for none. `posterior`, `trust` in links: those of the first reading.
    `held`: reading -> candidate records of each site behind it. `so_far`: round -> names of its
    rows from what was seen until then. `statistics`: membership statistics of the candidates of
    `holders`. `outright`: (round, message) -> client, for updates with a name.
    """

    parties: tuple[str, ...]
    rounds: tuple[int, ...]
    messages: tuple[tuple[int, ...], ...]
    asked: tuple[Indices, ...]
    names: Mapping[str, Sequence[Indices]]
    posterior: Sequence[Floats]
    trust: float
    held: Mapping[str, int]
    so_far: Mapping[int, Indices]
    statistics: Mapping[str, Floats]
    holders: tuple[str, ...]
    present: Bools
    vantage: str
    trace_sha256: str
    declared: tuple[Mapping[str, Any], ...] = ()
    outright: Mapping[tuple[int, int], str] = field(default_factory=dict)
    hidden: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
@checked("audits.reidentification")
class Reidentification(Audit):
    """Name the senders of anonymous rows by records of every site.

    `records`: most members per site among its candidate records, with as many matched others that
    it did not train on; the attack cannot tell them apart. `enrolled`: further records per site
    that the adversary knows to be the site's. `auxiliary`: numbers of candidate records per site at
    which the rate is measured besides; 0 is chance. `noise_draws`: draws of a score's own random
    numbers (autoencoders). `links`: whether rows are linked over rounds.
    """

    name: ClassVar[str] = "reidentification"
    question: ClassVar[str] = "Who sent this anonymous row?"
    source: ClassVar[str] = "records of every site and links over rounds (ours)"
    needs: ClassVar[tuple[str, ...]] = ("records", "enrolled")
    facts: ClassVar[AuditFacts] = FACTS
    on_recording: ClassVar[str] = "with your model and records (`model`, `data`)"
    vantage: str = "server"
    records: Count = 10
    enrolled: Whole = 5
    auxiliary: tuple[Whole, ...] = (0, 1, 5, 20)
    noise_draws: Count = 4
    links: bool = True
    confidence: Fraction = 0.95

    # -- planning --------------------------------------------------------------------------------

    def cost(self, shape: Shape) -> float:
        return planning.cost(self, shape)

    def missing(self, setting: Setting) -> Need | None:
        return planning.missing(setting)

    @classmethod
    def samples(cls, result: AuditResult, recorded: Recorded, aim: Aim) -> list[SampleSize]:
        return [planning.samples(result, recorded, aim)]

    @classmethod
    def samples_before(cls, aim: Aim) -> list[SampleSize]:
        return [planning.NAMES.samples_before(cls.name, aim)]

    # -- attack ----------------------------------------------------------------------------------

    def attack(self, view: View, knowledge: Knowledge, rng: np.random.Generator) -> NamedRows:
        task, candidates = _required(knowledge)
        columns = columns_for(task.layout, view.layout)
        carried = single_updates(view, view.layout.names[0])
        outright = {(c.number, i): name for c in carried for i, name in c.named.items()}
        hidden = sum(len(c.hidden) for c in carried)
        streams = Seed(int(rng.integers(2**63)))
        if outright and not hidden:
            return _read_off(view, outright, hidden)
        try:
            usable, left_out = _usable(view, carried)
        except (NotApplicable, NothingToSay):
            if not outright:
                raise
            return _read_off(view, outright, hidden)
        parties, asked = _asked(view, usable, candidates)
        holders = tuple(p for p in parties if p in candidates)
        holds = np.array([p in candidates for p in parties])
        pools = _pools([candidates[p] for p in holders], task, self.noise_draws, streams)
        known: Mapping[str, Candidates] = knowledge.extra.get("enrolled", {})
        enrolled = None
        if any(p in known for p in holders):
            # of a site without enrolled records a candidate stands in, and does not count
            own = [known.get(p, candidates[p]) for p in holders]
            made = _pools(own, task, self.noise_draws, streams)
            has = np.array([p in known for p in holders])
            enrolled = Pools(made.batch, made.present & has[:, None])
        models = sent_models(view, columns)
        evidence = self._evidence(view, usable, models, columns, task, pools, enrolled)
        links, not_linked = self._linker(view, usable, len(parties), streams)
        design = AskedRounds(asked=asked, holds=holds, groups=links(len(usable)))
        readings, held = self._readings(evidence, design, streams)
        first = readings[NAMING]
        so_far = self._so_far(evidence, design, links, streams)
        return NamedRows(
            parties=parties,
            rounds=tuple(c.number for c in usable),
            messages=tuple(c.hidden for c in usable),
            asked=tuple(asked),
            names={name: r.names for name, r in readings.items()},
            posterior=first.posterior,
            trust=first.trust,
            held=held,
            so_far={usable[t - 1].number: names for t, names in so_far.items()},
            statistics=membership_statistics(evidence, first.names, holds, pools.present),
            holders=holders,
            present=pools.present,
            vantage=view.vantage,
            trace_sha256=view.trace_sha256,
            declared=view.declared,
            outright=outright,
            hidden=hidden,
            notes=(*knowledge.notes, *left_out, *not_linked, *_unheld(parties, holders)),
        )

    def _evidence(
        self,
        view: View,
        usable: Sequence[RoundUpdates],
        models: Mapping[int, Rows],
        columns: Indices | None,
        task: Task,
        pools: Pools,
        enrolled: Pools | None,
    ) -> list[RoundEvidence]:
        import torch

        from fedaudit.audits.records.scoring import Scorer

        scorer = Scorer(task)
        longest = pools.present.shape[1]
        counts = sorted({m for m in self.auxiliary if 0 < m < longest} | {longest})
        out = []
        for c in usable:
            updates = view.updates(c.number)
            rows = in_model_order(updates.rows[np.isin(updates.messages, c.hidden)], columns)
            start = torch.from_numpy(models[c.number].copy())
            step = _server_step(view, c, rows, models)
            out.append(round_evidence(scorer, start, rows, step, pools, enrolled, counts))
        return out

    def _linker(
        self, view: View, usable: Sequence[RoundUpdates], clients: int, streams: Seed
    ) -> tuple[Any, tuple[str, ...]]:
        """A function from a number of rounds to the linked groups of their rows (None: unlinked),
        and why rows are not linked."""
        total = sum(len(c.hidden) for c in usable)
        if not self.links or len(usable) < 2:
            return (lambda _: None), ()
        if total > MOST_LINKED:
            said = f"rows were not linked over rounds: there are {total:,}, above {MOST_LINKED:,}"
            return (lambda _: None), (said,)
        patterns = default_features(view.layout)
        features = collect(view, patterns, streams.generator("features"), carried=usable)
        directions = Directions(features.units())

        def groups(rounds: int) -> list[Indices] | None:
            if rounds < 2:
                return None
            few = usable[:rounds]
            shown = _shown(features, rounds)
            traits, numbers = traits_of(view, few, directions.units[:rounds], shown)
            return combined(traits, numbers, clients, streams.generator("links"))[0]

        return groups, ()

    def _readings(
        self, evidence: Sequence[RoundEvidence], design: AskedRounds, streams: Seed
    ) -> tuple[dict[str, Reading], dict[str, int]]:
        """Readings by name, the strongest attack first, and how many candidates each rests on."""
        *fewer, most = evidence[0].by_count
        known = evidence[0].enrolled is not None
        every = [*_candidates_of(evidence, most), *(_enrolled_of(evidence) if known else ())]
        linked = design.groups is not None
        asked: dict[str, tuple[list[list[Floats]], bool, int]] = {NAMING: (every, linked, most)}
        if linked:
            asked[f"{NAMING} (without links)"] = (every, False, most)
        if known:
            own = _candidates_of(evidence, most)
            asked[f"{NAMING} (enrolled records)"] = (_enrolled_of(evidence), linked, 0)
            asked[_by_count(most)] = (own, linked, most)
        for m in fewer:
            asked[_by_count(m)] = (_candidates_of(evidence, m), linked, m)
        readings = {
            name: read(kinds, design, streams.generator(name), links=use_links)
            for name, (kinds, use_links, _) in asked.items()
        }
        return readings, {name: m for name, (_, _, m) in asked.items()}

    def _so_far(
        self, evidence: Sequence[RoundEvidence], design: AskedRounds, links: Any, streams: Seed
    ) -> dict[int, Indices]:
        """Number of rounds seen -> names of the rows of the last of them."""
        rounds, rows = len(evidence), sum(map(len, (e.scores for e in evidence)))
        if rows > PREFIX_ROWS:
            return {}
        most = [*evidence[0].by_count][-1]
        out = {}
        for t in np.unique(np.linspace(1, rounds, min(rounds, PREFIXES)).round().astype(int)):
            seen = evidence[:t]
            known = seen[0].enrolled is not None
            kinds = [*_candidates_of(seen, most), *(_enrolled_of(seen) if known else ())]
            groups = design.groups if t == rounds else links(int(t))
            found = read(
                kinds,
                design.until(int(t), groups),
                streams.generator(f"first {t} rounds"),
                links=groups is not None,
            )
            out[int(t)] = found.names[-1]
        return out

    # -- score -----------------------------------------------------------------------------------

    def score(self, guess: NamedRows, truth: Truth | None, rng: np.random.Generator) -> AuditResult:
        shared = self.about(guess, auxiliary=list(self.auxiliary))
        senders = None if truth is None else scores.senders_of(guess, truth)
        found = None
        if guess.rounds and senders is None and not guess.outright:
            return AuditResult(
                **shared,
                status="blind",
                need=NO_TRUTH,
                per_client=scores.guesses_of(guess),
                notes=("the attack's guess: who sent which message", *guess.notes),
            )
        if guess.rounds and senders is not None:
            assert truth is not None
            found = scores.score_names(self, guess, senders, truth, rng, shared)
        if not guess.outright:
            assert found is not None
            return found
        return scores.known_outright(guess, found, shared)


def _by_count(count: int) -> str:
    return f"{NAMING} ({count} candidate{'s' if count > 1 else ''})"


def _candidates_of(evidence: Sequence[RoundEvidence], count: int) -> list[list[Floats]]:
    return [[e.by_count[count][kind] for e in evidence] for kind in (0, 1)]


def _enrolled_of(evidence: Sequence[RoundEvidence]) -> list[list[Floats]]:
    return [[e.enrolled[kind] for e in evidence if e.enrolled is not None] for kind in (0, 1)]


def _required(knowledge: Knowledge) -> tuple[Task, Mapping[str, Candidates]]:
    if knowledge.task is None or len(knowledge.candidates) < 2:
        raise NotApplicable(
            "naming rows needs records of the sites",
            code="no_records",
            expected="the model, and candidate records of at least two clients",
            got="neither of them"
            if knowledge.task is None
            else f"records of {len(knowledge.candidates)} clients",
            remedy="audit a run, or give `data` and `model`",
        )
    return knowledge.task, knowledge.candidates


def _usable(
    view: View, carried: Sequence[RoundUpdates]
) -> tuple[list[RoundUpdates], tuple[str, ...]]:
    """Rounds with at least two anonymous rows and one model for all, and notes on the others."""
    hidden = [c for c in carried if c.hidden]
    several = [c for c in hidden if len(c.hidden) > 1]
    if not several:
        raise NothingToSay(
            "no round has two anonymous rows",
            code="too_few_clients",
            expected="at least 2 anonymous rows in a round",
            got=f"{max((len(c.hidden) for c in hidden), default=0)}",
            remedy="audit a federation with more clients",
        )
    usable = [c for c in several if _one_model(view, c.number)]
    if not usable:
        raise NotApplicable(
            "clients were sent different models",
            code="different_models",
            expected="one model for all clients of a round",
            got=f"{len(several)} rounds with several",
            remedy="a model of its own identifies a client without any attack: run the audit "
            "active_membership",
        )
    left = len(hidden) - len(usable)
    return usable, (f"{left} rounds were left out: one row, or several models",) if left else ()


def _one_model(view: View, number: int) -> bool:
    try:
        return one_model_for_all(view, number)
    except StopIteration:
        return True  # no model at all: `sent_models` says so


def _asked(
    view: View, usable: Sequence[RoundUpdates], candidates: Mapping[str, Candidates]
) -> tuple[tuple[str, ...], list[Indices]]:
    """All clients that may have sent a row, and by round the numbers of those that were asked.

    Those to which the server sent a model in that round and whose name is on no update; everyone
    where that is not recorded.
    """
    hubs = {*view.hubs, PUBLIC}
    each: list[list[str]] = []
    for c in usable:
        sent = [m.receiver for m in view.messages(c.number) if m.kind == "model"]
        named = set(c.named.values())
        each.append([r for r in dict.fromkeys(sent) if r not in hubs and r not in named])
    parties = tuple(dict.fromkeys([*candidates, *(r for own in each for r in own)]))
    number = {p: i for i, p in enumerate(parties)}
    return parties, [
        np.array(
            [number[r] for r in own] if len(own) >= len(c.hidden) else range(len(parties)),
            dtype=np.int64,
        )
        for own, c in zip(each, usable, strict=True)
    ]


def _pools(own: Sequence[Candidates], task: Task, draws: int, streams: Seed) -> Pools:
    return Pools(*pad_pools(own, task, draws, streams.generator("noise of scores")))


def _server_step(view: View, c: RoundUpdates, rows: Rows, models: Mapping[int, Rows]) -> float:
    """What a row is multiplied by to be a client's step: 1 unless clients send gradients.

    A gradient becomes a step by the server's rate, which the next model shows.
    """
    if "gradient" not in kinds_of(view, c.number, c.hidden):
        return 1.0
    after = models.get(c.number + 1)
    mean = rows.mean(axis=0)
    square = float(mean @ mean)
    if after is None or square == 0.0:
        return 1.0
    return abs(float((after - models[c.number]) @ mean)) / square or 1.0


def _shown(features: Features, rounds: int) -> list[Rows] | None:
    return features.units()[:rounds] if features.sketch_width is None else None


def _unheld(parties: Sequence[str], holders: Sequence[str]) -> tuple[str, ...]:
    left = len(parties) - len(holders)
    return (f"no records of {left} clients: they are named by exclusion alone",) if left else ()


def _read_off(view: View, outright: Mapping[tuple[int, int], str], hidden: int) -> NamedRows:
    """The answer if updates have names and the rest cannot be attacked."""
    return NamedRows(
        parties=tuple(dict.fromkeys(outright.values())),
        rounds=(),
        messages=(),
        asked=(),
        names={},
        posterior=(),
        trust=0.0,
        held={},
        so_far={},
        statistics={},
        holders=(),
        present=np.zeros((0, 0), dtype=bool),
        vantage=view.vantage,
        trace_sha256=view.trace_sha256,
        declared=view.declared,
        outright=outright,
        hidden=hidden,
    )
