"""Linking by everything that crosses: each kind planted is found, and noise is left out."""

import numpy as np
import pytest

from fedaudit.stats.evidence import Category, Direction, Quantity, gain, link, weigh

CLIENTS, ROUNDS, WIDTH = 24, 6, 120


def units(rng, who, signal, base):
    rows = [signal * base[w] + rng.normal(size=(len(w), WIDTH)) for w in who]
    rows = [r - r.mean(axis=0) for r in rows]
    return np.concatenate([r / np.linalg.norm(r, axis=1, keepdims=True) for r in rows])


def plant(seed, kind="", share=1.0):
    """Traits of a federation in which at most one kind tells clients apart, and who sent what."""
    rng = np.random.default_rng(seed)
    many = round(share * CLIENTS)
    who = [rng.permutation(CLIENTS)[:many] for _ in range(ROUNDS)]
    rounds = np.repeat(np.arange(ROUNDS), many)
    flat = np.concatenate(who)
    norm = rng.normal(size=CLIENTS)[flat] if kind == "norm" else rng.normal(size=len(flat))
    sizes = rng.integers(50, 500, CLIENTS)
    drawn = rng.integers(50, 500, len(flat))
    weight = sizes[flat] if kind == "weight" else drawn
    site = flat % 6 if kind == "site" else rng.integers(0, 6, len(flat))
    signal = 0.6 if kind == "direction" else 0.0
    traits = {
        "direction": Direction(
            units(rng, who, signal, rng.normal(size=(CLIENTS, WIDTH))).astype(np.float32), rounds
        ),
        # norms fall as training goes on
        "norm": Quantity(norm + 0.05 * rng.normal(size=len(flat)) - rounds, rounds, drifts=True),
        "weight": Quantity(weight.astype(float), rounds),
        "weight, equal": Category(np.unique(weight, return_inverse=True)[1], rounds),
        "site": Category(site, rounds),
    }
    return traits, rounds, who


def found(labels, who):
    """Share of a client's next updates with the same label, over neighbouring rounds."""
    hits = []
    for t in range(1, len(who)):
        before = dict(zip(who[t - 1].tolist(), labels[t - 1].tolist(), strict=True))
        now = zip(who[t].tolist(), labels[t].tolist(), strict=True)
        hits += [before[c] == label for c, label in now if c in before]
    return np.mean(hits)


@pytest.mark.parametrize(
    ("kind", "least"), [("direction", 0.9), ("norm", 0.3), ("weight", 0.9), ("site", 0.18)]
)
def test_the_kind_that_tells_clients_apart_is_found_and_links(kind, least):
    """Chance is 1/24; six sites of four clients cannot give more than about a quarter."""
    rates = []
    for seed in range(4):
        traits, rounds, who = plant(seed, kind)
        weighing = weigh(traits, rounds, CLIENTS)
        assert next(iter(weighing.traits)).startswith(kind)
        rates.append(found(link(weighing, rounds, CLIENTS, np.random.default_rng(0)), who))
    assert np.mean(rates) > least


@pytest.mark.parametrize("kind", ["direction", "weight"])
def test_clients_that_pause_are_found_again(kind):
    traits, rounds, who = plant(3, kind, share=0.5)
    labels = link(weigh(traits, rounds, CLIENTS), rounds, CLIENTS, np.random.default_rng(0))
    assert found(labels, who) > 0.7


def test_noise_is_mostly_left_out():
    """A useless trait costs power, never a false alarm: the verdict is a permutation test."""
    taken = sum(bool(weigh(*plant(100 + s)[:2], CLIENTS).traits) for s in range(30))
    assert taken <= 5


def test_the_gain_of_a_block_equals_the_plain_sum_over_partners():
    rng = np.random.default_rng(5)
    ratio = rng.normal(size=(3, 4))
    one = np.log((np.exp(ratio).sum(axis=1) + 2) / 6).sum()  # two of six are absent
    two = np.log((np.exp(ratio).sum(axis=0) + 3) / 6).sum()
    assert gain(ratio, 6) == pytest.approx((one + two) / 2, abs=1e-12)


def test_one_row_per_client_and_round():
    traits, rounds, _ = plant(6, "weight", share=0.5)
    labels = link(weigh(traits, rounds, CLIENTS), rounds, CLIENTS, np.random.default_rng(0))
    assert all(len(np.unique(own)) == len(own) for own in labels)


def test_values_that_do_not_vary_are_no_traits():
    rounds = np.repeat(np.arange(3), 4)
    traits = {
        "constant": Quantity(np.ones(12), rounds),
        "of a round": Quantity(rounds.astype(float), rounds, drifts=True),
    }
    assert not weigh(traits, rounds, 4).traits


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_a_number_that_most_rows_share_is_no_sign_of_one_client(share):
    """Counts of zeros are mostly nought: equal values must not look like one client."""
    rng = np.random.default_rng(3)
    rounds = np.repeat(np.arange(10), 6)
    taken = 0
    for _ in range(20):
        values = np.where(rng.random(len(rounds)) < share, 0.0, rng.integers(1, 9, len(rounds)))
        taken += "zeros" in weigh({"zeros": Quantity(values, rounds)}, rounds, 6).traits
    assert taken <= 1
