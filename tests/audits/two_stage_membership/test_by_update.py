"""One row per update: equal to a loop, with a limited number of rows."""

import numpy as np
import pytest
import torch

from fedaudit.audits.audit import Noise
from fedaudit.audits.two_stage_membership import by_update, theory
from fedaudit.results import AuditResult


def some_updates(rounds=3, clients=4, width=43, size=0.1, seed=0):
    rng = np.random.default_rng(seed)
    return [size * rng.normal(size=(clients, width)).astype(np.float32) for _ in range(rounds)]


def test_stages_of_every_client_and_round_equal_a_loop(by_hand):
    updates = some_updates()
    hand = by_hand(updates)
    noise = Noise(aggregate=0.01, rule="known")
    table = hand.audit(noise=noise).curves[by_update.STAGES]
    assert list(zip(table["round"], table["client"], strict=True)) == [
        (t, c) for t in (1.0, 2.0, 3.0) for c in (1.0, 2.0, 3.0, 4.0)
    ]
    _, guess = hand.attack()
    for i, (t, c) in enumerate(zip(table["round"], table["client"], strict=True)):
        u = updates[int(t) - 1].astype(np.float64) / 4
        own, rest = u[int(c) - 1], u.sum(0) - u[int(c) - 1]
        size, back = np.linalg.norm(own), np.linalg.norm(rest)
        assert table["SUR"][i] == pytest.approx(size / np.linalg.norm(u.sum(0)), rel=1e-4)
        closed = table["1 / sqrt(1 + r^2 + 2 r lambda)"][i]
        assert closed == pytest.approx(table["SUR"][i], rel=1e-4)
        assert table["lambda"][i] == pytest.approx(own @ rest / (size * back), abs=1e-4)
        assert table["r"][i] == pytest.approx(back / size, rel=1e-4)
        assert table["SNR"][i] == pytest.approx(size / 0.01, rel=1e-4)
        party = guess.parties[int(c) - 1]
        delta, inside = guess.rounds[int(t) - 1].own[int(c) - 1], hand.members[party]
        assert table["J"][i] == pytest.approx(float(theory.phi(delta[inside]).mean()), rel=1e-4)
        other = float(theory.phi(delta[~inside]).mean())
        assert table["J of nobody's"][i] == pytest.approx(other, rel=1e-4)


def test_checked_updates_equal_gradients_one_by_one(by_hand):
    updates = some_updates(rounds=2)
    hand = by_hand(updates)
    setting = {"checked_rounds": 2, "checked_clients": 2, "checked_records": 8}
    audit, guess = hand.attack(**setting)
    result = audit.score(guess, hand.truth.with_members(hand.members), np.random.default_rng(1))
    table = result.curves[by_update.CHECKED]
    assert sorted(zip(table["round"], table["client"], strict=True)) == [
        (1.0, 1.0), (1.0, 2.0), (2.0, 3.0), (2.0, 4.0),
    ]  # fmt: skip
    start, u = hand.task.initial().double(), torch.from_numpy(updates[0]).double()[0] / 4
    base = start + torch.from_numpy(updates[0]).double().mean(0) - u
    party = guess.parties[0]
    rows = guess.checked[party][hand.members[party][guess.checked[party]]]
    pool, module = hand.pools[party], hand.task.module.double()
    gradients = []
    for i in rows:
        at = base.clone().requires_grad_()
        p = hand.task.named(at)
        out = torch.func.functional_call(module, p, pool.x[i : i + 1].double())
        loss = torch.nn.functional.cross_entropy(out, pool.y[i : i + 1])
        gradients.append(-torch.autograd.grad(loss, at)[0])
    module.float()
    slopes = torch.stack(gradients) @ u
    score = torch.stack(gradients).mean(0)
    expected = {
        "|u|": u.norm(),
        "|s|": score.norm(),
        "gamma": score @ u / (score.norm() * u.norm()),
        "variance of <H(0), u>": slopes.var(unbiased=False),
        "mean of phi(<H(0), u>)": float(theory.phi(slopes.numpy()).mean()),
    }
    for name, value in expected.items():
        assert table[name][0] == pytest.approx(float(value), rel=1e-3), name
    assert AuditResult.from_json(result.to_json()) == result


def test_undefined_rows_are_left_out_and_many_rounds_thinned(by_hand, monkeypatch):
    updates = some_updates(rounds=6)
    updates[1][2] = 0
    table = by_hand(updates).audit().curves[by_update.STAGES]
    rows = list(zip(table["round"], table["client"], strict=True))
    assert len(rows) == 23
    assert (2.0, 3.0) not in rows
    monkeypatch.setattr(by_update, "MOST_ROWS", 12)
    few = by_hand(updates).audit().curves[by_update.STAGES]
    assert {*few["round"]} == {1.0, 3.0, 6.0}
    assert len(few["round"]) == 12


def test_an_snr_that_noise_hides_is_no_column(by_hand):
    names = [f"client-{c:02d}" for c in range(4)]
    noise = Noise(aggregate=0.5, uploads=dict.fromkeys(names, 1.0), rule="update_noise")
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(4, 43)).astype(np.float32) for _ in range(2)]
    assert "SNR" not in by_hand(rows).audit(noise=noise).curves[by_update.STAGES]


def test_risk_by_round_has_bands_and_what_nobody_trained_on(by_hand):
    hand = by_hand(some_updates())
    table = hand.audit().curves["risk by round"]
    for name in ("TS-MIA", "SUR", "J"):
        value, low, high = (np.array(table[n]) for n in (name, f"{name} low", f"{name} high"))
        assert (low <= value).all()
        assert (value <= high).all()
        assert (high > low).all()
    assert all(0 <= v <= 1 for v in (*table["TS-MIA low"], *table["TS-MIA high"]))
    # swapping members and others swaps the two columns
    turned = hand.but(members={p: ~m for p, m in hand.members.items()})
    other = turned.audit().curves["risk by round"]
    np.testing.assert_allclose(other["TS-MIA of nobody's"], table["TS-MIA"], atol=0.1)
    np.testing.assert_allclose(other["J of nobody's"], table["J"], rtol=1e-6)
