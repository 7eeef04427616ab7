"""Flower's SecAgg+, recorded: sums, masked vectors, and nothing of a single client."""

import random
from itertools import pairwise

import numpy as np
import pytest
from typer.testing import CliRunner

from fedaudit.audits.audit import Knowledge
from fedaudit.audits.coverage import Coverage
from fedaudit.audits.query_plan import QueryPlan
from fedaudit.cli import app as command_line
from fedaudit.errors import NotApplicable, NotObservable, UsageError
from fedaudit.trace import AGGREGATOR, PUBLIC, SERVER, WIRETAP, Trace
from fedaudit.trace.ledger import round_queries

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedaudit[flower]"')

from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp
from flwr.supercore.primitives.asymmetric import generate_key_pairs

from fedaudit.flower import (
    RecordingLegacyStrategy,
    RecordingSecAggWorkflow,
    record_mod,
    run_in_process,
)
from fedaudit.recorders.flower.protections import MASK_BITS

NAMES = ["layer.weight", "layer.bias"]
WIDTH = 3000
STRONG = {"max_weight": 16.0, "clipping_range": 8.0}


def own_model(partition, number):
    """What a client answers: a pattern of its own."""
    rng = np.random.default_rng((partition, number))
    return [
        rng.normal(size=(3, WIDTH // 3)).astype(np.float32),
        np.full(2, partition, np.float32),
    ]


def run(wrap, *, nodes=4, rounds=2, fails=(), strategy=None, mods=(), chosen=1.0, **settings):
    """An app with SecAgg+; the parameters that came out of every round."""

    class Client(NumPyClient):
        def __init__(self, partition):
            self.partition = partition

        def fit(self, parameters, config):
            if (self.partition, config["round"]) in fails:
                raise RuntimeError("gone")
            told = {"loss": 0.25, "partition-id": self.partition}
            return own_model(self.partition, config["round"]), 12 + self.partition, told

    came_out = []

    class Kept(FedAvg):
        def aggregate_fit(self, server_round, results, failures):
            found = super().aggregate_fit(server_round, results, failures)
            came_out.append(parameters_to_ndarrays(found[0]))
            return found

    start = [np.full((3, WIDTH // 3), 0.5, np.float32), np.zeros(2, np.float32)]
    inner = Kept(
        fraction_fit=chosen,
        fraction_evaluate=0.0,
        initial_parameters=ndarrays_to_parameters(start),
        on_fit_config_fn=lambda number: {"round": number},
    )
    server = ServerApp()

    @server.main()
    def main(grid, context):
        legacy = LegacyContext(
            context=context,
            config=ServerConfig(num_rounds=rounds),
            strategy=inner if strategy is None else strategy(inner),
        )
        given = {"num_shares": 1.0, "reconstruction_threshold": 0.5, **STRONG, **settings}
        DefaultWorkflow(fit_workflow=wrap(SecAggPlusWorkflow(**given)))(grid, legacy)

    def client_fn(context):
        return Client(int(context.node_config["partition-id"])).to_client()

    random.seed(0)  # Flower draws neighbours and roundings from the global generators
    np.random.seed(0)
    run_in_process(server, ClientApp(client_fn=client_fn, mods=[secaggplus_mod, *mods]), nodes)
    return came_out


def recorded(path, **settings):
    def wrap(workflow):
        return RecordingSecAggWorkflow(workflow, path, names=NAMES, name_by="partition-id")

    came_out = run(wrap, **settings)
    return Trace.open(path), came_out


def flat(arrays):
    return np.concatenate([np.ravel(a) for a in arrays])


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("secagg") / "trace")


def test_recording_changes_nothing(trace):
    plain = run(lambda workflow: workflow)
    assert len(plain) == 2
    for one, other in zip(plain, trace[1], strict=True):
        for a, b in zip(one, other, strict=True):
            assert a.tobytes() == b.tobytes()


def test_the_sum_is_that_of_the_clients_weighted_updates(trace):
    recorded_trace, came_out = trace
    assert recorded_trace.manifest.complete
    assert recorded_trace.layout.names == tuple(NAMES)
    before = np.concatenate([np.full(WIDTH, 0.5), np.zeros(2)])
    for number in (1, 2):
        ledger = round_queries(recorded_trace.seen_by(SERVER), number)
        assert ledger.clients == tuple(f"client-{i}" for i in range(4))
        np.testing.assert_array_equal(ledger.answered, np.ones((1, 4)))
        found = recorded_trace.seen_by(SERVER).payload(number, int(ledger.sums[0]))
        naive = sum((12 + i) * (flat(own_model(i, number)) - before) for i in range(4))
        # an error of one unit of the ring per client, in units of the largest weight
        np.testing.assert_allclose(found, naive, atol=4 * 16 * 16 / 2**22 + 1e-4)
        before = flat(came_out[number - 1])
    np.testing.assert_allclose(recorded_trace.seen_by(PUBLIC).released(), before, atol=1e-6)


def test_the_server_sees_no_single_update(trace):
    from scipy.stats import kstest

    recorded_trace, _ = trace
    view = recorded_trace.seen_by(SERVER)
    with pytest.raises(NotObservable, match="no single client's update"):
        view.updates(1)
    for number in (1, 2):
        vectors = [
            (i, m) for i, m in view.indexed(number) if m.kind == "masked" and "masked" in m.parts
        ]
        assert sorted(m.sender for _, m in vectors) == [f"client-{i}" for i in range(4)]
        rows = [view.payload(number, i, layout="masked") for i, _ in vectors]
        for (_, m), row in zip(vectors, rows, strict=True):
            assert m.receiver == SERVER
            numbers = row[1:].astype(np.float64)
            # a masked vector is uniform, and has nothing to do with what it masks
            assert kstest(numbers / 2**32, "uniform").pvalue > 1e-6
            mine = flat(own_model(int(m.sender.removeprefix("client-")), number))
            assert abs(np.corrcoef(numbers, mine)[0, 1]) < 6 / np.sqrt(len(mine))
        # all single payloads that the server holds: a model that it sent, masks, questions, sums
        kinds = {
            (m.kind, m.sender == SERVER, layout)
            for _, m in view.indexed(number)
            for layout in m.parts
        }
        assert kinds == {
            ("model", True, "model"),
            ("masked", False, "masked"),
            ("query", True, "query"),
            ("sum", False, "model"),
        }
        assert {m.sender for m in view.messages(number) if m.kind == "sum"} == {AGGREGATOR}


def test_another_run_of_the_same_updates_has_other_masks_and_the_same_sum(trace, tmp_path):
    again, _ = recorded(tmp_path / "again", rounds=1)
    one, other = trace[0].seen_by(SERVER), again.seen_by(SERVER)

    def rows(view, kind, layout):
        return {
            m.sender: view.payload(1, i, layout=layout)
            for i, m in view.indexed(1)
            if m.kind == kind and layout in m.parts
        }

    for name, row in rows(one, "masked", "masked").items():
        assert (row == rows(other, "masked", "masked")[name]).mean() < 0.01
    np.testing.assert_allclose(
        rows(one, "sum", "model")[AGGREGATOR], rows(other, "sum", "model")[AGGREGATOR], atol=5e-3
    )


def test_the_query_plan_audit_runs_on_it(trace, tmp_path):
    path = trace[0].path
    said = CliRunner().invoke(
        command_line,
        ["audit", str(path), "--only", "query_plan", "--out", str(tmp_path / "out")],
    )
    assert said.exit_code == 0, said.output or said.exception
    view = Trace.open(path).seen_by(SERVER)
    audit, rng = QueryPlan(), np.random.default_rng(0)
    result = audit.score(audit.attack(view, Knowledge(), rng), None, rng)
    assert result.estimates["smallest_exposed_group"].value == 4
    assert result.estimates["recoverable_updates"].value == 0
    assert result.settings["threshold"] == 2  # half of four shares


def test_what_travels_beside_the_masks_is_named(trace):
    rng = np.random.default_rng(0)
    audit = Coverage()
    result = audit.score(audit.attack(trace[0].seen_by(WIRETAP), Knowledge(), rng), None, rng)
    said = " ".join(result.notes)
    assert "aggregation weights with 4 distinct values" in said
    assert "fields beside the update: loss, num-examples, partition-id" in result.notes
    assert "parameter tensors" not in said


def test_a_client_that_drops_out_is_not_in_the_sum(tmp_path):
    found, came_out = recorded(tmp_path / "t", rounds=3, fails={(2, 2)})
    ledgers = [round_queries(found.seen_by(SERVER), number) for number in (1, 2, 3)]
    by_name = dict(zip(ledgers[1].clients, ledgers[1].answered[0], strict=True))
    assert by_name == {"client-0": 1, "client-1": 1, "client-2": 0, "client-3": 1}
    assert len(came_out) == 3
    row = found.seen_by(SERVER).payload(2, int(ledgers[1].sums[0]))
    before = flat(came_out[0])
    naive = sum((12 + i) * (flat(own_model(i, 2)) - before) for i in (0, 1, 3))
    np.testing.assert_allclose(row, naive, atol=2e-3)
    failed = [m for m in found.messages(2) if "failed" in m.notes]
    assert {m.sender for m in failed} == {"client-2"}
    # sums with and without a client: as far as updates persist, it stands alone in the difference
    audit, rng = QueryPlan(), np.random.default_rng(0)
    result = audit.score(audit.attack(found.seen_by(SERVER), Knowledge(), rng), None, rng)
    assert result.estimates["recoverable_updates"].value == 0
    assert result.estimates["recoverable_if_updates_persist"].value == 1 / 4


def test_a_sum_that_was_not_opened_is_a_question_without_an_answer(tmp_path):
    found, came_out = recorded(
        tmp_path / "t", fails={(1, 1), (2, 1)}, reconstruction_threshold=3, num_shares=4
    )
    assert len(came_out) == 1  # the second round went on with the first model
    assert found.manifest.complete
    (question,) = [m for m in found.messages(1) if m.kind == "query"]
    assert "collect_masked_vectors: 2 clients did not answer" in question.metadata["unanswered"]
    assert not [m for m in found.messages(1) if m.kind == "sum"]
    none, _ = recorded(
        tmp_path / "none",
        rounds=1,
        fails={(1, 1), (2, 1)},
        reconstruction_threshold=3,
        num_shares=4,
    )
    with pytest.raises(NotApplicable, match="no query was answered"):
        QueryPlan().attack(none.seen_by(SERVER), Knowledge(), np.random.default_rng(0))


def test_sizes_alone_can_be_kept(tmp_path):
    run(lambda workflow: RecordingSecAggWorkflow(workflow, tmp_path / "t", masked=False), rounds=1)
    found = Trace.open(tmp_path / "t")
    assert found.manifest.layouts["masked"].names == ("masked/weight",)
    sizes = [
        m.size for m in found.messages(1) if m.kind == "masked" and "num-examples" in m.metadata
    ]
    assert len(sizes) == 4
    assert min(sizes) > 8 * WIDTH  # Flower sends masked numbers in eight bytes


def test_a_client_keeps_its_own_update_inside_the_masks(tmp_path):
    run(lambda workflow: workflow, rounds=2, mods=[record_mod(tmp_path / "mine")])
    own = Trace.open(tmp_path / "mine" / "run-1" / "node-1002")
    assert len(own.rounds) == 2
    (sent,) = [i for i, m in enumerate(own.messages(1)) if m.sender == "node-1002"]
    np.testing.assert_array_equal(own.seen_by("node-1002").payload(1, sent), flat(own_model(2, 1)))


def test_other_ways_to_record_it_are_refused(tmp_path):
    with pytest.raises(UsageError, match="RecordingSecAggWorkflow"):
        run(
            lambda workflow: workflow,
            rounds=1,
            strategy=lambda inner: RecordingLegacyStrategy(inner, tmp_path / "t"),
        )
    with pytest.raises(UsageError, match="not a workflow of secure aggregation"):
        RecordingSecAggWorkflow(DefaultWorkflow(), tmp_path / "t")


def test_pairwise_masks_of_this_version_have_few_seeds():
    pairs = [generate_key_pairs() for _ in range(20)]
    seeds = []
    for (secret, _), (_, public) in pairwise(pairs):
        key = generate_shared_key(secret, public)
        folded = 0
        for at in range(0, len(key), 4):
            folded ^= int.from_bytes(key[at : at + 4], "little")
        seeds.append(folded)
    assert len(set(seeds)) == len(seeds)
    # seven bits of every byte: text in base64 is ASCII
    assert all(seed & 0x80808080 == 0 for seed in seeds)
    assert MASK_BITS == 4 * 7
