"""Records behind each mechanism that has a codebook."""

import numpy as np
import pytest

MECHANISMS = [
    ("grr", 2.0, {"alphabet": 5}),
    ("rappor", 3.0, {"alphabet": 4}),
    ("dbitflip", 3.0, {"alphabet": 4}),
    ("bitrand", 4.0, {"bits": 8, "integer_bits": 2}),
    ("bitrand", 5.0, {"bits": 14, "integer_bits": 3}),
    ("ome", 4.0, {"bits": 8, "integer_bits": 2}),
]


@pytest.fixture
def spread_records(rng):
    """Records that a quantiser of few levels and eight bits keep apart."""
    return np.unique(rng.integers(0, 5, (24, 6)) / 4.0, axis=0)


@pytest.fixture(params=MECHANISMS, ids=lambda m: f"{m[0]}-{m[1]:g}")
def guarded(request, universe_of, spread_records):
    """The universe of these records, behind every mechanism in turn."""
    mechanism, epsilon, settings = request.param
    return universe_of(spread_records, mechanism, epsilon, **settings)
