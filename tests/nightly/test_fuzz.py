"""A long campaign of mutations with a new seed, and a hundred random kills."""

import secrets

import pytest

from fuzz import campaign, kills

pytestmark = pytest.mark.nightly


def test_ten_thousand_mutations(tmp_path):
    seed = secrets.randbelow(1 << 32)
    root = tmp_path / "corpus"
    campaign.prepared(root)
    found = list(campaign.outcomes(root, seed, range(10_000), workers=2))
    print(campaign.table(found))
    failed = [o for o in found if o.result not in campaign.HARMLESS or o.detail]
    again = [f"python -m fuzz --seed {seed} --case {o.case}" for o in failed]
    assert not failed, (again[:5], failed[:3])


def test_a_hundred_kills(tmp_path):
    seed = secrets.randbelow(1 << 32)
    found = kills.kill_runs(tmp_path, 100, seed)
    assert not found.wrong, (seed, found.wrong)
    assert found.kills >= 100
    assert found.finished
