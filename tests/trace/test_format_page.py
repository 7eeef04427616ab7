"""The program in docs/trace-format.md writes a valid trace; safetensors reads it."""

import re
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from fedaudit.trace import SERVER, WIRETAP, Trace
from fedaudit.trace.schema import DTYPES, KINDS

PAGE = Path(__file__).parents[2] / "docs" / "trace-format.md"


def test_the_program_on_the_page(tmp_path: Path) -> None:
    program = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[-1]
    assert "fedaudit" not in program.replace('"fedaudit-trace"', "")
    assert set(re.findall(r"^(?:import|from) (\w+)", program, re.MULTILINE)) == {
        "hashlib",
        "json",
        "struct",
        "pathlib",
        "numpy",
    }
    names: dict = {}
    exec(program, names)
    rng = np.random.default_rng(3)
    models = rng.standard_normal((2, 6)).astype(np.float32)
    uploads = rng.standard_normal((2, 3, 6)).astype(np.float32)
    names["write_trace"](tmp_path, models, uploads)

    trace = Trace.open(tmp_path)
    view = trace.seen_by(SERVER)
    for number in trace.rounds:
        got = view.updates(number)
        assert got.senders == ("hospital-0", "hospital-1", "hospital-2")
        assert np.array_equal(got.rows, uploads[number - 1] - models[number - 1])
        own = trace.seen_by("hospital-1").updates(number, "w").rows
        assert np.array_equal(own, (uploads[number - 1] - models[number - 1])[1:2, :4])
    assert trace.seen_by(WIRETAP).federation["clients"][0] == "hospital-0"
    assert trace.sha256 in (tmp_path / "manifest.json").read_text()
    assert load_file(tmp_path / "round-00002.safetensors")["model"].shape == (4, 6)


def test_the_page_names_every_kind_and_dtype() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for word in (*KINDS, *DTYPES):
        assert f"`{word}`" in text, word
