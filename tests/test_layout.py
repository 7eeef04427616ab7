import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.errors import UsageError
from fedaudit.layout import Layout, column_runs

LAYOUT = Layout.of(
    [("a.w", (2, 3)), ("a.b", (3,)), ("scale", ()), ("heads[0].w", (2,)), ("empty", (0, 4))],
    buffers=["scale"],
)

layouts = st.lists(
    st.tuples(st.text(min_size=1, max_size=5), st.lists(st.integers(0, 4), max_size=3)),
    min_size=1,
    max_size=6,
    unique_by=lambda t: t[0],
).map(lambda shapes: Layout.of([(n, tuple(s)) for n, s in shapes], buffers=[shapes[0][0]]))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(layouts)
def test_round_trips(layout: Layout) -> None:
    assert Layout.from_dict(layout.to_dict()) == layout
    row = np.arange(layout.width, dtype=np.float32)
    tensors = layout.unflatten(row)
    assert {k: v.shape for k, v in tensors.items()} == {e.name: e.shape for e in layout.entries}
    assert np.array_equal(layout.flatten(tensors), row)
    # every name selects itself, whatever characters it is made of
    for e in layout.entries:
        assert e in layout.select(e.name)
    joined = np.concatenate([row[r] for r in column_runs(layout.entries)])
    assert np.array_equal(joined, row)


def test_selection() -> None:
    assert LAYOUT.width == 12
    assert [e.name for e in LAYOUT.select("a.*")] == ["a.w", "a.b"]
    assert [e.name for e in LAYOUT.select(["scale", "a.b"])] == ["a.b", "scale"]
    assert [e.name for e in LAYOUT.select("heads[0].w")] == ["heads[0].w"]
    rows = np.arange(24.0).reshape(2, 12)
    assert np.shares_memory(LAYOUT.gather(rows, "a.*"), rows)
    assert LAYOUT.gather(rows, ["a.b", "heads*"]).tolist() == [
        [6, 7, 8, 10, 11],
        [18, 19, 20, 22, 23],
    ]
    part = LAYOUT.restrict(["scale", "a.b"])
    assert part.names == ("a.b", "scale")
    assert [e.offset for e in part.entries] == [0, 3]
    assert part.entries[1].role == "buffer"
    with pytest.raises(UsageError, match=r"did you mean 'a\.w'"):
        LAYOUT.select("a.x")


def test_flatten_refuses_what_does_not_fit() -> None:
    tensors = LAYOUT.unflatten(np.zeros(12, np.float32))
    with pytest.raises(UsageError, match=r"missing: \['scale'\]"):
        LAYOUT.flatten({k: v for k, v in tensors.items() if k != "scale"})
    with pytest.raises(UsageError, match=r"unknown: \['more'\]"):
        LAYOUT.flatten({**tensors, "more": 1})
    with pytest.raises(UsageError, match="wrong shape"):
        LAYOUT.flatten({**tensors, "a.b": np.zeros(4)})


def test_of_refuses_nonsense() -> None:
    with pytest.raises(UsageError, match="'a' appears twice"):
        Layout.of([("a", (1,)), ("a", (2,))])
    with pytest.raises(UsageError, match="shape"):
        Layout.of([("a", (-1,))])


@pytest.mark.parametrize(
    "change",
    [
        {"width": 11},
        {"dtype": 3},
        {"tensors": [{"name": "a", "shape": [12], "offset": 1}]},
        {"tensors": [{"name": "a", "shape": [12.0], "offset": 0}]},
        {"tensors": [{"name": "a", "shape": [True, 12], "offset": 0}]},
        {"tensors": [{"name": "a", "shape": [-3, -4], "offset": 0}]},
        {"tensors": [{"name": 1, "shape": [12], "offset": 0}]},
        {"tensors": [{"name": "a", "shape": [12], "offset": 0, "role": "secret"}]},
        {"tensors": [{"name": "a", "shape": [6], "offset": o} for o in (0, 6)]},
    ],
)
def test_from_dict_refuses_nonsense(change: dict) -> None:
    with pytest.raises(ValueError):
        Layout.from_dict({**LAYOUT.to_dict(), **change})
