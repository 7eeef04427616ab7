"""From a run to a table: which records take part, and what cannot be played."""

import numpy as np
import pytest

from fedaudit.errors import ConfigError, DataError


def test_a_gossip_run_has_nobody_who_could_plant_weights(audited):
    ring = {
        "topology": {"kind": "ring"},
        "federation": {"clients": 6, "rounds": 1, "aggregation": "gossip"},
    }
    result = audited({}, other=ring)
    assert result.need.code == "no_server"


def test_exact_grr_stands_beside_a_smaller_universe(audited, tmp_path):
    """Records of one feature that use nine of twenty values: the reference is still exact."""
    x = np.repeat([0, 1, 2, 5, 8, 11, 14, 17, 19], 40) / 19
    lines = [f"{v!r},{i % 2}" for i, v in enumerate(x.tolist())]
    (tmp_path / "one.csv").write_text("\n".join(["v,y", *lines]) + "\n")
    other = {"data": {"path": str(tmp_path / "one.csv"), "label": "y", "standardise": False}}
    mechanism = {"epsilon": 3.0, "alphabet": 20}
    own = {"games": 4000, "recorded": 0, "records": 4, "threshold": "theory"}
    result = audited({**own, "local_dp": mechanism}, other=other)
    e, exact = result.estimates["success"], result.bounds["exact for this adversary"]
    assert e.low <= exact.value <= e.high
    assert result.bounds["Theorem 4"].value <= exact.value


@pytest.fixture
def csv(tmp_path):
    rng = np.random.default_rng(3)
    x = rng.random((120, 3)).round(3)
    lines = [",".join(map(str, [*row, int(row[0] > 0.5)])) for row in x.tolist()]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,c,y", *lines]) + "\n")
    return {"data": {"path": str(tmp_path / "own.csv"), "label": "y"}}


def test_clients_that_randomise_their_records_do_not_pool_them_first(audited, csv):
    result = audited({"recorded": 12, "records": 4}, other=csv, local_dp={"alphabet": 4})
    assert any("local DP by grr" in note for note in result.notes)
    csv["data"]["standardise"] = True
    with pytest.raises(ConfigError, match="standardised columns") as caught:
        audited({}, other=csv, local_dp={"alphabet": 4})
    assert "data.standardise = false" in caught.value.remedy


def test_columns_beyond_the_bounds_are_said_to_come_as_they_are(audited, csv, tmp_path):
    file = tmp_path / "own.csv"
    file.write_text(file.read_text() + "7.5,0.1,0.2,1\n")
    with pytest.raises(DataError, match="outside the encoder's range") as caught:
        audited({}, other=csv, local_dp={"alphabet": 4})
    assert "not standardised under local_dp" in caught.value.remedy


def test_a_mechanism_of_the_audit_alone_says_that_columns_are_standardised(audited, csv):
    own = {"recorded": 0, "records": 4}
    with pytest.raises(DataError, match="outside the encoder's range") as caught:
        audited({**own, "local_dp": {"alphabet": 4}}, other=csv)
    assert "data.standardise = false" in caught.value.remedy
    wide = {"alphabet": 4, "low": -3.0, "high": 3.0}
    result = audited({**own, "local_dp": wide}, other=csv)
    assert any("its budget does not count that" in note for note in result.notes)
    csv["data"]["standardise"] = False
    plain = audited({**own, "local_dp": {"alphabet": 4}}, other=csv)
    assert not any("standardised" in note for note in plain.notes)
