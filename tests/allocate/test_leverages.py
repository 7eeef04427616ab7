"""Leverages by name, as blends, and as columns of the table."""

import re

import numpy as np
import pytest

from fedaudit.errors import DataError, UsageError
from fedaudit.protections.noise_allocation import leverage

SIZES = np.array([9930, 3163, 2691, 1807, 655, 351])
RING = "# a ring\nZagreb,Aachen\nAachen,Malmo\nMalmo,Brno\nBrno,Turin\nTurin,Cork\nCork,Zagreb\n"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"group_column": "region"}, np.ones(6)),
        ({"size_column": "n", "leverage_by": "column:risk"}, [0.5, 0.1, 0, 2.5, 1, 0.2]),
        ({"size_column": "n", "group_column": "region"}, (leverage.from_size(SIZES) + 1) / 2),
        (
            {"size_column": "n", "group_column": "region", "leverage_by": "blend:size=3,group=1"},
            (3 * leverage.from_size(SIZES) + 1) / 4,
        ),
        (
            {"size_column": "n", "leverage_by": "blend:size=1,column:risk=1"},
            (leverage.from_size(SIZES) + leverage.unit_mean([0.5, 0.1, 0, 2.5, 1, 0.2])) / 2,
        ),
        ({"edges": RING}, np.ones(6)),
        ({"edges": RING, "leverage_by": "betweenness"}, np.ones(6)),
        ({"edges": RING, "leverage_by": "eigenvector"}, np.ones(6)),
        (
            {"edges": RING, "leverage_by": "degree", "coupling": 0.5, "classes": 10},
            np.full(6, 0.5 * np.log(10)),
        ),
    ],
)
def test_leverages(allocated, table, given, expected):
    if "edges" in given:
        (table.parent / "edges.txt").write_text(given["edges"], encoding="utf-8")
        given = {**given, "edges": table.parent / "edges.txt"}
    np.testing.assert_allclose(allocated(table, **given).allocation.leverage, expected, rtol=1e-9)


def test_pieces_can_be_allowed_where_they_make_sense(allocated, table, tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("Zagreb,Aachen\nZagreb,Malmo\nBrno,Turin\nTurin,Cork\n", encoding="utf-8")
    found = allocated(table, edges=path, allow_disconnected=True)
    np.testing.assert_allclose(found.allocation.leverage * 8 / 6, [2, 1, 1, 1, 2, 1])
    with pytest.raises(DataError, match="not connected"):
        allocated(table, edges=path, allow_disconnected=True, leverage_by="eigenvector")


def test_a_leverage_column_of_the_users_own_is_checked(allocated, tmp_path):
    path = tmp_path / "t.csv"
    for value in ("-0.1", "nan", ""):
        path.write_text(f"client,l\na,1\nb,{value}\n", encoding="utf-8")
        with pytest.raises(DataError, match="line 3"):
            allocated(path, leverage_by="column:l")


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({}, UsageError, "needs a leverage"),
        ({"group_column": "site"}, DataError, "one member only"),
        ({"leverage_by": "column:region"}, DataError, "line 2"),
        ({"leverage_by": "size"}, UsageError, "`size_column`"),
        ({"leverage_by": "group"}, UsageError, "`group_column`"),
        ({"leverage_by": "degree"}, UsageError, "`edges`"),
        ({"leverage_by": "betweeness"}, UsageError, "did you mean 'betweenness'"),
        ({"leverage_by": "blend:size"}, UsageError, "blend:size=2,group=1"),
        ({"size_column": "n", "leverage_by": "blend:size=1,size=2"}, UsageError, "every name once"),
        ({"size_column": "n", "coupling": 0.5}, UsageError, "`classes`"),
        ({"size_column": "n", "coupling": 0.5, "classes": 3}, UsageError, "`leverage=degree`"),
    ],
)
def test_leverages_that_cannot_be_had(refused, given, error, words):
    assert re.search(words, refused(error, **given))
