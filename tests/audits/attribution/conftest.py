"""Shared fixtures of the attribution tests."""

import numpy as np
import pytest
from scipy import stats


@pytest.fixture(scope="session")
def carried():
    """Naive twin of a tail: the larger of one more draw from a normal and a Pareto sample."""

    def p_value(own, null):
        z = (own - null.mean()) / (null.std(ddof=1) * np.sqrt(1 + 1 / len(null)))
        n = len(null) // 10
        *_, edge = np.sort(null)[: len(null) - n]
        over = np.sort(null)[len(null) - n :] - edge
        apart = np.abs(over[:, None] - over[None]).sum() / (n * (n - 1)) / 2  # half of Gini's mean
        shape = max(1 / n, 2 - over.mean() / apart)
        pareto = stats.genpareto.sf(own - edge, shape, scale=over.mean())
        return max(stats.t.sf(z, len(null) - 1), n / len(null) * pareto)

    return p_value
