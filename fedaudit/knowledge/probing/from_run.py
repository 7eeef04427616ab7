"""Build the games of a run: its records, its protections, and the records that take part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedaudit.accounting import Exposure
from fedaudit.arrays import Floats, Indices
from fedaudit.audits.active_membership import patterns
from fedaudit.audits.active_membership.adversary import own_patterns
from fedaudit.audits.active_membership.audit import ActiveMembership
from fedaudit.audits.active_membership.games import Universe
from fedaudit.audits.active_membership.patterns import Embedding
from fedaudit.data import prepare
from fedaudit.errors import ConfigError, DataError, NotApplicable, NothingToSay, count_of
from fedaudit.hooks import Hook
from fedaudit.knowledge.probing.embedding import embedding_of
from fedaudit.knowledge.probing.games import Games, clients_in, is_noisy, noise_by_place
from fedaudit.knowledge.probing.mechanisms import channel_of
from fedaudit.knowledge.probing.own_model import drowned, own_model
from fedaudit.knowledge.probing.protections import protections_of
from fedaudit.knowledge.probing.rows import RecordRows, numbers_of
from fedaudit.protections.local_dp.protection import LocalDP
from fedaudit.randomness import Seed

if TYPE_CHECKING:
    from fedaudit.knowledge import Records
    from fedaudit.setup.config import Config
    from fedaudit.trace import Trace


def build_games(
    audit: ActiveMembership, records: Records, trace: Trace, config: Config | None, seed: Seed
) -> Games:
    """The games of an audit with the clients of a run."""
    _need_server(config)
    task = records.task
    encoded = {party: task.encode(data) for party, data in records.own.items()}
    rows = RecordRows.of(task, [*encoded.values(), task.encode(records.others)])
    pool, label, owner = rows.pool, rows.label, rows.owner
    rng = seed.generator("games/universe")
    if len(pool) > audit.universe:
        kept = np.sort(rng.permutation(len(pool))[: audit.universe])
        pool, label, owner = pool[kept], label[kept], owner[kept]
    local, protections, remarks = protections_of(audit, config, trace, words=rows.words)
    remarks += rows.remarks
    plan = {} if config is None else config.data
    standardised = plan.get("standardise", prepare.is_table(records.others))
    if standardised and audit.local_dp is not None:
        remarks.append(
            "columns are standardised over all clients' records before the audit's own mechanism "
            "sees them: its budget does not count that"
        )
    universe = _universe(pool, local, standardised=standardised)
    given = embedding_of(audit, task, rows.shape, rows.words)
    training = None if config is None else config.training
    noise = noise_by_place(protections, clients_in(encoded))
    asked = audit.adversary == "own_model"
    why = drowned(training, noise, randomised=local is not None and not asked)
    if asked and training is not None and why:
        raise _noisy_uploads(why)
    inside = asked or (audit.adversary == "auto" and not why)
    if universe.merged:
        remarks.append(f"{universe.merged} records equal another after encoding and count once")
    if audit.adversary == "attention":
        askable = _with_own_pattern(audit, universe, rows, given)
        if len(askable) < len(universe):
            remarks.append(
                f"{count_of(len(universe) - len(askable), 'record')} without {_piece(rows)} of "
                "their own: not in the game"
            )
        universe = universe.restricted(askable)
    # indices of the parties' records in the universe: equal records share an index
    first_of, number = numbers_of(universe, pool)
    parties = {
        party: np.unique(number[(owner == i) & (number >= 0)]) for i, party in enumerate(encoded)
    }
    only_sums = any(p.only_sums for p in protections)
    noisy = is_noisy(noise)
    inner = None
    if inside:
        labels = label[first_of]
        try:
            inner = own_model(
                task, training, universe.features, labels, only_sums=only_sums, noisy=noisy
            )
        except NotApplicable as error:
            if asked:
                raise
            why = error.got or error.what
    return Games(
        audit=audit,
        universe=universe,
        raw=pool[first_of],
        labels=label[first_of],
        shape=rows.shape,
        words=rows.words,
        given=given,
        records=_records_per_client(audit, universe, parties),
        classes=max(2, int(label.max()) + 1),
        parties=parties,
        protections=protections,
        seed=seed,
        remarks=tuple(remarks),
        schedules=_schedules(config, protections, [len(own) for own in encoded.values()]),
        own_model=inner,
        training=None if inner is None else training,
        granted=why if audit.adversary == "auto" else "",
    )


def _need_server(config: Config | None) -> None:
    """Refuse federations in which no party sends models to all clients."""
    if config is not None and config.federation.aggregation == "gossip":
        raise NotApplicable(
            "no party sends models to all clients",
            code="no_server",
            expected="a server that can plant weights",
            got='aggregation = "gossip"',
            remedy='audit a federation with a server: aggregation = "fedavg"',
        )


def _noisy_uploads(why: str) -> NotApplicable:
    return NotApplicable(
        "nothing of ours can be planted in the run's own model",
        code="noisy_uploads",
        expected="records and uploads without noise, or DP-SGD",
        got=why,
        remedy='adversary = "fc": what a server could do if clients accept any architecture',
    )


def _schedules(
    config: Config | None, protections: Sequence[Hook], sizes: Sequence[int]
) -> tuple[Exposure, ...]:
    """Steps, rounds and sampling rate of clients with `sizes` records; empty without a config.

    A client that sits out some rounds counts as taking part in all of them.
    """
    if config is None:
        return ()
    training = config.training
    sampled = [p.sampling for p in protections if p.sampling is not None]
    poisson = (sampled[-1] if sampled else training.sampling) == "poisson"
    return tuple(
        Exposure(
            sampling_rate=training.expected_batch(n) / n if poisson else 1.0,
            steps=training.steps_for(n),
            rounds=config.federation.rounds,
        )
        for n in sizes
        if n
    )


def _universe(pool: Floats, local: LocalDP | None, *, standardised: bool) -> Universe:
    """The distinct records after encoding; an error names standardised columns as the cause."""
    try:
        return Universe.of(pool, channel_of(local, pool.shape[1]))
    except DataError as error:
        if not standardised:
            raise
        raise error.with_advice(
            "the columns of this run are standardised; data.standardise = false turns that off"
        ) from None


def _piece(rows: RecordRows) -> str:
    return "token" if rows.words else "patch"


def _with_own_pattern(
    audit: ActiveMembership, universe: Universe, rows: RecordRows, given: Embedding | None
) -> Indices:
    """Indices of records with a token or patch that no other record has."""
    if given is not None:
        cut, by_place = given.cut, given.tells_places_apart
    else:
        cut = patterns.cut_record(rows.shape, 1 if rows.words else audit.patch)
        by_place = bool(rows.words) or audit.embedding == "linear"
    own_pattern = own_patterns(universe.values[:, cut], by_place=by_place)
    found = np.array([i for i, own in enumerate(own_pattern) if own], dtype=np.int64)
    if len(found) < 2:
        raise NothingToSay(
            "too few records can be asked about",
            code="too_few_records",
            expected=f"records with a {_piece(rows)} that no other has",
            got=f"{len(found)} of {len(universe)}",
            remedy="a larger task.vocabulary_size, or leave embedding out"
            if rows.words
            else "give more records, or choose larger patches",
        )
    return found


def _records_per_client(
    audit: ActiveMembership, universe: Universe, parties: Mapping[str, Indices]
) -> int:
    """Records of a client in a game: from the audit, else the median of the run's clients."""
    sizes = [len(numbers) for numbers in parties.values()]
    n = audit.records or max(1, int(np.median(sizes)) if sizes else 1)
    if not 1 <= n < len(universe):
        raise ConfigError(
            "audits.active_membership.records does not fit the universe",
            expected=f"1 to {len(universe) - 1} records per client",
            got=str(n),
            remedy="ask for fewer records, or a larger universe",
        )
    return n
