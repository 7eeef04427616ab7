"""Tables of results: the same rows in pandas and in a notebook, nothing becomes markup."""

import pandas as pd

from fedaudit.frames import SvgFigure, Table, Tabular


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


def test_a_figure_is_saved_as_a_document_and_its_words_are_escaped(tmp_path):
    figure = SvgFigure(svg='<svg class="plot"></svg>', title="t", caption="a < b")
    assert "t: a &lt; b" in figure._repr_html_()
    assert 'xmlns="http://www.w3.org/2000/svg"' in figure.save(tmp_path / "f.svg").read_text()
    whole = SvgFigure(svg=figure._repr_svg_())
    assert whole._repr_svg_() == whole.svg  # the name space stands there once


def test_a_table_counts_its_rows():
    assert len(Table(({"a": 1}, {"a": 2}))) == 2
    assert Table(({"a": 1},)).to_frame()["a"].tolist() == [1]
