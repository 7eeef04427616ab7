"""The driver against Flower's own simulation is in tests/nightly; here, what it promises."""

import numpy as np
import pytest

from fedaudit.errors import ConfigError, UsageError
from fedaudit.flower import is_supported

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedaudit[flower]"')

from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from fedaudit.flower import run_in_process
from fedaudit.recorders.flower.inprocess import FIRST_NODE, parse_settings, run_app


def test_a_run_is_the_same_as_the_arithmetic(apps, one_step):
    result = apps.run(FedAvg(), nodes=3, rounds=2)
    model = {"layer.weight": np.zeros((1, 5), np.float32), "layer.bias": np.zeros(1, np.float32)}
    for _ in range(2):
        sent = [one_step(model, i) for i in range(3)]
        shares = np.array([12, 13, 14]) / 39
        model = {
            k: np.float32(sum(s * own[k] for s, own in zip(shares, sent, strict=True)))
            for k in model
        }
    for name, expected in model.items():
        np.testing.assert_allclose(result.arrays[name].numpy(), expected, atol=1e-6)


def test_nodes_keep_their_state_and_cannot_touch_what_others_receive():
    client, server = ClientApp(), ServerApp()
    seen, answers = [], []

    @client.query()
    def query(message, context):
        seen.append(message.content["m"]["x"])
        message.content["m"]["x"] = -1
        before = context.state.get("kept", MetricRecord({"n": 0}))["n"]
        context.state["kept"] = MetricRecord({"n": before + 1})
        return Message(
            RecordDict({"m": MetricRecord({"n": before, "x": context.run_config["x"]})}),
            reply_to=message,
        )

    @server.main()
    def main(grid, context):
        content = RecordDict({"m": MetricRecord({"x": 5})})
        for _ in range(2):
            sent = [
                Message(content=content, message_type="query", dst_node_id=node)
                for node in grid.get_node_ids()
            ]
            for sent_one, reply in zip(sent, grid.send_and_receive(sent), strict=True):
                assert reply.metadata.reply_to_message_id == sent_one.metadata.message_id
                assert reply.metadata.src_node_id == sent_one.metadata.dst_node_id
                answers.append((reply.metadata.src_node_id, dict(reply.content["m"])))

    run_in_process(server, client, 2, run_config={"x": 3})
    assert seen == [5, 5, 5, 5]
    assert answers == [
        (FIRST_NODE, {"n": 0, "x": 3}),
        (FIRST_NODE + 1, {"n": 0, "x": 3}),
        (FIRST_NODE, {"n": 1, "x": 3}),
        (FIRST_NODE + 1, {"n": 1, "x": 3}),
    ]
    assert TaskIdentity._run_id is None  # nothing is left behind


def test_an_app_that_raises_is_an_error_reply(apps):
    def behave(partition, number, out):
        raise ZeroDivisionError("by zero")

    result = apps.run(FedAvg(), behave=behave)
    assert not result.arrays


def test_apps_that_cannot_be_run_say_why(tmp_path):
    with pytest.raises(ConfigError, match="not a Flower app"):
        run_app(tmp_path, 2)
    file = tmp_path / "pyproject.toml"
    file.write_text("[tool.flwr.app]\n")
    with pytest.raises(ConfigError, match=r"tool\.flwr\.app\.components"):
        run_app(tmp_path, 2)
    file.write_text(
        '[tool.flwr.app.components]\nserverapp = "nothing_here:app"\nclientapp = "nor_here:app"\n'
    )
    with pytest.raises(ConfigError, match="nothing_here"):
        run_app(tmp_path, 2)
    (tmp_path / "nothing_here.py").write_text("import a_module_that_is_not_there\n")
    (tmp_path / "nor_here.py").write_text("")
    with pytest.raises(ConfigError, match="a_module_that_is_not_there"):
        run_app(tmp_path, 2)
    with pytest.raises(UsageError, match="run config has no such key"):
        run_app(tmp_path, 2, run_config={"rounds": 3})
    with pytest.raises(UsageError, match="at least 1"):
        run_in_process(ServerApp(), ClientApp(), 0)


@pytest.mark.parametrize(
    ("code", "said", "line"),
    [
        ("x = 1\ndef y(\n", "SyntaxError: '(' was never closed", 2),
        ("x = 1\n\ny = x / 0\n", "ZeroDivisionError: division by zero", 3),
        ("import math\nmath.sqrt(-1)\n", "ValueError: math domain error", 2),
        ("import json\napp = 1\njson.loads('{')\n", "JSONDecodeError: ", 3),
        ("raise RuntimeError('no GPU')\n", "RuntimeError: no GPU", 1),
    ],
)
def test_an_app_that_fails_when_it_is_imported_is_told_with_its_place(tmp_path, code, said, line):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.flwr.app.components]\nserverapp = "failing_app:app"\nclientapp = "failing_app:app"\n'
    )
    file = tmp_path / "failing_app.py"
    file.write_text(code)
    with pytest.raises(ConfigError) as told:
        run_app(tmp_path, 2)
    error = told.value
    assert error.what == "cannot load 'failing_app:app'"
    assert error.got.startswith(said)
    assert error.got.endswith(f"{file.name}:{line})")
    assert "an app object" in error.expected
    assert "import failing_app" in error.remedy


def test_settings_are_values_of_toml_or_text():
    given = parse_settings(["a=1", "b=0.5", "c=true", "d=plain words", 'e="quoted"'])
    assert given == {"a": 1, "b": 0.5, "c": True, "d": "plain words", "e": "quoted"}
    with pytest.raises(UsageError, match="key=value"):
        parse_settings(["a"])


def test_versions():
    assert is_supported("1.41.0")
    assert is_supported("1.41.7")
    assert not any(is_supported(v) for v in ("1.40.2", "1.42.0", "2.0", "0.18.0", "nightly"))
