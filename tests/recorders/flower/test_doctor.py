"""Apps are read, not run: none of these needs Flower."""

from pathlib import Path

import pytest

from fedaudit.errors import ConfigError
from fedaudit.recorders.flower.doctor import examine
from fedaudit.recorders.flower.project import flat
from fedaudit.recorders.flower.protections import central, local, update_noise
from fedaudit.setup.catalogue import AUDITS

TEMPLATE = Path(__file__).resolve().parents[3] / "examples" / "flower_quickstart"

PROJECT = """
[project]
name = "shop"
[tool.flwr.app.components]
serverapp = "shop.server:app"
clientapp = "shop.client:app"
[tool.flwr.app.config]
num-server-rounds = 20
[tool.flwr.app.config.dp]
noise = 0.8
"""
PLAIN = """
from flwr.clientapp import ClientApp
app = ClientApp()
"""
FEDAVG = """
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
app = ServerApp()
@app.main()
def main(grid, context):
    raise RuntimeError("code of an app is never run")
    FedAvg(fraction_train=0.5).start(grid=grid, num_rounds=context.run_config["num-server-rounds"])
"""


@pytest.fixture
def app(tmp_path):
    def write(server=FEDAVG, client=PLAIN, project=PROJECT):
        (tmp_path / "pyproject.toml").write_text(project)
        (tmp_path / "shop").mkdir(exist_ok=True)
        (tmp_path / "shop" / "server.py").write_text(server)
        (tmp_path / "shop" / "client.py").write_text(client)
        return tmp_path

    return write


def test_an_app_without_protection(app):
    found = examine(app())
    assert (found.app, found.kind, found.strategies) == ("shop", "message", ("FedAvg",))
    assert found.rounds == 20
    assert not found.recorded
    assert found.protections == ()
    assert "in the clear" in found.sees["server"]
    assert found.audits["fingerprint"][0]
    assert not found.audits["query_plan"][0]
    assert any("RecordingStrategy(strategy" in line for line in found.lines)
    assert "nothing" in found.text()


def test_every_audit_is_listed_with_what_it_would_take(app):
    found = examine(app())
    assert sorted(found.audits) == sorted(AUDITS)
    applies = {name for name, (yes, _) in found.audits.items() if yes}
    by_records = {"two_stage_membership", "reidentification", "reconstruction"}
    assert applies - {"membership"} == {
        "active_membership",
        "coverage",
        "fingerprint",
        *by_records,
    }
    assert all(why for _, why in found.audits.values())
    assert "keys" in found.audits["attribution"][1]
    assert "how clients train" in found.audits["topology_inference"][1]
    said = found.text()
    for name, (yes, _) in found.audits.items():
        assert f"  {'yes ' if yes else 'no  '} {name}: " in said
    # trees have no tensors to plant weights in
    trees = examine(app(FEDAVG.replace("FedAvg", "FedXgbBagging")))
    assert sorted(trees.audits) == sorted(AUDITS)
    assert not trees.audits["active_membership"][0]


def test_the_template_is_read_as_it_is():
    found = examine(TEMPLATE)
    assert found.strategies == ("FedAvg",)
    assert found.rounds == 5
    assert found.fields == ("num-examples", "accuracy")
    assert found.problems == ()


def test_central_dp_is_told_with_its_epsilon_and_whom_it_trusts(app):
    server = """
from flwr.serverapp import strategy as st
def main(grid, context):
    z = float(context.run_config["dp.noise"])
    inner = st.FedAdam()
    strategy = st.DifferentialPrivacyServerSideFixedClipping(inner, z, 1.0, 10)
    strategy.start(grid=grid, num_rounds=20)
"""
    found = examine(app(server))
    assert found.strategies == ("DifferentialPrivacyServerSideFixedClipping", "FedAdam")
    (protection,) = found.protections
    assert protection.guarantee == central(0.8, 20, 1e-5)
    assert protection.guarantee.unit == "client"
    assert "server" in protection.trust
    assert protection.where == "shop/server.py:6"
    assert "in the clear" in found.sees["server"]  # before the noise
    assert "with noise" in found.sees["public"]
    # weights are not bounded: what the recording gives may be more
    assert protection.at_best
    assert f"at best   epsilon {protection.guarantee.epsilon:.4g}" in found.text()


BRANCH = """
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping as Noisy
from flwr.serverapp.strategy import FedAdam, FedAvg
def main(grid, context):
    if context.run_config["private"]:
        strategy = Noisy(FedAvg(), 1.0, 1.0, 10)
    else:
        strategy = FedAdam()
    strategy.start(grid=grid, num_rounds=3)
"""
OPTIONAL = """
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping as Noisy, FedAvg
def main(grid, context):
    strategy = FedAvg()
    if context.run_config["private"]:
        strategy = Noisy(strategy, 1.0, 1.0, 10)
    strategy.start(grid=grid, num_rounds=3)
"""
NESTED = OPTIONAL.replace("Noisy, FedAvg", "Noisy, FedAdam, FedAvg").replace(
    "FedAvg()", "FedAdam() if context.run_config['adam'] else FedAvg()"
)
NOISY = "DifferentialPrivacyServerSideFixedClipping"


@pytest.mark.parametrize(
    ("server", "ways"),
    [
        (BRANCH, {(NOISY, "FedAvg"), ("FedAdam",)}),
        (OPTIONAL, {(NOISY, "FedAvg"), ("FedAvg",)}),
        (NESTED, {(NOISY, "FedAvg"), (NOISY, "FedAdam"), ("FedAvg",), ("FedAdam",)}),
    ],
)
def test_branches_are_alternatives_and_no_stack(app, server, ways):
    found = examine(app(server))
    assert found.strategies == ()
    assert set(found.alternatives) == ways
    assert "unsure, a run decides" in found.text()
    (protection,) = found.protections
    assert not protection.sure
    assert protection.guarantee is None
    assert "epsilon unknown" in protection.note
    assert "if a branch" in found.sees["public"]


def test_a_wrapper_around_a_name_is_one_stack(app):
    server = OPTIONAL.replace('    if context.run_config["private"]:\n    ', "")
    found = examine(app(server))
    assert found.strategies == (NOISY, "FedAvg")
    assert found.alternatives == ()
    assert found.protections[0].guarantee is not None


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("-1.0, 1.0, 10", "noise_multiplier = -1"),
        ("1.0, 0.0, 10", "clipping_norm = 0"),
        ("1.0, 1.0, 0", "num_sampled_clients = 0"),
    ],
)
def test_settings_that_flower_refuses_promise_nothing(app, given, what):
    found = examine(
        app(OPTIONAL.replace("1.0, 1.0, 10", given).replace("if context", "with context"))
    )
    assert any(f"Flower refuses {what}" in p for p in found.problems)
    assert found.protections[0].guarantee is None
    with_flower = pytest.importorskip("flwr.serverapp.strategy", reason="needs Flower")
    numbers = [float(x) for x in given.split(", ")]
    with pytest.raises(ValueError):
        with_flower.DifferentialPrivacyServerSideFixedClipping(with_flower.FedAvg(), *numbers)


def test_scripts_without_a_project_file_are_read(tmp_path):
    (tmp_path / "start.py").write_text(FEDAVG.replace("RuntimeError", "SystemExit"))
    (tmp_path / "client.py").write_text(PLAIN)
    for place in (tmp_path, tmp_path / "start.py"):
        found = examine(place)
        assert found.strategies == ("FedAvg",)
        assert found.rounds is None
        assert "unknown" in found.text()


def test_what_is_computed_is_unknown_and_not_guessed(app):
    server = """
from flwr.serverapp.strategy import FedAvg, DifferentialPrivacyServerSideFixedClipping
z = 1.0
z = z / 2
strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), z, 1.0, 10)
"""
    (protection,) = examine(app(server)).protections
    assert protection.guarantee is None
    assert "epsilon unknown" in protection.note


def test_clipping_at_clients_needs_both_halves(app):
    wrapper = """
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg
strategy = DifferentialPrivacyClientSideFixedClipping(FedAvg(), 1.0, 1.0, 10)
"""
    mod = """
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
app = ClientApp()
@app.train(mods=[fixedclipping_mod])
def train(message, context): ...
"""
    (problem,) = examine(app(wrapper)).problems
    assert "nobody clips" in problem
    (problem,) = examine(app(FEDAVG, mod)).problems
    assert "answer with errors only" in problem
    both = examine(app(wrapper, mod))
    assert both.problems == ()
    assert both.mods == ("fixedclipping_mod",)
    everywhere = mod.replace("ClientApp()", "ClientApp(mods=[fixedclipping_mod])")
    (problem,) = examine(app(wrapper, everywhere)).problems
    assert "every evaluation is an error" in problem


def test_local_dp_is_accounted_for_over_the_rounds(app):
    client = """
import flwr.clientapp.mod
from flwr.clientapp import ClientApp
noise = flwr.clientapp.mod.LocalDpMod(1.0, 1.0, 0.5, 1e-6)
app = ClientApp()
@app.train(mods=[noise, flwr.clientapp.mod.message_size_mod])
def train(message, context): ...
"""
    found = examine(app(FEDAVG, client))
    assert found.mods == ("LocalDpMod", "message_size_mod")
    (protection,) = found.protections
    assert protection.guarantee == local(1.0, 1.0, 0.5, 1e-6, 20)
    assert protection.guarantee.relation == "replace"
    assert "clipped and with noise" in found.sees["server"]
    (problem,) = found.problems
    assert "does not hold" in problem  # sensitivity 1 for a clipping norm of 1


def test_secure_aggregation_is_for_apps_of_the_older_kind(app):
    legacy = """
from flwr.server import ServerApp, LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
app = ServerApp()
@app.main()
def main(grid, context):
    workflow = DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(3, 2))
"""
    client = """
from flwr.client import ClientApp, NumPyClient
from flwr.client.mod import secaggplus_mod
class Client(NumPyClient): ...
app = ClientApp(client_fn=None, mods=[secaggplus_mod])
"""
    found = examine(app(legacy, client))
    assert found.kind == "legacy"
    assert found.protections[0].name == "SecAgg+"
    assert "sums" in found.sees["server"]
    assert found.audits["query_plan"][0]
    assert not found.audits["fingerprint"][0]
    assert "RecordingSecAggWorkflow" in found.lines[0]
    assert "not the number of examples" in found.protections[0].covers
    assert "28 bits" in found.protections[0].note
    assert found.secure_aggregation.startswith("in use")
    assert found.problems == ()
    halves = examine(app(legacy, client.replace(", mods=[secaggplus_mod]", "")))
    assert any("no round is aggregated" in p for p in halves.problems)
    plain = legacy.replace("fit_workflow=SecAggPlusWorkflow(3, 2)", "")
    without = examine(app(plain, client.replace(", mods=[secaggplus_mod]", "")))
    assert without.secure_aggregation.startswith("available, not in use")
    assert not without.audits["query_plan"][0]
    newer = examine(app(FEDAVG, client))
    assert newer.secure_aggregation.startswith("not available to this app")
    assert "Secure aggregation: not available" in newer.text()
    assert newer.protections == ()
    assert any("only with the older API" in p for p in newer.problems)


def test_the_guard_and_local_dp_are_told_with_what_they_protect_against(app):
    client = """
from flwr.clientapp import ClientApp
from fedaudit.flower import guard_mod, protect_data, record_mod
app = ClientApp(mods=[record_mod("traces"), guard_mod(level=0.05)])
def load(x):
    return protect_data(x, "/var/kept.npz", mechanism="grr", epsilon=4.0, alphabet=8)
"""
    found = examine(app(FEDAVG, client))
    guard, records = found.protections
    assert (guard.name, guard.where) == ("guard_mod", "shop/client.py:4")
    assert "server that plants a model" in guard.covers
    assert "refuses such a model" in guard.note
    assert records.name == "protect_data"
    assert "not the labels" in records.covers
    assert "grr with epsilon 4 per feature" in records.note
    assert "randomised features" in found.sees["server"]
    assert found.recorded
    assert found.problems == ()
    warns = client.replace("level=0.05", 'action="warn"').replace('"grr"', '"ome"')
    guard, records = examine(app(FEDAVG, warns)).protections
    assert "still trains on such a model" in guard.note
    assert "epsilon of 4 per record" in records.note
    other = client.replace('record_mod("traces"), guard_mod(level=0.05)', "guard_mod, record_mod")
    problems = examine(app(FEDAVG, other)).problems
    assert any("guard_mod is not called" in p for p in problems)
    assert any("refused rounds are not recorded" in p for p in problems)


def test_noise_of_our_own_mod_is_accounted_for(app):
    client = """
from flwr.clientapp import ClientApp
from fedaudit.flower import update_noise_mod
app = ClientApp(mods=[update_noise_mod(clip=1.0)])
"""
    (protection,) = examine(app(FEDAVG, client)).protections
    assert "epsilon unknown" in protection.note
    project = PROJECT.replace(
        "num-server-rounds = 20", "num-server-rounds = 20\nupdate-noise-multiplier = 3.0"
    )
    found = examine(app(FEDAVG, client, project))
    (protection,) = found.protections
    assert protection.guarantee == update_noise(3.0, 20, 1e-5)
    assert "with noise" in found.sees["server"]
    limited = client.replace("update_noise_mod(", "exposure_limit_mod(").replace(
        "import update_noise_mod", "import exposure_limit_mod"
    )
    (protection,) = examine(app(FEDAVG, limited)).protections
    assert protection.name == "exposure_limit_mod"
    assert protection.guarantee == update_noise(0.1, 20, 1e-5)


def test_an_app_without_strategy_and_one_with_a_strategy_of_its_own(app):
    loop = examine(app("from flwr.serverapp import ServerApp\napp = ServerApp()\n"))
    assert loop.kind == "loop"
    assert "record_mod" in loop.lines[0]
    own = examine(
        app("from flwr.serverapp.strategy import FedAvg\nclass Mine(FedAvg): ...\nMine()\n")
    )
    assert (own.kind, own.strategies) == ("message", ("Mine",))


def test_recording_is_noticed(app):
    recorded = (
        FEDAVG + "\nfrom fedaudit.flower import RecordingStrategy\nRecordingStrategy(1, 't')\n"
    )
    found = examine(app(recorded))
    assert found.recorded
    assert found.lines == ()


def test_folders_that_are_no_app_say_why(app, tmp_path):
    with pytest.raises(ConfigError, match="not a Flower app"):
        examine(tmp_path / "nowhere")
    for project, match in (
        ("[project]\nname='x'\n", "components"),
        ("not toml", "valid TOML"),
        (PROJECT.replace("shop.client", "shop.gone"), "clientapp does not exist"),
        (PROJECT.replace("shop.client:app", ""), "clientapp does not exist"),
    ):
        with pytest.raises(ConfigError, match=match):
            examine(app(project=project))
    with pytest.raises(ConfigError, match="could not be read"):
        examine(app(server="def ("))


def test_run_configs_are_flat():
    assert flat({"a": 1, "b": {"c": {"d": 2}, "e": 3}}) == {"a": 1, "b.c.d": 2, "b.e": 3}
