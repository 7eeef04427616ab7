"""Old traces stay readable, and the same messages give the same bytes."""

import importlib.util
import json
from pathlib import Path

import numpy as np

from fedaudit.trace import ANONYMOUS, PUBLIC, SERVER, WIRETAP, Trace

HERE = Path(__file__).parent / "golden"
SEAL = "16ec46f27d5cbd04264f0d613ed3169b8dd0110347eeeb2ded18e770cbe9f346"


def test_opens_with_the_same_seal_tables_and_updates() -> None:
    trace = Trace.open(HERE / "trace")
    assert trace.sha256 == SEAL
    assert trace.sha256 == trace.manifest.sha256
    assert trace.manifest.complete
    table = [
        (m.step, m.kind, m.sender, m.receiver, m.weight, dict(m.parts), m.size, dict(m.metadata))
        for m in trace.messages(1)
    ]
    assert table == [
        (0, "model", "server", "client-0", 1.0, {"model": 0}, 24, {}),
        (0, "model", "server", "client-1", 1.0, {"model": 0}, 24, {}),
        (1, "delta", "client-0", "server", 3.0, {"model": 1, "integers": 0}, 32, {}),
        (1, "delta", "client-1", "server", 5.0, {"model": 1}, 24, {"examples": 5}),
    ]
    assert [m.step for m in trace.messages(2)] == [0, 0, 1, 1, 2, 2, 3]
    assert [dict(m.parts) for m in trace.messages(2)] == [
        *({"model": r} for r in (0, 0)),
        {},
        {},
        *({"model": r} for r in (1, 2, 3)),
    ]
    server = trace.seen_by(SERVER)
    first = server.updates(1)
    assert first.senders == ("client-0", "client-1")
    assert first.weights.tolist() == [3.0, 5.0]
    assert first.rows.tolist() == [[0.25, 0.5, -0.5, 0.0, 1.0, -1.0]] * 2
    second = server.updates(2)
    assert second.senders == (ANONYMOUS, ANONYMOUS)
    assert second.rows.tolist() == [[0.25, 0.5, 0, 0, 0, 2.0], [-0.25, 0, 0, 0.25, 0, -1.0]]
    assert trace.seen_by(PUBLIC).released("w").tolist() == [0.75, -0.25, 1.5, 0.375]
    steps = trace.seen_by(WIRETAP).payload(1, 2, layout="integers")
    assert steps.tolist() == [7]
    # the sign of zero survives
    assert np.signbit(server.payload(1, 0, "b")).tolist() == [False, True]


def test_the_same_messages_give_the_same_bytes(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("golden_write", HERE / "write.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write(tmp_path / "anew")
    old = sorted((HERE / "trace").iterdir())
    assert [f.name for f in old] == sorted(f.name for f in (tmp_path / "anew").iterdir())
    for file in old:
        assert file.read_bytes() == (tmp_path / "anew" / file.name).read_bytes(), file.name
    assert sum(f.stat().st_size for f in old) < 10_000


def test_manifest_survives_a_round_trip() -> None:
    text = (HERE / "trace" / "manifest.json").read_text()
    manifest = Trace.open(HERE / "trace").manifest
    assert manifest.to_json() == text
    assert json.loads(text)["sha256"] == SEAL
