"""The lines of docs/flower.md, applied to a fresh copy of the template, and audited."""

import csv
import json
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedaudit import cli
from fedaudit.recorders.flower.doctor import examine
from fedaudit.trace import PUBLIC, SERVER, Trace

ROOT = Path(__file__).resolve().parents[3]
TEMPLATE = ROOT / "examples" / "flower_quickstart"
NODES = 4
FRACTION = tomllib.loads((TEMPLATE / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"][
    "app"
]["config"]["fraction-train"]


def changed_lines():
    """File -> its part of the diff on the page."""
    page = (ROOT / "docs" / "flower.md").read_text(encoding="utf-8")
    parts, file = {}, None
    for line in page.split("```diff\n")[1].split("```")[0].splitlines():
        if line.startswith(" # "):
            file = line.removeprefix(" # ")
            parts[file] = []
        else:
            parts[file].append(line)
    return parts


def apply(text, diff):
    lines, at = text.splitlines(), 0
    for line in diff:
        kind, rest = line[0], line[1:]
        if kind == "+":
            lines.insert(at, rest)
            at += 1
        else:
            # an addition before any context goes before the line that follows
            at = lines.index(rest, at if kind != " " else 0)
            if kind == "-":
                del lines[at]
            else:
                at += 1
    return "\n".join(lines) + "\n"


@pytest.fixture
def app(tmp_path):
    """A fresh copy with the page's changes."""
    for file in TEMPLATE.rglob("*"):
        if file.suffix in (".py", ".toml"):
            to = tmp_path / "app" / file.relative_to(TEMPLATE)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    for name, diff in changed_lines().items():
        file = tmp_path / "app" / name
        file.write_text(apply(file.read_text(encoding="utf-8"), diff), encoding="utf-8")
    return tmp_path / "app"


def test_two_lines_at_the_server_and_two_at_the_clients_are_enough_for_the_doctor(app):
    added = [sum(line.startswith("+") for line in diff) for diff in changed_lines().values()]
    assert added == [2, 2]
    assert not examine(TEMPLATE).recorded
    assert examine(app).recorded


@pytest.fixture
def command(app, tmp_path, monkeypatch):
    """The command line, called in this process: what is heavy is imported once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(app))

    def run(*arguments):
        said = CliRunner().invoke(cli.app, [str(a) for a in arguments], catch_exceptions=False)
        assert said.exit_code == 0, said.output
        return said.stdout

    yield run
    for name in [n for n in sys.modules if n.split(".")[0] == "quickstart"]:
        del sys.modules[name]


def test_a_changed_app_is_run_recorded_and_audited(command, tmp_path):
    pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedaudit[flower]"')
    settings = ("--set", "num-server-rounds=3", "--set", "local-epochs=1")
    said = command("flower", "try", "app", "--nodes", NODES, *settings)
    assert "accuracy" in said
    trace = Trace.open(tmp_path / "trace")
    assert trace.manifest.complete
    assert trace.layout.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    names = {f"client-{i}" for i in range(NODES)}
    for number in range(1, 4):
        # the app's own setting holds as it did before: three of four nodes are asked
        heard = trace.seen_by(SERVER).updates(number).senders
        assert len(set(heard)) == len(heard) == int(FRACTION * NODES) < NODES
        assert set(heard) <= names
    assert trace.seen_by(PUBLIC).released().shape == (64 * 16 + 16 + 160 + 10,)

    linked = json.loads(
        command("audit", "trace", "--as", "shuffle", "--only", "fingerprint", "--json")
    )
    # of the federation, and of single clients where they stand out
    assert linked["findings"]
    for finding in linked["findings"]:
        assert finding["audit"] == "fingerprint"
        assert finding["verdict"] in ("leak", "no_evidence")

    records = tmp_path / "records.csv"
    from quickstart.task import load_data

    with records.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*(f"pixel{i}" for i in range(64)), "digit", "site"])
        for i in range(NODES):
            for (x, y), who in zip(load_data(i, NODES), (f"client-{i}", "nobody"), strict=True):
                table.writerows(
                    [*row, int(label), who] for row, label in zip(x.tolist(), y, strict=True)
                )
    asked = json.loads(
        command(
            *("audit", "trace", "--only", "two_stage_membership", "--json"),
            *("--model", "quickstart.task:make_model", "--data", "records.csv"),
            *("--label", "digit", "--client", "site"),
        )
    )
    # of the federation, and of single clients where they stand out
    assert asked["findings"]
    for finding in asked["findings"]:
        assert finding["audit"] == "two_stage_membership"
        assert finding["verdict"] in ("leak", "no_evidence")
