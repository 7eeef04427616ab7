"""The example over HTTP: processes, one killed, one that lies, and a server with two lists."""

import http.client
import importlib.util
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fedaudit.protections.secure_aggregation import RingQuantiser

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "secure_sum"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("secure_sum_example", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path[:] = before
        sys.modules.pop("client", None)


def test_a_killed_client_and_a_liar_cost_nothing_and_a_lying_server_gets_no_sum(example, tmp_path):
    with ThreadPoolExecutor(2) as pool:  # both mostly wait for whom they lost
        given = ("--patience", "6"), {3: ["--die"], 5: ["--lie"]}
        good = pool.submit(example.run, tmp_path / "sum", *given)
        bad = pool.submit(example.run, tmp_path / "lie", ("--lie", "--patience", "6"))
        (result, said), (refused, answers) = good.result(), bad.result()
    total = sum(example.update(n, example.LENGTH) for n in range(8))
    assert np.abs(np.array(result["sum"]) - total).max() <= RingQuantiser(16.0, 8).error(8)
    assert result["of"] == list(range(8))
    assert list(result["liars"]) == ["5"]
    assert sorted(result["liars"]["5"]) == [f"share of client {n}" for n in range(8)]
    assert said[3][1] == -9  # killed, after its upload
    assert all(code == 0 for n, (_, code) in said.items() if n != 3)
    assert "sum" not in refused
    assert refused["refused"] == "too_few_left"
    for n in range(4):
        assert "split_view" in answers[n][0]
        assert len((tmp_path / "lie" / f"{n}.ledger").read_text().splitlines()) == 3


def test_requests_that_are_none_are_refused_and_the_server_goes_on(example, tmp_path):
    example.make_keys(tmp_path / "keys")
    command = [sys.executable, "-u", str(FOLDER / "server.py"), str(tmp_path / "keys")]
    with subprocess.Popen(
        [*command, "--patience", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        port = int(process.stdout.readline().split()[-1])
        for path, headers, expected in (
            ("/", {}, 400),
            ("/keys/x", {}, 400),
            ("/nothing/1", {}, 400),
            ("/keys/1", {"Signature": "zz"}, 400),
            ("/keys/1", {}, 403),
            ("/keys/99", {"Signature": "00" * 64}, 403),
        ):
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            link.request("POST", path, b"nothing", headers)
            answer = link.getresponse()
            answer.read()
            assert answer.status == expected
            link.close()
        for length, expected in (("4041", 403), ("9" * 12, 413), ("-1", 400), ("1e3", 400)):
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            link.putrequest("POST", "/keys/1")
            link.putheader("Content-Length", length)
            link.endheaders(b"x" * 4041 if expected == 403 else b"")
            answer = link.getresponse()
            assert (answer.status, b"too long" in answer.read()) == (expected, expected == 413)
            link.close()
        process.kill()
        assert "Traceback" not in process.stderr.read()
    assert json.loads((tmp_path / "keys" / "public.json").read_text())["-1"]
