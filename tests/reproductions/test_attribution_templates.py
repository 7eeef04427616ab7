"""The measurement of templates: counts of one federation, and the section of the page."""

import json

import numpy as np

from reproductions.attribution import template, template_page
from reproductions.attribution.inner import Inner, stored

KEYS, UNUSED, PRETENDED = 3, 40, 5


def run_of(seed=0, effect=9.0, present=1.0):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((10, 10, KEYS + UNUSED + PRETENDED))
    values[:, [1, 4, 6], [0, 1, 2]] += effect
    holders = np.full(10, -1)
    holders[[1, 4, 6]] = [0, 1, 2]
    here = rng.random((10, 10)) < present
    return Inner(
        values=values, present=here, holders=holders, sizes=np.ones((10, 10)), keys=KEYS,
        unused=UNUSED, train_seconds=1.0, template_seconds=1.0,
    )  # fmt: skip


def counts(run, add=template.in_the_clear, plan="balanced", least=1):
    drawn = template.plan_of(plan, 10, 10, np.random.default_rng(0))
    queries = template.without_absent(drawn, run.present, least)
    return template.read(queries, add(queries, run.values), run, PRETENDED)


def test_holders_and_pretended_owners_are_counted():
    found = counts(run_of())
    assert (found["marked"], found["benign"], found["pretended"]) == (3, 7, PRETENDED)
    assert found["found"] == found["by_own_key"] == 3
    assert found["named"] == 0
    assert found["pretended_named"] <= 1
    assert len(found["z"]) == 3


def test_scalars_through_the_protocol_give_the_same_figures():
    run = run_of(effect=4.0)
    clear, summed = counts(run), counts(run, template.through_the_protocol)
    assert np.allclose(clear.pop("z"), summed.pop("z"), atol=0.02)
    assert clear == summed


def test_absent_clients_are_in_no_sum_and_small_groups_are_not_opened():
    run = run_of(present=0.8)
    drawn = template.plan_of("unequal", 10, 10, np.random.default_rng(0))
    assert {int(n) for n in drawn.sum(axis=2).ravel()} == {4, 6}
    queries = template.without_absent(drawn, run.present, 3)
    assert all(len(q) == 0 or q.sum(axis=1).min() >= 3 for q in queries)
    assert all((q.sum(axis=0) <= here).all() for q, here in zip(queries, run.present, strict=True))
    assert counts(run, least=3)["named"] == 0


def test_noise_hides_marks_as_epsilon_falls():
    def with_epsilon(epsilon):
        return lambda q, v: template.with_noise(q, v, epsilon, 5.0, np.random.default_rng(1))

    found = [counts(run_of(effect=6.0), with_epsilon(e))["found"] for e in (1, 1e4)]
    assert found == [0, 3]


def test_inner_products_are_read_back_as_they_were_stored(tmp_path):
    run = run_of()
    run.save(tmp_path / "canary-iid-48-1.npz")
    back = stored(tmp_path, "canary", "iid", 48, 1)
    assert np.array_equal(back.values, run.values)
    assert (back.keys, back.unused) == (KEYS, UNUSED)


def test_the_section_adds_runs_of_one_kind(tmp_path):
    cell = {"marked": 3, "found": 2, "benign": 7, "named": 0, "pretended": 30,
            "pretended_named": 1, "by_own_key": 2, "z": [1.0]}  # fmt: skip
    cells = {f"{plan}/{t}": cell for plan in template.PLANS for t in template.LENGTHS}
    cells["epsilon 64/10"] = cell
    runs = {f"canary/iid/48/{seed}": {"train_seconds": 1.0, **cells} for seed in (1, 2)}
    file = tmp_path / "template.json"
    file.write_text(json.dumps(runs), encoding="utf-8")
    text = "\n".join(template_page.lines(file))
    assert "| canaries, iid | 48 | five partitions cycled | 10 | 2 | 4 of 6: 67 %" in text
    assert "2 of 60: 3 %" in text
    assert "| canaries | 64 | 2 | 4 of 6: 67 %" in text
    assert template_page.lines(tmp_path / "none.json") == []
