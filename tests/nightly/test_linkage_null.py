"""False alarms of linking over 20,000 permutations: 1,000 in each of 20 designs.

The senders of every round are put in random order and the linkers keep their labels, one linker
that gives each row of a round a label of its own and one that may repeat labels. Readings and
clients count together, as in a verdict.
"""

import numpy as np
import pytest

from fedaudit.audits.fingerprint.null import link_test
from fedaudit.stats.intervals import clopper_pearson

pytestmark = pytest.mark.nightly

LEVEL, RUNS, DRAWS = 0.025, 1000, 199
"""With 199 draws and the true order, p-values are multiples of 1/200: the test is exact at any
number of draws."""
ALARMS: dict[tuple[int, int], int] = {}


@pytest.mark.parametrize("rounds", [2, 5, 10, 30])
@pytest.mark.parametrize("clients", [3, 4, 8, 20, 50])
def test_false_alarms_of_a_design(clients, rounds):
    rng = np.random.default_rng([clients, rounds])
    names = np.array([f"c{c:02d}" for c in range(clients)])
    one_each = [rng.permutation(clients).tolist() for _ in range(rounds)]
    repeated = [rng.integers(0, clients, size=clients).tolist() for _ in range(rounds)]
    alarms = 0
    for _ in range(RUNS):
        senders = [rng.permutation(names).tolist() for _ in range(rounds)]
        given = {"one label each": one_each, "labels may repeat": repeated}
        test = link_test(senders, given, level=LEVEL, rng=rng, draws=DRAWS)
        alarms += min([*test.p.values(), *test.clients.values()]) <= LEVEL
    ALARMS[clients, rounds] = alarms
    e = clopper_pearson(alarms, RUNS, 0.9995)  # 20 designs: all together at 99 %
    print(f"K = {clients}, T = {rounds}: {alarms} alarms of {RUNS:,}")
    assert e.low <= LEVEL


def test_false_alarms_of_all_designs_together():
    if len(ALARMS) < 20:
        pytest.skip("needs all designs in this process")
    total = sum(ALARMS.values())
    e = clopper_pearson(total, RUNS * len(ALARMS), 0.99)
    print(f"{total} alarms of {RUNS * len(ALARMS):,}: {100 * e.value:.2f} % at 99 % "
          f"[{100 * e.low:.2f}, {100 * e.high:.2f}]")  # fmt: skip
    assert e.low <= LEVEL
