"""Renamed clients: in all texts, as whole tokens, and nothing else."""

import dataclasses
import json
import math

import pytest

from fedaudit.reporting.chapter import Chapter
from fedaudit.reporting.findings import judge_all
from fedaudit.reporting.machine import machine
from fedaudit.reporting.markdown import markdown
from fedaudit.reporting.names import Renaming, pseudonyms, renamed
from fedaudit.reporting.page import page
from fedaudit.results import AuditResult, Estimate, Need

HOSPITALS = ("St. Mary Hospital", "St. Mary", "Klinikum (Nord)", "7", "b")


def hidden(text, clients=HOSPITALS):
    return Renaming(pseudonyms(clients)).text(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("St. Mary Hospital", "client 1"),
        ("named: St. Mary Hospital, St. Mary", "named: client 1, client 2"),
        ("of Klinikum (Nord)'s records", "of client 3's records"),
        ("St. Marying", "St. Marying"),
        ("Klinikum (Nord)ost", "Klinikum (Nord)ost"),
        # a bare number or letter is a client only where it is said to be one
        ("7", "client 4"),
        ("7 of 20 links in round 7", "7 of 20 links in round 7"),
        ("named: 7", "named: client 4"),
        ("site 7 and client 7", "site client 4 and client 4"),
        ("'7' and \"b\"", "'client 4' and \"client 5\""),
        ("b", "client 5"),
        ("plan b", "plan b"),
    ],
)
def test_names_are_replaced_as_whole_tokens(text, shown):
    assert hidden(text) == shown


SHORT = ("UK", "FR", "DE", "7", "20", "St. Mary")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("clients UK, FR and DE", "clients client 1, client 2 and client 3"),
        ("sites UK, FR, and 7 agree", "sites client 1, client 2, and client 4 agree"),
        ("named: UK, St. Mary, 20", "named: client 1, client 6, client 5"),
        ("2 clients: 7, 20", "2 clients: client 4, client 5"),
        ("1 clients: 7", "1 clients: client 4"),
        ("{UK, FR, DE} (3)", "{client 1, client 2, client 3} (3)"),
        ("{UK, St. Mary, ...}; {7}", "{client 1, client 6, ...}; {client 4}"),
        ("without the edge UK - FR", "without the edge client 1 - client 2"),
        ("edge 7 - St. Mary", "edge client 4 - client 6"),
        ("combination is UK, 7 and 20 more", "combination is client 1, client 4 and 20 more"),
        ("combination is 7", "combination is client 4"),
        # numbers that count something stay
        ("client 7, 20 links", "client 4, 20 links"),
        ("clients UK, FR and 7 more", "clients client 1, client 2 and 7 more"),
        ("per clients: 7 of 20", "per clients: 7 of 20"),
        ("nodes UKs, DE", "nodes UKs, DE"),
        ("{a, b}, 7 - 20, FR", "{a, b}, 7 - 20, FR"),
    ],
)  # fmt: skip
def test_short_names_are_replaced_throughout_a_list(text, shown):
    assert hidden(text, SHORT) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("client-03", "client 2"),
        ("named: client-03, client-031", "named: client 2, client 3"),
        ("client-03-b and my-client-03", "client-03-b and my-client-03"),
        ("client-03: client-00.", "client 2: client 1."),
        ("client-030", "client-030"),
    ],
)
def test_the_names_of_built_in_federations(text, shown):
    assert hidden(text, ("client-00", "client-03", "client-031")) == shown


def test_a_name_that_is_anothers_pseudonym_is_not_renamed_twice():
    assert hidden("client 2, client 1", ("client 2", "client 1")) == "client 1, client 2"


def chapter(name="Heliodor Clinic", other="Brixen Ward"):
    e = Estimate(value=0.7, low=0.5, high=math.inf, n=20, baseline=0.1, method=f"over {name}")
    row = AuditResult(
        audit="fingerprint",
        question=f"Is it {name}?",
        vantage=name,
        settings={"who": name, "many": [name, other], name: 1},
        headline="s",
        estimates={"s": e},
        per_client={name: {"share": 0.5, "low": 0.1, "high": 0.8}, other: {"next": name}},
        curves={f"of {name}": {"round": (1, 2), name: (0.1, 0.2), other: (1, 2)}},
        notes=(f"named: {name}, {other}",),
        source="x",
    )
    need = Need(code="gone", what=f"no {other}", remedy=f"ask {name}")
    gone = AuditResult(
        audit="coverage", question="?", vantage="v", status="not_applicable", need=need
    )
    return Chapter(
        federation="wards",
        summary={"federation": f"2 clients: {name}, {other}"},
        findings=judge_all([row, gone]),
        results=[row, gone],
        guarantees={"dp_sgd": {name: {"epsilon": "inf", "covers": name}, other: {"epsilon": 2.0}}},
        evidence={"again": f"fedaudit audit {name}"},
        config=f'[x]\nname = "{name}"\n',
        clients=(name, other),
        notices=(f"{other} did not answer",),
        names={name: "Klinik Heliodor", other: other},
    )


def test_no_form_of_the_report_holds_a_name():
    shown = renamed(chapter())
    for made in (page([shown]), markdown([shown]), machine([shown]), repr(shown)):
        assert "client 1" in made
        assert "client 2" in made
        for secret in ("Heliodor", "Brixen", "Klinik"):
            assert secret not in made


def test_nothing_but_names_changes():
    plain = chapter("client 1", "client 2")
    assert renamed(plain) == dataclasses.replace(
        plain,
        clients=["client 1", "client 2"],
        notices=list(plain.notices),
        data_notes=[],
        names={},
    )


def test_owners_names_appear_on_request():
    shown = renamed(chapter(), names=True)
    assert list(shown.clients) == ["Klinik Heliodor", "Brixen Ward"]
    assert "named: Klinik Heliodor, Brixen Ward" in shown.results[0].notes
    told = json.loads(machine([shown]))["chapters"][0]
    assert set(told["guarantees"]["dp_sgd"]) == {"Klinik Heliodor", "Brixen Ward"}


def test_two_clients_with_one_name_stay_distinct():
    plain = chapter("site-1", "site-2")
    twins = dataclasses.replace(plain, names={"site-1": "Ward", "site-2": "Ward"})
    shown = renamed(twins, names=True)
    assert list(shown.clients) == ["Ward (site-1)", "Ward (site-2)"]
    assert len(shown.results[0].per_client) == 2
