"""The consortium on Flower: the server's recording and the sites' own ones are enough."""

import pytest
from typer.testing import CliRunner

from fedaudit.cli import app

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedaudit[flower]"')

from flwr.serverapp.strategy import FedAvg

from fedaudit import sites
from fedaudit.flower import RecordingStrategy, record_mod


def test_sites_find_their_own_messages_among_the_servers_guesses(apps, tmp_path):
    strategy = RecordingStrategy(FedAvg(), tmp_path / "trace")
    apps.run(strategy, rounds=4, mods=[record_mod(tmp_path / "mine")])
    guesses = tmp_path / "guesses.json"

    def command(*arguments):
        said = CliRunner().invoke(app, [str(a) for a in arguments])
        assert said.exit_code == 0, said.output or said.exception
        return said.stdout

    refused = CliRunner().invoke(app, ["attack", str(tmp_path / "trace"), "--out", str(guesses)])
    assert refused.exception.code == "senders_known"  # names are on the wire: nothing to guess
    command("attack", tmp_path / "trace", "--as", "shuffle", "--out", guesses)
    counts = []
    for node in range(1000, 1004):
        counts.append(tmp_path / f"{node}.json")
        own = tmp_path / "mine" / "run-1" / f"node-{node}"
        arguments = ("--at-site", own, "--site", f"site {node}", "--out", counts[-1])
        assert "of 3 links" in command("score", guesses, *arguments)
    merged = sites.merge(guesses, counts, tmp_path / "report")
    (result,) = merged.results
    assert result.estimates["linkage_accuracy"].n == 4
    assert set(result.per_client) == {f"site {n}" for n in range(1000, 1004)}
    # clients of least squares around centres of their own: their updates point elsewhere
    assert result.estimates["linkage_accuracy"].value > 0.5
