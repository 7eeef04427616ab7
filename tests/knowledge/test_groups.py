"""Groups of candidates: by class, category or half of a number."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedaudit.audits.audit import Candidates
from fedaudit.data.dataset import Dataset
from fedaudit.errors import ConfigError
from fedaudit.knowledge import groups
from fedaudit.knowledge.records import Records

TITLES = ("age", "ward=east", "ward=west")


@dataclass
class Table:
    """40 records at two clients."""

    def __post_init__(self):
        rng = np.random.default_rng(0)
        ward = rng.integers(0, 2, 40)
        age = rng.normal(size=40)
        self.x = np.stack([age, ward == 0, ward == 1], axis=1).astype(np.float32)
        self.y = rng.integers(0, 3, 40)
        own = Dataset(
            name="t",
            kind="features",
            x=self.x,
            y=self.y,
            classes=("a", "b", "c"),
            columns=TITLES,
        )
        self.records = Records(None, {"p": own, "q": own}, own)
        whole = torch.from_numpy(self.x), torch.from_numpy(self.y)
        self.pools = {
            "p": Candidates(*(v[:25] for v in whole)),
            "q": Candidates(*(v[25:] for v in whole)),
        }

    def asked(self, column):
        names, of = groups.groups_of(self.records, self.pools, column, "audits.membership")
        return names, np.concatenate(list(of.values())) if of else None


def test_categories_classes_and_halves():
    table = Table()
    names, of = table.asked("ward")
    assert names == ("ward=east", "ward=west")
    np.testing.assert_array_equal(of, table.x[:, 2])
    names, of = table.asked("class")
    assert names == ("class a", "class b", "class c")
    np.testing.assert_array_equal(of, table.y)
    names, of = table.asked("age")
    assert names == ("age, low half", "age, high half")
    assert of.sum() == 20
    assert table.x[of == 1, 0].min() > table.x[of == 0, 0].max()
    assert table.asked("") == ((), None)


def test_a_number_whose_largest_value_is_frequent_still_has_two_halves():
    names, of = groups._halves("n", {"p": np.array([0.0, 1.0, 1.0, 1.0])})
    assert len(names) == 2
    np.testing.assert_array_equal(of["p"], [0, 1, 1, 1])


def test_small_groups_become_one():
    of = {"p": np.repeat(np.arange(20), np.arange(20, 0, -1))}
    names, number = groups._few([f"g{i}" for i in range(20)], of)
    assert len(names) == groups.MOST_GROUPS + 1
    assert names[-1] == "others"
    np.testing.assert_array_equal(number["p"], np.minimum(of["p"], groups.MOST_GROUPS))


def test_an_unknown_column_is_refused_with_those_there_are():
    with pytest.raises(ConfigError) as error:
        Table().asked("height")
    assert "'age', 'ward'" in error.value.expected
