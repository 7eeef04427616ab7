"""A client's ledger: what persists across rounds, and a file that survives a kill."""

import subprocess
import sys
import time

import numpy as np
import pytest

from fedaudit.errors import IntegrityError, UsageError
from fedaudit.protections.secure_aggregation import (
    Budget,
    ClientLedger,
    LedgerUnwritten,
    QueryRefused,
)
from fedaudit.protections.secure_aggregation.ledger import (
    AnsweredQuery,
    _canonical,
    alone,
    guess_cosine,
)
from fedaudit.stats.plan_design import persistence_cosine
from fedaudit.stats.query_plans import random_partitions


def query(number, members, run=None, **more):
    return AnsweredQuery(round=number, run=run or f"{number}", members=tuple(members), **more)


def sums(plan):
    """The sums of each round of a plan (T, G, K)."""
    return [
        frozenset(tuple(int(c) for c in np.flatnonzero(row)) for row in round_) for round_ in plan
    ]


@pytest.mark.parametrize("persistence", [0.0, 0.5, 2 / 3, 1.0])
def test_the_cosine_is_that_of_the_plan_design(persistence):
    plan = random_partitions(10, 5, 6, np.random.default_rng(1))
    cycled = plan[[0, 1, 0, 2, 0, 1]]  # rounds alike count as their mean
    for p in (plan, cycled):
        expected = persistence_cosine(p, persistence, best=True)
        got = [guess_cosine(sums(p), c, persistence) for c in range(10)]
        assert np.allclose(got, expected, atol=1e-6)
    assert guess_cosine(sums(plan), 77, persistence) == 0.0


@pytest.mark.parametrize("count", [10, 20, 50])
def test_five_partitions_are_admitted_however_long_they_are_cycled(count):
    rng, everybody = np.random.default_rng(0), tuple(range(count))
    five = [tuple(r) for r in sums(random_partitions(count, 5, 5, rng))]
    fresh = [tuple(r) for r in sums(random_partitions(count, 5, 60, rng))]
    answered = []
    for plan in (five * 12, fresh):
        ledger = ClientLedger(0, threshold=5)
        for number, groups in enumerate(plan):
            try:
                ledger.admit(query(number, everybody, others=groups, final=True))
            except QueryRefused:
                break
        answered.append(len(ledger.entries))
    assert answered[0] == 60
    assert 5 <= answered[1] < 40


def test_sums_asked_for_one_by_one_are_the_plan_that_they_belong_to():
    rng = np.random.default_rng(0)
    five = [[tuple(range(10)), *sorted(r)] for r in sums(random_partitions(10, 5, 5, rng))]
    ledger = ClientLedger(0, threshold=5)
    for number in range(40):
        asked = five[number % 5]
        for at, members in enumerate(asked):
            if 0 in members:
                before = tuple(asked[:at])
                ledger.admit(query(number, members, run=f"{number} {at}", others=before))
    assert len(ledger.entries) == 80


def test_either_limit_admits_and_both_exceeded_refuse():
    def ledger(**settings):
        return ClientLedger(0, threshold=2, budget=Budget(**settings))

    many = ledger(max_cosine=0.75, max_partitions=2)
    for number, members in enumerate([(0, 1), (0, 2), (0, 1), (0, 2)]):
        many.admit(query(number, members))
    with pytest.raises(QueryRefused, match="budget"):
        many.admit(query(9, (0, 3)))
    high = ledger(max_cosine=1.0, max_partitions=0)
    for number in range(1, 9):
        high.admit(query(number, (0, number)))
    strict = ledger(max_cosine=0.75, max_partitions=0)
    strict.admit(query(1, (0, 1)))
    with pytest.raises(QueryRefused, match="budget"):
        strict.admit(query(2, (0, 2)))
    for wrong in ({"max_cosine": 0.0}, {"persistence": 2.0}, {"max_partitions": -1}):
        with pytest.raises(UsageError):
            Budget(**wrong)


def rounds_admitted(client, plan, rounds, **settings):
    """How many rounds of a plan (number -> members) a client agrees to."""
    ledger = ClientLedger(client, threshold=5, budget=Budget(**settings))
    for number in range(1, rounds + 1):
        if client not in plan(number):
            continue
        try:
            ledger.admit(query(number, plan(number)))
        except QueryRefused:
            return number - 1
    return rounds


def test_two_sums_in_turn_that_leave_a_client_alone_end_though_they_are_few():
    """All ten, then all but client 0, for ever: the difference is client 0, and its noise averages
    out. Client 0 is not asked every second time: the others must refuse in its place."""

    def in_turn(number):
        return tuple(range(number % 2, 10))

    assert guess_cosine(sums_of(in_turn, 200), 0, 2 / 3) > 0.9
    admitted = {rounds_admitted(c, in_turn, 200) for c in range(1, 10)}
    assert max(admitted) < 40
    assert guess_cosine(sums_of(in_turn, max(admitted)), 0, 2 / 3) <= 0.8
    # a pair stays a pair
    assert rounds_admitted(2, lambda number: tuple(range(2 * (number % 2), 10)), 200) == 200


def sums_of(plan, rounds):
    return [frozenset([plan(number)]) for number in range(1, rounds + 1)]


def test_an_adaptive_choice_of_sums_stays_below_the_limit():
    """The greedy adversary: of 40 random sums, each round the one that tells most of client 0."""
    rng = np.random.default_rng(0)
    ledger = ClientLedger(1, threshold=5, budget=Budget(max_partitions=0))
    known, refused = [], 0
    for number in range(1, 25):
        drawn = (tuple(np.flatnonzero(rng.random(10) < 0.6).tolist()) for _ in range(40))
        choices = {tuple(sorted({*m, 1})) for m in drawn}
        options = [m for m in choices if len(m) >= 5]
        best = max(options, key=lambda m: guess_cosine([*known, frozenset([m])], 0, 2 / 3))
        try:
            ledger.admit(query(number, best))
        except QueryRefused:
            refused += 1
            continue
        known.append(frozenset([best]))
        assert guess_cosine(known, 0, 2 / 3) <= 0.8
    assert refused > 0


def test_a_client_is_alone_exactly_if_its_update_follows_from_the_sums():
    """Against the row space by exact rank, over random plans."""
    rng, found = np.random.default_rng(3), 0
    for _ in range(60):
        table = (rng.random((rng.integers(1, 6), 6)) < 0.5).astype(int)
        table = table[table.any(axis=1)]
        rounds = [frozenset([tuple(np.flatnonzero(r).tolist())]) for r in table]
        rank = np.linalg.matrix_rank(table) if len(table) else 0
        expected = {
            c
            for c in range(6)
            if len(table) and np.linalg.matrix_rank(np.vstack([table, np.eye(6)[c]])) == rank
        }
        assert set(alone(_canonical(rounds)) if rounds else ()) == expected
        found += len(expected)
    assert found > 20


def test_the_file_is_read_again_and_a_torn_line_was_never_signed_for(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = ClientLedger(0, threshold=2, path=path)
    entries = [query(1, (0, 1, 2), others=((0, 1, 2, 3, 4),)), query(2, (0, 1, 2, 3), final=True)]
    for e in entries:
        ledger.admit(e)
    assert path.stat().st_mode & 0o077 == 0
    with path.open("ab") as file:
        file.write(b'{"round": 3, "ru')
    again = ClientLedger(0, threshold=2, path=path)
    assert again.entries == entries
    again.admit(query(3, (0, 1, 2)))
    assert len(ClientLedger(0, threshold=2, path=path).entries) == 3
    path.write_bytes(b"{}\n" + path.read_bytes())
    with pytest.raises(IntegrityError, match="ledger"):
        ClientLedger(0, threshold=2, path=path)


def test_a_query_is_admitted_once_and_a_second_list_in_its_run_is_not():
    ledger = ClientLedger(0, threshold=2)
    ledger.admit(query(1, (0, 1, 2)))
    ledger.admit(query(1, (0, 1, 2)))
    assert len(ledger.entries) == 1
    with pytest.raises(QueryRefused, match="same run"):
        ledger.admit(query(1, (0, 1)))
    with pytest.raises(QueryRefused, match="below the threshold"):
        ledger.admit(query(2, (0,)))


def test_two_processes_with_one_ledger_see_each_others_entries(tmp_path):
    """Two aggregators with one identity, each silent about the other's sums."""
    path = tmp_path / "ledger.jsonl"
    first, second = (ClientLedger(0, threshold=5, path=path) for _ in range(2))
    first.admit(query(1, range(10), run="a"))
    with pytest.raises(QueryRefused, match="does not list"):
        second.admit(query(1, (0, *range(2, 10)), run="b"))
    second.admit(query(2, range(10), run="c"))
    with pytest.raises(QueryRefused, match="earlier round"):
        first.admit(query(1, range(10), run="d"))
    again = ClientLedger(0, threshold=5, path=path)
    assert first.entries == second.entries == again.entries
    assert [e.run for e in again.entries] == ["a", "c"]


def test_a_line_that_a_full_disk_cut_is_dropped_by_the_same_process(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = ClientLedger(0, threshold=2, path=path)
    ledger.admit(query(1, (0, 1, 2)))
    with path.open("ab") as file:
        file.write(b'{"round": 2, "run": "half')
    ledger.admit(query(2, (0, 1, 2)))
    assert [e.round for e in ClientLedger(0, threshold=2, path=path).entries] == [1, 2]


@pytest.mark.parametrize("loss", ["deleted", "set back"])
def test_a_ledger_that_lost_entries_is_not_begun_anew_by_a_running_client(tmp_path, loss):
    path = tmp_path / "ledger.jsonl"
    ledger = ClientLedger(0, threshold=2, path=path)
    ledger.admit(query(1, (0, 1, 2)))
    old = path.read_bytes()
    ledger.admit(query(2, (0, 1, 2)))
    path.unlink() if loss == "deleted" else path.write_bytes(old)
    with pytest.raises((LedgerUnwritten, IntegrityError), match=r"cannot be opened|lost entries"):
        ledger.admit(query(3, (0, 1, 2)))
    assert not path.exists() or path.read_bytes() == old


def test_where_a_ledger_cannot_be_or_bounds_nothing_it_says_so(tmp_path):
    for path in (tmp_path, tmp_path / "none" / "ledger"):
        with pytest.raises(LedgerUnwritten, match="cannot be opened"):
            ClientLedger(0, threshold=2, path=path).admit(query(1, (0, 1, 2)))
    for threshold in (0, 1, "5", None):
        with pytest.raises(UsageError, match="threshold is out of range"):
            ClientLedger(0, threshold=threshold)


WRITER = """
import sys
from fedaudit.protections.secure_aggregation import ClientLedger
from fedaudit.protections.secure_aggregation.ledger import AnsweredQuery
ledger = ClientLedger(0, threshold=2, path=sys.argv[1])
start = len(ledger.entries)
for n in range(start, start + 100_000):
    ledger.admit(AnsweredQuery(round=n, run=str(n), members=tuple(range(400))))
    print(n, flush=True)  # the signature leaves the client
"""


def test_what_was_signed_before_a_kill_is_known_after_it(tmp_path):
    path, signed = tmp_path / "ledger.jsonl", -1
    for delay in (0.0, 0.003, 0.011):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        ) as process:
            signed = int(process.stdout.readline())
            time.sleep(delay)
            process.kill()
            signed = max([signed, *(int(n) for n in process.stdout if n.endswith("\n"))])
        known = [e.round for e in ClientLedger(0, threshold=2, path=path).entries]
        assert known == list(range(len(known)))
        assert len(known) in (signed + 1, signed + 2)  # written and not yet signed
