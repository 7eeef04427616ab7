"""Declared facts of audits: names, directions and words that other rooms rely on."""

import re

import pytest

from fedaudit.audits import AUDITS, facts_of
from fedaudit.audits.facts import GREATER, LESS, UNKNOWN, AuditFacts, base_name


@pytest.mark.parametrize("audit", AUDITS)
def test_measures_are_in_snake_case_and_said_in_words(audit):
    facts = facts_of(audit)
    names = [m.name for m in facts.measures]
    assert names
    assert len(set(names)) == len(names)
    for m in facts.measures:
        assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", m.name)
        assert m.worse in (GREATER, LESS, UNKNOWN)
        assert m.words
        assert m.unit


@pytest.mark.parametrize("audit", AUDITS)
def test_every_column_is_declared_once_and_said_in_words(audit):
    facts = facts_of(audit)
    names = [c.name for c in (*facts.columns, *facts.guess_columns)]
    assert len(set(names)) == len(names)
    for c in (*facts.columns, *facts.guess_columns):
        assert c.name.isidentifier(), "a key for programs: no spaces"
        assert c.words, c.name
        assert facts.column_words(c.name) == c.words


def test_columns_beside_a_value_are_said_in_words_for_every_audit():
    assert facts_of("fingerprint").column_words("epsilon (record)")
    assert all(AuditFacts().column_words(name) for name in ("low", "high", "chance"))
    assert AuditFacts().column_words("share") == ""


@pytest.mark.parametrize("audit", AUDITS)
def test_a_curve_has_one_drawing_with_the_columns_of_its_kind(audit):
    drawings = facts_of(audit).drawings
    assert len({d.curve for d in drawings}) == len(drawings)
    for d in drawings:
        assert len(d.axes) == {"lines": 0, "none": 0, "survival": 3}.get(d.kind, 2), d.curve
        assert facts_of(audit).drawing(d.curve) is d
    assert facts_of(audit).drawing("unknown") is None


@pytest.mark.parametrize("audit", AUDITS)
def test_a_decision_names_declared_measures_and_columns(audit):
    facts = facts_of(audit)
    decision = facts.decision
    columns = {decision.client_value, decision.sample_size, decision.strength}
    columns = {*columns, *(decision.client_counts or ())} - {""}
    for name in [*columns, *filter(None, decision.side_measures.values())]:
        assert facts.column(name) is not None, name
    differs = decision.headline_differs_with
    for name in [*decision.side_measures, *([differs] if differs else [])]:
        assert facts.measure(name) is not None, name
    assert set(facts.words.beside) == set(decision.side_measures)
    assert bool(facts.words.weak) == bool(decision.strength)


def test_a_qualifier_stands_in_brackets():
    assert base_name("explained (A1)") == "explained"
    assert base_name("auc (update_alone)") == "auc"
    assert base_name("explained") == "explained"
    assert base_name("explained (") == "explained ("
    assert base_name("explained ()") == "explained ()"


def test_an_audit_that_is_not_registered_has_the_defaults():
    assert facts_of("of one's own") == AuditFacts()
    assert AuditFacts().direction("anything") == UNKNOWN
