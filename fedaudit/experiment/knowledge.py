"""What an adversary brings to an audit, and the answers that stay behind in the truth.

A membership audit asks, for every client, about records of two kinds that nothing but membership
tells apart: some that the client trained on, and as many that nobody trained on, matched one to one
by class (and by natural owner, where clients are owners). A record is asked about once: of a text
that gives several examples, one is drawn, since examples of one text are no independent evidence.
Without the matching an attack would score by telling one class from another.
"""

from __future__ import annotations

import math
import tomllib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedaudit.audits.audit import Candidates, Knowledge, Noise, columns_for
from fedaudit.errors import ConfigError, DataError, NotApplicable
from fedaudit.experiment.build import deal, fingerprint_of, load_data
from fedaudit.experiment.config import Config, load
from fedaudit.randomness import Seed
from fedaudit.stats import query_plans
from fedaudit.trace import (
    AGGREGATOR,
    ANONYMOUS,
    NETWORK,
    PUBLIC,
    SERVER,
    SHUFFLER,
    WIRETAP,
    Trace,
    Truth,
)
from fedaudit.trace.recorder import MODEL
from fedaudit.trace.truth import MembersOnly

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.data.dataset import Dataset
    from fedaudit.experiment.shadows import ShadowFederations
    from fedaudit.tasks.task import Examples, Task

Indices = npt.NDArray[np.int64]
Members = dict[str, npt.NDArray[np.bool_]]

NO_CLIENT = frozenset({SERVER, SHUFFLER, AGGREGATOR, ANONYMOUS, PUBLIC, NETWORK, WIRETAP})

RINGS = {"2^32": 32, "2^64": 64}
"""Moduli of a secure sum, as they are declared -> bits."""

MOST_DOUBLES = 0.2
"""Above this share of held-out records that somebody trained on, the file is the wrong one."""


@dataclass(frozen=True)
class Records:
    """Whose records are whose: `own` party -> what it trained on; `others` nobody's records.

    `inverted` parties see 1 - x. `owner` party -> the natural owner its records come from, where
    held-out records of that owner exist to match them with.
    """

    task: Task
    own: Mapping[str, Dataset]
    others: Dataset
    inverted: frozenset[str] = frozenset()
    owner: Mapping[str, str] = field(default_factory=dict)


def of_run(home: Path, trace: Trace, truth: Truth | None = None) -> Records:
    """The records of a run, loaded again as its private config says."""
    file = home / "truth" / "config.toml"
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise NotApplicable(
            "no records to ask about",
            expected=f"the config with its seed in {file}",
            got="no such file, or not TOML",
            remedy="give records with --data, and the model with --model",
        ) from None
    config = load({k: v for k, v in raw.items() if k != "audits"})
    return of_config(config, trace, truth)


def of_config(config: Config, trace: Trace, truth: Truth | None = None) -> Records:
    """The records of a config, dealt out as in its run; `truth` says whether they are the same."""
    seed = Seed(config.seed)
    try:
        train, test = load_data(config, seed)
    except DataError as error:
        # data that were moved are a missing need: other audits go on
        raise NotApplicable(
            f"the records of the run cannot be read: {error.what}",
            expected=error.expected,
            got=error.got,
            remedy="bring them back, or give records with --data",
        ) from None
    before = None if truth is None else truth.facts.get("data_sha256")
    if before is not None and before != fingerprint_of(train, test):
        raise NotApplicable(
            "the records are not those that the run trained on",
            expected="the data as they were when the run began",
            got="other records or labels",
            remedy="restore the data, or give records with --data",
        )
    dealt = deal(config, train, seed)
    task = config.task.build(train, seed)
    fits(task, trace)
    parties = trace.manifest.federation.get("clients", ())
    by_owner = config.partition["kind"] == "by_owner" and test.client is not None
    own = {p: dealt.parts.client_data(train, c) for c, p in enumerate(parties)}
    return Records(
        task=task,
        own=own,
        others=test,
        inverted=frozenset(p for c, p in enumerate(parties) if dealt.parts.inverted[c]),
        owner={p: str(dealt.parts.names[c]) for c, p in enumerate(parties)} if by_owner else {},
    )


def of_files(
    trace: Trace,
    data: str | Path,
    *,
    model: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Records:
    """Records for a trace that other software wrote.

    `data` is a file of records with a client column: a name of the trace marks what that client
    trained on, any other word marks a record of nobody (an empty cell is refused: it may be a
    mistake). `model` is "package.module:function" that builds the torch module.
    """
    from fedaudit.data import files
    from fedaudit.settings import check_arguments
    from fedaudit.tasks.catalogue import Module

    asked = dict(settings or {})
    dataset = files.read(data, **check_arguments(files.read, asked, "data"))
    if dataset.client is None:
        raise DataError(
            f"{data} does not say whose records these are",
            expected="a client column with the names of the trace's parties",
            got="no client column",
            remedy="name it with --client",
        )
    kind: Any = Module(factory=model) if model is not None else _declared_task(trace)
    task = kind.build(dataset, Seed(0))
    fits(task, trace)
    # a record of "public" or "server" is nobody's
    senders = set(trace.parties()) - {*trace.manifest.federation.get("hubs", ()), *NO_CLIENT}
    whose = np.array(dataset.client)
    own = {
        party: dataset.take(np.flatnonzero(whose == party))
        for party in dict.fromkeys(dataset.client)
        if party in senders
    }
    nobody = np.flatnonzero(~np.isin(whose, [*own]))
    if not own or not len(nobody):
        raise DataError(
            f"{data} has no records of {'clients' if not own else 'nobody'}",
            expected="records of the trace's parties, and records that none of them trained on",
            got=f"clients {', '.join(sorted(set(dataset.client))[:5])}; the trace has "
            f"{', '.join(sorted(senders)[:5])}",
            remedy="write the party's name in the client column, and 'held-out' for the others",
        )
    return Records(task=task, own=own, others=dataset.take(nobody))


def _declared_task(trace: Trace) -> Any:
    """The task that a manifest names, if fedaudit builds it.

    Never a module of somebody's own: a recording does not decide which code is run.
    """
    from fedaudit.settings import check
    from fedaudit.tasks.catalogue import CATALOGUE

    known = dict(trace.manifest.task)
    name = known.pop("kind", None)
    if name not in CATALOGUE or name == "module":
        raise ConfigError(
            "the model behind this trace is not known",
            expected="a task that fedaudit builds, named in the manifest",
            got=repr(name),
            remedy="name the function that builds the torch module: --model package.module:fn",
        )
    return check(CATALOGUE[name], known, "the manifest's task")


def fits(task: Task, trace: Trace) -> None:
    """Refuse a model whose tensors are not those that the trace recorded."""
    columns_for(task.layout, trace.layout)


def candidates(
    records: Records, per_client: int, seed: Seed
) -> tuple[dict[str, Candidates], Members, tuple[str, ...]]:
    """Members and non-members of every client, matched one to one, in random order; and notes."""
    import torch

    others, doubles = _strangers(records)
    rng = seed.generator("candidates")
    task = records.task
    theirs = _one_each(task.encode(others), rng)
    encoded = {party: _one_each(task.encode(data), rng) for party, data in records.own.items()}
    matched = _matched(
        {
            party: [(records.owner.get(party), label) for label in own.y.tolist()]
            for party, own in encoded.items()
        },
        _strata(others, theirs.record.numpy(), theirs.y.numpy(), records.owner),
        per_client,
        rng,
    )
    pools, members = {}, {}
    for party, (inside, outside) in matched.items():
        mine, none = encoded[party].take(torch.tensor(inside)), theirs.take(torch.tensor(outside))
        x_none = 1.0 - none.x if party in records.inverted else none.x
        order = torch.from_numpy(rng.permutation(2 * len(mine)))
        pools[party] = Candidates(
            torch.cat([mine.x, x_none])[order], torch.cat([mine.y, none.y])[order]
        )
        members[party] = (order < len(mine)).numpy()
    if not pools:
        raise NotApplicable(
            "no record of a client can be matched with one that nobody trained on",
            expected="held-out records of the clients' classes (and owners)",
            got=f"{len(theirs)} held-out records, none of a fitting class",
            remedy="hold out more records with data.test_fraction",
        )
    notes = [f"{doubles} held-out records that a client trained on too were left out"]
    left = [p for p in encoded if p not in pools]
    if left:
        notes.append(f"{len(left)} clients have no record that could be matched: not asked about")
    return pools, members, tuple(notes[0 if doubles else 1 :])


def _one_each(examples: Examples, rng: np.random.Generator) -> Examples:
    """One example of every record, drawn at random."""
    import torch

    order = rng.permutation(len(examples))
    _, first = np.unique(examples.record.numpy()[order], return_index=True)
    return examples if len(first) == len(order) else examples.take(torch.from_numpy(order[first]))


def _matched(
    wanted: Mapping[str, list[Any]],
    strata: Mapping[Any, Indices],
    per_client: int,
    rng: np.random.Generator,
) -> dict[str, tuple[list[int], list[int]]]:
    """Party -> numbers of its own examples, and as many of nobody's, of the same strata.

    `wanted` party -> stratum of each of its examples. Clients draw in turn, so that none takes all
    held-out records of a class, and each its own examples in random order, so that the classes
    asked about are those that it holds.
    """
    free = {key: rng.permutation(numbers).tolist() for key, numbers in strata.items()}
    queue = {party: rng.permutation(len(own)).tolist() for party, own in wanted.items()}
    out: dict[str, tuple[list[int], list[int]]] = {party: ([], []) for party in wanted}
    active = [str(party) for party in rng.permutation(sorted(wanted))]
    while active:
        still = []
        for party in active:
            inside, outside = out[party]
            while queue[party]:
                number = queue[party].pop()
                if others := free.get(wanted[party][number]):
                    inside.append(number)
                    outside.append(others.pop())
                    still.append(party)
                    break
        active = [party for party in still if len(out[party][0]) < per_client]
    return {party: pair for party, pair in out.items() if pair[0]}


def _strata(
    dataset: Dataset, record: Indices, y: Indices, owner: Mapping[str, str]
) -> dict[Any, Indices]:
    """(owner or None, class) -> numbers of the examples."""
    if owner and dataset.client is not None:
        whose: list[str | None] = [dataset.client[i] for i in record]
    else:
        whose = [None] * len(record)
    found = defaultdict(list)
    for i, key in enumerate(zip(whose, y.tolist(), strict=True)):
        found[key].append(i)
    return {k: np.array(v) for k, v in found.items()}


def _strangers(records: Records) -> tuple[Dataset, int]:
    """Held-out records that nobody trained on, and how many others were left out.

    A few doubles occur in honest data (a record typed twice) and are no non-members; where they
    are many, the wrong file was given.
    """

    def keys(data: Dataset, *, inverted: bool = False) -> list[Any]:
        if isinstance(data.x, tuple):
            return list(data.x)
        x = 1.0 - data.x if inverted else data.x
        # + 0.0: minus zero is zero
        flat = np.ascontiguousarray(x + np.float32(0)).reshape(len(data), -1)
        return [row.tobytes() for row in flat]

    trained: set[Any] = set()
    mirrored: set[Any] = set()
    for party, own in records.own.items():
        (mirrored if party in records.inverted else trained).update(keys(own))
    fresh = np.array([key not in trained for key in keys(records.others)])
    if mirrored:
        fresh &= [key not in mirrored for key in keys(records.others, inverted=True)]
    doubles = int((~fresh).sum())
    if doubles > MOST_DOUBLES * len(fresh):
        raise NotApplicable(
            "non-members overlap members",
            expected="held-out records that no client trained on",
            got=f"{doubles} of {len(fresh)} held-out records are also records of a client",
            remedy="hold out other records",
        )
    return records.others.take(np.flatnonzero(fresh)), doubles


def noise_of(
    trace: Trace, truth: Truth | None = None, config: Config | None = None
) -> Noise | None:
    """The noise that declared protections put on the mean over clients, and what rounding adds:
    of a secure sum's ring, and of a trace in half precision. None if there is none."""
    shares, present = _shares(trace)
    own: dict[str, float] = {}
    squared, rules, complete = 0.0, [], True
    for d in trace.manifest.declared:
        z, clip = d.get("noise_multiplier"), float(d.get("clip") or 0.0)
        name = d.get("name")
        if name == "secure_aggregation" and d.get("bound") and d.get("modulus") in RINGS:
            rules.append(_add_ring_rounding(own, d, present, _examples(trace, truth), config))
            continue
        if not z:
            continue
        if name == "central_dp":
            count = max(len(present), 1)
            squared += (float(z) * clip / count) ** 2
            rules.append(f"central_dp: {z:g} x {clip:g} / {count} clients")
        elif name == "update_noise":
            for party, share in shares.items():
                own[party] = math.hypot(own.get(party, 0.0), share * float(z) * clip)
            rules.append(f"update_noise: {z:g} x {clip:g} on every upload")
        elif name == "dp_sgd" and config is not None and _is_plain(config):
            many = list(z) if isinstance(z, list | tuple) else [float(z)] * len(shares)
            _add_training_noise(own, many, clip, shares, _examples(trace, truth), config)
            rules.append("dp_sgd: rate x multiplier x clip x sqrt(steps) / batch, to first order")
        else:
            complete = False
            rules.append(f"{name}: of unknown size")
    recorded = trace.manifest.layouts.get(MODEL)
    if recorded is not None and recorded.dtype == "float16" and len(trace.rounds):
        sent = _add_recorded_rounding(own, trace, shares)
        # both models of a step are rounded; noise is stated before the server's rate
        rate = 1.0 if config is None else float(config.federation.server_learning_rate)
        squared += 2.0 * (sent / rate) ** 2
        rules.append("quantisation: recorded in float16, rounding step / sqrt(12)")
    # who stays away adds no noise
    squared += sum(own.get(party, 0.0) ** 2 for party in present or own)
    if complete and squared == 0:
        return None
    return Noise(aggregate=math.sqrt(squared), own=own, rule="; ".join(rules), complete=complete)


def _shares(trace: Trace) -> tuple[dict[str, float], tuple[str, ...]]:
    """Party -> its share in the mean of a round it takes part in, and who did in the first.

    From the weights of the first round: the typical one for those who were not there, equal ones
    where they did not cross the wire.
    """
    parties = list(trace.manifest.federation.get("clients", ()))
    first = trace.messages(1) if len(trace.rounds) else ()
    seen = {m.sender: m.weight for m in first if m.sender in set(parties)}
    if not seen:
        seen = dict.fromkeys(parties, 1.0)
    total = sum(seen.values()) or 1.0
    typical = total / max(len(seen), 1)
    return {p: seen.get(p, typical) / total for p in parties}, tuple(seen)


def _add_ring_rounding(
    own: dict[str, float],
    declared: Mapping[str, Any],
    present: tuple[str, ...],
    sizes: Mapping[str, int],
    config: Config | None,
) -> str:
    """Rounding to whole numbers of a secure sum's ring, uniform within a step; the rule it follows.

    Every client rounds its update times its weight over the largest weight: in the mean that is
    the step times the largest share, whoever it is.
    """
    from fedaudit.protections.secure_aggregation.ring import Quantiser

    count = max(len(present), 1)
    step = Quantiser(float(declared["bound"]), count, RINGS[declared["modulus"]]).step
    largest = 1.0 / count
    if config is not None and config.federation.weighting == "size" and set(present) <= {*sizes}:
        weights = [sizes[party] for party in present]
        largest = max(weights) / sum(weights)
    for party in present:
        own[party] = math.hypot(own.get(party, 0.0), largest * step / math.sqrt(12.0))
    return f"quantisation: secure_aggregation in steps of {step:.3g}, step / sqrt(12) per client"


def _add_recorded_rounding(
    own: dict[str, float], trace: Trace, shares: Mapping[str, float]
) -> float:
    """Deviation that half precision puts on every client's part of the mean, from the rows of the
    first round; returns that on the model which was sent.

    Rounding is uniform within a step, which grows with the number.
    """
    block, messages = trace.block(1), [m for m in trace.messages(1) if MODEL in m.parts]

    def deviation(row: int) -> float:
        values = block[row][np.isfinite(block[row])]
        steps = np.spacing(np.abs(values)).astype(np.float64)
        return math.sqrt(float(np.square(steps).mean()) / 12.0) if len(steps) else 0.0

    hubs = {*trace.manifest.federation.get("hubs", ()), *NO_CLIENT}
    down = [m.parts[MODEL] for m in messages if m.kind == "model" and m.sender in hubs]
    sent = deviation(down[0]) if down else 0.0
    found: dict[str, float] = {}
    hidden = []
    for m in messages:
        if m.sender in hubs and m.sender != ANONYMOUS:
            continue
        # a model is read as the difference from the one that was sent
        size = math.hypot(deviation(m.parts[MODEL]), sent if m.kind == "model" else 0.0)
        if m.sender == ANONYMOUS:
            hidden.append(size)
        else:
            found[m.sender] = size
    if hidden and not found:
        # nobody knows whose row this is: the typical amount
        found = dict.fromkeys(shares, math.sqrt(float(np.square(hidden).mean())))
    for party, size in found.items():
        part = shares.get(party, 1.0 / len(found)) * size
        own[party] = math.hypot(own.get(party, 0.0), part)
    return sent


def _add_training_noise(
    own: dict[str, float],
    multipliers: list[float],
    clip: float,
    shares: Mapping[str, float],
    sizes: Mapping[str, int],
    config: Config,
) -> None:
    """Noise of DP-SGD in an update: independent steps add up, each divided by the batch."""
    training = replace(config.training, sampling="poisson")
    for (party, share), z in zip(shares.items(), multipliers, strict=True):
        n = sizes.get(party)
        if n is None:
            continue
        steps, batch = training.steps_for(n), training.expected_batch(n)
        std = training.learning_rate * z * clip * math.sqrt(steps) / batch
        own[party] = math.hypot(own.get(party, 0.0), share * std)


def _is_plain(config: Config) -> bool:
    """Whether local steps only add up: Adam and momentum reshape the noise."""
    return config.training.optimizer == "sgd" and not config.training.momentum


def _examples(trace: Trace, truth: Truth | None) -> dict[str, int]:
    """Party -> examples, from the truth, or as far as counts crossed the wire."""
    if truth is not None and truth.clients:
        return {p: int(c["examples"]) for p, c in truth.clients.items() if "examples" in c}
    return {
        m.sender: int(m.metadata["examples"])
        for m in trace.messages(1)
        if m.metadata and "examples" in m.metadata
    }


def logits_of(task: Task) -> Callable[[Tensor, Tensor], Tensor]:
    """Rows of models (M, d) and inputs (n, ...) -> logits (M, n, classes), stacked if it can be."""
    import torch

    from fedaudit.tasks.stacked import NotStackable, forward

    def logits(rows: Tensor, x: Tensor) -> Tensor:
        y = torch.zeros(len(x), dtype=torch.int64)
        with task.evaluating():
            try:
                out = forward(task.module, task.named(rows), x.expand(len(rows), *x.shape))
            except NotStackable:
                each = [task.output(task.named(row), x, y, None) for row in rows]
                out = torch.stack(each)
        found: Tensor = out
        return found

    return logits


class Desk:
    """Where audits of one trace ask for knowledge; each part is made once, when first needed."""

    def __init__(
        self,
        trace: Trace,
        truth: Truth | None,
        seed: Seed,
        load_records: Callable[[], Records] | None,
        config: Config | None = None,
    ) -> None:
        self._trace, self._truth, self._seed = trace, truth, seed
        self._load, self._config = load_records, config
        self._records: Records | None = None

    def knowledge_for(self, audit: Any) -> tuple[Knowledge, Truth | None]:
        """What this audit's adversary brings, and the truth that can answer it."""
        if not audit.needs:
            return Knowledge(), self._truth
        if "marks" in audit.needs:
            return self._marks(audit), self._truth
        if "games" in audit.needs:
            return self._games_for(audit)
        noise = noise_of(self._trace, self._truth, self._config)
        if "shadows" in audit.needs:
            return Knowledge(noise=noise, shadows=self._shadows_for(audit)), self._truth
        if "records" not in audit.needs:
            return Knowledge(noise=noise), self._truth
        records = self._asked()
        pools, members, notes = candidates(records, audit.records, self._seed)
        known = Knowledge(task=records.task, candidates=pools, noise=noise, notes=notes)
        # a file of records tells members even where nothing else of the truth is known
        truth = MembersOnly(members) if self._truth is None else self._truth.knowing(members)
        return known, truth

    def _asked(self) -> Records:
        """The records that audits ask about, loaded once."""
        if self._load is None:
            raise NotApplicable(
                "no records to ask about",
                expected="the records of a run, or a file of records",
                got="a trace alone",
                remedy="give records with --data, and the model with --model",
            )
        if self._records is None:
            self._records = self._load()
        return self._records

    def _games_for(self, audit: Any) -> tuple[Knowledge, Truth]:
        """Clients to play with, and the coins of the games."""
        from fedaudit.experiment import probing

        games = probing.table(audit, self._asked(), self._trace, self._config, self._seed)
        members = games.members
        truth = MembersOnly(members) if self._truth is None else self._truth.knowing(members)
        return Knowledge(extra={"games": games}), truth

    def _marks(self, audit: Any) -> Knowledge:
        """The corpus owner's keys, and the server's own notes: which pairs it drew, and weights."""
        from fedaudit.experiment.marks import plant

        config = self._config
        if config is None or config.marks is None:
            raise NotApplicable(
                "no keys to look for marks with",
                expected="a run with [marks], whose private config holds the owner's keys",
                got="a trace alone" if config is None else "a run without marks",
                remedy="plant marks: [marks] with clients and share",
            )
        seed = Seed(config.seed)
        try:
            train, test = load_data(config, seed)
        except DataError as error:
            raise NotApplicable(
                f"the owner's corpus cannot be read: {error.what}",
                expected=error.expected,
                got=error.got,
                remedy="bring the data of the run back",
            ) from None
        parties = self._trace.manifest.federation.get("clients", ())
        task = config.task.build(train, seed)
        fits(task, self._trace)
        planted = plant(config, task, train, test, len(parties), seed)
        assert planted is not None
        if not planted.keys:
            raise NotApplicable(
                "the owner has no keys to test",
                expected="marks.clients or marks.spare above 0",
                got="neither",
                remedy="with nobody marked set marks.spare = 3: keys that should name no one",
            )
        null_seed = self._seed.key("marks/null")
        extra: dict[str, Any] = {"marks": planted.family.desk(planted.keys, audit, null_seed)}
        if config.federation.weighting == "size":
            sizes = len(task.encode(train)) + len(planted.marked) * planted.records
            extra["mean_weight"] = sizes / len(parties)
        hook = config.protections.get("secure_aggregation")
        if hook is not None and hook.plan == "paired":
            extra["pairs"] = lambda number, count, first: query_plans.paired_plan(
                count,
                hook.size,
                hook.repeats,
                seed.generator("secure_aggregation/plan", number, first),
            )
        return Knowledge(task=task, extra=extra)

    def _shadows_for(self, audit: Any) -> ShadowFederations:
        """Federations of the adversary's own, after the run's config."""
        from fedaudit.experiment.shadows import of_run as shadows_of

        if self._config is None:
            raise NotApplicable(
                "no shadow federations can be trained",
                expected="a run of fedaudit, whose config says how clients train",
                got="a trace alone",
                remedy="run the federation with fedaudit, or rebuild it as a config first",
            )
        return shadows_of(
            self._config,
            self._trace,
            Seed(self._seed.key("shadows", audit.seed)),
            count=audit.shadows,
            vantage=audit.vantage,
            prior=audit.prior,
            protected=audit.protected,
            corpus=audit.corpus,
            data_sha256=None if self._truth is None else self._truth.facts.get("data_sha256"),
        )
