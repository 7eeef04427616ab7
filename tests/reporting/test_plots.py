"""Figures: marks are at their values, files are small and well-formed."""

import math
import re
from xml.etree import ElementTree

import pytest

from fedaudit.reporting import plots
from fedaudit.reporting.plots import PlotAxis

SVG = "{http://www.w3.org/2000/svg}"


def test_axes_place_values_and_find_them_again():
    for axis in (PlotAxis("x", -2.0, 6.0), PlotAxis("x", 1e-3, 10.0, log=True)):
        assert [axis.place(axis.low), axis.place(axis.high)] == [0.0, 1.0]
        for place in (0.1, 0.5, 0.9):
            assert axis.place(axis.value(place)) == pytest.approx(place)
        assert axis.place(axis.low - 1) == 0.0
        assert axis.place(math.inf) == 1.0
    assert PlotAxis("x", 0.01, 100.0, log=True).place(1.0) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (PlotAxis("x", 0.0, 1.0), [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (PlotAxis("x", 1, 20), [5, 10, 15, 20]),
        (PlotAxis("x", -1.0, 1.0), [-1, -0.5, 0, 0.5, 1]),
        (PlotAxis("x", 0.001, 1.0, log=True), [0.001, 0.01, 0.1, 1]),
        (PlotAxis("x", 0.3, 6.0, log=True), [0.5, 1, 2, 5]),
        (PlotAxis("x", 1e-12, 1.0, log=True), [1e-12, 1e-9, 1e-6, 1e-3, 1]),
    ],
)
def test_ticks_are_few_and_round(axis, ticks):
    assert axis.ticks() == pytest.approx(ticks)


@pytest.mark.parametrize("ends", [(1.0, 1.0), (2.0, 1.0)])
def test_an_axis_needs_two_ends(ends):
    with pytest.raises(ValueError, match="axis 'x'"):
        PlotAxis("x", *ends)
    with pytest.raises(ValueError, match="axis 'x'"):
        PlotAxis("x", 0.0, 1.0, log=True)


def test_an_axis_around_values():
    assert PlotAxis.around("x", [3.0, math.inf, 5.0], zero=True) == PlotAxis("x", 0.0, 5.0)
    assert PlotAxis.around("x", [2.0, 2.0]) == PlotAxis("x", 2.0, 3.0)
    assert PlotAxis.around("x", [], log=True).log
    log = PlotAxis.around("x", [0.0, 1.0, 100.0], log=True)
    assert (log.low, log.high) == pytest.approx((1 / 1.2, 120.0))


def test_points_are_at_their_values():
    x, y = PlotAxis("x", 0.0, 10.0), PlotAxis("y", 1.0, 100.0, log=True)
    svg = plots.draw(x, y, [plots.Dots("", ((5.0, 10.0), (10.0, 0.1), (1.0, math.nan)))])
    # 640 x 360 with margins 70, 16, 16, 48: the middle and the lower right corner, and no third
    assert re.search(r'd="([^"]*)"', svg)[1] == "M347.0 164.0h0M624.0 312.0h0"


def test_many_points_are_thinned():
    many = tuple((float(i), 1.0 + i) for i in range(10_000))
    svg = plots.draw(PlotAxis("x", 0, 1e4), PlotAxis("y", 0, 1e4), [plots.Dots("", many, most=500)])
    assert svg.count("h0") == 500


def test_a_band_has_both_edges_of_its_intervals():
    x, y = PlotAxis("x", 0.0, 1.0), PlotAxis("y", 0.0, 1.0)
    band = plots.Band("b", ((0.0, 0.5, 0.25, 0.75), (1.0, 0.5, 0.0, 1.0)))
    frame = plots.Frame(x, y, 100, 100, 0, 0, 0, 0)
    svg = band.svg(frame, "red")
    assert 'polygon points="0.0,75.0 100.0,100.0 100.0,0.0 0.0,25.0"' in svg
    assert 'polyline points="0.0,50.0 100.0,50.0"' in svg


def test_cells_cover_the_frame_once():
    """The areas of all runs add up to the frame, and each cell has the colour of its value."""
    values = tuple(tuple(1.5 * 10.0 ** ((3 * i + j) % 4) for j in range(7)) for i in range(5))
    cells = plots.Cells(values, PlotAxis("k", 1.0, 1e4, log=True))
    frame = plots.Frame(PlotAxis("x", 0, 1), PlotAxis("y", 0, 1), 170, 150, 20, 10, 30, 10)
    area, seen = 0.0, {}
    svg = cells.svg(frame, "")
    for colour, path in re.findall(r'<path fill="(#\w+)" d="([^"]*)"', svg):
        for x0, y0, x1, y1 in re.findall(r"M([\d.]+) ([\d.]+)H([\d.]+)V([\d.]+)H[\d.]+z", path):
            area += (float(x1) - float(x0)) * (float(y1) - float(y0))
            row = round((140 - float(y1)) / 22)
            for j in range(round((float(x0) - 20) / 20), round((float(x1) - 20) / 20)):
                seen[row, j] = colour
    assert area == pytest.approx(140 * 110)
    assert len(seen) == 35
    for (i, j), colour in seen.items():
        assert colour == plots.shade(int(math.log10(values[i][j]) / 4 * plots.LEVELS))


def test_colours_run_from_dark_to_light():
    ends = plots.shade(0), plots.shade(plots.LEVELS - 1)
    assert ends == (plots.SHADES[0], plots.SHADES[-1])
    light = [sum(bytes.fromhex(plots.shade(n)[1:])) for n in range(plots.LEVELS)]
    assert light == sorted(light)


def test_a_diagonal_is_where_both_are_equal():
    frame = plots.Frame(
        PlotAxis("x", 0.1, 10, True), PlotAxis("y", 1, 100, True), 90, 90, 0, 0, 0, 0
    )
    line = plots.Guide("equal").svg(frame, "")
    assert 'x1="45.0" x2="90.0" y1="90.0" y2="45.0"' in line
    apart = plots.Frame(PlotAxis("x", 1, 2), PlotAxis("y", 3, 4), 90, 90, 0, 0, 0, 0)
    assert plots.Guide("equal").svg(apart, "") == ""


def test_a_figure_is_well_formed_and_names_its_layers():
    layers = [
        plots.Cells(((1.0, math.inf), (0.1, 3.0)), PlotAxis("<k>", 0.1, 10, log=True)),
        plots.Outline("a & b", ((0.0, 1.0), (1.0, 2.0), (0.0, 2.0))),
        plots.Polyline("<c>", ((0.0, 1.0), (1.0, math.inf), (1.0, 2.0)), dashed=True),
    ]
    svg = plots.draw(PlotAxis('"x"', 0, 1), PlotAxis("y", 1, 2), layers)
    root = ElementTree.fromstring(svg)
    words = [t.text for t in root.iter(SVG + "text")]
    assert {"a & b", "<c>", "<k>", '"x"', "y"} <= {*words}
    assert "xmlns" not in plots.draw(PlotAxis("x", 0, 1), PlotAxis("y", 1, 2), layers, inline=True)


def test_lines_with_intervals_and_chance():
    line = plots.Line("one", ((1.0, 0.5, 0.4, 0.6), (2.0, 0.7, 0.6, 0.8)))
    svg = plots.lines([line], x_label="x", y_label="y", baseline=0.25)
    root = ElementTree.fromstring(svg)
    assert [t.text for t in root.iter(SVG + "title")] == [
        "one: 0.5 [0.4, 0.6]",
        "one: 0.7 [0.6, 0.8]",
    ]
    assert "chance" in [t.text for t in root.iter(SVG + "text")]
    with pytest.raises(ValueError, match="at least one point"):
        plots.lines([], x_label="x", y_label="y")
