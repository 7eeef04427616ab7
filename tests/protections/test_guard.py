"""What a client sees in a received model: statistics, error rates, disguises, reports."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedaudit.errors import DataError, UsageError
from fedaudit.protections.guard import Calibration, GuardReport, HonestRun, guard, measure
from fedaudit.protections.guard.calibration import shipped
from fedaudit.protections.guard.files import read_model
from fedaudit.protections.guard.guard import UNITS
from fedaudit.protections.guard.query_key import alike
from fedaudit.protections.guard.tensors import surprise
from fedaudit.protections.guard.twins import extremes
from fedaudit.randomness import Seed
from fedaudit.tasks import models, pretraining
from reproductions.guard import honest, planted
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
    for some in (rows, np.concatenate([rows] * 10)):  # one block of rows, and two
        low, high, square = extremes(some)
        products = some @ some.T
        np.fill_diagonal(products, np.nan)
        np.testing.assert_allclose(low, np.nanmin(products, axis=1))
        np.testing.assert_allclose(high, np.nanmax(products, axis=1))
        assert square == pytest.approx(np.nanmean(products**2))


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
    for factor in (3.0, 1e-30, 1e25):  # whose squares have no place in single precision
        scaled = {k: np.float32(factor) * v for k, v in state.items()}
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
    assert "zero gradient" in score.words
    usual = measure(models.mlp(16, (32, 32), 10), data=(x, y))["silent"]
    assert usual.value == 0.0
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


# -- honest kinds of models ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [k for k in honest.SHARES if k != "wide mlp"])
def test_honest_federations_of_every_kind_raise_nothing(kind):
    """Each kind of built-in model, and adapters on one, over rounds: with the model before and,
    where there are some, records of a client."""
    rounds = 2 if kind == "pretrained gpt" else 4
    run = honest.run(77, model=kind, condition="plain", rounds=rounds)
    before = None
    for state in run.states:
        report = guard(state, before, run.records, module=run.module if run.records else None)
        # adapters are of few rows, or of narrow ones: not every check could raise an alarm
        quiet = "nothing_to_say" if kind == "lora" else "no_evidence"
        assert report.verdict == quiet, (kind, report.alarms, report.notes)
        before = state


def test_rows_that_were_zero_are_not_rewritten():
    rng = np.random.default_rng(0)
    before = {"0.weight": rng.normal(size=(64, 64)), "head.weight": np.zeros((10, 64))}
    now = {**before, "head.weight": rng.normal(size=(10, 64))}
    assert measure(now, before)["rewritten"].value == 0.0
    before["head.weight"][:5] = rng.normal(size=(5, 64))  # rows that were not: written anew
    assert measure(now, before)["rewritten"].value > 0.5


@pytest.mark.parametrize("size", [(64, 32), (512, 128)])
def test_tables_of_positions_and_tokens_are_not_rows_of_units(size):
    n, width = size
    angles = np.arange(n)[:, None] * np.exp(-np.arange(0, width, 2) * math.log(1e4) / width)
    waves = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(n, width)
    state = {k: v.numpy() for k, v in fresh("mlp", 0).state_dict().items()}
    for name in ("pe", "encoder.pos_embed", "embeddings.position_embeddings.weight", "wpe.weight"):
        report = guard({**state, name: waves.astype(np.float32)})
        assert report.verdict == "no_evidence"
        assert any("not examined" in note and name in note for note in report.notes)
    ids = guard({**state, "embeddings.position_ids": np.arange(512)[None]})
    assert ids.verdict == "no_evidence"
    # a module says by itself what is a buffer, whatever it is called
    module = fresh("mlp", 0)
    module.register_buffer("waves", torch.from_numpy(waves))
    assert any("waves" in note for note in guard(module).notes)


def test_an_output_layer_that_is_the_table_of_tokens_is_not_looked_at_twice():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(100, 16)).astype(np.float32)
    table[50:] = table[:50]
    state = {"tokens.weight": table, "head.weight": table.copy(), "fc.weight": rng.random((20, 16))}
    assert measure(state)["repeated"].where.startswith("fc")


@pytest.mark.parametrize("file", ["tiny-gpt-64", "tiny-gpt-128"])
def test_trained_language_models_that_come_with_fedaudit_pass(file):
    """As they are stored: eight bits, and a scale per row."""
    state = read_model(pretraining.SHIPPED / f"{file}.safetensors")
    report = guard(state)
    assert report.verdict == "no_evidence"
    whole = {
        k: v.float() * state[f"{k}.scale"].float() if f"{k}.scale" in state else v
        for k, v in state.items()
        if not k.endswith(".scale")
    }
    again = guard(whole)
    for a, b in zip(report.checks, again.checks, strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-5)


def test_biases_of_one_constant_are_how_layers_begin():
    for constant in (0.01, 0.1, 1.0):
        module = fresh("mlp", 0)
        nn.init.constant_(module[1].bias, constant)
        assert guard(module).verdict == "no_evidence"
    nn.init.constant_(module[1].bias, -0.3)
    assert measure(module)["constant_bias"].value > 100


def test_layers_of_kinds_that_were_not_calibrated_raise_no_alarm_and_are_named():
    """Filters of one channel lie in few directions; forget gates begin at 1; what is strange in
    them keeps the guard from saying that there is nothing, and no more."""
    rng = np.random.default_rng(0)
    state = {k: v.numpy() for k, v in fresh("mlp", 0).state_dict().items()}
    smooth = rng.normal(size=(480, 2)) @ rng.normal(size=(2, 9))
    depthwise = guard({**state, "dw.weight": smooth.reshape(480, 1, 3, 3)})
    assert depthwise.verdict in ("no_evidence", "nothing_to_say")
    assert any("dw.weight" in note for note in depthwise.notes)
    gates = nn.LSTM(32, 64)
    with torch.no_grad():
        gates.bias_ih_l0.zero_()
        gates.bias_ih_l0[64:128] = 1.0
    assert not guard({**state, **gates.state_dict()}).flagged
    twins = np.tile(rng.normal(size=(240, 80)), (2, 1)).reshape(480, 80, 1, 1)
    pointwise = guard({**state, "pw.weight": twins})
    assert pointwise.verdict == "nothing_to_say"
    assert any("pointwise convolution of 480 x 80, but unusual" in n for n in pointwise.notes)
    own = replace(shipped(), layers=None)  # ranked all the same
    assert guard({**state, "pw.weight": twins}, calibration=own).verdict == "planted"


def test_where_no_check_applies_there_is_no_p_value():
    report = guard(nn.Linear(3, 2))
    assert report.verdict == "nothing_to_say"
    assert report.p_value is None
    assert GuardReport.from_json(report.to_json()) == report


def test_low_rank_factors_are_close_without_anybodys_doing():
    """Columns of a factor that grew out of zero lie in one or two directions."""
    rng = np.random.default_rng(0)
    grown = rng.normal(size=(64, 2)) @ rng.normal(size=(2, 16)) + 0.02 * rng.normal(size=(64, 16))
    scores = measure({"lora_B.weight": grown})
    assert scores["repeated"].value < 5
    assert scores["mirrored"].value < 5


# -- disguises that change nothing but how numbers are stored ---------------------------------


def test_whole_numbers_are_looked_at_and_a_change_of_type_is_said():
    rng = np.random.default_rng(0)
    plain = planted.fully_connected(rng, planted.records("digits"))
    disguised = planted.whole_numbers(plain)
    assert disguised["1.weight"].dtype == np.int64
    report = guard(disguised, plain)
    assert report.verdict == "planted"
    assert {"one_entry", "mirrored", "constant_row"} <= {c.name for c in report.alarms}
    assert "1.weight arrived as int64, and as float32 before" in report.notes
    other = guard({**plain, "z.weight": np.eye(8, dtype=np.complex64)})
    assert any("z.weight (complex64)" in note for note in other.notes)


def test_double_precision_hides_no_scale():
    rng = np.random.default_rng(0)
    plain = planted.fully_connected(rng, planted.records("digits"))
    tiny = {k: v.astype(np.float64) for k, v in plain.items()}
    tiny["1.weight"] *= 1e-200
    tiny["1.bias"] *= 1e-200
    tiny["3.weight"] *= 1e200
    report = guard(tiny)
    assert {"one_entry", "mirrored", "constant_row"} <= {c.name for c in report.alarms}


def test_queries_and_keys_are_read_in_both_layouts():
    """One tensor (in, 3 out), as GPT-2 has it."""
    for s in range(3):
        state = planted.fused(np.random.default_rng(s), rotated=True)
        turned = {
            k: np.ascontiguousarray(v.T) if v.ndim == 2 and "qkv" in k else v
            for k, v in state.items()
        }
        one, other = measure(state)["query_key"].value, measure(turned)["query_key"].value
        assert one == pytest.approx(other, rel=1e-6)
        assert "query_key" in {c.name for c in guard(turned).alarms}


# -- own records -----------------------------------------------------------------------------------


class Adapted(nn.Module):
    """A frozen layer and an adapter on it, a part that is not used, and logits in a mapping."""

    def __init__(self):
        super().__init__()
        self.body = models.LowRank(nn.Linear(16, 32), 4, 1.0)
        self.head, self.unused = nn.Linear(32, 10), nn.Linear(5, 5)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        return {"logits": self.head(torch.relu(self.body(x)))}


def test_what_has_just_begun_or_is_not_used_is_not_silent():
    rng = np.random.default_rng(0)
    data = rng.random((20, 16)).astype(np.float32), rng.integers(0, 10, 20)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Adapted()
    kept = {k: v.clone() for k, v in module.state_dict().items()}
    scores = measure(module, data=data)
    assert scores["silent"].value < 0.2
    assert all(torch.equal(v, kept[k]) for k, v in module.state_dict().items())


def test_records_and_outputs_that_say_nothing_are_refused():
    x, y = np.random.default_rng(0).random((20, 16)).astype(np.float32), np.zeros(20, np.int64)
    with pytest.raises(DataError, match="a single output"):
        guard(models.mlp(16, (32,), 1), data=(x, y))
    broken = x.copy()
    broken[3, 4] = np.nan
    with pytest.raises(DataError, match="own records are not finite"):
        guard(models.mlp(16, (32,), 10), data=(broken, y))

    class Strange(nn.Linear):
        def forward(self, x):
            return {"scores": super().forward(x)}

    with pytest.raises(DataError, match="does not return logits"):
        guard(Strange(16, 10), data=(x, y))
    one = guard(models.mlp(16, (32,), 10), data=(x, y))  # all of one class: that may be
    assert "silent" in {c.name for c in one.checks}


def test_a_previous_model_that_is_not_finite_is_not_compared_with():
    state = {k: v.numpy() for k, v in fresh("mlp", 0).state_dict().items()}
    report = guard(state, {k: v * np.nan for k, v in state.items()})
    assert report.verdict == "no_evidence"
    assert "rewritten" not in {c.name for c in report.checks}
    assert any("not compared with the previous model" in n for n in report.notes)


# -- calibration -----------------------------------------------------------------------------------


def table(runs=199, seed=0):
    rng = np.random.default_rng(seed)
    made = [
        HonestRun("test", {"a": float(v), "b": float(w)})
        for v, w in rng.normal(size=(runs + 20, 2))
    ]
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
    assert report.verdict == "nothing_to_say"
    assert not report.flagged
    assert "99 are needed" in " ".join(report.notes)
    assert guard(planted.memory(np.random.default_rng(0)), level=0.05, calibration=few).flagged


def test_a_check_that_no_run_has_takes_no_part():
    own = Calibration(
        shipped().centre,
        shipped().spread,
        tuple(HonestRun(r.kind, {"one_entry": r.largest["one_entry"]}) for r in shipped().runs),
    )
    report = guard(fresh("vit", 0), calibration=own)
    assert [c.name for c in report.checks] == ["one_entry"]
    assert "checks not run" in " ".join(report.notes)


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

    with pytest.raises(DataError, match="is not a calibration"):
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
    assert report.p_value is None  # nothing was ranked
    assert "1 numbers in 1.weight" in report.notes[0]


def test_bad_input_is_refused():
    module = fresh("mlp", 0)
    with pytest.raises(DataError, match="no tensor that can be checked"):
        guard({"bias": np.zeros(5)})
    with pytest.raises(UsageError, match="cannot be read"):
        guard([1, 2])
    with pytest.raises(UsageError, match="level is out of range"):
        guard(module, level=0.0)
    with pytest.raises(DataError, match="does not fit the received one"):
        guard(module, {"1.weight": np.zeros((3, 3))})
    other = {k: v.numpy() for k, v in module.state_dict().items()}
    other["1.bias"] = np.zeros(5, np.float32)
    with pytest.raises(DataError, match=r"1\.bias: \(96,\) now, \(5,\) before"):
        guard(module, other)
    x, y = np.zeros((20, 64), np.float32), np.zeros(20, np.int64)
    with pytest.raises(UsageError, match="needs a runnable model"):
        guard(module.state_dict(), data=(x, y))
    with pytest.raises(DataError, match="at least 8 records"):
        guard(module, data=(x[:3], y[:3]))
    with pytest.raises(DataError, match="fails on your own records"):
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
