"""Calibration: every audit has designs, labels without a leak say nothing, and the page's figures
are those of the stored rows."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedaudit.setup.catalogue import AUDITS
from fedaudit.stats.intervals import clopper_pearson
from fedaudit.trace import MemoryTruth
from reproductions.calibration import designs, experiments, page, run


def rows(alarms, n, value=0.5, low=0.4, high=0.6):
    one = {"status": "ok", "rules": ["E1"], "level": 0.025, "confidence": 0.95}
    return [
        {**one, "federation": i, "alarm": i < alarms, "value": value, "low": low, "high": high}
        for i in range(n)
    ]


def stored(audit, null, leak, again=()):
    pair = designs.design_for(audit)
    parts = (
        ("null", pair.without, null),
        ("leak", pair.with_leak, leak),
        ("again", pair.with_leak, again),
    )
    return {
        f"{audit}/{name}/0000": {"date": "2026-01-02", "design": design.digest, "rows": own}
        for name, design, own in parts
        if own
    }


def test_every_audit_has_both_designs_and_a_row():
    asked = {(p.audit, p.kind) for p in experiments.pieces()}
    assert set(AUDITS) <= set(designs.rows())
    both = {(row, kind) for row in designs.rows() for kind in ("null", "leak")}
    unknown = {r for r in designs.rows() if designs.design_for(r).with_leak.true is None}
    assert asked == both | {(row, "again") for row in unknown}
    for audit in designs.rows():
        assert f"| {audit} | not measured yet" in page.render({})
    # one that is added without designs of its own gets the common ones
    assert designs.design_for("another").without.labels == "redealt"


def test_labels_dealt_out_again_say_nothing_of_the_rows():
    names = [f"client-{i}" for i in range(6)]
    truth = MemoryTruth({"clients": {n: {"classes": [i, 6 - i]} for i, n in enumerate(names)}})
    for number in range(1, 201):
        truth.round(number, dict(enumerate(names)), np.zeros((6, 2), np.float32), names)
    dealt = designs.redealt(truth, np.random.default_rng(0))
    hits = np.mean([dealt.senders(t)[0] == "client-0" for t in range(1, 201)])
    assert hits == pytest.approx(1 / 6, abs=0.1)
    for number in (1, 200):
        assert sorted(dealt.senders(number).values()) == names
    assert sorted(c["classes"][0] for c in dealt.clients.values()) == list(range(6))
    assert truth.senders(1) == dict(enumerate(names))


def test_the_page_states_exact_rates_and_names_what_is_beyond_its_level():
    text = page.render(stored("fingerprint", rows(30, 200), rows(150, 200)))
    e = clopper_pearson(30, 200)
    assert f"15.0 % [{100 * e.low:.1f}, {100 * e.high:.1f}] (at most 2.5 %)" in text
    assert "75.0 %" in text
    assert "fingerprint: more false alarms than stated" in text
    assert "2026-01-02" in text
    calm = page.render(stored("fingerprint", rows(4, 200), rows(150, 200)))
    assert "more false alarms" not in calm


def test_intervals_are_held_against_the_same_federation_trained_again():
    """Two federations that differ: their own means are covered, the mean of both is not."""
    low, high = rows(0, 10, 0.3, 0.2, 0.4), rows(0, 10, 0.9, 0.85, 0.95)
    apart = [{**r, "federation": f} for f, own in enumerate((low, high)) for r in own]
    text = page.render(stored("fingerprint", rows(0, 200), apart, apart))
    assert "100.0 % [83.2, 100.0] (stated 95 %) | 200 and 2 (20), 20 |" in text
    assert "contains the mean of all federations of the design in 0.0 % [0.0, 16.8]" in text
    assert "cover less often" not in text
    # one training of four lies elsewhere: its interval misses what the others give
    missed = rows(0, 150, high=0.62) + rows(0, 50, value=0.9, low=0.85, high=0.95)
    again = [{**r, "federation": 0} for r in missed]
    text = page.render(stored("fingerprint", rows(0, 200), missed, again))
    assert "75.0 % [68.4, 80.8] (stated 95 %)" in text
    assert "**fingerprint, with a leak: intervals cover less often than they state.**" in text


def test_a_federation_that_is_trained_again_has_the_same_records_and_other_randomness():
    leak = designs.design_for("fingerprint").with_leak
    first, again, other = (
        designs.play("fingerprint", leak, number, run)[0]
        for number, run in ((7, 1), (7, 2), (7, 1))
    )
    assert first.to_json() == other.to_json()
    assert first.estimates != again.estimates
    assert set(first.per_client) == set(again.per_client)


def test_a_block_is_played_once_and_measured_anew_when_its_design_changes(tmp_path):
    asked = ["--quick", "--only", "coverage", "query_plan", "--out", str(tmp_path)]
    assert run.main(asked) == 0
    kept = json.loads((tmp_path / "calibration.json").read_text())["measured"]
    assert [r["alarm"] for r in kept["coverage/null/0000"]["rows"]] == [False] * 3
    assert [r["alarm"] for r in kept["coverage/leak/0000"]["rows"]] == [True] * 3
    assert [r["value"] for r in kept["query_plan/leak/0000"]["rows"]] == [1.0] * 3
    assert experiments.current(kept) == kept
    changed = {**kept, "coverage/null/0000": {**kept["coverage/null/0000"], "design": "another"}}
    assert set(kept) - set(experiments.current(changed)) == {"coverage/null/0000"}


def test_a_digest_follows_what_is_measured_and_not_the_words():
    base = designs.design_for("epsilon").without
    assert replace(base, words="in other words").digest == base.digest
    changes = (
        {"noise": 0.9},
        {"settings": {"canaries": 10}},
        {"labels": "redealt"},
        {"records": "unseen"},
        {"config": {}},
    )
    assert len({base.digest, *(replace(base, **c).digest for c in changes)}) == 1 + len(changes)


def test_deals_of_one_federation_count_as_tests_and_not_as_federations():
    dealt = [{**r, "federation": i // 10} for i, r in enumerate(rows(20, 1000))]
    text = page.render(stored("fingerprint", dealt, rows(150, 200), rows(0, 200)))
    assert "| 100 (1,000) and 200, 200 |" in text
    assert "2.0 % [1.2, 3.1] (at most 2.5 %)" in text
    assert "fingerprint rests on fewer" not in text
    few = page.render(stored("fingerprint", dealt[:500], rows(20, 100)))
    assert "fingerprint rests on fewer federations than meant: 50 (500) of 200, 100 of 200" in few
    assert "0 of 200 trainings for the coverage" in few


def test_labels_are_dealt_several_times_to_one_attack():
    pair = designs.design_for("topology_inference")
    few = replace(pair.without, deals=4, settings={**pair.without.settings, "shadows": 10})
    found = designs.play("topology_inference", few, 7)
    assert len(found) == 4
    assert all(r.audit == "topology_inference" for r in found)
    guesses = {tuple(c["guess (A1)"] for c in r.per_client.values()) for r in found}
    shares = [tuple(c["p"] for c in r.per_client.values()) for r in found]
    assert len(guesses) == 1
    assert len(set(shares)) > 1
    assert {tuple(sorted(p)) for p in shares} == {tuple(sorted(shares[0]))}
    assert len(designs.play("coverage", designs.design_for("coverage").without, 7)) == 1


def test_coverage_over_trainings_is_that_of_the_interval():
    """Normal values with intervals of exactly 95 %: the mean of the others costs nothing."""
    rng = np.random.default_rng(0)
    federation = np.repeat(np.arange(600), 10)
    values = rng.normal(size=600)[federation] + 0.1 * rng.normal(size=len(federation))
    own = [
        {"federation": int(f), "value": v, "low": v - 0.196, "high": v + 0.196, "rules": []}
        for f, v in zip(federation, values, strict=True)
    ]
    rates = page.Rates(designs.design_for("fingerprint").with_leak, own, [])
    held, n = rates.covered(again=True)
    assert held / n == pytest.approx(0.95, abs=0.01)
    assert rates.covered()[0] / n < 0.3
