"""The table of adversaries: every row names tests that exist."""

import ast
import re
from pathlib import Path

from fedaudit.protections.secure_aggregation import Neighbours
from fedaudit.protections.secure_aggregation.graph import smallest_graph

ROOT = Path(__file__).resolve().parents[2]
HONEST = {
    "a_pinned_key_is_kept_over_runs_and_a_new_one_refused",
    "a_state_of_another_run_or_client_is_refused",
    "fresh_keys_in_every_run_are_not_refused",
    "sketches_tell_how_alike_updates_are",
    "the_same_sums_are_given_where_the_rule_is_given_up_by_name",
}
"""Tests beside the adversaries' that play none."""
PLAYED = ["protections/secure_aggregation", "examples", "recorders/flower"]


def test_the_graphs_of_the_page_are_those_that_are_used():
    page = (ROOT / "docs" / "secure-aggregation.md").read_text()
    table = page.split("| n | k | t | a client opened")[1].split("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) == 3
    for n, k, t, *stated in rows:
        graph = smallest_graph(int(n.replace(",", "")), Neighbours())
        assert (graph.neighbours, graph.quorum) == (int(k), int(t))
        for words, found in zip(stated, (graph.opened, graph.isolated, graph.stuck), strict=True):
            digits = len(words.partition(".")[2])
            assert float(words.removeprefix("2^")) == round(found, digits)


def test_every_action_of_an_adversary_is_played_by_a_test_that_exists():
    page = (ROOT / "docs" / "secure-aggregation.md").read_text()
    table = page.split("| adversary | what it does | outcome | played by |")[1].split("\n\n")[0]
    rows = [line.split(" | ") for line in table.strip().splitlines()[1:]]
    found = {
        node.name.removeprefix("test_")
        for folder in PLAYED
        for file in (ROOT / "tests" / folder).glob("test_*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    named = [set(re.findall(r"`(\w+)`", row[-1])) for row in rows]
    assert len(rows) > 50
    assert all(named)
    assert set().union(*named) <= found
    # and no adversary is played without a word about what comes of it
    here = {
        node.name.removeprefix("test_")
        for name in ("adversaries", "consent", "equivocation", "neighbourhoods", "replays")
        for node in ast.parse(
            (ROOT / "tests" / PLAYED[0] / f"test_{name}.py").read_text(encoding="utf-8")
        ).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert here - set().union(*named) == HONEST
