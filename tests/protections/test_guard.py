"""What a client sees in a received model: statistics, error rates, disguises, reports."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedaudit.errors import DataError, UsageError
from fedaudit.protections.guard import Calibration, GuardReport, Run, guard, measure
from fedaudit.protections.guard.calibration import shipped
from fedaudit.protections.guard.guard import UNITS
from fedaudit.protections.guard.query_key import alike
from fedaudit.protections.guard.tensors import surprise
from fedaudit.protections.guard.twins import extremes
from fedaudit.randomness import Seed
from fedaudit.tasks import models
from reproductions.guard import planted
from reproductions.guard.run import WITHOUT


def fresh(kind, seed):
    """A model as it is before the first round."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "mlp":
            return models.mlp(64, (96,), 10)
        if kind == "cnn":
            return models.cnn((1, 8, 8), (8, 16), 10)
        return models.TinyViT((1, 8, 8), 4, 32, 2, 4, 10)


def trained(module, seed, steps=30):
    """After some steps on clusters that can be learnt."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        centres = torch.rand(10, 1, 8, 8)
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(steps):
            y = torch.randint(0, 10, (32,))
            x = centres[y] + 0.1 * torch.randn(32, 1, 8, 8)
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimiser.step()
    return module


# -- statistics against slow twins and theory ------------------------------------------------------


def test_extremes_are_those_of_every_pair():
    rows = np.random.default_rng(0).normal(size=(70, 9))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    low, high = extremes(rows)
    for i, a in enumerate(rows):
        others = [float(a @ b) for j, b in enumerate(rows) if j != i]
        assert low[i] == pytest.approx(min(others))
        assert high[i] == pytest.approx(max(others))


def test_surprise_bounds_the_tail_of_random_directions():
    """P(surprise >= t) <= e^-t for the cosine of unrelated directions, at any dimension."""
    rng = np.random.default_rng(1)
    for n in (4, 16, 64):
        a, b = rng.normal(size=(2, 20_000, n))
        squared = np.einsum("ij,ij->i", a, b) ** 2
        squared /= np.einsum("ij,ij->i", a, a) * np.einsum("ij,ij->i", b, b)
        t = surprise(squared, n)
        for level in (1.0, 2.0, 4.0):
            assert (t >= level).mean() <= math.exp(-level) + 3 * math.sqrt(math.exp(-level) / 2e4)


def test_a_projection_is_recognised_in_any_basis():
    rng = np.random.default_rng(2)
    q = rng.normal(size=(15, 16))  # not orthonormal
    key = 7.0 * np.linalg.pinv(q).T
    assert alike(q, key) == pytest.approx(1.0)
    turn = rng.normal(size=(15, 15))
    assert alike(turn @ q, np.linalg.inv(turn).T @ key) == pytest.approx(1.0)
    m = q.T @ key
    naive = abs(np.trace(m)) / (np.linalg.norm(m) * math.sqrt(15))
    assert alike(q, key) == pytest.approx(naive)
    apart = [alike(*rng.normal(size=(2, 15, 16))) for _ in range(50)]
    assert max(apart) < 0.3


@pytest.mark.parametrize("kind", ["mlp", "vit"])
def test_order_and_scale_of_units_change_nothing(kind):
    state = {k: v.numpy() for k, v in fresh("mlp", 0).state_dict().items()}
    rng = np.random.default_rng(0)
    if kind == "mlp":
        other = dict(state)
        order = rng.permutation(len(state["1.weight"]))
        other["1.weight"], other["1.bias"] = state["1.weight"][order], state["1.bias"][order]
        other["3.weight"] = state["3.weight"][:, order]
    else:
        state = planted.memory(rng)
        other = planted.reorder_heads(state, rng)
    a, b = measure(state), measure(other)
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].value == pytest.approx(b[name].value, rel=1e-4, abs=1e-4), name
    scaled = {k: 3.0 * v for k, v in state.items()}
    for name, score in measure(scaled).items():
        assert score.value == pytest.approx(a[name].value, rel=1e-4, abs=1e-4), name


# -- error rates (in full: tests/nightly/test_guard_rates.py) --------------------------------------


@pytest.mark.parametrize("kind", ["mlp", "cnn", "vit"])
def test_honest_models_raise_no_alarm_beyond_the_level(kind):
    """10 fresh and 4 trained models of other seeds: at 1 % three alarms happen once in 3,000."""
    reports = [guard(fresh(kind, s)) for s in range(10)]
    for s in range(4):
        before = fresh(kind, 100 + s)
        last = {k: v.clone() for k, v in before.state_dict().items()}
        reports.append(guard(trained(before, s), last))
    assert sum(r.flagged for r in reports) < 3
    assert all(r.verdict in ("planted", "no_evidence") for r in reports)


def test_both_adversaries_are_found_in_every_light_disguise():
    heavy = ("noise 30%", "noise 50%", "noise 100%")
    for cases in (planted.GROUPS["fc, digits"], planted.GROUPS["attention"]):
        for name, make in cases.items():
            if name in heavy or name.startswith("adaptive"):
                continue
            for s in range(2):
                report = guard(make(Seed(s).generator("test")))
                assert report.verdict == "planted", name
                assert report.alarms, name


def test_the_adaptive_detector_works_and_passes():
    """What the documentation says of an adversary who knows the checks is so."""
    x = planted.records("digits")
    for s in range(3):
        state = planted.adaptive(Seed(s).generator("adaptive"), x, 16)
        hidden = np.maximum(x @ state["1.weight"].T + state["1.bias"], 0.0)
        detector = hidden @ state["3.weight"][0] + state["3.bias"][0]
        assert (detector > 0).sum() == 1  # the target, and nobody else
        assert guard(state).verdict == "no_evidence"


def test_noise_never_makes_a_plant_look_stranger():
    """Of the checks that a plant raises, the mean value falls as noise grows."""
    by_noise = []
    for share in (0.0, 0.1, 0.3, 1.0):
        values = []
        for s in range(5):
            rng = Seed(s).generator("noise")
            state = planted.fully_connected(rng, rng.random((50, 24)))
            found = measure(planted.noisy(state, share, rng))
            values.append([found[c].value for c in ("one_entry", "mirrored", "constant_row")])
        by_noise.append(np.mean(values, axis=0))
    assert (np.diff(by_noise, axis=0) <= 1e-6).all()


def test_own_records_show_a_silent_detector():
    rng = np.random.default_rng(0)
    x = rng.random((40, 16)).astype(np.float32)
    module = models.mlp(16, (32, 1), 10)
    state = planted.fully_connected(rng, rng.random((40, 16)))
    state["3.bias"][:] = 0.01  # tau: closer than any record is
    module.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
    y = rng.integers(0, 10, 40)
    score = measure(module, data=(x, y))["silent"]
    assert score.value == 1.0
    assert "do not move it" in score.words
    honest = measure(models.mlp(16, (32, 32), 10), data=(x, y))["silent"]
    assert honest.value == 0.0
    same = guard(state, data=(x, y), module=models.mlp(16, (32, 1), 10))
    assert {c.name for c in same.checks} >= {"silent", "one_record"}


def test_a_row_written_anew_shows_beside_the_last_model():
    before = fresh("mlp", 3)
    now = {k: v.clone() for k, v in before.state_dict().items()}
    now["1.weight"] += 0.001 * torch.randn(now["1.weight"].shape, generator=torch.Generator())
    assert measure(now, before)["rewritten"].value < 0.01
    now["1.weight"][:8] = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    assert measure(now, before)["rewritten"].value > 0.5
    assert measure(before, before)["rewritten"].value == 0.0


def test_shared_embeddings_are_no_query_and_key():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(100, 16)).astype(np.float32)
    state = {"tokens.weight": table, "head.weight": table.copy()}
    assert "query_key" not in measure(state)


# -- calibration -----------------------------------------------------------------------------------


def table(runs=199, seed=0):
    rng = np.random.default_rng(seed)
    made = [Run("test", {"a": float(v), "b": float(w)}) for v, w in rng.normal(size=(runs + 20, 2))]
    return Calibration.of(made[:20], made[20:], {"a": 0.1, "b": 0.1})


def test_the_level_holds_for_exchangeable_runs():
    """p <= level in a share `level` of new runs, over calibrations and runs alike."""
    alarms = 0
    for s in range(300):
        own = table(99, s)
        new = np.random.default_rng(10_000 + s).normal(size=(20, 2))
        alarms += sum(own.p_value({"a": a, "b": b}) <= 0.05 for a, b in new)
    # 5 % of 6,000 is 300; alarms of one calibration go together, hence a wide margin
    assert 200 < alarms < 400


def test_p_value_and_cut_say_the_same():
    own = table()
    rng = np.random.default_rng(5)
    for level in (0.005, 0.01, 0.05, 0.2):
        cut = own.cut(["a", "b"], level)
        for a, b in 3 * rng.normal(size=(200, 2)):
            above = max(own.standard("a", a), own.standard("b", b)) > cut
            assert above == (own.p_value({"a": a, "b": b}) <= level)


def test_too_few_runs_for_the_level_are_said():
    few = Calibration(shipped().centre, shipped().spread, shipped().runs[:30])
    report = guard(planted.memory(np.random.default_rng(0)), calibration=few)
    assert report.verdict == "underpowered"
    assert not report.flagged
    assert "99 are needed" in " ".join(report.notes)
    assert guard(planted.memory(np.random.default_rng(0)), level=0.05, calibration=few).flagged


def test_a_check_that_no_run_has_takes_no_part():
    own = Calibration(
        shipped().centre,
        shipped().spread,
        tuple(Run(r.kind, {"one_entry": r.largest["one_entry"]}) for r in shipped().runs),
    )
    report = guard(fresh("vit", 0), calibration=own)
    assert [c.name for c in report.checks] == ["one_entry"]
    assert "not looked at" in " ".join(report.notes)


def test_what_is_shipped_has_its_source_and_attains_the_default_level(tmp_path):
    own = shipped()
    assert own.attains(0.01)
    assert set(own.centre) == set(UNITS)
    assert set(WITHOUT) < set(UNITS)
    assert {"mlp", "cnn", "vit"} <= set(own.source["kinds"])
    own.write(tmp_path / "again.json")
    assert Calibration.read(tmp_path / "again.json") == own


def test_broken_calibrations_are_refused(tmp_path):
    from fedaudit.errors import FormatError

    with pytest.raises(DataError, match="holds no calibration"):
        Calibration.read(tmp_path / "none.json")
    (tmp_path / "x.json").write_text('{"format": 9}')
    with pytest.raises(FormatError, match="not a calibration of this version"):
        Calibration.read(tmp_path / "x.json")


# -- reports and bad input -------------------------------------------------------------------------


def test_a_report_survives_json():
    for report in (
        guard(planted.memory(np.random.default_rng(0))),
        guard(fresh("mlp", 0), fresh("mlp", 1)),
        guard(fresh("mlp", 0), level=1e-9),
        guard({"w": np.full((4, 4), np.nan)}),
    ):
        assert GuardReport.from_json(report.to_json()) == report
    with pytest.raises(ValueError, match="not a guard report"):
        GuardReport.from_json("{}")


def test_what_is_not_finite_is_a_finding():
    state = fresh("mlp", 0).state_dict()
    state["1.weight"][3, 5] = math.inf
    report = guard(state)
    assert report.verdict == "not_finite"
    assert report.flagged
    assert "1 numbers in 1.weight" in report.notes[0]


def test_bad_input_is_refused():
    module = fresh("mlp", 0)
    with pytest.raises(DataError, match="nothing that could be checked"):
        guard({"bias": np.zeros(5)})
    with pytest.raises(UsageError, match="cannot be read"):
        guard([1, 2])
    with pytest.raises(UsageError, match="level is out of range"):
        guard(module, level=0.0)
    with pytest.raises(DataError, match="does not fit the one that was received"):
        guard(module, {"1.weight": np.zeros((3, 3))})
    other = {k: v.numpy() for k, v in module.state_dict().items()}
    other["1.bias"] = np.zeros(5, np.float32)
    with pytest.raises(DataError, match=r"1\.bias: \(96,\) now, \(5,\) before"):
        guard(module, other)
    x, y = np.zeros((20, 64), np.float32), np.zeros(20, np.int64)
    with pytest.raises(UsageError, match="own records need a model that runs"):
        guard(module.state_dict(), data=(x, y))
    with pytest.raises(DataError, match="at least 8 records"):
        guard(module, data=(x[:3], y[:3]))
    with pytest.raises(DataError, match="does not run on own records"):
        guard(module, data=(x[:, :7], y))
    with pytest.raises(UsageError, match="do not fit the module"):
        guard(module.state_dict(), data=(x, y), module=models.mlp(64, (5,), 10))


def test_names_and_dtypes_of_other_frameworks():
    """(in, out) matrices and half precision: the same alarm."""
    state = planted.fully_connected(
        np.random.default_rng(0), np.random.default_rng(1).random((9, 32))
    )
    kernels = {k.replace("weight", "kernel"): v.T.astype(np.float16) for k, v in state.items()}
    report = guard(kernels)
    assert report.verdict == "planted"
    counters = {**state, "steps": np.asarray(np.int64(3))}
    assert guard(counters).checks == guard(state).checks
