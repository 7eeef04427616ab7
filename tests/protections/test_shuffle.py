"""The shuffler: a uniform permutation of a round's rows, names removed, content untouched."""

from collections import Counter
from itertools import permutations

import numpy as np
import torch
from scipy import stats

from fedaudit.hooks import Leg, Uploads
from fedaudit.protections.shuffle import Shuffle
from fedaudit.randomness import Seed
from fedaudit.trace import ANONYMOUS, SHUFFLER


def uploads(n: int = 5, first: int = 0) -> Uploads:
    return Uploads(
        rows=torch.arange(3.0 * n).view(n, 3),
        senders=tuple(f"client-{i}" for i in range(n)),
        weights=np.arange(1.0, n + 1),
        origin=np.arange(n) + first,
        total_weight=n * (n + 1) / 2,
        metadata=tuple({"examples": i + 1} for i in range(n)),
        legs=(Leg("x", "y", 1),),
    )


def test_everything_of_a_row_moves_together() -> None:
    before = uploads()
    after = Shuffle().upload(before, round_number=2, seed=Seed(1))
    assert after.senders == (ANONYMOUS,) * 5
    assert sorted(after.origin.tolist()) == list(range(5))
    assert torch.equal(after.rows, before.rows[after.origin])
    np.testing.assert_array_equal(after.weights, before.weights[after.origin])
    assert [m["examples"] for m in after.metadata] == [int(o) + 1 for o in after.origin]
    assert after.total_weight == before.total_weight
    assert after.kind == before.kind


def test_the_shuffler_sees_who_sent_how_much() -> None:
    after = Shuffle().upload(uploads(), round_number=2, seed=Seed(1))
    assert after.legs[0] == Leg("x", "y", 1)
    assert after.legs[1:] == tuple(Leg(f"client-{i}", SHUFFLER, 12) for i in range(5))


def test_the_average_is_unchanged() -> None:
    """[Fingerprint] Eq. (5)."""
    before = uploads()
    after = Shuffle().upload(before, round_number=1, seed=Seed(2))
    mean = np.average(after.rows.numpy(), axis=0, weights=after.weights)
    np.testing.assert_allclose(
        mean, np.average(before.rows.numpy(), axis=0, weights=before.weights), rtol=1e-6
    )


def test_permutations_are_uniform_over_rounds() -> None:
    counts: Counter[tuple[int, ...]] = Counter()
    for number in range(1, 1201):
        after = Shuffle().upload(uploads(3), round_number=number, seed=Seed(1))
        counts[tuple(after.origin.tolist())] += 1
    observed = [counts[p] for p in permutations(range(3))]
    assert sum(observed) == 1200
    assert stats.chisquare(observed).pvalue > 1e-3


def test_draws_are_deterministic_and_apart() -> None:
    def order(number: int = 1, seed: int = 1, first: int = 0) -> list[int]:
        after = Shuffle().upload(uploads(30, first), round_number=number, seed=Seed(seed))
        return (after.origin - first).tolist()

    assert order() == order()
    assert order() != order(number=2)
    assert order() != order(seed=2)
    assert order() != order(first=30)  # another region of the same round


def test_uploads_without_metadata() -> None:
    from dataclasses import replace

    after = Shuffle().upload(replace(uploads(), metadata=()), round_number=1, seed=Seed(1))
    assert after.metadata == ()
