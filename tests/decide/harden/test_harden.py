"""`harden` finds, writes and confirms the cheapest protection, or says which limits conflict."""

import json
import math
import tomllib
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest

from fedaudit import study
from fedaudit.audits.facts import AuditFacts, Decision
from fedaudit.decide.gate import evidence, gate, load_policy
from fedaudit.decide.gate.check import limit_text
from fedaudit.decide.gate.evidence import Evidence, removed_question, run_evidence
from fedaudit.decide.gate.outcome import LimitCheck, LimitReading
from fedaudit.decide.gate.policy import read_limit, write_policy
from fedaudit.decide.harden import choices, harden, limits, utility
from fedaudit.decide.harden.cells import CellRunner, OutOfTime, parse_budget
from fedaudit.decide.harden.outcome import Point
from fedaudit.decide.harden.search import PRECISION, Search, conflicts, instead
from fedaudit.errors import ConfigError, UsageError
from fedaudit.protections import SecureSum, Shuffle
from fedaudit.results import AuditResult, Estimate, Need
from fedaudit.setup.config import load

SMALL = {
    "seed": 3,
    "data": {"name": "digits"},
    "partition": {"kind": "dirichlet", "alpha": 0.5},
    "task": {"kind": "mlp", "hidden": [8]},
    "federation": {"clients": 4, "rounds": 3},
    "training": {"learning_rate": 0.3, "epochs": 1, "batch_size": 32},
    "protections": {"shuffle": {}},
    "audits": {"fingerprint": {"methods": ["greedy"]}},
}
LINKS = "fingerprint.linkage_accuracy <= 1.5 x chance"
CHEAP = "accuracy_loss <= 2 points"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for all searches of this file, which share their cells."""
    return tmp_path_factory.mktemp("harden")


def searched(folder, *lines, config=SMALL, **options):
    options = {"workers": 1, "curve": 0, **options}
    return harden(config, folder, limits=lines, **options)


@pytest.fixture(scope="module")
def private(folder):
    """DP-SGD for an epsilon, with the faster accountant."""
    config = {**SMALL, "protections": {"dp_sgd": {"accountant": "rdp"}}}
    lines = ("epsilon <= 6 per record", "accuracy_loss <= 0.9")
    done = searched(folder, *lines, config=config, only=["dp_sgd"])
    texts = {f: (folder / f).read_text("utf-8") for f in ("hardened.toml", "policy.toml")}
    return done, {name: tomllib.loads(text) for name, text in texts.items()}


@pytest.fixture(scope="module")
def found(folder):
    return searched(folder, LINKS, CHEAP)


# -- limits that can be kept ---------------------------------------------------------------------


def test_a_secure_sum_leaves_removed_question_and_is_chosen(found):
    assert found.succeeded
    assert found.confirmed.label == SecureSum.transport
    assert found.confirmed.trusted == ("the aggregator",)
    # the same model up to the order of a sum: the loss is known, not estimated
    assert (found.confirmed.cost.low, found.confirmed.cost.high) == (0.0, 0.0)
    assert [p.label for p in found.points] == ["unprotected", "shuffle", "secure sum"]
    codes = {c.limit: c.code for c in found.confirmed.checks}
    assert codes["fingerprint.linkage_accuracy"] == "nothing_left"


def test_named_updates_break_a_limit_on_linkage(found):
    (check,) = [c for c in found.points[0].checks if c.metric.startswith("fingerprint")]
    assert check.status == "failed"
    (reading,) = check.readings
    assert reading.bound == 1.0


def test_the_choice_is_measured_on_fresh_seeds(found, folder):
    seen = {f for p in found.points for f in p.folders}
    assert not seen & set(found.confirmed.folders)
    seeds = [
        tomllib.loads((folder / "cells" / f / "truth" / "config.toml").read_text("utf-8"))["seed"]
        for f in found.confirmed.folders
    ]
    assert seeds == [SMALL["seed"] + 1]


def test_the_written_config_runs_and_passes_the_written_policy(found, folder, tmp_path):
    assert found.config == str(folder / "hardened.toml")
    study.run(folder / "hardened.toml", tmp_path / "run")
    verdict = gate(tmp_path / "run", folder / "policy.toml")
    assert verdict.passed
    assert {c.limit: c.status for c in verdict.checks} == {
        "fingerprint.linkage_accuracy": "passed",
        "accuracy_loss": "allowed",
    }
    assert load(folder / "hardened.toml").raw["audits"] == load(SMALL).raw["audits"]


def test_a_policy_that_was_written_for_a_protection_fails_without_it(
    found, folder, tmp_path, in_process
):
    """The written policy allows only `accuracy_loss` to be missing."""
    assert load_policy(folder / "policy.toml").allow_missing == ("accuracy_loss",)
    bare = load(folder / "hardened.toml").raw | {"protections": {}}
    study.run(bare, tmp_path / "run")
    verdict = gate(tmp_path / "run", folder / "policy.toml")
    assert not verdict.passed
    assert {c.limit: c.status for c in verdict.checks}["fingerprint.linkage_accuracy"] == "failed"
    assert in_process("gate", tmp_path / "run", "--policy", folder / "policy.toml")[0] == 4


def test_noise_is_not_tried_on_names(found):
    """Noise does not hide names, so the search does not try it."""
    unprotected = found.points[0]
    named = run_evidence(Path(found.path) / "cells" / unprotected.folders[0])
    assert "known outright" in limits.why_noise_cannot_help(unprotected.checks, [named])


def test_the_lowest_level_of_a_ladder_meets_the_epsilon(private, tmp_path):
    done, written = private
    assert done.succeeded
    # one level is enough: the noise was known before anything was trained
    assert [p.level for p in done.points] == [0.0, 1.0]
    assert 5.9 < done.chosen.epsilon <= 6.0
    assert done.confirmed.epsilon <= 6.0
    # the winner alone is rehearsed: declared beside measured
    assert 0.0 <= done.confirmed.epsilon_measured <= done.confirmed.epsilon
    assert all(p.epsilon_measured is None for p in done.points)
    # noise for an epsilon fits the partition of the seed, which is not in the file
    study.run(written["hardened.toml"], tmp_path / "run", seed=SMALL["seed"])
    verdict = gate(tmp_path / "run", written["policy.toml"])
    assert verdict.passed
    assert verdict.counts["passed"] == 1
    assert verdict.counts["allowed"] == 1


def test_a_ladder_is_halved_to_the_least_noise_that_keeps_the_risk(folder):
    done = searched(
        folder, "fingerprint.linkage_accuracy <= 0.85", only=["shuffle", "dp_sgd"], seeds=1
    )
    noisy = sorted((p for p in done.points if p.level), key=lambda p: p.level)
    kept = [p.level for p in noisy if p.met]
    assert kept
    lower = [p.level for p in noisy if p.level < kept[0]]
    # either the foot of the ladder did, or the next lower level that was tried broke it
    assert not lower or kept[0] / lower[-1] <= PRECISION
    # epsilon was not asked for: no ladder was entered that only epsilon needs
    assert all("DP-SGD" in p.label for p in noisy)


def test_candidates_that_do_not_hold_on_fresh_seeds_are_not_confirmed(folder, monkeypatch):
    """The search keeps a limit by luck; the figures on fresh seeds decide."""
    inside = Search._point

    def lucky(self, choice, measured):
        point = inside(self, choice, measured)
        if measured[choice][0] == self.seeds:
            return replace(point, checks=tuple(replace(c, status="passed") for c in point.checks))
        return point

    monkeypatch.setattr(Search, "_point", lucky)
    done = searched(folder, "fingerprint.linkage_accuracy <= 0.01", only=["shuffle"])
    assert not done.succeeded
    assert [p.label for p in done.rejected] == ["unprotected", "shuffle"]
    assert not (folder / "hardened.toml").exists()
    assert (folder / "nearest.toml").exists()
    # every attempt has seeds of its own
    assert not set(done.rejected[0].folders) & set(done.rejected[1].folders)


# -- limits that cannot --------------------------------------------------------------------------


def test_conflicting_limits_are_named_with_the_nearest_protection(folder):
    done = searched(folder, "epsilon <= 0.05", CHEAP, only=["dp_sgd"])
    assert not done.succeeded
    assert done.conflicts == (("epsilon", "accuracy_loss"),)
    assert "DP-SGD" in done.nearest.label
    assert [c.limit for c in done.nearest.broken] == ["accuracy_loss"]
    assert [c.limit for c in done.instead["epsilon"].broken] == ["epsilon"]
    made = load(folder / "nearest.toml")
    assert made.protections["dp_sgd"].noise_multiplier > 10
    assert "does NOT keep every limit" in (folder / "nearest.toml").read_text("utf-8")
    assert not (folder / "hardened.toml").exists()


def test_of_several_variants_the_base_is_hardened_and_the_output_says_so(found, folder):
    compare = {"base": "plain", "noisy": {"federation": {"rounds": 5}}, "DP": {"seed": 9}}
    done = searched(folder, LINKS, CHEAP, config={**SMALL, "compare": compare})
    (why,) = [why for what, why in done.left_out if what == "[compare] 'noisy', 'DP'"]
    assert "'plain'" in why
    assert done.points == found.points
    text = (folder / "harden.md").read_text("utf-8").replace("\\", "")
    assert "Not tried: [compare] 'noisy', 'DP'" in text


def test_an_unknown_cost_comes_last(found, folder):
    runner = CellRunner(folder, workers=1, budget=None, progress=lambda *_: None)
    search = Search(load(SMALL), limits.load_limits(None, [LINKS]), runner, 1, [])
    (hidden,) = (p for p in found.points if p.met)
    ladder = choices.NoiseLadder("dp_sgd", "DP-SGD", 1.0, 4.0)
    unknown, dear = (choices.Choice(search.transports[1], ladder, level) for level in (1.0, 2.0))
    lost = Estimate(value=0.3, low=0.2, high=0.4, n=100)
    search.points = {unknown: replace(hidden, cost=None), dear: replace(hidden, cost=lost)}
    assert search._candidates() == [dear, unknown]
    # a way changes no model: it is free also where no accuracy was stored
    way = choices.Choice(search.transports[2])
    search.points[way] = replace(hidden, cost=None)
    assert [search._is_free(c) for c in (way, unknown, dear)] == [True, False, False]


# -- the seed --------------------------------------------------------------------------------------


def test_neither_cell_names_nor_written_configs_reveal_the_seed(found, folder, private):
    _, written = private
    assert "seed" not in written["hardened.toml"]
    folders = [f for p in found.points for f in p.folders]
    assert {f.rpartition("-")[2] for f in folders} == {"1"}
    other = CellRunner(folder / "elsewhere", workers=1, budget=None, progress=lambda *_: None)
    mine = CellRunner(folder, workers=1, budget=None, progress=lambda *_: None)
    config = load({**SMALL, "protections": {}})
    # another seed that is the first of its folder has the same name
    assert other.folder(load({**SMALL, "protections": {}, "seed": 77})).name == folders[0]
    assert mine.folder(config).name == folders[0]


def test_a_folder_with_another_seed_is_not_taken_for_the_same_run(found, folder):
    def number(runner, **changes):
        return int(runner.folder(load({**SMALL, **changes})).name.rpartition("-")[2])

    first, second = (
        CellRunner(folder, workers=1, budget=None, progress=lambda *_: None) for _ in range(2)
    )
    taken = {int(f.name.rpartition("-")[2]) for f in (folder / "cells").iterdir()}
    for runner in (first, second):  # before and after a restart
        assert number(runner) == 1
        new = number(runner, seed=123456)
        assert new not in taken
        assert number(runner, seed=123456) == new


def test_the_number_of_a_cell_without_truth_is_not_reused(tmp_path):
    (tmp_path / "cells" / "0123456789abcdef-3").mkdir(parents=True)
    runner = CellRunner(tmp_path, workers=1, budget=None, progress=lambda *_: None)
    assert runner.folder(load(SMALL)).name.endswith("-4")


def test_contradictions_and_unknown_names_are_refused_before_anything_runs(tmp_path):
    for lines, words in (
        (["accuracy >= 0.9", "accuracy <= 0.5"], "contradict"),
        (["fingerprint.linkage_acuracy <= 0.5"], "did you mean 'fingerprint.linkage_accuracy'"),
        (["epsilon < 5"], "cannot read"),
        (["epsilon <= 0"], "above 0"),
        (["accuracy_loss >= 2 points"], "at_least does not apply"),
    ):
        with pytest.raises(ConfigError, match=words):
            harden(SMALL, tmp_path / "out", limits=lines)
    with pytest.raises(UsageError, match="no limit is given"):
        harden(SMALL, tmp_path / "out")
    with pytest.raises(UsageError, match="dp_sgd"):
        harden(SMALL, tmp_path / "out", limits=[CHEAP], only=["dp_sdg"])
    with pytest.raises(UsageError, match="seeds"):
        harden(SMALL, tmp_path / "out", limits=[CHEAP], seeds=0)
    file = tmp_path / "limits.toml"
    file.write_text('[[limit]]\nmetric = "accuracy"\nat_least = 0.5\nvariant = "DP-SGD"\n')
    with pytest.raises(ConfigError, match="run of a study"):
        harden(SMALL, tmp_path / "out", policy=file)
    assert not (tmp_path / "out").exists()


# -- resuming and time ---------------------------------------------------------------------------


def test_a_stopped_search_resumes_and_ends_the_same(found, tmp_path):
    def stop(stage, done, total, note):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path, LINKS, CHEAP, progress=stop)
    assert len(list((tmp_path / "cells").iterdir())) == 2
    again = searched(tmp_path, LINKS, CHEAP)
    assert again.reused == 2
    assert again.points == found.points
    assert again.confirmed == found.confirmed


def test_a_spent_budget_reports_what_is_known_and_claims_nothing_unconfirmed(found, tmp_path):
    nothing = searched(tmp_path, LINKS, budget=1e-9)
    assert not nothing.succeeded
    assert nothing.points == ()
    assert "budget" in nothing.stopped
    # runs that are there cost no time: the search is complete, its confirmation is not
    (tmp_path / "cells").rmdir()
    (tmp_path / "cells").symlink_to(Path(found.path) / "cells")
    (fresh,) = found.confirmed.folders
    (tmp_path / "cells" / fresh / "cell.json").rename(tmp_path / "kept.json")
    try:
        best = searched(tmp_path, LINKS, CHEAP, budget=1e-9)
    finally:
        (tmp_path / "kept.json").rename(tmp_path / "cells" / fresh / "cell.json")
    assert best.chosen.label == SecureSum.transport
    assert not best.succeeded
    assert not (tmp_path / "hardened.toml").exists()
    assert "NOT confirmed on fresh seeds" in (tmp_path / "nearest.toml").read_text("utf-8")
    assert json.loads((tmp_path / "harden.json").read_text("utf-8"))["succeeded"] is False


def test_no_cell_starts_that_the_budget_cannot_finish(tmp_path):
    now = [0.0]
    notes = []

    def progress(stage, done, total, note):
        notes.append(note)

    class Slow(CellRunner):
        def _folder_of(self, name):
            now[0] += 4.0  # every run takes four seconds of this clock
            return super()._folder_of(name)

    runner = Slow(tmp_path, workers=1, budget=10.0, progress=progress, clock=lambda: now[0])
    wanted = [(f"seed {s}", load({**SMALL, "seed": s})) for s in (50, 51, 52, 53)]
    with pytest.raises(OutOfTime):
        runner.measure(wanted)
    assert notes == ["seed 50", "seed 51"]
    assert [runner.is_measured(c) for _, c in wanted] == [True, True, False, False]


def test_workers_are_ended_with_the_search_and_agree_with_it(found, folder, tmp_path):
    def stop(stage, done, total, note):
        raise KeyboardInterrupt

    runner = CellRunner(tmp_path, workers=2, budget=600.0, progress=stop)
    (cell,) = found.points[1].folders
    raw = tomllib.loads((folder / "cells" / cell / "truth" / "config.toml").read_text("utf-8"))
    with pytest.raises(KeyboardInterrupt), runner:
        runner.measure([("shuffle", load(raw))])
    assert not active_children()
    # measured by a worker: the same to the last digit as in this process
    there = run_evidence(folder / "cells" / cell)
    own = runner.result_of(load(raw))
    assert (own.trace_sha256, own.metrics) == (there.trace_sha256, there.metrics)


def test_budgets_are_read_in_their_units():
    assert [parse_budget(t) for t in ("90", "90s", "10m", "1.5h", "2 min")] == [
        90,
        90,
        600,
        5400,
        120,
    ]
    for wrong in ("", "ten", "0", "-5m", "5d"):
        with pytest.raises(UsageError, match="time budget"):
            parse_budget(wrong)


# -- the pieces ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (LINKS, {"metric": "fingerprint.linkage_accuracy", "at_most_times_chance": 1.5}),
        (
            "two_stage_membership.true_positive_rate (at 1 %) at most 2 %",
            {"metric": "two_stage_membership.true_positive_rate (at 1 %)", "at_most": 0.02},
        ),
        ("epsilon <= 8 per client", {"metric": "epsilon", "at_most": 8.0, "per": "client"}),
        ("epsilon at most 8 per record", {"metric": "epsilon", "at_most": 8.0, "unit": "record"}),
        (CHEAP, {"metric": "accuracy_loss", "at_most": 0.02}),
        ("accuracy>=.8", {"metric": "accuracy", "at_least": 0.8}),
        ("coverage.verdict", {"metric": "coverage.verdict"}),
        (
            "two_stage_membership.membership_auc <= 5 points above chance",
            {"metric": "two_stage_membership.membership_auc", "at_most_above_chance": 0.05},
        ),
    ],
)
def test_a_limit_in_one_line(text, limit):
    assert read_limit(text) == limit
    policy = load_policy({"limit": [limit]})
    assert load_policy(tomllib.loads(write_policy(policy))).limits == policy.limits


def test_one_run_alone_does_not_say_what_its_protection_costs(found, folder):
    run = folder / "cells" / found.points[1].folders[0]
    verdict = gate(run, {"limit": [read_limit(CHEAP)]})
    assert [c.status for c in verdict.checks] == ["missing"]
    assert not verdict.passed


def test_tango_has_its_closed_form_without_discordant_pairs_and_is_symmetric():
    z2 = 1.959963984540054**2
    low, high = utility.tango(0, 0, 360)
    assert high == pytest.approx(z2 / (360 + z2), rel=1e-6)
    assert low == pytest.approx(-high)
    one, other = utility.tango(12, 5, 90), utility.tango(5, 12, 90)
    assert one == pytest.approx((-other[1], -other[0]))


def test_tango_equals_a_slow_twin_that_maximises_the_likelihood_on_a_grid():
    b, c, n = 9, 3, 60

    def inside(d):
        q = np.linspace(max(0, -d), (1 - d) / 2, 20001)[1:-1]
        p = q + d
        q, p = q[p > 0], p[p > 0]
        rest = np.maximum(1 - p - q, 1e-12)
        best = q[np.argmax(b * np.log(p) + c * np.log(q) + (n - b - c) * np.log(rest))]
        return abs(b - c - n * d) <= 1.96 * math.sqrt(n * (2 * best + d * (1 - d)))

    kept = [d for d in np.linspace(-0.2, 0.4, 601) if inside(d)]
    assert utility.tango(b, c, n) == pytest.approx((kept[0], kept[-1]), abs=2e-3)


def test_tango_covers_the_difference_as_often_as_it_says():
    rng = np.random.default_rng(5)
    draws = rng.multinomial(200, [0.08, 0.03, 0.89], size=400)
    ends = [utility.tango(int(b), int(c), 200) for b, c, _ in draws]
    assert np.mean([low <= 0.05 <= high for low, high in ends]) > 0.92


def test_the_paired_loss_is_the_difference_of_the_stored_accuracies(private, folder):
    done, _ = private
    base, own = (run_evidence(folder / "cells" / p.folders[0]) for p in done.points)
    lost = base.metrics["accuracy"] - own.metrics["accuracy"]
    assert done.points[1].cost.value == pytest.approx(lost, abs=1e-9)
    assert done.points[1].cost.method == "paired records (Tango)"
    wide = utility.unpaired_difference(
        base.metrics["accuracy"], own.metrics["accuracy"], base.held_out
    )
    assert wide.value == pytest.approx(lost, abs=1e-9)


def search_for(tmp_path, *lines, **options):
    runner = CellRunner(tmp_path, workers=1, budget=None, progress=lambda *_: None)
    policy = limits.load_limits(None, lines)
    return Search(load({**SMALL, **options}), policy, runner, 1, ())


def test_equal_epsilon_gives_every_client_the_noise_that_it_needs_and_no_more(tmp_path):
    search = search_for(
        tmp_path, "epsilon <= 6", protections={"dp_sgd": {"accountant": "rdp", "clip": 0.5}}
    )
    (ladder,) = [x for x in search.ladders if x.name == choices.ALLOCATED]
    made = search.protections_for(choices.Choice(search.transports[1], ladder, 1.0), 3)
    assert list(made) == ["dp_sgd", "shuffle"]  # noise before the shuffle
    config = choices.build_config(search.config, made, 3, ["fingerprint"])
    hook = config.protections["dp_sgd"]
    spent = [hook.guarantee(c, e).epsilon for c, e in enumerate(search.prepared(3).exposures(hook))]
    assert max(spent) <= 6.0
    assert min(spent) > 5.9
    assert len(set(hook.noise_multiplier)) > 1
    assert (hook.clip, hook.accountant) == (0.5, "rdp")  # as the config has them


def test_noise_by_size_spends_what_uniform_noise_would(tmp_path):
    search = search_for(tmp_path, LINKS)
    (ladder,) = [x for x in search.ladders if x.name == choices.ALLOCATED]
    z = np.array(
        search.protections_for(choices.Choice(search.transports[1], ladder, 2.0), 3)["dp_sgd"][
            "noise_multiplier"
        ]
    )
    assert (z**2).sum() == pytest.approx(len(z) * 2.0**2, rel=2e-3)
    assert np.argmax(z) == np.argmax(search.prepared(3).sizes)


def test_the_configs_own_protections_are_a_transport():
    own = {"clip": {"bound": 1.0}, "shuffle": {}}
    found = choices.transports(load({**SMALL, "protections": own}))
    assert [w.name for w in found] == ["unprotected", "shuffle", "secure sum", "as configured"]
    assert list(found[-1].protections) == ["clip", "shuffle"]
    assert [w.name for w in choices.transports(load(SMALL))] == [
        "unprotected",
        "shuffle",
        "secure sum",
    ]
    masked = load({**SMALL, "protections": {"secure_aggregation": {"threshold": 3}}})
    (summed,) = [w for w in choices.transports(masked) if w.name == SecureSum.transport]
    assert summed.protections["secure_aggregation"]["threshold"] == 3


def test_ladders_that_cannot_give_the_promise_are_left_out_with_the_reason():
    policy = limits.load_limits(None, ["epsilon <= 8 per person"])
    ladders, left = choices.ladders(load(SMALL), policy)
    assert {x.name for x in ladders} == {"dp_sgd", "allocation"}
    ((what, why),) = left
    assert what == "local DP"
    assert "per record" in why
    assert "per person" in why
    whole = load_policy({"limit": [{"metric": "epsilon", "at_most": 8, "unit": "client"}]})
    ladders, left = choices.ladders(load(SMALL), whole)
    assert {x.name for x in ladders} == {"update_noise", "central_dp"}


def test_an_exposure_limit_is_tried_where_single_units_are_read():
    policy = limits.load_limits(None, ["reconstruction.records_rebuilt <= 1 %"])
    ladders, _ = choices.ladders(load(SMALL), policy)
    assert "exposure_limit" in {x.name for x in ladders}
    ladders, _ = choices.ladders(load(SMALL), limits.load_limits(None, [LINKS]))
    assert "exposure_limit" not in {x.name for x in ladders}
    ladders, _ = choices.ladders(load(SMALL), limits.load_limits(None, [LINKS]), ["exposure_limit"])
    assert [x.name for x in ladders] == ["exposure_limit"]


def with_persons(folder, *, shared=False):
    """Two owners, two records per person; `shared`: some persons are with both owners."""
    rng = np.random.default_rng(2)
    rows = ["person,owner,a,b,label"]
    for i in range(160):
        person = i // 2
        owner = "xy"[i % 2 if shared and person < 5 else person % 2]
        label = int(rng.integers(2))
        a, b = rng.normal(label, 1, 2)
        rows.append(f"p{person},{owner},{a:.3f},{b:.3f},{label}")
    file = folder / "people.csv"
    file.write_text("\n".join(rows) + "\n")
    data = {"path": str(file), "label": "label", "client": "owner", "person": "person"}
    return {**SMALL, "data": data, "partition": {"kind": "by_owner"}, "federation": {"rounds": 2}}


def test_noise_covers_persons_if_the_data_name_them(tmp_path):
    config = with_persons(tmp_path)
    links = limits.load_limits(None, [LINKS])
    ladders, _ = choices.ladders(load(config), links)
    private = [x for x in ladders if x.name in ("dp_sgd", choices.ALLOCATED)]
    assert [x.settings["unit"] for x in private] == ["person", "person"]
    # a limit, or the config itself, has the last word
    asked = limits.load_limits(None, ["epsilon <= 8 per record"])
    ladders, _ = choices.ladders(load(config), asked, only=["dp_sgd"])
    assert ladders[0].settings["unit"] == "record"
    own = {**config, "protections": {"dp_sgd": {"unit": "record"}}}
    ladders, _ = choices.ladders(load(own), links, only=["dp_sgd"])
    assert ladders[0].settings["unit"] == "record"
    # a person with two clients cannot be covered by what one of them does
    ladders, _ = choices.ladders(load(with_persons(tmp_path, shared=True)), links, ["dp_sgd"])
    assert ladders[0].settings["unit"] == "record"


def test_the_written_config_keeps_the_person_and_its_epsilon_has_a_unit(tmp_path):
    config = with_persons(tmp_path)
    config = {**config, "task": {"kind": "mlp", "hidden": [2]}}
    done = searched(tmp_path / "out", "epsilon <= 50", config=config, only=["dp_sgd"])
    made = tomllib.loads(Path(done.config).read_text("utf-8"))
    assert made["protections"]["dp_sgd"]["unit"] == "person"
    (noisy,) = [p for p in done.points if p.level]
    assert noisy.label.endswith(" per person)")
    runs = [run_evidence(tmp_path / "out" / "cells" / f) for f in noisy.folders]
    assert limits.promise_text(runs) == "per person at delta 1e-05"
    assert limits.promise_text([]) == ""


def test_dp_sgd_trusts_only_the_clients_own_code():
    made = {"dp_sgd": {"noise_multiplier": 1.0}, "shuffle": {}}
    assert choices.trusted_parties(made) == ("the client's own code", "the shuffler")
    assert choices.trusted_parties({}) == ()
    assert choices.count_outside_parties(made) == 1
    assert choices.count_outside_parties({"dp_sgd": {}}) == 0


def test_a_limit_on_accuracy_loss_is_stated_in_points():
    (limit,) = limits.load_limits(None, ["accuracy_loss <= 15 points"]).limits
    assert limit_text(limit) == "at most 15 points"
    (limit,) = limits.load_limits(None, ["accuracy_loss <= 0.7 %"]).limits
    assert limit_text(limit) == "at most 0.7 points"
    (limit,) = limits.load_limits(None, ["accuracy >= 0.8"]).limits
    assert limit_text(limit) == "at least 0.8"


def test_rounded_noise_is_never_less_and_a_rounded_epsilon_never_more():
    for value in (0.0123456, 1.0, 2.73456, 99.999, 12345.6):
        assert value <= choices._round_safely(value) <= value * 1.0011
        assert value >= choices._round_safely(value, up=False) >= value * 0.9989


def linked(code, **protections):
    need = Need(code=code, what="whatever the words are")
    result = AuditResult(
        audit="fingerprint", question="", vantage="server", status="not_applicable", need=need
    )
    results = {"fingerprint": result}
    open_sums = protections.pop("recoverable", None)
    if open_sums is not None:
        e = Estimate(value=open_sums, low=open_sums, high=open_sums, n=4, confidence=1.0)
        results["query_plan"] = AuditResult(
            audit="query_plan",
            question="",
            vantage="server",
            headline="recoverable_updates",
            estimates={"recoverable_updates": e},
        )
    return Evidence(path=Path(), results=results, config={"protections": protections})


def test_nothing_is_left_to_link_if_no_single_update_is_visible():
    limit = "fingerprint.linkage_accuracy"
    hidden = "no_single_updates"
    assert removed_question(limit, [linked(hidden, secure_sum={})])
    assert not removed_question(limit, [linked("senders_known")])
    assert not removed_question(limit, [linked(hidden), linked("too_few_rounds")])
    # sums from which a single update can be solved for leave something to link
    assert removed_question(limit, [linked(hidden, secure_aggregation={}, recoverable=0.0)])
    assert not removed_question(limit, [linked(hidden, secure_aggregation={}, recoverable=2.0)])
    assert not removed_question(limit, [linked(hidden, secure_aggregation={})])
    # a recording of somebody else's has no config to say that one ideal sum is all there is
    assert not removed_question(limit, [linked(hidden)])
    assert removed_question(limit, [linked(hidden, recoverable=0.0)])
    other = "query_plan.recoverable_updates"
    assert not removed_question(other, [linked(hidden, secure_sum={})])


def test_an_audit_declares_which_protection_removes_its_question(monkeypatch):
    """The need's code and the protection in force count, whichever words the need has."""
    facts = AuditFacts(decision=Decision(removed_by={"no_names": "hides_senders"}))
    monkeypatch.setattr(evidence, "facts_of", lambda audit: facts)
    shuffled = ({"name": "shuffle"},)
    limit = "fingerprint.linkage_accuracy"
    assert "hides_senders" in removed_question(
        limit, [replace(linked("no_names"), declared=shuffled)]
    )
    assert not removed_question(limit, [linked("no_names")])
    assert not removed_question(limit, [replace(linked("no_truth"), declared=shuffled)])
    assert not removed_question(limit, [replace(linked("no_names"), declared=({"name": "clip"},))])
    assert not removed_question(limit, [])


def test_a_limit_on_all_verdicts_uses_the_same_rule():
    policy = load_policy({"limit": [{"metric": "verdict"}]})
    hidden = linked("no_single_updates", secure_sum={})
    (check,) = limits.check_limits(policy, [hidden], "no loss")
    assert (check.metric, check.status) == ("fingerprint.verdict", "passed")
    named = linked("senders_known")
    (check,) = limits.check_limits(policy, [named, hidden], "no loss")
    assert (check.status, check.run, check.code) == ("missing", "run 1 of 2", "senders_known")


def test_noise_does_not_help_an_underpowered_audit():
    def lacking(metric, why, code=""):
        return LimitCheck(
            limit="x", metric=metric, rule="", status="missing", missing=why, code=code
        )

    rate = "two_stage_membership.true_positive_rate (at 1 %)"
    few = "a true-positive rate needs 1,000, has 359"
    assert limits.why_noise_cannot_help([lacking(rate, few, "underpowered")], []) == f"x: {few}"
    assert limits.why_noise_cannot_help([lacking(rate, few)], []) == ""
    assert (
        limits.why_noise_cannot_help([lacking("epsilon", "nothing was promised to it")], []) == ""
    )
    named = linked("senders_known")
    assert limits.why_noise_cannot_help([lacking("fingerprint.linkage_accuracy", "n/a")], [named])


def measured(label, **bounds):
    """A point with `limit=bound`, every limit being at most 1."""
    checks = tuple(
        LimitCheck(
            limit=name,
            metric=name,
            rule="at most 1",
            status="passed" if bound <= 1 else "failed",
            readings=(LimitReading(bound=bound, limit=1.0),),
        )
        for name, bound in bounds.items()
    )
    return Point(label=label, series=label, checks=checks)


def test_conflicts_are_the_smallest_sets_that_nothing_keeps():
    points = [measured("x", a=0, b=2, c=0), measured("y", a=3, b=0, c=0)]
    assert conflicts(points) == (("a", "b"),)
    assert conflicts([*points, measured("z", a=0, b=0, c=5)]) == (("a", "b", "c"),)
    assert conflicts([measured("x", a=2, b=2)]) == (("a",), ("b",))
    assert conflicts([measured("x", a=0)]) == ()
    near = instead([*points, measured("v", a=2, b=0, c=0)], ["a", "b"])
    assert {name: p.label for name, p in near.items()} == {"a": "v", "b": "x"}


def shares(label, **bounds):
    """A point with `limit=(bound, at most)`, all of them shares with an interval."""
    checks = []
    for name, (bound, most) in bounds.items():
        e = Estimate(value=bound - 0.01, low=bound - 0.02, high=bound, n=100)
        reading = LimitReading(bound=bound, limit=most, estimate=e)
        status = "passed" if bound <= most else "failed"
        checks.append(
            LimitCheck(limit=name, metric=name, rule="", status=status, readings=(reading,))
        )
    return Point(label=label, series=label, checks=tuple(checks))


def test_two_limits_missed_by_little_are_nearer_than_one_missed_by_far(tmp_path):
    """More noise that nearly keeps both limits is offered, not the federation without noise."""
    bare = shares("unprotected", linkage=(1.0, 0.375), lost=(0.0, 0.02))
    noisy = shares("DP-SGD (z = 8)", linkage=(0.40, 0.375), lost=(0.06, 0.02))
    lacking = replace(
        noisy, label="lacking", checks=(replace(noisy.checks[0], status="missing", readings=()),)
    )
    assert noisy.nearness < bare.nearness < lacking.nearness
    search = search_for(tmp_path, LINKS)
    (way, *_), ladder = search.transports, choices.NoiseLadder("dp_sgd", "DP-SGD", 1.0, 8.0)
    search.points = {
        choices.Choice(way): bare,
        choices.Choice(way, ladder, 4.0): lacking,
        choices.Choice(way, ladder, 8.0): noisy,
    }
    assert search._nearest([]) is noisy
    assert search._nearest([bare, noisy]) is noisy


def test_no_point_is_tried_twice(tmp_path):
    own = {"dp_sgd": {"noise_multiplier": 8.0}, "shuffle": {}}
    search = search_for(tmp_path, LINKS, protections=own)
    (ladder,) = [x for x in search.ladders if x.name == "dp_sgd"]
    shuffled, configured = (
        next(t for t in search.transports if t.name == name)
        for name in (Shuffle.transport, choices.AS_CONFIGURED)
    )
    highest = choices.Choice(shuffled, ladder, 8.0)
    assert search._known(highest) == highest
    # the last step of a curve from 0.25 to 8 is 8 but for rounding
    assert search._known(choices.Choice(shuffled, ladder, 0.25 * 32**0.5 * 32**0.5)) == highest
    assert search._known(choices.Choice(configured)) == highest
    other = choices.Choice(shuffled, ladder, 7.9)
    assert search._known(other) == other


def test_noise_per_client_is_left_out_where_it_is_the_same_for_all(tmp_path):
    for options, tried in (({"partition": {"kind": "iid"}}, False), ({}, True)):
        search = search_for(tmp_path, LINKS, **options)
        (ladder,) = [x for x in search.ladders if x.name == choices.ALLOCATED]
        sizes = search.prepared(search.seeds[0]).sizes
        assert (sizes.max() > 1.01 * sizes.min()) == tried  # 359 or 360 records each
        assert search._climbable(ladder) == tried
        assert [what for what, _ in search.left_out] == ([] if tried else [ladder.label])


def test_means_over_seeds_of_a_difference_may_lie_below_zero():
    runs = [Estimate(value=v, low=v - 0.01, high=v + 0.01, n=9) for v in (0.01, 0.2, 0.4)]
    assert limits.mean_over_seeds(runs).low == 0.0
    apart = limits.mean_over_seeds(runs, share=False)
    assert apart.value == pytest.approx(np.mean([0.01, 0.2, 0.4]))
    assert apart.low < 0
    # Student's t by hand
    half = 4.302652729749464 * np.std([0.01, 0.2, 0.4], ddof=1) / math.sqrt(3)
    assert apart.high == pytest.approx(apart.value + half)


def test_a_verdict_that_is_not_settled_is_nearer_than_a_leak_that_showed(tmp_path):
    """Noise under which no leak could show any more is offered, not the federation without it."""

    def judged(label, status, leak):
        check = LimitCheck(limit="verdict", metric="a.verdict", rule="", status=status, leak=leak)
        return Point(label=label, series=label, checks=(check,))

    bare, noisy = judged("secure sum", "failed", 0.98), judged("z = 8", "missing", 0.0)
    some, lost = judged("z = 1", "failed", 0.2), judged("did not run", "missing", None)
    ranked = sorted([lost, bare, noisy, some], key=lambda p: p.nearness)
    assert ranked == [noisy, some, bare, lost]


def test_the_columns_of_a_table_are_not_cut_to_one_range(tmp_path):
    """Without bounds, ages and pressures would all become 1, and every record the same."""
    rows = "".join(f"{20 + i % 60},{100 + i % 90},{i % 2}\n" for i in range(120))
    (tmp_path / "own.csv").write_text("age,pressure,label\n" + rows)
    config = load({"data": {"path": str(tmp_path / "own.csv"), "label": "label"}})
    policy = limits.load_limits(None, ["verdict"])
    (found,) = (x for x in choices.ladders(config, policy)[0] if x.on_records)
    assert found.settings["bounds"] == "table"
    typed = {"local_dp": {"bounds": {"age": [0, 120], "pressure": [0, 300]}}}
    own = load({**config.raw, "protections": typed})
    (kept,) = (x for x in choices.ladders(own, policy)[0] if x.on_records)
    assert kept.settings["bounds"] == typed["local_dp"]["bounds"]
