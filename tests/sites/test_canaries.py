"""Sites that train with Opacus plant canaries; the auditor guesses; sites return counts alone."""

import json
import shutil

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedaudit import cli, sites
from fedaudit.accounting import from_opacus
from fedaudit.audits.epsilon.scores import guesses_on
from fedaudit.errors import FormatError, UsageError
from fedaudit.sites import SiteCanaries
from fedaudit.sites.files import sha256
from fedaudit.trace import SERVER, Recorder, Trace

opacus = pytest.importorskip("opacus", reason="Opacus is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

SITES, ROUNDS, RECORDS, BATCH = ("north", "south"), 6, 120, 24


def model():
    return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 3))


def noise_on_the_mean(optimizer):
    """The noise is added to a mean, which is divided by the batch once more."""
    optimizer.noise_multiplier /= optimizer.expected_batch_size


def not_clipped(optimizer):
    """Gradients are not clipped; the noise is that of the declared clip."""
    optimizer.noise_multiplier *= optimizer.max_grad_norm / 1e6
    optimizer.max_grad_norm = 1e6


def federation(folder, fault=None, seed=0):
    """Train two sites by Opacus, record the server; returns accountants' states per site."""
    torch.manual_seed(seed)
    shared = model()
    states = {}
    recorder = Recorder(folder / "trace", like=arrays(shared))
    data = {s: (torch.randn(RECORDS, 20), torch.randint(0, 3, (RECORDS,))) for s in SITES}
    for _ in range(ROUNDS):
        with recorder.round() as wire:
            for site in SITES:
                wire.send("model", SERVER, site, arrays(shared))
            trained = []
            for site in SITES:
                own = model()
                own.load_state_dict(shared.state_dict())
                history = train(own, *data[site], folder, site, fault)
                states.setdefault(site, {"history": []})["history"] += history
                wire.send("model", site, SERVER, arrays(own))
                trained.append(own.state_dict())
        shared.load_state_dict({k: sum(t[k] for t in trained) / len(trained) for k in trained[0]})
    recorder.close()
    (folder / "accountants.json").write_text(json.dumps(states), encoding="utf-8")
    return folder


def arrays(module):
    return {k: v.detach().numpy().copy() for k, v in module.state_dict().items()}


def train(own, x, y, folder, site, fault):
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH)
    engine = opacus.PrivacyEngine()
    wrapped, optimizer, loader = engine.make_private(
        module=own,
        optimizer=torch.optim.SGD(own.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=1.5,
        max_grad_norm=0.5,
    )
    canaries = SiteCanaries(folder / site, site=site, count=300)
    canaries.insert(optimizer, wrapped, sampling_rate=loader.sample_rate)
    for batch, label in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(wrapped(batch), label).backward()
        declared = optimizer.noise_multiplier, optimizer.max_grad_norm
        if fault is not None:
            fault(optimizer)
        optimizer.step()
        optimizer.noise_multiplier, optimizer.max_grad_norm = declared
    return [(1.5, q, n) for _, q, n in engine.accountant.history]


def asked(folder):
    return [folder / s / "canaries.json" for s in SITES]


def merged(folder):
    guesses = folder / "guesses.json"
    own = {"canaries": asked(folder), "opacus": [folder / "accountants.json"]}
    sites.attack(Trace.open(folder / "trace"), guesses, **own)
    counts = []
    for s in SITES:
        counts.append(folder / f"counts-{s}.json")
        sites.score(guesses, None, counts[-1], site=s, key=folder / s / "key.json")
    return sites.merge(guesses, counts, folder / "report")


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return federation(tmp_path_factory.mktemp("honest"))


def test_a_kept_declaration_is_no_evidence(honest):
    done = merged(honest)
    (result,) = done.results
    assert {f.verdict for f in done.findings} == {"no_evidence"}
    declared = result.bounds["declared"].value
    assert result.estimates["epsilon"].low < declared < 6
    assert result.notes[0].startswith("declared 4.09; at least ")
    assert "600 canaries; at most" in result.notes[0]
    assert set(result.per_client) == set(SITES)
    assert result.estimates["noise (0.weight)"].value == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize(
    ("fault", "measure", "says"),
    [
        (noise_on_the_mean, "noise (0.weight)", "less noise than declared"),
        (not_clipped, "epsilon", "More was measured than the declared schedule allows"),
    ],
)
def test_faults_are_the_first_finding(fault, measure, says, tmp_path):
    done = merged(federation(tmp_path, fault))
    assert done.findings[0].verdict == "disagreement"
    found = {f.measure: f.statement for f in done.findings if f.verdict == "disagreement"}
    assert says in found[measure]


def test_only_counts_leave_a_site(honest):
    merged(honest)
    raw = json.loads((honest / "counts-north.json").read_text(encoding="utf-8"))
    assert set(raw["audits"]["epsilon"]["guessed"]) == {"coins", "guesses", "right"}
    public = json.loads((honest / "north" / "canaries.json").read_text(encoding="utf-8"))
    assert "member" not in public
    key = honest / "north" / "key.json"
    assert key.stat().st_mode & 0o077 == 0
    guesses = json.loads((honest / "guesses.json").read_text(encoding="utf-8"))
    calls = [v for own in guesses["audits"]["epsilon"]["calls"].values() for v in own]
    assert np.count_nonzero(calls) == guesses_on(len(calls))


def test_later_rounds_keep_the_coins(honest):
    """Six rounds, one file: its hash is the one in the key."""
    key = json.loads((honest / "north" / "key.json").read_text(encoding="utf-8"))
    assert key["asked_sha256"] == sha256(honest / "north" / "canaries.json")


def test_commands_say_the_same(honest):
    guesses = honest / "guesses.json"

    def command(*arguments):
        said = CliRunner().invoke(cli.app, [str(a) for a in arguments])
        assert said.exit_code == 0, said.output or said.exception
        return said.stdout

    given = [a for file in asked(honest) for a in ("--canaries", file)]
    opacus_file = ("--opacus", honest / "accountants.json")
    command("attack", honest / "trace", *given, *opacus_file, "--out", guesses)
    counts = honest / "north.json"
    key = honest / "north" / "key.json"
    said = command("score", guesses, "--site", "north", "--key", key, "--out", counts)
    assert "guesses on 300 canaries right" in said
    assert "epsilon" in command("merge", guesses, counts, "--out", honest / "told")


def test_any_loop_adds_canaries_to_its_own_gradients(tmp_path):
    """Inserted canaries come with their norms, at the sampling rate; others never come."""
    own = {"w": torch.zeros(10, 40, 20), "b": torch.zeros(10, 20)}
    canaries = SiteCanaries(tmp_path, site="a", count=100, norms=(1.0, 50.0), seed=1)
    drawn = 0
    for _ in range(20):
        each = canaries.among(own, clip=0.5, sampling_rate=0.25)
        assert each["w"].shape[1:] == (40, 20)
        added = torch.cat([each["w"].flatten(1), each["b"]], dim=1)[10:]
        norms = added.norm(dim=1).numpy()
        assert np.isclose(norms[:, None], [0.5, 25.0], rtol=1e-5).any(axis=1).all()
        drawn += len(added)
    members = json.loads((tmp_path / "key.json").read_text(encoding="utf-8"))["member"]
    assert drawn == pytest.approx(sum(members) * 0.25 * 20, rel=0.25)


class Accountant:
    def __init__(self, *history):
        self.history = list(history)

    def state_dict(self):
        return {"history": self.history, "mechanism": "prv"}


def test_every_round_adds_to_what_is_declared(tmp_path):
    canaries = SiteCanaries(tmp_path, site="a")
    for _ in range(3):
        file = canaries.declare(Accountant((1.5, 0.25, 4)))
    assert json.loads(file.read_text(encoding="utf-8")) == {"history": [[1.5, 0.25, 4]] * 3}


def test_events_of_dp_accounting_are_declarations(tmp_path):
    import dp_accounting
    from dp_accounting import pld

    one = dp_accounting.PoissonSampledDpEvent(0.25, dp_accounting.GaussianDpEvent(1.5))
    accountant = pld.PLDAccountant()
    accountant.compose(one, 4).compose(dp_accounting.GaussianDpEvent(2.0))
    canaries = SiteCanaries(tmp_path, site="a")
    canaries.declare(accountant)
    file = canaries.declare(dp_accounting.SelfComposedDpEvent(one, 3))
    held = json.loads(file.read_text(encoding="utf-8"))["history"]
    assert held == [[1.5, 0.25, 4], [2.0, 1.0, 1], [1.5, 0.25, 3]]
    assert from_opacus({"history": held[:2]}, 1e-5).epsilon == pytest.approx(
        accountant.get_epsilon(1e-5), abs=1e-3
    )
    with pytest.raises(UsageError, match="no noisy sums of Poisson samples") as caught:
        canaries.declare(dp_accounting.LaplaceDpEvent(1.0))
    assert caught.value.got == "LaplaceDpEvent"


# -- refusals --------------------------------------------------------------------------------------


def test_other_optimisers_are_refused(tmp_path):
    plain = torch.optim.SGD(model().parameters(), lr=0.1)
    with pytest.raises(UsageError, match="does not hold the gradients of single"):
        SiteCanaries(tmp_path, site="a").insert(plain, model(), sampling_rate=0.1)


def test_another_training_needs_other_canaries(tmp_path):
    each = {"w": torch.zeros(4, 30)}
    SiteCanaries(tmp_path, site="a", count=5).among(each, clip=1.0, sampling_rate=0.5)
    with pytest.raises(UsageError, match="canaries of another training") as caught:
        SiteCanaries(tmp_path, site="a", count=5).among(each, clip=2.0, sampling_rate=0.5)
    assert "clip" in caught.value.got


def test_a_key_of_other_canaries_is_refused(honest):
    merged(honest)
    key = json.loads((honest / "north" / "key.json").read_text(encoding="utf-8"))
    wrong, out = honest / "wrong.json", honest / "c.json"
    wrong.write_text(json.dumps(key | {"asked_sha256": "0" * 64}), encoding="utf-8")
    with pytest.raises(UsageError, match="do not cover the canaries of this site"):
        sites.score(honest / "guesses.json", None, out, site="x", key=wrong)


def test_accountants_go_with_canaries(honest, tmp_path):
    with pytest.raises(UsageError, match="do not go together"):
        sites.attack(
            Trace.open(honest / "trace"),
            tmp_path / "guesses.json",
            canaries=asked(honest),
            opacus=[honest / "accountants.json"] * 3,
        )


@pytest.mark.parametrize("change", [{"norms": []}, {"sampling_rate": 2.0}, {"tensors": [["w"]]}])
def test_damaged_canaries_are_refused(change, honest, tmp_path):
    raw = json.loads(asked(honest)[0].read_text(encoding="utf-8")) | change
    (tmp_path / "canaries.json").write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(FormatError, match="does not hold canaries"):
        sites.attack(
            Trace.open(honest / "trace"),
            tmp_path / "guesses.json",
            canaries=[tmp_path / "canaries.json"],
            opacus=[honest / "accountants.json"],
        )


def test_an_accountant_without_noise_declares_nothing(honest, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"history": [[0.0, 0.2, 30]]}), encoding="utf-8")
    with pytest.raises(UsageError, match="declares no epsilon"):
        sites.attack(
            Trace.open(honest / "trace"),
            tmp_path / "guesses.json",
            canaries=asked(honest),
            opacus=[tmp_path / "a.json"],
        )


# -- batches in parts, rates that change, uploads that are lost ------------------------------------


def draws_in_parts(folder, parts):
    """Draws of canaries, steps, and physical batches of an epoch, with batches in `parts`."""
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    torch.manual_seed(0)
    own = model()
    data = torch.utils.data.TensorDataset(torch.randn(RECORDS, 20), torch.zeros(RECORDS).long())
    wrapped, optimizer, loader = opacus.PrivacyEngine().make_private(
        module=own,
        optimizer=torch.optim.SGD(own.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=BATCH),
        noise_multiplier=1.5,
        max_grad_norm=0.5,
    )
    canaries = SiteCanaries(folder, site="a", count=300, seed=3)
    draw, drawn = canaries._rows, []
    canaries._rows = lambda *a: drawn.append(1) or draw(*a)
    canaries.insert(optimizer, wrapped, sampling_rate=loader.sample_rate)
    steps = []
    optimizer.attach_step_hook(steps.append)
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=BATCH // parts, optimizer=optimizer
    ) as split:
        physical = 0
        for batch, label in split:
            physical += 1
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(wrapped(batch), label).backward()
            optimizer.step()
    return len(drawn), len(steps), physical


def test_a_batch_in_parts_draws_its_canaries_once(tmp_path):
    drawn, steps, physical = draws_in_parts(tmp_path, 4)
    assert physical > 2 * steps
    assert drawn == steps


def test_a_rate_that_changes_leaves_the_noise_out_and_keeps_the_coins(tmp_path):
    each = {"w": torch.zeros(4, 30)}
    own = {"clip": 1.0, "sampling_rate": 0.5}
    for rate in (0.1, 0.1):
        SiteCanaries(tmp_path, site="a", count=5).among(each, rate=rate, **own)
    before = json.loads((tmp_path / "canaries.json").read_text(encoding="utf-8"))
    coins = json.loads((tmp_path / "key.json").read_text(encoding="utf-8"))["member"]
    assert before["rate"] == 0.1
    for rate in (0.05, 0.1):
        SiteCanaries(tmp_path, site="a", count=5).among(each, rate=rate, **own)
    after = json.loads((tmp_path / "canaries.json").read_text(encoding="utf-8"))
    key = json.loads((tmp_path / "key.json").read_text(encoding="utf-8"))
    assert after == before | {"rate": None}
    assert key["member"] == coins
    assert key["asked_sha256"] == sha256(tmp_path / "canaries.json")


def test_steps_without_an_upload_leave_the_noise_out(honest, tmp_path):
    """A round of which no upload arrived: its steps were counted, its noise is nowhere."""
    folder = tmp_path / "lost"
    shutil.copytree(honest, folder)
    states = json.loads((folder / "accountants.json").read_text(encoding="utf-8"))
    for state in states.values():
        state["history"].append(state["history"][0])
    (folder / "accountants.json").write_text(json.dumps(states), encoding="utf-8")
    (result,) = merged(folder).results
    assert not any(name.startswith("noise") for name in result.estimates)
    assert any("noise was not measured" in note for note in result.notes)
