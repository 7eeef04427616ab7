"""A few hundred mutations of every kind of file, with a fixed seed: `make fuzz` runs 10,000."""

from collections import Counter
from random import Random

import pytest

from fuzz import campaign, mutate, targets

CASES = 300
SEED = 17


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("fuzz") / "corpus"
    campaign.prepared(root)
    return root


def test_no_mutation_ends_in_anything_but_an_error_of_ours(corpus):
    found = list(campaign.outcomes(corpus, SEED, range(CASES), workers=1))
    failed = [o for o in found if o.result not in campaign.HARMLESS or o.detail]
    assert not failed, failed[:3]
    assert len(found) == CASES
    assert {o.target for o in found} == set(targets.TARGETS)
    # most damage is seen, and whole files are not refused
    assert Counter(o.result for o in found)["refused"] > CASES / 2


def test_a_payload_that_was_changed_is_called_out(corpus, monkeypatch):
    """The fuzzer can see what it is there to see: a reader that does not compare hashes."""
    from fedaudit.trace import Trace

    monkeypatch.setattr(Trace, "verify", lambda self: None)
    name = "trace"
    whole = campaign.meanings(corpus)
    found = {campaign.run_case(corpus, SEED, case, name, whole).result for case in range(60)}
    assert "changed content accepted" in found


def test_an_uncaught_exception_and_a_hang_are_called_out(corpus, monkeypatch):
    def broken(folder):
        raise KeyError(str(folder))

    target = targets.Target("plans", targets.any_of("*.csv"), (broken,))
    monkeypatch.setitem(targets.TARGETS, "plan", target)
    assert campaign.run_case(corpus, SEED, 0, "plan", {}).result == "uncaught"

    def endless(folder):
        raise campaign.Hang

    target = targets.Target("plans", targets.any_of("*.csv"), (endless,))
    monkeypatch.setitem(targets.TARGETS, "plan", target)
    assert campaign.run_case(corpus, SEED, 0, "plan", {}).result == "hang"


def test_the_same_seed_makes_the_same_damage(tmp_path):
    made = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "x.json").write_text('{"a": [1, 2, {"b": "c"}], "d": 1.5}')
        for n in range(20):
            file = folder / "x.json"
            if file.is_file() and not file.is_symlink():
                mutate.mutate(file, [], Random(n))
        made.append(file.read_bytes() if file.is_file() else b"")
    assert made[0] == made[1]


def test_a_campaign_goes_on_where_it_was_stopped(tmp_path):
    file = tmp_path / "state.jsonl"
    state = campaign.State(file, 3, "code")
    state.add(campaign.Outcome(0, "plan", "flip", "refused"))
    assert [o.case for o in campaign.State(file, 3, "code").found] == [0]
    assert not campaign.State(file, 4, "code").found
