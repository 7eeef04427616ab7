"""Each curve of a result is drawn as its audit declares."""

import math
import re

import numpy as np
import pytest

from fedaudit.audits import facts_of
from fedaudit.audits.two_stage_membership.facts import PROXY
from fedaudit.reporting import curves, plots
from fedaudit.reporting.curves import (
    CANCELLED,
    NORMAL,
    cancellation,
    survival_map,
)
from fedaudit.stats.intervals import wilson

AUDIT = "two_stage_membership"
BOUND = {
    "|u|": (1.0, 2.0, 3.0),
    "remainder": (0.1, 0.5, 2.0),
    "its error": (0.0, 0.2, 0.1),
    "L |u|^2 / 2": (0.2, 0.4, 1.0),
}
SURVIVAL = {"lambda": (0.5, -0.99, -0.2), "r": (3.0, 1.0, 40.0), "SUR": (0.28, 7.07, 0.025)}


def figure(curve, columns):
    return curves.figure(AUDIT, curve, columns)


def test_the_bound_check_counts_what_lies_above_beyond_its_error():
    rate = wilson(1, 3)
    drawn = figure("bound check", BOUND)
    assert "1 of 3 remainders" in drawn.words
    assert f"33.3 % [{100 * rate.low:.1f}, {100 * rate.high:.1f}]" in drawn.words
    # without a column of errors every excess counts
    without = figure("bound check", {k: v for k, v in BOUND.items() if k != "its error"})
    assert "2 of 3" in without.words
    assert drawn.svg.count("h0") == 3


def test_roc_is_logarithmic_with_chance_as_diagonal():
    columns = {"false positives": (0, 0.01, 0.1, 1), "true positives": (0, 0.1, 0.4, 1)}
    html = figure("ROC", columns).svg
    assert "chance" in html
    frame = plots.Frame(
        plots.PlotAxis("", 0.01 / 1.2, 1, True),
        plots.PlotAxis("", 0.01 / 1.2, 1, True),
        NORMAL[0],
        NORMAL[1],
        *(70, 16, 16, 48),
    )
    drawn = re.search(r'polyline points="([^"]*)"', html)[1]
    assert drawn == frame.path([(0, 0), (0.01, 0.1), (0.1, 0.4), (1, 1)])


def test_updates_on_the_map_of_survival():
    drawn = figure("survival", SURVIVAL)
    assert "cancel 1 of 3 updates" in drawn.words
    assert "not easier to find" in drawn.words
    assert drawn.svg.count("h0") == 3
    fine = {k: v[:1] for k, v in SURVIVAL.items()}
    assert figure("survival", fine).words == "The other updates cancel 0 of 1 updates."


def test_the_map_is_the_closed_form():
    x, y = plots.PlotAxis("", -1, 1), plots.PlotAxis("", 0, 6)
    cells = survival_map(x, y, (5, 3)).values
    for i, r in enumerate((1.0, 3.0, 5.0)):
        for j, lam in enumerate((-0.8, -0.4, 0.0, 0.4, 0.8)):
            assert cells[i][j] == pytest.approx(1 / math.sqrt(1 + r * r + 2 * r * lam))


def test_the_cancelled_region_is_where_the_sum_is_short():
    corners = cancellation().corners
    edge = np.array(corners[:-2])
    size = np.sqrt(1 + edge[:, 1] ** 2 + 2 * edge[:, 1] * edge[:, 0])
    assert size == pytest.approx(CANCELLED)
    assert edge[:, 0].max() < -0.95
    assert np.array(corners[-2:]) == pytest.approx(np.array([(-1.0, 1.3), (-1.0, 0.7)]))


def test_the_baseline_of_non_members_is_dashed():
    columns = {"round": (1, 2), "J": (0.1, 0.2), "J of nobody's": (0.1, 0.1)}
    both = columns | {"TS-MIA": (1.0, 0.9), "TS-MIA of nobody's": (0.8, 0.9)}
    assert figure("risk by round", both).svg.count("stroke-dasharray") == 2
    assert figure("risk by round", columns).svg.count("stroke-dasharray") == 1
    assert figure("something else", columns).svg.count("stroke-dasharray") == 0


def test_a_line_with_its_ends_is_a_band():
    columns = {"round": (1, 2), "J": (0.1, 0.2), "J low": (0.0, 0.1), "J high": (0.2, 0.3)}
    drawn = figure("risk by round", columns | {"SUR": (0.5, 0.4)}).svg
    assert drawn.count("<polygon") == 1
    assert drawn.count("<polyline") == 2
    assert "J low" not in drawn
    # one end alone is a column like any other
    one = figure("unknown", {n: columns[n] for n in ("round", "J", "J low")})
    assert one.svg.count("<poly") == 2


def test_tables_per_update_are_not_drawn_but_checked_updates_are():
    columns = {"round": (1, 1), "client": (1, 2), "J": (0.1, 0.2), PROXY: (0.1, 0.3)}
    assert figure("stages by client and round", columns) is None
    assert figure("checked updates by client and round", columns).svg.count("h0") == 2


@pytest.mark.parametrize("name", [*(d.curve for d in facts_of(AUDIT).drawings), "unknown"])
def test_curves_with_other_columns_are_lines(name):
    drawn = figure(name, {"a": (1, 2, 3), "b": (0.5, math.inf, 1.0), "c": (1.0, 2.0, 3.0)})
    assert drawn.svg.count("<polyline") == 2
    assert drawn.words == ""


def test_curves_of_other_audits_are_lines():
    drawn = curves.figure("of one's own", "survival", SURVIVAL)
    assert drawn.svg.count("<polyline") == 2
    assert drawn.words == ""


def test_the_title_is_the_name_of_the_curve_unless_given():
    columns = {"round": (1, 2), "named": (0, 1)}
    assert figure("by_round", columns).title == "By round"
    assert curves.figure(AUDIT, "by_round", columns, title="by_round: a").title == "By round: a"


@pytest.mark.parametrize(
    "columns",
    [{}, {"a": (), "b": ()}, {"a": (1,), "b": (2,)}, {"a": (1, math.inf), "b": (1, 2)}],
)
def test_empty_curves_are_not_drawn(columns):
    assert figure("unknown", columns) is None
    assert figure("survival", dict.fromkeys(SURVIVAL, (math.inf,))) is None


def test_figures_stay_small_whatever_is_put_in():
    many = np.random.default_rng(1).uniform(-1, 1, 50_000)
    drawn = figure("survival", {"lambda": many, "r": 1 + many**2, "SUR": many})
    assert len(drawn.svg) < 30_000


def test_a_figure_that_would_show_nothing_is_a_sentence():
    perfect = {"false positives": (0, 0, 1), "true positives": (0, 1, 1)}
    drawn = figure("ROC", perfect)
    assert (drawn.svg, drawn.words) == ("", "Every true case is found without a false alarm.")
    level = curves.figure("fingerprint", "links", {"round": (1, 2, 3), "found": (5, 5, 5)})
    assert (level.svg, level.words) == ("", "The same at every round: found 5.")
    sloped = curves.figure("fingerprint", "links", {"round": (1, 2, 3), "found": (5, 4, 5)})
    assert "<svg" in sloped.svg
