"""The example with Opacus clients: a declaration that is kept, and a bug that is found."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedaudit import cli

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedaudit[flower]"')
pytest.importorskip("opacus", reason="Opacus is not installed")

from fedaudit.recorders.flower.inprocess import run_app

APP = Path(__file__).resolve().parents[3] / "examples" / "flower_canaries"
NODES = 3


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("clipping", [True, False])
def test_a_bug_in_a_client_is_found_by_counts_alone(clipping, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_app(APP, nodes=NODES, run_config={"clipping": clipping})

    def command(*arguments):
        said = CliRunner().invoke(cli.app, [str(a) for a in arguments])
        assert said.exit_code in (0, 1), said.output or said.exception
        return said.stdout

    folders = [tmp_path / f"site-{i}" for i in range(NODES)]
    given = [a for f in folders for a in ("--canaries", f / "canaries.json")]
    given += [a for f in folders for a in ("--opacus", f / "accountant.json")]
    command("attack", "trace", *given)
    for i, folder in enumerate(folders):
        out = f"counts-{i}.json"
        own = ("--site", f"client-{i}", "--key", folder / "key.json", "--out", out)
        assert "guesses on 300 canaries right" in command("score", "guesses.json", *own)
    said = command("merge", "guesses.json", *(f"counts-{i}.json" for i in range(NODES)))
    assert ("More was measured than the declared schedule allows" in said) is not clipping
