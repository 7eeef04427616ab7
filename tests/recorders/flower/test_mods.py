import json

import numpy as np
import pytest
import torch

from fedaudit.errors import ConfigError
from fedaudit.trace import SERVER, Trace

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedaudit[flower]"')

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedaudit.accounting import Exposure
from fedaudit.flower import (
    RecordingStrategy,
    allocated_noise_mod,
    exposure_limit_mod,
    run_in_process,
    update_noise_mod,
)
from fedaudit.protections.update_noise import UpdateNoise
from fedaudit.recorders.flower.inprocess import as_server
from fedaudit.recorders.flower.protections import update_noise

WIDTH = 40_000


def through(mod, update, *, run_config=None, node=None, kind="train"):
    """What leaves a node that was sent ones and trained by `update`; and the config it saw."""
    seen = {}

    def app(message, context):
        seen.update(message.content["config"])
        before = {k: a.numpy() for k, a in message.content["arrays"].items()}
        records = {
            "arrays": ArrayRecord({k: Array(np.asarray(v)) for k, v in update(before).items()}),
            "metrics": MetricRecord({"num-examples": 3}),
        }
        return Message(RecordDict(records), reply_to=message)

    arrays = {"w": np.ones(WIDTH, np.float32), "count": np.asarray(np.int64(4))}
    content = RecordDict(
        {
            "arrays": ArrayRecord({k: Array(v) for k, v in arrays.items()}),
            "config": ConfigRecord({"server-round": 1}),
        }
    )
    with as_server():
        message = Message(content=content, message_type=kind, dst_node_id=9)
    context = Context(1, 9, dict(node or {}), RecordDict(), dict(run_config or {}))
    reply = mod(message, context, app)
    return {k: a.numpy() for k, a in reply.content["arrays"].items()}, seen


def moved(before):
    return {"w": before["w"] + np.float32(0.5), "count": before["count"] + 1}


def test_updates_are_clipped_and_counters_stay():
    out, _ = through(update_noise_mod(clip=2.0, noise_multiplier=0.0), moved)
    assert np.linalg.norm(out["w"] - 1) == pytest.approx(2.0, rel=1e-4)
    assert out["w"].dtype == np.float32
    assert out["count"] == 4  # outside of the promise: not told
    small, _ = through(update_noise_mod(clip=1e4, noise_multiplier=0.0), moved)
    np.testing.assert_allclose(small["w"], 1.5)


def test_noise_has_the_size_that_is_accounted_for_and_is_never_the_same():
    mod = update_noise_mod(clip=2.0, noise_multiplier=1.5)
    one, _ = through(mod, lambda before: before)
    other, _ = through(mod, lambda before: before)
    assert (one["w"] - 1).std() == pytest.approx(3.0, rel=0.03)
    assert abs(float(np.corrcoef(one["w"], other["w"])[0, 1])) < 0.03
    ours = UpdateNoise(noise_multiplier=1.5, clip=2.0, delta=1e-5)
    exposure = Exposure(sampling_rate=1.0, steps=1, rounds=7)
    promised = update_noise(1.5, 7, 1e-5)
    assert promised.epsilon == ours.guarantee(0, exposure).epsilon
    assert promised.relation == "replace"


def test_an_update_that_is_not_finite_does_not_leave():
    def broken(before):
        return {**before, "w": np.full(WIDTH, np.nan, np.float32)}

    out, _ = through(update_noise_mod(clip=1.0, noise_multiplier=0.0), broken)
    np.testing.assert_array_equal(out["w"], 1.0)


def test_an_exposure_limit_drops_while_torch_trains_and_declines_without_it():
    layer = torch.nn.Linear(2, 3)

    def alone(before):
        """One record: every unit of the layer sees only it."""
        layer(torch.ones(1, 2)).sum().backward()
        return {**before, "w": before["w"] + float(layer.bias.grad.sum())}

    quiet = exposure_limit_mod(clip=1e6, noise_multiplier=0.0)
    out, _ = through(quiet, alone)
    np.testing.assert_array_equal(out["w"], 1.0)
    out, _ = through(exposure_limit_mod(clip=2.0), alone)
    assert (out["w"] - 1).std() == pytest.approx(0.2, rel=0.03)
    out, _ = through(update_noise_mod(clip=1e6, noise_multiplier=0.0), alone)
    np.testing.assert_allclose(out["w"], 4.0, rtol=1e-5)
    with pytest.raises(ValueError, match="content"):
        through(quiet, moved)


def test_settings_come_from_the_run_config_in_flowers_spelling():
    config = {"update-noise-clip": 3.0, "update-noise-multiplier": 0}
    out, _ = through(update_noise_mod(), moved, run_config=config)
    assert np.linalg.norm(out["w"] - 1) == pytest.approx(3.0, rel=1e-4)
    with pytest.raises(ConfigError, match="update-noise-clip is not set"):
        through(update_noise_mod(), moved)
    with pytest.raises(ConfigError, match="out of range"):
        through(update_noise_mod(clip=0.0, noise_multiplier=1.0), moved)


def test_every_node_is_told_its_own_multiplier(tmp_path):
    file = tmp_path / "dp_sgd.toml"
    file.write_text("[protections.dp_sgd]\nclip = 0.7\nnoise_multiplier = [1.5, 0.25]\n")
    for number, expected in enumerate([1.5, 0.25]):
        mod = allocated_noise_mod(file)
        _, seen = through(mod, moved, node={"partition-id": number})
        assert seen == {"server-round": 1, "noise-multiplier": expected, "clip": 0.7}
    with pytest.raises(ConfigError, match="0 to 1"):
        through(allocated_noise_mod(file), moved, node={"partition-id": 2})
    with pytest.raises(ConfigError, match="no multiplier for this node"):
        through(allocated_noise_mod([1.0]), moved)
    file.write_text("[protections]\n")
    with pytest.raises(ConfigError, match="does not hold an allocation"):
        allocated_noise_mod(file)


def test_an_allocation_of_ours_is_understood(tmp_path):
    """The file that `fedaudit allocate` writes, at the noise of every single client."""
    from typer.testing import CliRunner

    from fedaudit.cli import app

    table = tmp_path / "clients.csv"
    table.write_text("client,records,leverage\na,100,1.0\nb,200,2.0\nc,300,4.0\n")
    out = tmp_path / "out"
    arguments = ["allocate", str(table), "--rounds", "5", "--batch", "20", "--budget", "0.1"]
    said = CliRunner().invoke(
        app, [*arguments, "--leverage", "column:leverage", "--out", str(out), "--quiet"]
    )
    assert said.exit_code == 0, said.output or said.exception
    told = []
    for name in "abc":
        mod = allocated_noise_mod(out / "dp_sgd.toml")
        told.append(through(mod, moved, node={"client-name": name})[1]["noise-multiplier"])
    assert told == sorted(told)  # more leverage, more noise
    assert told[0] < told[2]


ORDER = ("site-2", "site-10", "site-1")
"""Neither the order of their names nor of their numbers."""


@pytest.fixture
def allocated(tmp_path):
    """dp_sgd.toml of three clients, and the multiplier of each by the table that was written."""
    import csv

    from fedaudit.allocate import AllocationOptions, allocate

    table = tmp_path / "clients.csv"
    table.write_text(
        "client,n\n" + "".join(f"{c},{n}\n" for c, n in zip(ORDER, (300, 100, 50), strict=True))
    )
    out = tmp_path / "out"
    options = AllocationOptions(size_column="n", rounds=5, batch_size=10, budget=0.1)
    allocate(table, options, out=out)
    with (out / "allocation.csv").open(encoding="utf-8", newline="") as file:
        rows = {r["client"]: float(r["noise_multiplier"]) for r in csv.DictReader(file)}
    assert len(set(rows.values())) == 3
    return out / "dp_sgd.toml", rows


def multiplier(mod, **node):
    return through(mod, moved, node=node)[1]["noise-multiplier"]


def test_multipliers_are_found_by_name_whatever_their_order(allocated):
    file, rows = allocated
    for number, name in enumerate(ORDER):
        # the number in the table says nothing about the order of the file
        node = {"client-name": name, "partition-id": number}
        assert multiplier(allocated_noise_mod(file), **node) == pytest.approx(rows[name])
        # simulated nodes have a number alone: whose it is must be said
        told = multiplier(allocated_noise_mod(file, partitions=ORDER), **{"partition-id": number})
        assert told == pytest.approx(rows[name])


def test_nodes_without_a_name_or_with_another_are_refused(allocated, tmp_path):
    file, _ = allocated
    with pytest.raises(ConfigError, match="names its clients") as told:
        multiplier(allocated_noise_mod(file), **{"partition-id": 0})
    assert "client-name" in told.value.expected
    assert told.value.got == "partition-id=0"
    with pytest.raises(ConfigError, match="no client 'site-3'"):
        multiplier(allocated_noise_mod(file), **{"client-name": "site-3"})
    with pytest.raises(ConfigError, match="names its clients"):
        multiplier(allocated_noise_mod(file, partitions=ORDER), **{"partition-id": 3})
    for strange in (["site-2", "site-3"], ORDER[:2]):  # a name too many, a client left out
        with pytest.raises(ConfigError, match="do not have the same names"):
            allocated_noise_mod(file, partitions=strange)
    with pytest.raises(ConfigError, match="the file has no names"):
        allocated_noise_mod([1.0, 2.0], partitions=["a", "b"])
    text = file.read_text(encoding="utf-8")
    for wrong in ('["site-1"]', '["site-1", "site-1", "site-2"]'):
        other = tmp_path / "other.toml"
        other.write_text(text.replace(f"clients = {json.dumps(list(ORDER))}", f"clients = {wrong}"))
        with pytest.raises(ConfigError, match="do not fit"):
            allocated_noise_mod(other)


def test_a_table_without_names_goes_by_number(tmp_path):
    from fedaudit.allocate import AllocationOptions, allocate

    table = tmp_path / "clients.csv"
    table.write_text("n\n300\n100\n50\n")
    options = AllocationOptions(size_column="n", rounds=5, batch_size=10, budget=0.1)
    found = allocate(table, options, out=tmp_path / "out")
    mod = allocated_noise_mod(tmp_path / "out" / "dp_sgd.toml")
    for number, z in enumerate(found.allocation.noise_multiplier):
        assert multiplier(mod, **{"partition-id": number}) == pytest.approx(z)


def test_a_server_sees_what_the_mod_let_through(apps, tmp_path):
    strategy = RecordingStrategy(FedAvg(fraction_evaluate=0.0), tmp_path / "t")
    mods = [update_noise_mod(clip=0.1, noise_multiplier=0.0)]
    apps.run(strategy, mods=mods)
    rows = Trace.open(tmp_path / "t").seen_by(SERVER).updates(1).rows
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 0.1, rtol=1e-4)


def test_evaluation_passes_untouched(apps):
    client = ClientApp(mods=[update_noise_mod(), allocated_noise_mod([1.0])])
    seen = []

    @client.evaluate()
    def evaluate(message, context):
        seen.append(message)
        told = MetricRecord({"num-examples": 1, "loss": 0.0})
        return Message(RecordDict({"metrics": told}), reply_to=message)

    run_in_process(apps.server(FedAvg(fraction_train=0.0, min_train_nodes=0), []), client, 2)
    assert len(seen) == 6
