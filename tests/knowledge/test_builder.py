"""The builder hands out what an audit needs; runs are asked about their own records."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest

from fedaudit.audits.audit import Knowledge
from fedaudit.audits.two_stage_membership import TwoStageMembership
from fedaudit.errors import NotApplicable
from fedaudit.knowledge import (
    KnowledgeBuilder,
    of_run,
)
from fedaudit.randomness import Seed
from fedaudit.study import audit, run
from fedaudit.trace import Trace


def test_the_desk_hands_out_what_is_needed_and_keeps_the_answers(small):
    config, trace, truth, records = small
    loaded = []

    def load_records():
        loaded.append(1)
        return records

    builder = KnowledgeBuilder(trace, truth, Seed(1), load_records, config)
    plain = SimpleNamespace(needs=())
    assert builder.knowledge_for(plain) == (Knowledge(), truth)
    assert not loaded
    for most in (8, 4):
        known, answers = builder.knowledge_for(TwoStageMembership(records=most))
        assert {len(p) for p in known.candidates.values()} == {2 * most}
        assert {p: len(m) for p, m in answers.members.items()} == {
            p: len(c) for p, c in known.candidates.items()
        }
    assert len(loaded) == 1
    with pytest.raises(NotApplicable, match="no records to ask about"):
        KnowledgeBuilder(trace, truth, Seed(1), None).knowledge_for(TwoStageMembership())


@pytest.fixture(scope="module")
def csv_run(tmp_path_factory):
    """A run on a table of its own, with a membership audit."""
    folder = tmp_path_factory.mktemp("own")
    rng = np.random.default_rng(0)
    lines = [[*np.round(rng.normal(size=3), 4), int(rng.integers(2))] for _ in range(160)]
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c", "y"], *lines])
    config = {
        "data": {"path": str(folder / "table.csv"), "label": "y", "test_fraction": 0.5},
        "partition": {"kind": "iid"},
        "task": {"kind": "mlp", "hidden": [16]},
        "federation": {"clients": 4, "rounds": 2},
        "training": {"epochs": 30, "learning_rate": 0.5, "batch_size": 4},
        "audits": {"coverage": {}, "two_stage_membership": {"checked_rounds": 0}},
    }
    return folder, config, run(config, folder / "run")


def by_name(done):
    return {r.audit: r for r in done.results}


def test_a_run_audits_its_own_records(csv_run):
    folder, _, done = csv_run
    result = by_name(done)["two_stage_membership"]
    assert result.estimates["membership_auc"].value > 0.6
    assert "two_stage_membership" in (folder / "run" / "report.html").read_text()


def test_results_of_a_run_are_kept_and_done_again_for_other_settings(csv_run, tamper):
    folder, config, _ = csv_run
    tamper(folder / "run")
    assert by_name(run(config, folder / "run"))["two_stage_membership"].notes == ("kept",)
    other = config | {"audits": {"two_stage_membership": {"checked_rounds": 0, "sample": 8}}}
    assert by_name(run(other, folder / "run"))["two_stage_membership"].notes != ("kept",)


def test_what_if_the_run_had_been_summed_or_shuffled(csv_run):
    folder, _, _ = csv_run
    for hook, words in (("secure_sum", "not observable"), ("shuffle", "senders are hidden")):
        done = audit(folder / "run", ["two_stage_membership"], as_if=[hook])
        (result,) = done.results
        assert any(words in n for n in result.notes)


def test_data_that_changed_or_are_gone_are_a_missing_need(csv_run):
    folder, _, _ = csv_run
    file, other = folder / "table.csv", {"two_stage_membership": {"records": 8}}
    before = file.read_text()
    try:
        lines = before.splitlines()
        file.write_text("\n".join([lines[0], *reversed(lines[1:])]))
        (result,) = audit(folder / "run", other, out=folder / "changed").results
        assert result.need.code == "other_records"
        file.unlink()
        done = audit(folder / "run", {"coverage": {}, **other}, out=folder / "gone")
        found = by_name(done)
        assert found["two_stage_membership"].need.code == "unreadable_records"
        assert found["coverage"].status == "ok"
    finally:
        file.write_text(before)
    (result,) = audit(folder / "run", other, out=folder / "back").results
    assert result.status == "ok"


def test_without_its_private_config_a_run_has_no_records(csv_run, tmp_path):
    trace = Trace.open(csv_run[0] / "run" / "trace")
    with pytest.raises(NotApplicable, match="no records to ask about") as error:
        of_run(tmp_path, trace)
    assert "`data`" in error.value.remedy
