"""From a run to a table: whose records, behind which protections, and which of them take part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedaudit.audits.active_membership import patterns
from fedaudit.audits.active_membership.adversary import own_patterns
from fedaudit.audits.active_membership.audit import ActiveMembership
from fedaudit.audits.active_membership.games import Universe
from fedaudit.data import prepare
from fedaudit.errors import ConfigError, DataError, NotApplicable, NothingToSay
from fedaudit.knowledge.probing.embedding import embedding_of
from fedaudit.knowledge.probing.games import Games
from fedaudit.knowledge.probing.mechanisms import channel_of
from fedaudit.knowledge.probing.protections import protections_of
from fedaudit.knowledge.probing.rows import Dealing, numbers_of
from fedaudit.randomness import Seed

if TYPE_CHECKING:
    from fedaudit.knowledge import Records
    from fedaudit.setup.config import Config
    from fedaudit.trace import Trace


def table(
    audit: ActiveMembership, records: Records, trace: Trace, config: Config | None, seed: Seed
) -> Games:
    """Everything that is needed to play games with the clients of a run."""
    if config is not None and config.federation.aggregation == "gossip":
        raise NotApplicable(
            "nobody sends models to all clients",
            code="no_server",
            expected="a server that can plant weights",
            got='aggregation = "gossip"',
            remedy='audit a federation with a server: aggregation = "fedavg"',
        )
    task = records.task
    encoded = {party: task.encode(data) for party, data in records.own.items()}
    dealt = Dealing.of(task, [*encoded.values(), task.encode(records.others)])
    pool, label, owner = dealt.pool, dealt.label, dealt.owner
    rng = seed.generator("games/universe")
    if len(pool) > audit.universe:
        kept = np.sort(rng.permutation(len(pool))[: audit.universe])
        pool, label, owner = pool[kept], label[kept], owner[kept]
    local, protections, remarks = protections_of(audit, config, trace, words=dealt.words)
    remarks += dealt.remarks
    plan = {} if config is None else config.data
    standardised = plan.get("standardise", prepare.is_table(records.others))
    if standardised and audit.local_dp is not None:
        remarks.append(
            "columns are standardised by all clients' records before the audit's own mechanism "
            "sees them: its budget does not count that"
        )
    try:
        universe = Universe.of(pool, channel_of(local, pool.shape[1]))
    except DataError as error:
        if not standardised:
            raise
        raise error.with_advice(
            "the columns of this run are standardised, which data.standardise = false switches off"
        ) from None
    shape = dealt.shape
    given = embedding_of(audit, task, shape, dealt.words)
    if universe.merged:
        remarks.append(f"{universe.merged} records equal another after encoding, and count once")
    if audit.adversary == "attention":
        if given is not None:
            cut, placed = given.cut, given.placed
        else:
            cut = patterns.cut_record(shape, 1 if dealt.words else audit.patch)
            placed = bool(dealt.words) or audit.embedding == "linear"
        free = own_patterns(universe.values[:, cut], placed=placed)
        rows = np.array([i for i, own in enumerate(free) if own], dtype=np.int64)
        if len(rows) < len(universe):
            what = "token" if dealt.words else "patch"
            remarks.append(
                f"{len(universe) - len(rows)} records have no {what} of their own, and take no part"
            )
        if len(rows) < 2:
            raise NothingToSay(
                "too few records can be asked about",
                code="too_few_records",
                expected=f"records with a {what} that no other has",
                got=f"{len(rows)} of {len(universe)}",
                remedy="a larger task.vocabulary_size, or leave embedding out"
                if dealt.words
                else "give more records, or choose larger patches",
            )
        universe = universe.restricted(rows)
    # numbers of the parties' records: those that are equal to others share a number
    first_of, number = numbers_of(universe, pool)
    parties = {
        party: np.unique(number[(owner == i) & (number >= 0)]) for i, party in enumerate(encoded)
    }
    sizes = [len(rows) for rows in parties.values()]
    n = audit.records or max(1, int(np.median(sizes)) if sizes else 1)
    if not 1 <= n < len(universe):
        raise ConfigError(
            "audits.active_membership.records does not fit the universe",
            expected=f"1 to {len(universe) - 1} records per client",
            got=str(n),
            remedy="ask for fewer records, or a larger universe",
        )
    return Games(
        audit=audit,
        universe=universe,
        raw=pool[first_of],
        labels=label[first_of],
        shape=shape,
        words=dealt.words,
        given=given,
        records=n,
        classes=max(2, int(label.max()) + 1),
        parties=parties,
        protections=protections,
        seed=seed,
        remarks=tuple(remarks),
    )
