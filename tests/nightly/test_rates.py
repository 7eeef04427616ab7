"""Long statistics: error rates of verdicts and intervals over many simulated audits."""

import numpy as np
import pytest

from fedaudit.audits.fingerprint.linkers import LINKERS
from fedaudit.audits.fingerprint.scores import links
from fedaudit.audits.rows.features import unit_norm
from fedaudit.stats import intervals

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("method", ["greedy", "tracking", "joint", "spectral", "kmeans"])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_false_alarms_over_400_null_federations(method, share):
    """Rows without any signal: the low end lies above chance in at most 5 % of audits."""
    alarms = 0
    for s in range(400):
        rng = np.random.default_rng(s)
        take = max(2, round(12 * share))
        senders = [[f"c{c}" for c in rng.permutation(12)[:take]] for _ in range(8)]
        rounds = [unit_norm(rng.normal(size=(take, 50)).astype(np.float32)) for _ in range(8)]
        labels = LINKERS[method](rounds, 12, rng)
        joined = links(senders, [v.tolist() for v in labels])
        names = sorted(joined.found)
        e = intervals.clustered_share(
            [sum(joined.found[n]) for n in names], [len(joined.found[n]) for n in names]
        )
        alarms += e.low > joined.chance
    # 5 % of 400 is 20; 33 or more would happen once in 300 at that rate
    assert alarms < 33


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5, 0.9])
def test_coverage_of_the_clustered_interval(rate):
    """20 clients whose own rates differ: the interval covers the mean rate about 95 %."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(2000):
        own = rng.beta(8 * rate, 8 * (1 - rate), size=20)
        hits = rng.binomial(9, own)
        e = intervals.clustered_share(hits, np.full(20, 9))
        covered += e.low <= rate <= e.high
    assert covered / 2000 > 0.92
