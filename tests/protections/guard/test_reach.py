"""What a check can reach on a layer of some shape, against the strangest plants of that shape."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from fedaudit.protections.guard import (
    Calibration,
    GuardReport,
    constant,
    guard,
    measure,
    one_entry,
    own_data,
    query_key,
    thresholds,
    twins,
)
from fedaudit.protections.guard.calibration import shipped
from fedaudit.protections.guard.guard import UNITS
from fedaudit.protections.guard.tensors import CLOSE, Matrix, needed
from fedaudit.tasks import models

LEVELS = (0.01, 0.05, 0.2)
WIDTHS = (3, 4, 7, 8, 15, 20, 21, 22, 23, 64, 100)


def pairs_apart(r, n, sign):
    """Rows (r, n): as many pairs as count, mirrored or equal, and all else as far from each other
    as a search for the least squared cosines finds room."""
    p, c = (needed(r) + 1) // 2, math.sqrt(1 - CLOSE + 1e-6)
    draw = torch.Generator().manual_seed(0)
    free = torch.randn(r, n, generator=draw, dtype=torch.float64, requires_grad=True)

    def rows():
        u = nn.functional.normalize(free[:p])
        w = free[p : 2 * p] - (free[p : 2 * p] * u).sum(1, keepdim=True) * u
        v = sign * (c * u + math.sqrt(1 - c * c) * nn.functional.normalize(w))
        return torch.cat([u, v, nn.functional.normalize(free[2 * p :])])

    search = torch.optim.LBFGS([free], max_iter=100, line_search_fn="strong_wolfe")

    def squares():
        search.zero_grad()
        total = (rows() @ rows().T).square().sum()
        total.backward()
        return total

    search.step(squares)
    return rows().detach().numpy()


@cache
def strangest_twins(rows, n, sign):
    """Rows (R, n) with the largest value that the search finds, over how many are not zero."""
    best, found = -math.inf, np.zeros((rows, n))
    few = math.isqrt(4 * n)  # enough for the pairs not to weigh, and few to choose from
    for r in {max(4, min(rows, x)) for x in (few, few + 1, few + 2, n, n + 1, rows)}:
        full = np.zeros((rows, n))
        full[:r] = pairs_apart(r, n, sign)
        value = twins.both(Matrix("w", full))[sign > 0].value
        if value > best:
            best, found = value, full
    return best, found


def alarms_at(check):
    return [shipped().value(check, shipped().cut(list(UNITS), level)) for level in LEVELS]


@pytest.mark.parametrize(
    "shape", [(4, 4), (5, 30), (9, 64), (10, 64), (14, 12), (24, 20), (40, 22)]
)
@pytest.mark.parametrize("sign", [-1, 1])
def test_twins_reach_what_a_search_finds_and_no_more(shape, sign):
    (found, _), most = strangest_twins(*shape, sign), twins.reach(*shape)
    assert found == pytest.approx(most, rel=1e-3)
    assert found <= most + 1e-4  # rows are kept in single precision
    for alarm in alarms_at(twins.MIRRORED if sign < 0 else twins.REPEATED):
        assert (found > alarm) == (most > alarm)


@pytest.mark.parametrize("shape", [(4, 4), (6, 5), (9, 8)])
def test_climbing_from_any_content_stays_below_the_reach(shape):
    """Steps of chance that are kept where a value grows, from chance and from plants."""
    rng = np.random.default_rng(0)
    checks = (
        (one_entry.check, one_entry.reach(*shape)),
        (constant.row, constant.reach(shape[1])),
        (lambda m: twins.both(m)[0], twins.reach(*shape)),
        (lambda m: twins.both(m)[1], twins.reach(*shape)),
    )
    for check, most in checks:
        for start in (rng.normal(size=shape), pairs_apart(*shape, -1), pairs_apart(*shape, 1)):
            rows, value = start, check(Matrix("w", start)).value
            for step in np.geomspace(1.0, 0.01, 150):
                other = rows + step * rng.normal(size=shape)
                now = check(Matrix("w", other)).value
                if now > value:
                    rows, value = other, now
            assert value <= most + 1e-4


@pytest.mark.parametrize("n", WIDTHS)
def test_one_entry_and_constants_reach_what_their_plants_have(n):
    for rows in (3, 4, 9, 300):
        one = np.zeros((rows, n))
        one[np.arange(rows), np.arange(rows) % n] = 1.0
        score = one_entry.check(Matrix("w", one))
        assert score.value == pytest.approx(one_entry.reach(rows, n))
        alike = np.zeros((rows, n))
        alike[0] = -1.0
        score = constant.row(Matrix("w", alike))
        assert score.value == pytest.approx(constant.reach(n))


@pytest.mark.parametrize("units", [1, 7, 8, 15, 16, 21])
def test_biases_and_products_reach_what_their_plants_have(units):
    rng = np.random.default_rng(0)
    state = {"a.weight": rng.normal(size=(units, 5)), "a.bias": np.full(units, -3.0)}
    found = measure(state)
    value = found["constant_bias"].value if "constant_bias" in found else -math.inf
    assert value == pytest.approx(constant.reach(units))
    state["a.bias"] = 1e9 * np.arange(units)
    found = measure(state)
    assert ("bias_size" in found) == (thresholds.reach(units) == math.inf)
    assert units < 16 or found["bias_size"].value > max(alarms_at("bias_size"))
    twice = np.eye(units, units + 1)
    found = measure({"m.q": twice, "m.k": 2 * twice})
    value = found["query_key"].value if "query_key" in found else -math.inf
    assert value == pytest.approx(query_key.reach(units, units + 1))


def test_a_row_is_turned_round_at_any_width_but_not_where_it_was_zero():
    for shape in ((1, 1), (1, 9), (9, 1), (4, 4)):
        before = {"w.weight": np.ones(shape)}
        report = guard({"w.weight": -np.ones(shape)}, before)
        assert report.verdict == "planted"
        assert "rewritten" in report.layers[0].checks
        zero = guard({"w.weight": np.ones(shape)}, {"w.weight": np.zeros(shape)})
        assert zero.verdict == "nothing_to_say"


@pytest.mark.parametrize("tensors", [1, 2, 3, 4])
def test_one_record_needs_three_tensors_for_an_alarm(tensors):
    """Gradients (records, tensors) of which one tensor has a single record, the others none."""
    rng = np.random.default_rng(0)
    best = 0.0
    for others in (np.zeros((16, tensors)), np.ones((16, tensors)), rng.random((16, tensors))):
        squares = others.copy()
        squares[:, 0] = np.eye(16)[0]
        total = squares.sum(axis=0)
        shares = np.divide(squares.max(axis=0), total, out=np.zeros(tensors), where=total > 0)
        best = max(best, float(shares.max() - np.median(shares)))
    assert best == own_data.above_usual(tensors)
    assert (best > alarms_at("one_record")[0]) == (tensors > 2)


def plants(shape):
    """The strangest content of a layer for each check that looks at rows."""
    rows, n = shape
    one, alike = np.zeros(shape), np.zeros(shape)
    one[np.arange(min(rows, n)), np.arange(min(rows, n))] = 1.0
    alike[0] = -1.0
    out = {"one_entry": one, "constant_row": alike}
    if min(shape) >= 4:
        out["mirrored"] = strangest_twins(rows, n, -1)[1]
        out["repeated"] = strangest_twins(rows, n, 1)[1]
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("shape", [(3, 40), (6, 8), (10, 8), (8, 64), (12, 20), (20, 21), (30, 24)])
def test_a_layer_is_examined_if_and_only_if_every_plant_raises_an_alarm(shape, dtype):
    """Through the whole guard: content of either reading of the tensor, at the shipped level."""
    turned = [p.T for p in plants(shape[::-1]).values()]
    reports = [guard({"w.weight": p.astype(dtype)}) for p in [*plants(shape).values(), *turned]]
    able = bool(guard({"w.weight": np.random.default_rng(0).normal(size=shape)}).examined)
    assert able == (min(shape) >= 4 and all(r.verdict == "planted" for r in reports))
    for r in reports:
        assert r.verdict in ("planted", "nothing_to_say")
        assert {c.name for c in r.alarms} <= set(r.layers[0].checks)


@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_published_plant_is_never_said_to_be_no_evidence(classes, turned, bias):
    """W1 = [I; -I] on tables of any width, alone or among 128 units, in either layout."""
    rng = np.random.default_rng(0)
    for n in range(5, 41):
        signed = np.concatenate([np.eye(n), -np.eye(n)])
        for units in (2 * n, 128):
            first = rng.normal(size=(units, n)) / math.sqrt(n)
            first[: 2 * n] = signed
            last = rng.normal(size=(classes, units)) / math.sqrt(units)
            state = {"fc1.weight": first, "fc2.weight": last}
            if turned:
                state = {name: w.T for name, w in state.items()}
            if bias:
                state["fc1.bias"] = 0.1 * rng.normal(size=units)
                state["fc2.bias"] = np.zeros(classes)
            report = guard(state)
            assert report.verdict == ("planted" if n >= 21 else "nothing_to_say"), (n, units)
            if n < 21:
                lacking = {o.check: o for o in report.layers[0].out_of_reach}
                assert (lacking["one_entry"].width, lacking["one_entry"].needed) == (n, 21)
                assert lacking["mirrored"].needed == 21


def test_units_are_the_axis_that_the_bias_is_as_long_as():
    """Wide columns do not stand in for narrow rows, and narrow columns do not matter."""
    rng = np.random.default_rng(0)
    wide = {"a.weight": rng.normal(size=(24, 64)), "a.bias": rng.normal(size=24)}
    assert guard(wide).layers[0].out_of_reach == ()
    head = {"a.weight": rng.normal(size=(32, 12)), "a.bias": 0.1 * rng.normal(size=32)}
    for state in (head, head | {"a.weight": head["a.weight"].T}):
        (layer,) = guard(state).layers
        assert {"one_entry", "mirrored"} <= {o.check for o in layer.out_of_reach}
        assert {"one_entry", "mirrored"} <= set(layer.checks)  # by its columns
        assert not layer.examined
    rows = head | {"a.weight": rng.normal(size=(32, 24))}
    assert guard(rows).verdict == "no_evidence"


def test_whole_numbers_of_eight_bits_reach_the_same():
    scale = {"w.weight.scale": np.full((1, 1), 0.01, np.float32)}
    report = guard({"w.weight": np.eye(24, dtype=np.int8), **scale})
    assert report.verdict == "planted"


# -- what a report says of layers that could not be examined --------------------------------------


def test_a_model_of_narrow_layers_has_nothing_to_say_and_no_p_value():
    for module in (models.mlp(8, (6,), 2), nn.Linear(3, 2), nn.Linear(20, 9)):
        report = guard(module)
        assert report.verdict == "nothing_to_say"
        assert report.p_value is None
        assert not report.examined
        assert not report.checks
        assert not report.flagged
        assert GuardReport.from_json(report.to_json()) == report


def test_layers_are_counted_and_say_which_checks_could_not_alarm():
    report = guard(models.mlp(64, (8,), 10))
    assert report.verdict == "nothing_to_say"
    wide, narrow = report.unexamined
    assert (narrow.name, narrow.shape) == ("3.weight", (10, 8))
    assert guard(models.mlp(64, (32,), 10)).summary == (
        "no evidence in 1 of 2 layers; 1 not examined in full"
    )
    by_check = {o.check: o for o in narrow.out_of_reach}
    assert by_check["one_entry"].reason == "narrow"
    assert by_check["one_entry"].most == one_entry.reach(10, 8)
    assert by_check["one_entry"].threshold > by_check["one_entry"].most
    assert by_check["bias_size"].reason == "small"
    assert by_check["bias_size"].most is None
    assert set(wide.checks) == {"one_entry", "constant_row"}
    assert {"mirrored", "repeated"} <= {o.check for o in wide.out_of_reach}
    # of a check that spoke the layer where it could have: not the narrow one
    assert {c.where for c in report.checks} == {"1.weight"}
    assert GuardReport.from_json(report.to_json()) == report


def test_the_model_before_and_own_records_make_narrow_layers_speak():
    module = models.mlp(8, (6,), 2)
    before = guard(module, module)
    assert before.verdict == "no_evidence"
    assert [x.checks for x in before.layers] == [("rewritten",), ("rewritten",)]
    x = np.random.default_rng(0).random((20, 8)).astype(np.float32)
    own = guard(module, data=(x, np.arange(20) % 2))
    assert all({"silent", "one_record"} == set(layer.checks) for layer in own.layers)
    # two tensors: the median is half of each, and `one_record` cannot raise an alarm
    alone = guard(nn.Linear(8, 2), data=(x, np.arange(20) % 2))
    assert alone.layers[0].checks == ("silent",)
    assert {o.check: o.most for o in alone.layers[0].out_of_reach}["one_record"] == 0.5


def test_other_reasons_are_told_apart():
    rng = np.random.default_rng(0)
    state = {
        "1.weight": rng.normal(size=(32, 32)),
        "tokens.weight": rng.normal(size=(40, 32)),
        "c.weight": np.eye(8, dtype=np.complex64),
        "rnn.weight_ih_l0": rng.normal(size=(64, 32)),
    }
    report = guard(state)
    layers = {x.name: x for x in report.layers}
    assert report.summary == "no evidence in 1 of 4 layers; 3 not examined in full"
    assert layers["tokens.weight"].reason == "table"
    assert layers["c.weight"].reason == "unread"
    assert {o.reason for o in layers["rnn.weight_ih_l0"].out_of_reach} == {"kind"}
    few = Calibration(shipped().centre, shipped().spread, shipped().runs[:30])
    short = guard({"1.weight": state["1.weight"]}, calibration=few)
    assert short.verdict == "nothing_to_say"
    assert {o.reason for o in short.layers[0].out_of_reach} == {"level"}


def test_of_a_layer_of_zeros_there_is_nothing_to_say():
    for rows in (10, 64):
        state = {"weight": np.zeros((rows, 64))}
        report = guard(state)
        assert (report.verdict, report.p_value) == ("nothing_to_say", None)
        assert {o.reason for o in report.layers[0].out_of_reach} == {"zero"}
        assert not report.layers[0].checks
