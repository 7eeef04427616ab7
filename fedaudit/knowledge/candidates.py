"""Candidate records of a membership audit: members and non-members that differ in nothing else.

For every client, a membership audit asks about records that the client trained on and about equally
many that nobody trained on. They are matched one to one by class (and by natural owner, if clients
are owners): without matching, an attack would score by telling classes apart. Each record is asked
about once. If a text yields several examples, one is drawn, since examples of one text are not
independent evidence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fedaudit.arrays import Indices
from fedaudit.audits.audit import Candidates
from fedaudit.errors import NotApplicable, NothingToSay, count_of
from fedaudit.knowledge.records import Records
from fedaudit.randomness import Seed

if TYPE_CHECKING:
    from fedaudit.data.dataset import Dataset
    from fedaudit.tasks.task import Examples

Members = dict[str, npt.NDArray[np.bool_]]

MOST_DOUBLES = 0.2
"""Above this share of held-out records that a client trained on, the file is the wrong one."""


def candidates(
    records: Records, per_client: int, seed: Seed
) -> tuple[dict[str, Candidates], Members, tuple[str, ...]]:
    """Matched members and non-members of every client in random order, who is a member, notes."""
    pools, _, members, notes = candidates_and_enrolled(records, per_client, 0, seed)
    return pools, members, notes


def candidates_and_enrolled(
    records: Records, per_client: int, enrolled: int, seed: Seed
) -> tuple[dict[str, Candidates], dict[str, Candidates], Members, tuple[str, ...]]:
    """`candidates`, with enrolled records besides.

    The second mapping has up to `enrolled` further records of every client, which the adversary
    knows to be the client's.
    """

    others, doubles = _non_members(records)
    rng = seed.generator("candidates")
    task = records.task
    theirs = _one_per_record(task.encode(others), rng)
    encoded = {
        party: _one_per_record(task.encode(data), rng) for party, data in records.own.items()
    }
    matched, spare = _matched(
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
        raise NothingToSay(
            "no record of a client can be matched with one that nobody trained on",
            code="no_matched_records",
            expected="held-out records of the clients' classes (and owners)",
            got=f"{len(theirs)} held-out records, none of a fitting class",
            remedy="hold out more records with data.test_fraction",
        )
    notes = [f"left out {doubles} held-out records that a client also trained on"]
    known = {
        party: Candidates(own.x, own.y)
        for party, rows in spare.items()
        if rows and enrolled
        for own in [encoded[party].take(torch.tensor(rows[:enrolled]))]
    }
    left = [p for p in encoded if p not in pools]
    if left:
        who = count_of(len(left), "client")
        notes.append(f"not asked about: {who} without a record that can be matched")
    return pools, known, members, (*records.notes, *notes[0 if doubles else 1 :])


def halves(records: Records, seed: Seed) -> tuple[Records, Records]:
    """The held-out records in two halves, each class (and owner) in both: for candidates, and for
    an adversary of its own."""
    others = records.others
    whose = others.client if records.owner and others.client is not None else ("",) * len(others)
    rng = seed.generator("candidates/halves")
    _, stratum = np.unique(
        np.unique(whose, return_inverse=True)[1] * (int(others.y.max()) + 1) + others.y,
        return_inverse=True,
    )
    order = rng.permutation(len(others))
    order = order[np.argsort(stratum[order], kind="stable")]
    first, second = (others.take(np.sort(order[start::2])) for start in (0, 1))
    return replace(records, others=first), replace(records, others=second)


def population(records: Records, most: int, seed: Seed) -> Candidates:
    """At most `most` held-out records, one example each, as a sample of the population."""

    rng = seed.generator("population")
    own = _one_per_record(records.task.encode(records.others), rng)
    own = own.take(torch.from_numpy(rng.permutation(len(own))[:most]))
    return Candidates(own.x, own.y)


def _one_per_record(examples: Examples, rng: np.random.Generator) -> Examples:
    """One example of every record, drawn at random."""

    order = rng.permutation(len(examples))
    _, first = np.unique(examples.record.numpy()[order], return_index=True)
    return examples if len(first) == len(order) else examples.take(torch.from_numpy(order[first]))


def _matched(
    wanted: Mapping[str, list[Any]],
    strata: Mapping[Any, Indices],
    per_client: int,
    rng: np.random.Generator,
) -> tuple[dict[str, tuple[list[int], list[int]]], dict[str, list[int]]]:
    """Party -> indices of its own examples and of as many non-members in the same strata; and
    party -> its own examples that are in no such pair, in random order.

    `wanted`: party -> stratum of each of its examples. Clients draw in turn, so that no client
    takes all held-out records of a class. Each draws its own examples in random order, so that the
    candidates have the client's class mix.
    """
    free = {key: rng.permutation(numbers).tolist() for key, numbers in strata.items()}
    queue = {party: rng.permutation(len(own)).tolist() for party, own in wanted.items()}
    out: dict[str, tuple[list[int], list[int]]] = {party: ([], []) for party in wanted}
    active = [str(party) for party in rng.permutation(list(wanted))]
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
    return {party: pair for party, pair in out.items() if pair[0]}, queue


def _strata(
    dataset: Dataset, record: Indices, y: Indices, owner: Mapping[str, str]
) -> dict[Any, Indices]:
    """(owner or None, class) -> indices of the examples."""
    if owner and dataset.client is not None:
        whose: list[str | None] = [dataset.client[i] for i in record]
    else:
        whose = [None] * len(record)
    found = defaultdict(list)
    for i, key in enumerate(zip(whose, y.tolist(), strict=True)):
        found[key].append(i)
    return {k: np.array(v) for k, v in found.items()}


def _non_members(records: Records) -> tuple[Dataset, int]:
    """Held-out records that nobody trained on, and the number of those left out.

    Honest data contain a few duplicates (a record typed twice); these are not non-members. Many
    duplicates mean that the user gave the wrong file.
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
            code="overlapping_records",
            expected="held-out records that no client trained on",
            got=f"{doubles} of {len(fresh)} held-out records are also records of a client",
            remedy="hold out other records",
        )
    return records.others.take(np.flatnonzero(fresh)), doubles
