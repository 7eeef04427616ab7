"""Does a local mechanism keep its claimed epsilon? The claim against the exact value and draws.

Draws refute a claim if two inputs can be told apart better than the claim allows, at the stated
confidence. For a mechanism with a known law, the score is the exact log-likelihood ratio of its two
worst records. For a callable, a score is learnt on separate draws. Draws never prove a claim: n
draws can show an epsilon of about ln n at most. This ceiling is always stated.
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
from fedaudit.settings import PositiveFinite, ShareBelowOne, require
from fedaudit.stats.epsilon import from_scores, lower_bounds
from fedaudit.stats.intervals import check_confidence

ClaimVerdict = Literal["consistent", "refuted", "underpowered"]

SAMPLES = 20_000
LEAST_SAMPLES = 100
MOST_PAIRS = 45  # pairs of ten inputs; every pair costs a fit
_BLOCK = 1 << 20  # numbers of reports in memory
_ROUNDING = 1e-9  # relative error of a sum of logarithms


@dataclass(frozen=True, kw_only=True)
class ClaimCheck:
    """A claim and the evidence for or against it, all per record and at `delta`.

    `exact`: None if the law is unknown. `permanent` (RAPPOR): the most that any number of reports
    on one permanent response spend together. `measured.low`: lower bound at its confidence.
    `ceiling`: the largest value that this number of draws can show. `draws`: the verdict of the
    draws alone. `verdict`: of all evidence. `reason`: why.
    """

    mechanism: str
    settings: Mapping[str, Any]
    claimed: float
    exact: float | None
    delta: float
    samples: int
    measured: Estimate
    ceiling: float
    draws: ClaimVerdict
    verdict: ClaimVerdict
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
    """Compare a mechanism's claim (or `claimed`) with its exact epsilon and with draws.

    Draws `samples` reports of each of its two worst records.
    """
    claim = float(mechanism.claimed_epsilon if claimed is None else claimed)
    _check_arguments(claim, samples, confidence)
    exact = mechanism.worst_case_epsilon()
    # unary reports: bits of all other values carry no information, and are not drawn
    drawn = mechanism.worst_pair_only() if isinstance(mechanism, RAPPOR | DBitFlip) else mechanism
    first, second = drawn.worst_pair()
    scores = np.concatenate(
        [log_ratios(drawn, x, first, second, samples, rng) for x in (first, second)]
    )
    measured = _measured(scores, samples, rng, mechanism.delta, confidence)
    ceiling = largest_bound(samples - samples // 2, mechanism.delta, confidence)
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


# -- a user's mechanism ---------------------------------------------------------------------------


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
    """Compare a claim with draws of `function(x, rng)`, whose law is unknown.

    `inputs`: two or more values of x, each drawn `samples` times. A third of the draws selects the
    most distinguishable pair and learns a score; the rest measures it, so that the search does not
    cost confidence. Outputs may be numbers, arrays, texts or tuples of them. `vectorised`: the
    function takes an array of inputs and returns one output row for each.
    """
    _check_arguments(claimed, samples, confidence)
    require(ShareBelowOne, remedy="delta = 0 for a pure claim", delta=delta)
    if not 1 <= math.comb(len(inputs), 2) <= MOST_PAIRS:
        raise UsageError(
            "the number of inputs does not allow a check of pairs",
            expected="from 2 to 10 inputs",
            got=f"{len(inputs)}",
            remedy="give the inputs that should be easiest to tell apart: the farthest ones",
        )
    table = _table([_outputs(function, x, samples, rng, vectorised) for x in inputs])
    learnt = samples // 3
    (i, j), score = _best_pair(table[:, :learnt], rng, delta, confidence)
    rest = table[:, learnt:]
    scores = np.concatenate([score(rest[i]), score(rest[j])])
    measured = _measured(scores, rest.shape[1], rng, delta, confidence)
    ceiling = largest_bound(rest.shape[1] - rest.shape[1] // 2, delta, confidence)
    draws = _by_draws(measured, claimed, ceiling)
    verdict, reason = _judge(claimed, None, measured, draws, ceiling, delta)
    if (table == table[0, 0]).all():
        drawn = samples * len(inputs)
        reason = (
            f"all {drawn:,} outputs are equal: they neither depend on the input nor vary; is this "
            f"the right function? {reason}"
        )
    pair = {"told apart": [repr(inputs[i])[:60], repr(inputs[j])[:60]]}
    return ClaimCheck(
        mechanism=name or getattr(function, "__name__", "callable"),
        settings={"inputs": len(inputs), **pair},
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


def _best_pair(
    table: Floats, rng: np.random.Generator, delta: float, confidence: float
) -> tuple[tuple[int, int], RowScore]:
    """The pair of inputs that is easiest to tell apart, and the score that does it.

    `table` (inputs, samples, columns): the first half fits the scores, the second half picks.
    """
    half = table.shape[1] // 2
    fit, pick = table[:, :half], table[:, half:]
    best: tuple[tuple[float, float], tuple[int, int], RowScore] | None = None
    for i, j in combinations(range(len(table)), 2):
        score = learn(fit[i], fit[j])
        tried = np.concatenate([score(pick[i]), score(pick[j])])
        found = _measured(tried, pick.shape[1], rng, delta, confidence)
        if best is None or (found.low, found.value) > best[0]:
            best = (found.low, found.value), (i, j), score
    assert best is not None
    return best[1], best[2]


def load_callable(where: str) -> Callable[..., Any]:
    """Load the function `package.module:function`; also looks in the working folder."""
    return foreign.load_function(
        where,
        expected="a function f(x, rng) that returns one output",
        example="`mechanism=mymechanism:randomise`",
    )


def _outputs(
    function: Callable[..., Any],
    x: Any,
    samples: int,
    rng: np.random.Generator,
    vectorised: bool,
) -> Any:
    """`samples` outputs for one input: an array (samples, ...), or a list if not vectorised."""
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
            remedy="call it yourself with the same input and np.random.default_rng(1)",
        ) from error
    if vectorised and (made.ndim == 0 or len(made) != samples):
        raise UsageError(
            "your mechanism does not return one output per input",
            expected=f"{samples} rows",
            got=f"shape {made.shape}",
            remedy="leave out `vectorised` for a function of one input",
        )
    return made


def _table(outputs: Sequence[Any]) -> Floats:
    """Outputs of all inputs as numbers (inputs, samples, columns); numbers symbols in order."""
    try:
        numbers = np.stack([np.asarray(o) for o in outputs])
    except ValueError:
        numbers = np.empty(0, dtype=object)  # outputs of different lengths
    if numbers.dtype.kind in "iufb" and numbers.ndim >= 2:
        table = numbers.astype(np.float64).reshape(len(outputs), numbers.shape[1], -1)
        if not np.isfinite(table).all():
            raise DataError(
                "your mechanism returns numbers that are not finite",
                expected="finite numbers, or texts for other outcomes",
                got=f"{int((~np.isfinite(table)).sum())} NaN or infinite",
                remedy='return a text such as "none" for them',
            )
        return table + 0.0  # makes -0.0 equal to 0.0
    seen: dict[str, int] = {}
    rows = [[seen.setdefault(_symbol(o), len(seen)) for o in of_input] for of_input in outputs]
    if len(seen) > len(rows[0]) // 2:
        raise DataError(
            "your mechanism's outputs are not numbers, and hardly ever repeat",
            expected="numbers or arrays of one shape, or symbols that repeat",
            got=f"{len(seen)} different outputs of type {type(outputs[0][0]).__name__}",
            remedy="return numbers or an array, or use more `samples`",
        )
    return np.array(rows, dtype=np.float64)[..., None]


def _symbol(output: Any) -> str:
    return repr(output.tolist() if isinstance(output, np.ndarray) else output)


RowScore = Callable[[Floats], Floats]
"""Rows (n, d) -> scores (n,)."""


def learn(first: Floats, second: Floats) -> RowScore:
    """Learn a score of rows (n, d): large for rows that are likely under `first`.

    Repeated rows are symbols; their score is the smoothed log-ratio of counts. For other rows it is
    the log odds of a classifier: linear, or boosted trees if they predict better.
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
    # a few single rows are rare symbols of a small alphabet, not a density
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


def _classifier(rows: Floats, member: npt.NDArray[np.bool_]) -> RowScore | None:
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


def largest_bound(samples: int, delta: float, confidence: float) -> float:
    """The largest lower bound that `samples` measured draws of each input can give: all draws
    attributed correctly."""
    alpha = check_confidence(confidence)
    return float(lower_bounds(samples, samples, 0, samples, delta=delta, tail=alpha))


def samples_needed(epsilon: float, delta: float, confidence: float) -> int | None:
    """The fewest measured draws of each input that can show more than `epsilon`; None beyond
    10^12."""
    alpha = check_confidence(confidence)
    low, high = 1, 2
    while largest_bound(high, delta, confidence) <= epsilon:
        low, high = high, high * 2
        if high > 10**12:
            return None
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        enough = largest_bound(middle, delta, 1 - alpha) > epsilon
        low, high = (low, middle) if enough else (middle, high)
    return high


def _measured(
    scores: Floats, samples: int, rng: np.random.Generator, delta: float, confidence: float
) -> Estimate:
    member = np.arange(len(scores)) < samples
    found = from_scores(scores, member, rng=rng, delta=delta, confidence=confidence)
    assert not isinstance(found, Underpowered)  # LEAST_SAMPLES is far above two
    return found


def _by_draws(measured: Estimate, claimed: float, ceiling: float) -> ClaimVerdict:
    if measured.low > claimed:
        return "refuted"
    return "underpowered" if ceiling <= claimed else "consistent"


def _judge(
    claimed: float,
    exact: float | None,
    measured: Estimate,
    draws: ClaimVerdict,
    ceiling: float,
    delta: float,
) -> tuple[ClaimVerdict, str]:
    """The verdict of all evidence, and the reason."""
    sure = f"at {100 * measured.confidence:g} % confidence"
    if exact is not None:
        if measured.low > exact * (1 + _ROUNDING):
            return "refuted", (
                f"draws show more than {measured.low:.4g} {sure}, above the exact {exact:,.4g}: "
                "the code does not draw from the law that was computed"
            )
        if exact > claimed * (1 + _ROUNDING):
            shown = {
                "refuted": f"draws alone show more than {measured.low:.4g} {sure}",
                "consistent": f"draws show {measured.low:.4g} {sure}, which alone is not enough",
                "underpowered": f"draws cannot decide: they show {ceiling:.4g} at most",
            }[draws]
            return "refuted", f"the exact worst case exceeds the claim; {shown}"
        tested = (
            "draws do not contradict it"
            if draws == "consistent"
            else f"draws cannot decide: they show {ceiling:.4g} at most"
        )
        return "consistent", f"the exact worst case does not exceed the claim; {tested}"
    if draws == "refuted":
        return "refuted", f"draws show more than {measured.low:.4g} {sure}"
    if draws == "underpowered":
        needed = samples_needed(claimed, delta, measured.confidence)
        many = (
            "no feasible number of draws can"
            if needed is None
            # a third of the draws is for the search, and half of the rest picks the threshold
            else f"{3 * needed:,} draws of each input can"
        )
        return "underpowered", (
            f"this number of draws shows {ceiling:.4g} at most, for any mechanism; "
            f"{many} refute {claimed:g}"
        )
    return "consistent", (
        "draws of these inputs do not contradict the claim (they can show "
        f"{ceiling:.4g} at most); other inputs may"
    )


def _check_arguments(claimed: float, samples: int, confidence: float) -> None:
    check_confidence(confidence)
    require(
        PositiveFinite,
        ConfigError,
        remedy="give the epsilon that the mechanism claims, per record",
        **{"claimed epsilon": claimed},
    )
    if samples < LEAST_SAMPLES:
        raise ConfigError(
            "too few draws for a verdict",
            expected=f"at least {LEAST_SAMPLES} of each input",
            got=str(samples),
            remedy=f"leave the default of {SAMPLES}",
        )
