"""Does a local mechanism keep what it claims? The claim, the exact budget, and what draws show.

Draws refute a claim if two inputs can be told apart better than the claim allows, at the stated
confidence: for a mechanism whose law is known by the exact log-likelihood ratio of its two worst
records, for a callable by a score learnt on draws that are then left out. Draws never prove a
claim, and n of them can show a budget of about ln n at most: that ceiling is always stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import combinations
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedaudit import foreign
from fedaudit.arrays import Floats
from fedaudit.errors import ConfigError, DataError, UsageError
from fedaudit.protections.local_dp.dbitflip import DBitFlip
from fedaudit.protections.local_dp.mechanism import Mechanism
from fedaudit.protections.local_dp.rappor import RAPPOR
from fedaudit.results import Estimate, Underpowered
from fedaudit.stats.epsilon import from_scores, lower_bounds
from fedaudit.stats.intervals import check_confidence

Verdict = Literal["consistent", "refuted", "underpowered"]

SAMPLES = 20_000
LEAST_SAMPLES = 100
MOST_PAIRS = 45  # of ten inputs; every pair costs a fit
_BLOCK = 1 << 20  # numbers of a report drawn at once
_ROUNDING = 1e-9  # of a sum of logarithms, relative


@dataclass(frozen=True, kw_only=True)
class ClaimCheck:
    """A claim and what speaks for or against it, all per record and at `delta`.

    `exact` is None where the law is not known; `permanent` (RAPPOR) is what any number of reports
    on one permanent response spend together, at most. `measured.low` holds with its confidence;
    `ceiling` is the most that as many draws could have shown. `draws` is the verdict of the draws
    alone, `verdict` that of everything; `reason` says why.
    """

    mechanism: str
    settings: Mapping[str, Any]
    claimed: float
    exact: float | None
    delta: float
    samples: int
    measured: Estimate
    ceiling: float
    draws: Verdict
    verdict: Verdict
    reason: str
    permanent: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON types only; infinities as the text "inf"."""
        plain: dict[str, Any] = _finite(asdict(self))
        return plain


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


# -- mechanisms with a known law ------------------------------------------------------------------


def check_mechanism(
    mechanism: Mechanism,
    *,
    rng: np.random.Generator,
    claimed: float | None = None,
    samples: int = SAMPLES,
    confidence: float = 0.95,
) -> ClaimCheck:
    """Hold a mechanism's claim (or another, `claimed`) against its exact budget and draws.

    `samples` draws of each of its two worst records.
    """
    claim = float(mechanism.claimed_epsilon if claimed is None else claimed)
    _check_asked(claim, samples, confidence)
    exact = mechanism.worst_case_epsilon()
    # unary reports: bits of all other values tell nothing, and are not drawn
    drawn = mechanism.telling() if isinstance(mechanism, RAPPOR | DBitFlip) else mechanism
    first, second = drawn.worst_pair()
    scores = np.concatenate(
        [log_ratios(drawn, x, first, second, samples, rng) for x in (first, second)]
    )
    measured = _measured(scores, samples, rng, mechanism.delta, confidence)
    ceiling = most_that_shows(samples - samples // 2, mechanism.delta, confidence)
    draws = _by_draws(measured, claim, ceiling)
    verdict, reason = _judge(claim, exact, measured, draws, ceiling, mechanism.delta)
    return ClaimCheck(
        mechanism=mechanism.name,
        settings=_settings(mechanism),
        claimed=claim,
        exact=exact,
        delta=mechanism.delta,
        samples=2 * samples,
        measured=measured,
        ceiling=ceiling,
        draws=draws,
        verdict=verdict,
        reason=reason,
        permanent=mechanism.permanent_epsilon() if isinstance(mechanism, RAPPOR) else None,
    )


def log_ratios(
    mechanism: Mechanism,
    x: npt.NDArray[Any],
    first: npt.NDArray[Any],
    second: npt.NDArray[Any],
    samples: int,
    rng: np.random.Generator,
) -> Floats:
    """ln Pr[report | first] / Pr[report | second] (samples,) of reports on the record `x` (r,)."""
    out = np.empty(samples)
    wide = max(1, mechanism.features * _report_width(mechanism, x, rng))
    step = max(1, _BLOCK // wide)
    for start in range(0, samples, step):
        rows = min(step, samples - start)
        report = mechanism.perturb(np.broadcast_to(x, (rows, len(x))), rng)
        ratio = mechanism.log_likelihood(report, first) - mechanism.log_likelihood(report, second)
        out[start : start + rows] = ratio
    return out


def _report_width(mechanism: Mechanism, x: npt.NDArray[Any], rng: np.random.Generator) -> int:
    return int(np.prod(mechanism.perturb(x[None], rng).shape[2:], dtype=np.int64))


def _settings(mechanism: Mechanism) -> dict[str, Any]:
    own = {f.name: getattr(mechanism, f.name) for f in fields(mechanism)}  # type: ignore[arg-type]
    return {k: v for k, v in own.items() if v is not None}


# -- somebody else's mechanism --------------------------------------------------------------------


def check_callable(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    claimed: float,
    rng: np.random.Generator,
    name: str = "",
    delta: float = 0.0,
    samples: int = SAMPLES,
    confidence: float = 0.95,
    vectorised: bool = False,
) -> ClaimCheck:
    """Hold a claim against draws of `function(x, rng)`, of which nothing else is known.

    `inputs` are two or more values of x. `samples` draws of each: on a third of them the pair and
    the event that tell most are looked for, on the rest they are measured, so that looking costs
    nothing in confidence. Outputs may be numbers, arrays, texts or tuples of them. `vectorised`:
    the function takes a whole array of inputs and returns one output row for each.
    """
    _check_asked(claimed, samples, confidence)
    if not 0.0 <= delta < 1.0:
        raise UsageError(
            "delta is a probability",
            expected="0 <= delta < 1",
            got=repr(delta),
            remedy="delta = 0 for a pure claim",
        )
    pairs = list(combinations(range(len(inputs)), 2))
    if not 1 <= len(pairs) <= MOST_PAIRS:
        raise UsageError(
            "a claim is about pairs of inputs",
            expected="from 2 to 10 inputs",
            got=f"{len(inputs)}",
            remedy="give the inputs that should be hardest to tell apart: the farthest ones",
        )
    table = _table([_outputs(function, x, samples, rng, vectorised) for x in inputs])
    learnt = samples // 3
    fit, pick = table[:, : learnt // 2], table[:, learnt // 2 : learnt]
    best: tuple[tuple[float, float], tuple[int, int], Scorer] | None = None
    for i, j in pairs:
        score = learn(fit[i], fit[j])
        tried = np.concatenate([score(pick[i]), score(pick[j])])
        found = _measured(tried, pick.shape[1], rng, delta, confidence)
        if best is None or (found.low, found.value) > best[0]:
            best = (found.low, found.value), (i, j), score
    assert best is not None
    (i, j), score = best[1:]
    rest = table[:, learnt:]
    scores = np.concatenate([score(rest[i]), score(rest[j])])
    measured = _measured(scores, rest.shape[1], rng, delta, confidence)
    ceiling = most_that_shows(rest.shape[1] - rest.shape[1] // 2, delta, confidence)
    draws = _by_draws(measured, claimed, ceiling)
    verdict, reason = _judge(claimed, None, measured, draws, ceiling, delta)
    if (table == table[0, 0]).all():
        drawn = samples * len(inputs)
        reason = (
            f"all {drawn:,} outputs are equal: nothing depends on the input, and nothing is "
            f"random; is this the function that you meant? {reason}"
        )
    told = {"told apart": [repr(inputs[i])[:60], repr(inputs[j])[:60]]}
    return ClaimCheck(
        mechanism=name or getattr(function, "__name__", "callable"),
        settings={"inputs": len(inputs), **told},
        claimed=float(claimed),
        exact=None,
        delta=delta,
        samples=samples * len(inputs),
        measured=measured,
        ceiling=ceiling,
        draws=draws,
        verdict=verdict,
        reason=reason,
    )


def load_callable(where: str) -> Callable[..., Any]:
    """The function that `package.module:function` names, looked up from the working folder too."""
    return foreign.load_function(
        where,
        expected="a function f(x, rng) that returns one output",
        example="--callable mymechanism:randomise",
    )


def _outputs(
    function: Callable[..., Any],
    x: Any,
    samples: int,
    rng: np.random.Generator,
    vectorised: bool,
) -> Any:
    """`samples` outputs for one input: an array (samples, ...) of numbers, or a list of others."""
    try:
        if vectorised:
            one = np.asarray(x)
            given = function(np.broadcast_to(one, (samples, *one.shape)).copy(), rng)
            made: Any = np.asarray(given)
        else:
            made = [function(x, rng) for _ in range(samples)]
    except Exception as error:
        raise UsageError(
            "your mechanism failed",
            expected="f(x, rng) that returns an output"
            + (" row for every input row" if vectorised else ""),
            got=foreign.describe_error(error),
            remedy="call it by hand with the same input and np.random.default_rng(1)",
        ) from error
    if vectorised and (made.ndim == 0 or len(made) != samples):
        raise UsageError(
            "your mechanism does not return one output per input",
            expected=f"{samples} rows",
            got=f"shape {made.shape}",
            remedy="leave out --vectorised for a function of one input",
        )
    return made


def _table(outputs: Sequence[Any]) -> Floats:
    """Outputs of all inputs as numbers (inputs, samples, columns); symbols are numbered."""
    try:
        numbers = np.stack([np.asarray(o) for o in outputs])
    except ValueError:
        numbers = np.empty(0, dtype=object)  # of different lengths
    if numbers.dtype.kind in "iufb" and numbers.ndim >= 2:
        table = numbers.astype(np.float64).reshape(len(outputs), numbers.shape[1], -1)
        if not np.isfinite(table).all():
            raise DataError(
                "your mechanism returns numbers that are not finite",
                expected="finite numbers, or texts for outcomes that are none",
                got=f"{int((~np.isfinite(table)).sum())} NaN or infinite",
                remedy='return a text such as "none" for them',
            )
        return table + 0.0  # of -0.0 and 0.0 one
    seen: dict[str, int] = {}
    rows = [[seen.setdefault(_word(o), len(seen)) for o in of_input] for of_input in outputs]
    if len(seen) > len(rows[0]) // 2:
        raise DataError(
            "your mechanism's outputs hardly ever repeat, and are not numbers",
            expected="numbers or arrays of one shape, or symbols that repeat",
            got=f"{len(seen)} different outputs of type {type(outputs[0][0]).__name__}",
            remedy="return numbers or an array, or more --samples",
        )
    return np.array(rows, dtype=np.float64)[..., None]


def _word(output: Any) -> str:
    return repr(output.tolist() if isinstance(output, np.ndarray) else output)


Scorer = Callable[[Floats], Floats]


def learn(first: Floats, second: Floats) -> Scorer:
    """A score of rows (n, d) that is larger the likelier a row is under `first`.

    Rows that repeat are symbols and get their smoothed log-ratio of counts; the rest get the log
    odds of a classifier: linear, or boosted trees where they predict better.
    """
    rows = np.concatenate([first, second])
    symbols, where, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    where = where.reshape(-1)
    of_first = np.bincount(where[: len(first)], minlength=len(symbols))
    of_second = counts - of_first
    ratio = np.log((of_first + 0.5) / (len(first) + 1)) - np.log(
        (of_second + 0.5) / (len(second) + 1)
    )
    repeated = counts >= 5
    known = {symbols[i].tobytes(): float(ratio[i]) for i in np.flatnonzero(repeated)}
    single = ~repeated[where]
    # a stray row of a small alphabet is a rare symbol, not a sign of a density
    dense = single.mean() > 0.05
    member = np.arange(len(rows)) < len(first)
    smooth = _classifier(rows[single], member[single]) if dense else None

    def score(given: Floats) -> Floats:
        given = np.ascontiguousarray(given, dtype=np.float64)
        out = np.zeros(len(given)) if smooth is None else smooth(given)
        for i, row in enumerate(given):
            at = known.get(row.tobytes())
            if at is not None:
                out[i] = at
        return out

    return score


def _classifier(rows: Floats, member: npt.NDArray[np.bool_]) -> Scorer | None:
    """Log odds of the better of two classifiers, judged on every third row."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.ensemble import HistGradientBoostingClassifier

    held = np.arange(len(rows)) % 3 == 0
    if min(np.bincount(member[~held], minlength=2)) < 10 or not held.any():
        return None
    leaf = max(20, int((~held).sum()) // 100)
    candidates = [
        LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
        HistGradientBoostingClassifier(
            max_iter=60, max_leaf_nodes=8, min_samples_leaf=leaf, early_stopping=False
        ),
    ]
    losses = []
    for model in candidates:
        model.fit(rows[~held], member[~held])
        odds = model.decision_function(rows[held])
        losses.append(np.logaddexp(0.0, np.where(member[held], -odds, odds)).mean())
    better = candidates[int(np.argmin(losses))]

    def score(given: Floats) -> Floats:
        return np.asarray(better.decision_function(given), dtype=np.float64)

    return score


# -- verdicts -------------------------------------------------------------------------------------


def most_that_shows(samples: int, delta: float, confidence: float) -> float:
    """The largest lower bound that `samples` measured draws of each input can give: every draw of
    one called right, none of the other called wrong."""
    alpha = check_confidence(confidence)
    return float(lower_bounds(samples, samples, 0, samples, delta=delta, tail=alpha))


def samples_to_show(epsilon: float, delta: float, confidence: float) -> int | None:
    """Measured draws of each input from which on a budget above `epsilon` could be shown; None
    beyond 10^12."""
    alpha = check_confidence(confidence)
    low, high = 1, 2
    while most_that_shows(high, delta, confidence) <= epsilon:
        low, high = high, high * 2
        if high > 10**12:
            return None
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        enough = most_that_shows(middle, delta, 1 - alpha) > epsilon
        low, high = (low, middle) if enough else (middle, high)
    return high


def _measured(
    scores: Floats, samples: int, rng: np.random.Generator, delta: float, confidence: float
) -> Estimate:
    member = np.arange(len(scores)) < samples
    found = from_scores(scores, member, rng=rng, delta=delta, confidence=confidence)
    assert not isinstance(found, Underpowered)  # LEAST_SAMPLES is far above two
    return found


def _by_draws(measured: Estimate, claimed: float, ceiling: float) -> Verdict:
    if measured.low > claimed:
        return "refuted"
    return "underpowered" if ceiling <= claimed else "consistent"


def _judge(
    claimed: float,
    exact: float | None,
    measured: Estimate,
    draws: Verdict,
    ceiling: float,
    delta: float,
) -> tuple[Verdict, str]:
    """The verdict of everything, and why."""
    sure = f"at {100 * measured.confidence:g} % confidence"
    if exact is not None:
        if measured.low > exact * (1 + _ROUNDING):
            return "refuted", (
                f"draws show more than {measured.low:.4g} {sure}, beyond the exact {exact:,.4g}: "
                "what draws is not the mechanism whose law was computed"
            )
        if exact > claimed * (1 + _ROUNDING):
            shown = {
                "refuted": f"draws alone show more than {measured.low:.4g} {sure}",
                "consistent": f"draws show {measured.low:.4g} {sure}, which alone would not do",
                "underpowered": f"draws could not tell: they cannot show more than {ceiling:.4g}",
            }[draws]
            return "refuted", f"the exact worst case exceeds the claim; {shown}"
        tested = (
            "draws do not contradict it"
            if draws == "consistent"
            else f"draws could not tell: they cannot show more than {ceiling:.4g}"
        )
        return "consistent", f"the exact worst case does not exceed the claim; {tested}"
    if draws == "refuted":
        return "refuted", f"draws show more than {measured.low:.4g} {sure}"
    if draws == "underpowered":
        needed = samples_to_show(claimed, delta, measured.confidence)
        many = (
            "no feasible number of draws could"
            if needed is None
            # a third of the draws is for looking, and half of the rest picks the threshold
            else f"{3 * needed:,} of each input could"
        )
        return "underpowered", (
            f"this many draws cannot show more than {ceiling:.4g}, whatever the mechanism does; "
            f"{many} refute {claimed:g}"
        )
    return "consistent", (
        "draws of these inputs do not contradict the claim, and would have shown at most "
        f"{ceiling:.4g}; other inputs may"
    )


def _check_asked(claimed: float, samples: int, confidence: float) -> None:
    check_confidence(confidence)
    if not (claimed > 0 and math.isfinite(claimed)):
        raise ConfigError(
            "a claimed epsilon is out of range",
            expected="a finite number above 0",
            got=repr(claimed),
            remedy="give the epsilon that the mechanism is said to keep, per record",
        )
    if samples < LEAST_SAMPLES:
        raise ConfigError(
            "too few draws to say anything",
            expected=f"at least {LEAST_SAMPLES} of each input",
            got=str(samples),
            remedy=f"leave the default of {SAMPLES}",
        )
