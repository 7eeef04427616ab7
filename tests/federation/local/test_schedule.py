"""Which examples a client sees at which step: against a slow twin, and by the law of the draw."""

import numpy as np
import pytest
from scipy import stats

from fedaudit.errors import ConfigError
from fedaudit.federation.local import schedule as module
from fedaudit.federation.local.schedule import Schedule, Training, plan
from fedaudit.randomness import Seed

SIZES = np.array([7, 1, 20, 16, 3, 2, 33])
STARTS = np.concatenate([[0], np.cumsum(SIZES)[:-1]])
EVERYONE = np.arange(len(SIZES))


def planned(training: Training, clients=EVERYONE, number: int = 1, seed: int = 1) -> Schedule:
    return plan(training, np.asarray(clients), STARTS, SIZES, Seed(seed), number)


def batches(schedule: Schedule, clients=EVERYONE) -> dict[int, list[list[int]]]:
    """Client -> batches, as lists of the client's own example numbers."""
    out = {}
    for row, at in enumerate(schedule.order):
        c = int(np.asarray(clients)[at])
        own = [
            (schedule.index[row, s][schedule.valid[row, s]] - STARTS[c]).tolist()
            for s in range(int(schedule.steps[row]))
        ]
        out[c] = own
    return out


def naive_shuffle(training: Training, client: int, number: int, seed: int) -> list[list[int]]:
    n = int(SIZES[client])
    size = min(training.batch_size or n, n)
    count = training.steps or training.epochs * -(-n // size)
    out: list[list[int]] = []
    epoch = 0
    while len(out) < count:
        words = [int(Seed(seed).bits("batches", number, client, epoch, e)) for e in range(n)]
        order = sorted(range(n), key=lambda e: words[e])
        out += [order[i : i + size] for i in range(0, n, size)]
        epoch += 1
    return out[:count]


def naive_poisson(training: Training, client: int, number: int, seed: int) -> list[list[int]]:
    n = int(SIZES[client])
    size = min(training.batch_size or n, n)
    count = training.steps or training.epochs * -(-n // size)
    return [
        [
            e
            for e in range(n)
            if float(Seed(seed).uniform("poisson", number, client, s, e)) < size / n
        ]
        for s in range(count)
    ]


CASES = [
    Training(batch_size=4),
    Training(batch_size=4, epochs=3),
    Training(batch_size=0, epochs=2),
    Training(batch_size=5, steps=9),
    Training(batch_size=0, steps=3),
    Training(batch_size=100),
    Training(batch_size=1),
]


@pytest.mark.parametrize("training", CASES)
@pytest.mark.parametrize("sampling", ["shuffle", "poisson"])
def test_equals_the_slow_twin(training: Training, sampling: str) -> None:
    training = Training(
        batch_size=training.batch_size,
        epochs=training.epochs,
        steps=training.steps,
        sampling=sampling,
    )
    twin = naive_shuffle if sampling == "shuffle" else naive_poisson
    got = batches(planned(training, number=4, seed=9))
    for c in EVERYONE:
        assert got[int(c)] == twin(training, int(c), 4, 9)


@pytest.mark.parametrize("batch_size", [0, 1, 4, 5, 16, 64])
def test_every_example_once_per_epoch_and_the_last_batch_smaller(batch_size: int) -> None:
    got = batches(planned(Training(batch_size=batch_size, epochs=2)))
    for c, own in got.items():
        n = int(SIZES[c])
        size = min(batch_size or n, n)
        half = len(own) // 2
        for epoch in (own[:half], own[half:]):
            assert sorted(e for b in epoch for e in b) == list(range(n))
            assert [len(b) for b in epoch[:-1]] == [size] * (half - 1)
            assert len(epoch[-1]) == (n - 1) % size + 1
        if n > 3:
            assert own[:half] != own[half:]


def test_divisor_is_the_batch_or_the_expected_batch() -> None:
    shuffled = planned(Training(batch_size=4))
    counts = shuffled.valid.sum(axis=2)
    inside = np.arange(counts.shape[1]) < shuffled.steps[:, None]
    np.testing.assert_array_equal(shuffled.divisor[inside], counts[inside])
    poisson = planned(Training(batch_size=4, sampling="poisson"))
    expected = np.minimum(4, SIZES[poisson.order])
    np.testing.assert_array_equal(
        poisson.divisor, np.broadcast_to(expected[:, None], poisson.divisor.shape)
    )


def test_rows_are_sorted_by_steps_and_active_is_a_prefix() -> None:
    got = planned(Training(batch_size=4))
    assert sorted(got.order.tolist()) == EVERYONE.tolist()
    assert (np.diff(got.steps) <= 0).all()
    for s in range(int(got.steps[0]) + 1):
        assert got.active(s) == int((got.steps > s).sum())


@pytest.mark.parametrize("sampling", ["shuffle", "poisson"])
def test_a_clients_batches_do_not_depend_on_the_others(sampling: str) -> None:
    training = Training(batch_size=4, epochs=2, sampling=sampling)
    everyone = batches(planned(training))
    for clients in ([2], [6, 2], [1, 2, 0, 5]):
        some = batches(planned(training, clients), clients)
        assert all(some[c] == everyone[c] for c in clients)
    assert batches(planned(training)) == everyone
    assert batches(planned(training, number=2))[6] != everyone[6]
    assert batches(planned(training, seed=2))[6] != everyone[6]


def test_the_draw_at_once_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(batch_size=4, epochs=3, sampling="poisson")
    before = planned(training)
    monkeypatch.setattr(module, "DRAWN_AT_ONCE", 1)
    after = planned(training)
    np.testing.assert_array_equal(before.index, after.index)
    np.testing.assert_array_equal(before.valid, after.valid)


def test_poisson_rate_and_independence() -> None:
    clients, n, steps, size = 40, 50, 30, 10
    training = Training(batch_size=size, steps=steps, sampling="poisson")
    starts = np.arange(clients) * n
    taken = []
    for number in (1, 2):
        got = plan(training, np.arange(clients), starts, np.full(clients, n), Seed(3), number)
        full = np.zeros((clients, steps, n))
        k, s, b = np.nonzero(got.valid)
        full[k, s, got.index[k, s, b] - starts[got.order[k]]] = 1
        taken.append(full[np.argsort(got.order)])
    both = np.stack(taken)  # (rounds, clients, steps, examples)
    q = size / n
    total = both.size
    assert abs(both.sum() - q * total) < 4 * np.sqrt(total * q * (1 - q))
    # batch sizes are binomial, and no axis is correlated with its neighbour
    sizes = both.sum(axis=3).ravel()
    observed = np.bincount(sizes.astype(int), minlength=n + 1)[4:17]
    expected = stats.binom.pmf(np.arange(4, 17), n, q)
    fit = stats.chisquare(observed, expected / expected.sum() * observed.sum())
    assert fit.pvalue > 1e-3
    for axis in range(4):
        a = np.take(both, range(both.shape[axis] - 1), axis) - q
        b = np.take(both, range(1, both.shape[axis]), axis) - q
        z = (a * b).sum() / (q * (1 - q) * np.sqrt(a.size))
        assert abs(z) < 4


def test_full_batch_poisson_takes_everything() -> None:
    got = batches(planned(Training(batch_size=0, epochs=2, sampling="poisson")))
    assert all(own == [list(range(int(SIZES[c])))] * 2 for c, own in got.items())


def test_persons_are_taken_together() -> None:
    person = np.concatenate([np.arange(n) // 3 for n in SIZES])
    training = Training(batch_size=6, steps=20, sampling="poisson")
    got = batches(plan(training, EVERYONE, STARTS, SIZES, Seed(1), 1, person))
    for c, own in got.items():
        for batch in own:
            chosen = {e // 3 for e in batch}
            assert batch == [e for e in range(int(SIZES[c])) if e // 3 in chosen]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs"),
        ({"batch_size": -1}, "batch_size"),
        ({"steps": 0}, "steps"),
        ({"learning_rate": 0.0}, r"training.learning_rate is out of range\n.*above 0"),
        ({"learning_rate": float("nan")}, r"training.learning_rate is out of range"),
        ({"momentum": 1.0}, r"training.momentum is out of range\n.*below 1"),
        ({"weight_decay": -0.1}, r"training.weight_decay is out of range\n.*at least 0"),
        ({"optimizer": "adam", "momentum": 0.5}, "belongs to SGD"),
    ],
)
def test_settings_out_of_range(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Training(**settings)


def test_steps_and_expected_batch() -> None:
    assert Training(batch_size=4, epochs=3).steps_for(9) == 9
    assert Training(batch_size=0, epochs=3).steps_for(9) == 3
    assert Training(batch_size=4, steps=5).steps_for(9) == 5
    assert Training(batch_size=4).expected_batch(3) == 3
    assert Training(batch_size=0).expected_batch(9) == 9
