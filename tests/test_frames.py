"""Result tables: equal rows in pandas and notebooks; text is escaped."""

import pandas as pd

from fedaudit.frames import Tabular


class Rows(Tabular):
    def __init__(self, rows):
        self._rows = rows

    def rows(self):
        return self._rows


def test_a_frame_has_every_column_in_the_order_of_first_use():
    frame = Rows([{"a": 1, "b": "x"}, {"a": 2, "c": None}]).to_frame()
    assert list(frame.columns) == ["a", "b", "c"]
    assert frame["a"].tolist() == [1, 2]
    assert pd.isna(frame["b"][1])


def test_no_rows_are_an_empty_frame():
    assert Rows([]).to_frame().empty


def test_a_notebook_shows_text_as_text():
    shown = Rows([{"<b>": "<script>alert(1)</script>", "n": 0.123456}])._repr_html_()
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
    assert "0.1235" in shown
