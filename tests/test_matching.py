"""Match values with clients by name, in both directions."""

import json

import pytest

from fedaudit.errors import ConfigError, UsageError
from fedaudit.matching import listed, match_clients
from fedaudit.study.promised import read_opacus

WHERE = {"what": "noise", "values_in": "the file", "clients_in": "the data"}


def test_values_come_in_the_order_of_the_clients():
    assert match_clients({"b": 2, "a": 1}, ["a", "b"], **WHERE) == (1, 2)


@pytest.mark.parametrize(
    ("values", "clients", "got"),
    [
        ({"a": 1}, ["a", "b"], "only in the data: 'b'"),
        ({"a": 1, "b": 2}, ["a"], "only in the file: 'b'"),
        ({"a": 1, "c": 2}, ["a", "b"], "only in the file: 'c'; only in the data: 'b'"),
        ({}, ["a"], "only in the data: 'a'"),
    ],
)
def test_a_name_without_a_partner_is_refused_and_both_sides_are_listed(values, clients, got):
    with pytest.raises(ConfigError) as caught:
        match_clients(values, clients, **WHERE)
    assert caught.value.got == got


def test_many_names_are_cut_short():
    assert listed([str(n) for n in range(900)], most=2) == "'0', '1' and 898 more"


def test_every_client_needs_its_accountant(tmp_path):
    file = tmp_path / "states.json"
    state = {"history": [[1.0, 0.1, 3]]}
    file.write_text(json.dumps({"a": state}), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_opacus(file, 1e-5, ["a", "b"])
    assert "'b'" in caught.value.got
    with pytest.raises(UsageError):
        read_opacus(file, 1e-5, ["b"])
    assert list(read_opacus(file, 1e-5, ["a"])) == ["a"]
