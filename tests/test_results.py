"""Results: JSON round trips are exact, and invalid values are refused."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaudit.errors import NotApplicable, NothingToSay, NotObservable, TraceError
from fedaudit.results import (
    AuditResult,
    Bound,
    Estimate,
    Finding,
    Need,
    OldResult,
    Underpowered,
)

quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)
wholes = st.integers(-(2**63), 2**64 - 1)
numbers = st.floats(allow_nan=False) | wholes
floats = st.floats(allow_nan=False)
texts = st.text(max_size=6) | st.sampled_from(["inf", "-inf", "\\inf", "\\\\-inf", "nan", "null"])
scalars = st.none() | st.booleans() | numbers | texts
settings_of = st.dictionaries(
    texts,
    st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(texts, inner, max_size=3)
        ),
        max_leaves=6,
    ),
    max_size=4,
)


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    low, high = sorted([draw(floats), draw(floats)])
    return Estimate(
        value=draw(floats),
        low=low,
        high=high,
        n=draw(st.integers(0, 10**9)),
        confidence=draw(st.floats(0.01, 1)),
        baseline=draw(st.none() | floats),
        method=draw(texts),
        one_sided=draw(st.booleans()),
    )


EMPTY = ["nothing_to_say", "blind", "not_applicable", "failed"]
needs = st.builds(
    Need,
    code=st.text(min_size=1, max_size=6),
    what=texts,
    expected=texts,
    got=texts,
    remedy=texts,
)


@st.composite
def results(draw: st.DrawFn) -> AuditResult:
    found = draw(st.dictionaries(texts, estimates(), max_size=3))
    bound = st.builds(
        Bound,
        value=floats,
        kind=st.sampled_from(["upper", "lower"] if found else ["reference"]),
        of=st.sampled_from(sorted(found)) if found else texts,
        source=texts,
        assumes=texts,
    )
    status = draw(st.sampled_from(["ok", "nothing_to_say"] if found else EMPTY))
    length = draw(st.integers(0, 4))
    column = st.lists(numbers, min_size=length, max_size=length).map(tuple)
    return AuditResult(
        audit=draw(texts),
        question=draw(texts),
        vantage=draw(texts),
        settings=draw(settings_of),
        headline=draw(st.sampled_from(sorted(found))) if found else None,
        greater_is_leak=draw(st.booleans()),
        estimates=found,
        underpowered=tuple(
            draw(
                st.lists(
                    st.builds(
                        Underpowered,
                        what=texts,
                        have=wholes,
                        needed=wholes,
                        measure=texts,
                    ),
                    max_size=2,
                )
            )
        ),
        bounds=draw(st.dictionaries(texts, bound, max_size=2)),
        per_client=draw(
            st.dictionaries(
                texts, st.dictionaries(texts, numbers | texts | st.none(), max_size=3), max_size=3
            )
        ),
        curves=draw(st.dictionaries(texts, st.dictionaries(texts, column, max_size=3), max_size=2)),
        detectable=draw(st.none() | floats),
        status=status,
        need=None if status == "ok" else draw(needs),
        known=status == "ok" and draw(st.booleans()),
        notes=tuple(draw(st.lists(texts, max_size=3))),
        source=draw(texts),
        trace_sha256=draw(texts),
    )


@quick
@given(results())
def test_round_trip(result: AuditResult) -> None:
    text = result.to_json()
    back = AuditResult.from_json(text)
    assert back == result
    assert back.to_json() == text

    def strict(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    json.loads(text, parse_constant=strict)


@quick
@given(estimates() | st.none(), texts)
def test_findings_round_trip(estimate: Estimate | None, word: str) -> None:
    finding = Finding(
        verdict="leak",
        audit=word,
        vantage=word,
        question=word,
        statement=word,
        rule=word,
        because=word,
        measure=word,
        client=word,
        variant=word,
        known=estimate is None,
        code=word,
        estimate=estimate,
    )
    assert Finding.from_dict(json.loads(json.dumps(finding.to_dict(), allow_nan=False))) == finding


def whole(**more) -> AuditResult:
    e = Estimate(value=0.5, low=0.1, high=math.inf, n=3)
    return AuditResult(
        audit="a", question="q", vantage="server", headline="x", estimates={"x": e}, **more
    )


def test_infinity_is_a_word_and_a_word_is_not_infinity() -> None:
    result = whole(notes=("inf",), detectable=-math.inf, settings={"a": "inf", "b": math.inf})
    raw = json.loads(result.to_json())
    assert raw["estimates"]["x"]["high"] == "inf"
    assert raw["detectable"] == "-inf"
    back = AuditResult.from_json(result.to_json())
    assert back.notes == ("inf",)
    assert back.settings == {"a": "inf", "b": math.inf}


def test_nan_is_refused_at_birth() -> None:
    nan = math.nan
    for field in ("value", "low", "high", "baseline", "confidence"):
        given_ = {"value": 0.0, "low": 0.0, "high": 0.0, "n": 1, field: nan}
        with pytest.raises(ValueError, match="NaN"):
            Estimate(**given_)
    with pytest.raises(ValueError, match="NaN"):
        Bound(value=nan, kind="upper", of="x", source="")
    for more in (
        {"detectable": nan},
        {"settings": {"a": [1, {"b": nan}]}},
        {"per_client": {"c": {"share": nan}}},
        {"curves": {"c": {"x": (1.0, nan)}}},
    ):
        with pytest.raises(ValueError, match="NaN"):
            whole(**more)


def test_what_json_cannot_hold_is_refused_at_birth() -> None:
    for more in (
        {"settings": {"a": np.zeros(2)}},
        {"settings": {"a": {1, 2}}},
        {"settings": {1: "a"}},
        {"per_client": {"c": {"n": np.int64(3)}}},
        {"source": 3},
    ):
        with pytest.raises(TypeError):
            whole(**more)
    # counts and values of numpy's are plain numbers afterwards
    e = Estimate(value=np.float32(0.5), low=np.float64(0), high=1, n=np.int64(3))
    assert [type(v) for v in (e.value, e.low, e.high, e.n)] == [float, float, float, int]


def test_what_makes_no_sense_is_refused() -> None:
    for wrong in (
        {"low": 2.0},
        {"confidence": 0.0},
        {"confidence": 1.5},
        {"n": -1},
    ):
        with pytest.raises(ValueError):
            Estimate(**{"value": 0.5, "low": 0.0, "high": 1.0, "n": 3, **wrong})
    with pytest.raises(TypeError):
        Estimate(value="0.5", low=0, high=1, n=3)
    with pytest.raises(TypeError):
        Estimate(value=0.5, low=0, high=1, n=3.5)
    with pytest.raises(ValueError, match="kind"):
        Bound(value=1, kind="exact", of="x", source="")
    with pytest.raises(ValueError, match="not among the estimates"):
        AuditResult(audit="a", question="q", vantage="v", headline="x")
    with pytest.raises(ValueError, match="needs a headline"):
        AuditResult(
            audit="a",
            question="q",
            vantage="v",
            estimates={"x": Estimate(value=0, low=0, high=0, n=0)},
        )
    with pytest.raises(ValueError, match="not estimated"):
        whole(bounds={"b": Bound(value=1, kind="upper", of="y", source="")})
    with pytest.raises(ValueError, match="lengths"):
        whole(curves={"c": {"x": (1, 2), "y": (1,)}})
    with pytest.raises(ValueError, match="verdict"):
        Finding(verdict="safe", audit="", vantage="", question="", statement="", rule="")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r.update(verdict="leak"), "unknown keys in a result: verdict"),
        (lambda r: r["estimates"]["x"].update(p=1), "unknown keys in estimates.x: p"),
        (lambda r: r["estimates"]["x"].pop("low"), "missing keys in estimates.x: low"),
        (lambda r: r.pop("audit"), "no such key, expected audit"),
        (lambda r: r.update(estimates=[]), "a list, .*expected estimates: an object"),
        (lambda r: r["estimates"].update(x=3), "expected estimates.x: an object"),
        (lambda r: r["estimates"]["x"].update(value="high"), "not a number"),
        (lambda r: r["estimates"]["x"].update(value=None), "not a number"),
        (lambda r: r.update(audit=3), "expected audit: text"),
        (lambda r: r.update(settings=[]), "expected settings: an object"),
        (lambda r: r.update(notes=3), "expected notes: a list"),
        (lambda r: r.update(per_client={"a": 1}), "expected per_client.a: an object"),
        (lambda r: r.update(curves={"a": {"x": 1}}), "expected curves.a.x: a list"),
        (lambda r: r["estimates"]["x"].update(n=10**30), "too large"),
        (lambda r: r.update(underpowered=[{"what": "x"}]), "missing keys in underpowered"),
    ],
)
def test_from_json_refuses(change, said: str) -> None:
    raw = json.loads(whole().to_json())
    change(raw)
    with pytest.raises(ValueError, match=said):
        AuditResult.from_json(json.dumps(raw))


@pytest.mark.parametrize(
    "text", ["[]", "3", "", "[" * 100_000, '{"audit": NaN}', '{"detectable": Infinity}']
)
def test_from_json_refuses_other_texts(text: str) -> None:
    with pytest.raises(ValueError):
        AuditResult.from_json(text)


def test_findings_refuse_unknown_keys() -> None:
    raw = Finding(
        verdict="leak", audit="", vantage="", question="", statement="", rule=""
    ).to_dict()
    with pytest.raises(ValueError, match="unknown keys in a finding: colour"):
        Finding.from_dict({**raw, "colour": "red"})


def test_what_is_underpowered_says_so() -> None:
    assert str(Underpowered(what="TPR at 0.1 %", have=3, needed=1000)) == (
        "underpowered: TPR at 0.1 % needs 1000, has 3"
    )


def bare(**more) -> AuditResult:
    return AuditResult(audit="a", question="q", vantage="server", **more)


NEED = Need(code="no_sums", what="there are no sums")


def test_status_need_and_headline_go_together() -> None:
    assert bare(status="blind", need=NEED).need.code == "no_sums"
    assert whole(status="nothing_to_say", need=NEED).headline == "x"
    for wrong in (
        {},  # measured nothing, and does not say why
        {"status": "failed"},
        {"status": "ok", "need": NEED},
        {"status": "green", "need": NEED},
        {"status": "not_applicable", "need": NEED, "known": True},
    ):
        with pytest.raises(ValueError, match=r"status|known"):
            bare(**wrong)
    for status in ("blind", "not_applicable", "failed"):
        with pytest.raises(ValueError, match="measured no"):
            whole(status=status, need=NEED)
    with pytest.raises(TypeError, match="need is"):
        bare(status="failed", need="no sums")
    with pytest.raises(ValueError, match="code"):
        Need(code="", what="x")


def test_a_result_of_an_earlier_version_is_refused_and_not_guessed() -> None:
    raw = json.loads(whole().to_json())
    del raw["status"]
    with pytest.raises(OldResult, match="audit again"):
        AuditResult.from_json(json.dumps(raw))


def test_a_need_keeps_what_an_error_says_and_its_code() -> None:
    error = NothingToSay("no rounds", code="nothing_arrived", expected="one", remedy="wait")
    assert Need.of(error) == Need(
        code="nothing_arrived", what="no rounds", expected="one", remedy="wait"
    )
    assert Need.of(error.with_advice("look")).code == "nothing_arrived"
    assert str(Need(code="c", what="w", expected="e", got="g")) == "w; expected e; got g"
    assert NotObservable("x").code == "not_observable"
    assert NotObservable("x", code="no_single_updates").code == "no_single_updates"
    assert TraceError("x").code == "unusable_recording"
    with pytest.raises(TypeError, match="code"):
        NotApplicable("a need without a code")
