"""One battery over every audit of the catalogue, on every tiny federation.

A new audit is picked up from the catalogue. It needs a line in `TINY` if its defaults are slow.
"""

import functools
import hashlib
import inspect
import json
import math
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace

import numpy as np
import pytest

from fedaudit.audits import facts_of
from fedaudit.audits.audit import Knowledge
from fedaudit.audits.facts import base_name
from fedaudit.audits.planning import Aim, Recorded
from fedaudit.errors import FedauditError, NotApplicable, NotObservable
from fedaudit.hooks import PLACES, STATED
from fedaudit.layout import Layout
from fedaudit.randomness import Seed
from fedaudit.reporting.findings import judge, powerless
from fedaudit.results import AuditResult
from fedaudit.setup.catalogue import AUDITS, find
from fedaudit.study.auditing import audit_one
from fedaudit.trace import NETWORK, PUBLIC, SERVER, WIRETAP, MemoryRecorder, MemoryTruth

SEED = 1
TINY = {
    "active_membership": {
        "games": 60,
        "recorded": 10,
        "client_games": 0,
        "simulated": 60,
        "universe": 60,
        "records": 12,
    },
    "attribution": {"unused_keys": 299},
    "reconstruction": {"records": 8, "steps": 20, "matched_clients": 2},
    "epsilon": {"canaries": 200},
    "membership": {"records": 8, "shadows": 8},
    "topology_inference": {"shadows": 20},
    "two_stage_membership": {"records": 8},
}
READS_MODELS = {"membership"}
"""Audits that the released model alone can answer."""
UNMEASURED = ("nothing_to_say", "not_applicable")


def make(name, **settings):
    return find(AUDITS, "audit", name)(**{**TINY.get(name, {}), **settings})


@pytest.fixture(scope="session")
def result_of(played):
    """(audit, federation) -> the result, made once."""
    return functools.cache(lambda name, federation: played(federation).audited(make(name)))


def same_number(a, b):
    """Equal up to the order of summation."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    return a == b


def assert_same(a, b, where=""):
    """Equal plain data, numbers as by `same_number`; the message says where they differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        assert set(a) == set(b), where
        for key in a:
            assert_same(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, list) and isinstance(b, list):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{where}/{i}")
    else:
        assert same_number(a, b), f"{where}: {a!r} and {b!r}"


def numbers_of(result):
    """All numbers and facts of a result, without notes (they may list clients in order), settings
    and hashes."""
    raw = json.loads(result.to_json())
    for key in ("notes", "settings", "trace_sha256", "recording"):
        del raw[key]
    return raw


def seen(trace, parties):
    """Hash of a whole view: tables, payloads and public facts."""
    view, digest = trace.seen_by(*parties), hashlib.sha256()
    digest.update(repr((view.layouts, view.declared)).encode())
    for number in trace.rounds:
        digest.update(repr(view.messages(number)).encode())
        for layout in view.layouts:
            digest.update(np.ascontiguousarray(trace.block(number, layout)).tobytes())
    digest.update(json.dumps(trace.manifest.federation, sort_keys=True).encode())
    return digest.hexdigest()


@pytest.fixture(params=AUDITS)
def audit(request):
    return request.param


# -- the shape of an audit -------------------------------------------------------------------------


def test_attack_has_no_truth_and_score_has_no_view(audit):
    cls = find(AUDITS, "audit", audit)
    attack, score = (
        list(inspect.signature(getattr(cls, method)).parameters) for method in ("attack", "score")
    )
    assert attack == ["self", "view", "knowledge", "rng"]
    assert score == ["self", "guess", "truth", "rng"]


def test_an_audit_is_a_frozen_dataclass_with_its_facts(audit):
    made = make(audit)
    assert is_dataclass(made)
    assert all(f.kw_only for f in fields(made))
    with pytest.raises(FrozenInstanceError):
        made.vantage = "nobody"
    assert made.name == audit
    assert made.question
    assert made.source
    assert isinstance(made.needs, tuple)


def test_every_audit_measures_something_in_one_of_the_federations(audit, federations, result_of):
    results = {name: result_of(audit, name) for name in federations}
    assert "ok" in {r.status for r in results.values()}, "; ".join(
        f"{name}: {r.status}, {r.need}" for name, r in results.items()
    )


# -- invariants of every audit run -----------------------------------------------------------------


def test_a_result_states_its_status_and_what_is_missing(audit, federation, result_of):
    result = result_of(audit, federation)
    assert result.audit == audit
    assert result.status == "ok" or (result.status in UNMEASURED and result.need.code)
    assert (result.headline is not None) or result.status in UNMEASURED


def test_no_evidence_says_what_would_have_been_seen_and_nothing_to_say_that_nothing_would(
    audit, federation, result_of
):
    """Rule E3 and `power` rest on one number: whoever states no evidence states it, finite, and
    below the most that is possible (`powerless`); a run too small to show anything says so."""
    result = result_of(audit, federation)
    if result.headline is None:
        return
    verdict = judge(result)[-1].verdict
    exact = result.estimates[result.headline].confidence >= 1
    if verdict == "no_evidence":
        assert powerless(result) is None
        assert exact or (result.detectable is not None and math.isfinite(result.detectable))
    elif verdict == "nothing_to_say":
        assert powerless(result) is not None
        sizes = find(AUDITS, "audit", audit).samples(result, Recorded(rounds=2), Aim())
        assert sizes
        assert all(size.how for size in sizes)


def test_what_an_audit_states_is_what_it_declares(audit, federation, result_of):
    """Limits, tables and remedies go by declared names: a misspelt one would match nothing."""
    facts, result = facts_of(audit), result_of(audit, federation)
    assert {base_name(name) for name in result.estimates} <= {m.name for m in facts.measures}
    columns = {name for row in result.per_client.values() for name in row}
    assert [name for name in columns if not facts.column_words(base_name(name))] == []
    advice = [a for w in (facts.words, *facts.words_by_headline.values()) for a in w.advice]
    named = {fact for a in advice for fact in (*a.only, *a.unless)}
    assert named <= {*STATED, *(f"noise_at_{place}" for place in PLACES)}


def test_json_round_trip(audit, federation, result_of):
    result = result_of(audit, federation)
    assert AuditResult.from_json(result.to_json()) == result


def test_the_attack_leaves_the_view_and_the_global_generators_unchanged(audit, federation, played):
    import torch

    case, made = played(federation), make(audit)
    parties = made.vantage.split("+")
    before, state, torch_state = (
        seen(case.trace, parties),
        np.random.get_state(),
        torch.get_rng_state(),
    )
    case.audited(made)
    assert seen(case.trace, parties) == before
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), state, strict=True))
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_the_same_seed_gives_the_same_result(audit, federation, played, result_of):
    assert played(federation).audited(make(audit)) == result_of(audit, federation)


def test_renaming_clients_changes_labels_only(audit, federation, played, renamed, result_of):
    """The new names sort in the opposite order."""
    result, other = result_of(audit, federation), renamed(federation).audited(make(audit))
    before, after = (
        of(federation).trace.manifest.federation["clients"] for of in (played, renamed)
    )
    assert sorted(after) == after[::-1]
    new = dict(zip(before, after, strict=True))
    expected = numbers_of(result)
    expected["per_client"] = {new.get(k, k): v for k, v in expected["per_client"].items()}
    assert_same(expected, numbers_of(other))


# -- missing needs and narrow views ----------------------------------------------------------------


def test_a_trace_alone_gives_a_result_or_a_code(audit, federation, played, result_of):
    """Without records, config or keys: an audit that needs them states a code."""
    case, made = played(federation), make(audit)
    result = audit_one(made, case.trace, case.truth, SEED, case.bare())
    if made.needs:
        assert result.status == "not_applicable"
        assert result.need.code
    else:
        assert numbers_of(result) == numbers_of(result_of(audit, federation))


def test_an_attack_without_what_it_needs_states_a_code(audit, played):
    made = make(audit)
    if not made.needs:
        pytest.skip("this audit needs nothing but a view")
    view = played("plain").trace.seen_by(*made.vantage.split("+"))
    with pytest.raises(NotApplicable) as caught:
        made.attack(view, Knowledge(), Seed(SEED).generator("attack"))
    assert caught.value.code


def test_without_truth_a_guess_is_not_scored(audit, federation, played):
    case = played(federation)
    result = audit_one(make(audit), case.trace, None, SEED, case.builder())
    assert result.status in ("ok", "blind", *UNMEASURED)
    assert result.status == "ok" or result.need.code
    assert AuditResult.from_json(result.to_json()) == result


def test_a_trace_without_uploads_has_nothing_to_say(audit):
    layout = Layout.of([("0.weight", (2, 3))])
    about = {"hubs": [SERVER], "clients": ["a", "b"], "parties": [SERVER, "a", "b"]}
    trace = MemoryRecorder(layouts={"model": layout}, federation=about).trace()
    result = audit_one(make(audit), trace, MemoryTruth({}), SEED)
    assert result.status in UNMEASURED
    assert result.need.code


def test_the_public_sees_too_little(audit, federation, played):
    made = make(audit)
    if made.vantage == PUBLIC:
        pytest.skip("this audit asks what the public sees")
    case = played(federation)
    result = case.audited(replace(made, vantage=PUBLIC))
    if audit in READS_MODELS:
        assert result.status == "ok" or (result.status in UNMEASURED and result.need.code)
        return
    assert result.status == "not_applicable"
    assert result.need.code
    view = case.trace.seen_by(PUBLIC)
    try:
        knowledge, _ = case.builder().knowledge_for(made)
    except NotApplicable:
        return
    with pytest.raises((NotObservable, NotApplicable)):
        made.attack(view, knowledge, Seed(SEED).generator("attack"))


@pytest.mark.parametrize("vantage", [NETWORK, WIRETAP, SERVER, "client-00", "server+client-00"])
def test_no_vantage_ends_in_a_crash(audit, federation, vantage, played):
    try:
        result = played(federation).audited(replace(make(audit), vantage=vantage))
    except FedauditError:
        return  # refused, with what was expected
    assert result.status == "ok" or (result.status in UNMEASURED and result.need.code)
    assert AuditResult.from_json(result.to_json()) == result
