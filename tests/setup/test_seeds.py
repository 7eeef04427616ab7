"""Seeds are drawn, kept in truth/ and taken up again; one given by hand is warned of."""

import json
import stat
import tomllib

import pytest

from fedaudit.decide.harden import harden
from fedaudit.errors import FormatError, TraceError
from fedaudit.randomness import Seed
from fedaudit.setup import seeds
from fedaudit.setup.config import DEFAULT, check, load, load_variants
from fedaudit.setup.toml import to_toml
from fedaudit.study import run as run_one
from fedaudit.study import study
from fedaudit.study.init import init
from fedaudit.study.sweep import sweep
from fedaudit.trace import Trace, Truth

pytestmark = pytest.mark.usefixtures("drawn_seeds")

SMALL = {
    "data": {"name": "gaussian-mixture", "records": 80},
    "task": {"kind": "mlp", "hidden": [4]},
    "federation": {"clients": 3, "rounds": 2},
    "training": {"batch_size": 8},
    "protections": {"shuffle": {}},
    "audits": {"coverage": {}},
}
TWO = {**SMALL, "compare": {"base": "plain", "noise": {"protections": {"dp_sgd": {}}}}}


def seed_of(run):
    return tomllib.loads((run / "truth" / "config.toml").read_text(encoding="utf-8"))["seed"]


def test_no_config_of_ours_has_a_seed(tmp_path):
    init(None, tmp_path / "a.toml")
    (tmp_path / "d.csv").write_text("a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(50)))
    init(tmp_path / "d.csv", tmp_path / "b.toml", label="y")
    texts = [(tmp_path / name).read_text(encoding="utf-8") for name in ("a.toml", "b.toml")]
    for text in (DEFAULT, *texts, *map(study.built_in_text, study.BUILT_IN)):
        assert "seed" not in tomllib.loads(text)


def test_what_is_drawn_has_64_bits_and_is_another_every_time():
    drawn = [load(SMALL).seed for _ in range(20)]
    assert len(set(drawn)) == 20
    assert max(drawn) > 2**58
    assert all(load(SMALL).drawn for _ in range(2))
    variants = load_variants(TWO)
    assert len({c.seed for c in variants.values()}) == 1  # the same federation, but for the noise


@pytest.mark.parametrize("seed", [2**63 - 1, 2**63, 2**64 - 1])
def test_large_seeds_go_through_files_and_generators(seed):
    config = load({**SMALL, "seed": seed})
    assert check(tomllib.loads(to_toml(config.raw))).seed == seed
    assert json.loads(json.dumps(config.raw))["seed"] == seed
    Seed(seed).generator("a").random()
    Seed(seed).torch_generator("a")


def test_a_run_keeps_its_seed_in_truth_alone_and_goes_on_with_it(tmp_path):
    first = run_one(SMALL, tmp_path / "run")
    seed = seed_of(tmp_path / "run")
    told = Trace.open(tmp_path / "run" / "trace").sha256
    again = run_one(SMALL, tmp_path / "run")
    assert (seed_of(tmp_path / "run"), again.findings) == (seed, first.findings)
    assert Trace.open(tmp_path / "run" / "trace").sha256 == told
    truth = Truth.open(tmp_path / "run" / "truth").facts
    assert (truth["seed"], truth["seed_drawn"]) == (seed, True)
    assert seeds.BY_HAND not in truth["notes"]
    for file in (tmp_path / "run").rglob("*"):
        if file.is_file() and not {"truth", "checkpoint"} & set(file.relative_to(tmp_path).parts):
            assert str(seed).encode() not in file.read_bytes(), file
    # a seed that is given is compared
    assert run_one({**SMALL, "seed": seed}, tmp_path / "run").path
    with pytest.raises(TraceError, match="another experiment"):
        run_one({**SMALL, "seed": 5}, tmp_path / "run")


def test_an_interrupted_run_goes_on_with_its_seed(tmp_path):
    def stop(stage, done, total, note):
        if stage == "train" and done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(SMALL, tmp_path / "run", progress=stop)
    seed = seed_of(tmp_path / "run")
    run_one(SMALL, tmp_path / "run")
    assert seed_of(tmp_path / "run") == seed
    run_one({**SMALL, "seed": seed}, tmp_path / "straight")
    traces = [Trace.open(tmp_path / name / "trace").sha256 for name in ("run", "straight")]
    assert traces[0] == traces[1]


def test_variants_share_the_seed_also_where_some_began_before(tmp_path):
    def stop(stage, done, total, note):
        if "noise" in note:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.run(TWO, tmp_path / "s", progress=stop)
    done = study.run(TWO, tmp_path / "s")
    first, second = (seed_of(one.path) for one in done.runs)
    assert first == second


def test_a_seed_given_by_hand_is_noted_and_stays_so(tmp_path):
    run_one({**SMALL, "seed": 7}, tmp_path / "run")
    run = run_one(SMALL, tmp_path / "run")  # takes up what is there
    assert seed_of(tmp_path / "run") == 7
    assert seeds.BY_HAND in Truth.open(tmp_path / "run" / "truth").facts["notes"]
    assert seeds.BY_HAND in run.summary["noted"]


def test_the_command_warns_of_a_seed_given_by_hand(in_process, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text(to_toml(SMALL), encoding="utf-8")
    drawn = in_process("run", file, "--out", tmp_path / "drawn", "-q")
    given = in_process("run", file, "--out", tmp_path / "given", "-q", "--seed", 7)
    assert (drawn.code, given.code) == (0, 0)
    assert seeds.BY_HAND not in drawn.err
    assert given.err.count(seeds.BY_HAND) == 1


def test_a_sweep_and_a_search_count_up_from_one_that_is_kept(tmp_path):
    small = ["federation.rounds=2", "federation.clients=3", "task.hidden=[4]"]
    first = sweep(None, ["training.epochs=1"], tmp_path, seeds=2, overrides=small, workers=1)
    again = sweep(None, ["training.epochs=1"], tmp_path, seeds=2, overrides=small, workers=1)
    assert (first.reused, again.reused) == (0, 2)
    file = tmp_path / "truth" / seeds.KEPT
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert seeds.base_seed(tmp_path) == json.loads(file.read_text(encoding="utf-8"))["seed"]
    file.write_text('{"seed": "7"}', encoding="utf-8")
    with pytest.raises(FormatError, match="does not hold a seed"):
        seeds.base_seed(tmp_path)


def test_a_search_takes_up_its_seed(tmp_path):
    policy = {"limit": [{"metric": "coverage.kinds_outside_protection", "at_most": 1e9}]}
    options = {"policy": policy, "workers": 1, "curve": 0, "only": ["shuffle"]}
    done = [harden(SMALL, tmp_path, **options) for _ in range(2)]
    assert done[0].points == done[1].points
    assert len({seed_of(cell) for cell in (tmp_path / "cells").iterdir()}) >= 1
    assert seeds.base_seed(tmp_path) in {seed_of(cell) for cell in (tmp_path / "cells").iterdir()}
