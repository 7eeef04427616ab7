"""False alarms of the two-stage membership audit over 200 federations without a leak.

A federation trains on one part of the data. Its "members" are drawn from another part, which nobody
trained on, and so are the non-members: they are exchangeable, whatever the models learnt.
"""

import numpy as np
import pytest

from fedaudit.audits.audit import Knowledge
from fedaudit.audits.two_stage_membership import TwoStageMembership
from fedaudit.knowledge import Records, candidates
from fedaudit.randomness import Seed
from fedaudit.reporting.findings import judge
from fedaudit.setup.config import load
from fedaudit.setup.prepare import build, load_data
from fedaudit.trace import SERVER, MemoryRecorder, MemoryTruth

pytestmark = pytest.mark.nightly

#: clients, protections, records asked about per client: from many to one of a client and class
DESIGNS = (
    (2, {}, 12),
    (5, {}, 24),
    (10, {}, 8),
    (6, {"shuffle": {}}, 16),
    (6, {"secure_sum": {}}, 16),
)


def without_leak(seed, clients, protections, records):
    config = load(
        {
            "seed": seed,
            "data": {"name": "digits", "test_fraction": 0.6},
            "partition": {"kind": "dirichlet", "alpha": 0.4},
            "task": {"kind": "mlp", "hidden": [16]},
            "federation": {"clients": clients, "rounds": 3},
            "training": {"epochs": 2, "learning_rate": 0.2},
            "protections": protections,
        }
    )
    federation, facts = build(config)
    recorder = MemoryRecorder(layouts=federation.layouts(), federation=federation.describe())
    truth = MemoryTruth(facts)
    federation.run(recorder, truth)
    _, test = load_data(config, Seed(seed))
    order = np.random.default_rng(seed).permutation(len(test))
    half = len(test) // 2
    fake = np.array_split(order[:half], clients)
    own = {p: test.take(rows) for p, rows in zip(federation.party, fake, strict=True)}
    nobody = test.take(order[half:])
    pools, members, _ = candidates(Records(federation.task, own, nobody), records, Seed(seed))
    audit = TwoStageMembership(checked_rounds=0)
    known = Knowledge(task=federation.task, candidates=pools)
    guess = audit.attack(recorder.trace().seen_by(SERVER), known, np.random.default_rng([seed, 1]))
    return audit.score(guess, truth.with_members(members), np.random.default_rng([seed, 2]))


def test_false_alarms_over_200_null_federations():
    """One-sided level 2.5 % of any finding: all readings and clients share one test."""
    results = [
        without_leak(1000 * d + s, *design) for d, design in enumerate(DESIGNS) for s in range(40)
    ]
    found = [judge(r) for r in results]
    whole = sum(own[-1].verdict == "leak" for own in found)
    alarms = sum(any(f.verdict == "leak" for f in own) for own in found)
    values = np.array([r.estimates["membership_auc"].value for r in results])
    print(f"{alarms} false alarms of {len(results)}, {whole} of them of the whole federation")
    print(f"mean AUC {values.mean():.4f}")
    assert len(results) == 200
    # 2.5 % of 200 is 5; 13 or more would happen once in 580 at that rate
    assert alarms <= 12
    assert values.mean() == pytest.approx(0.5, abs=4 * values.std() / np.sqrt(200))
