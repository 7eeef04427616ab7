"""Scores of marks: a statistic per model, and its null distribution under unused secrets.

A `MarkScore` is any callable (models, probes) -> floats, so that other marks can plug in. `models`
are flat rows (M, d): a reference and all candidates are scored together, on the same probes and
with the same random numbers. A mark with unused secrets (other keys, other attribute values) also
has a null: the same statistic for secrets that were not planted.

A watermark's z-score assumes that scored tokens are independent coin flips, and the difference of
two z-scores does not have unit variance. `differential` needs neither assumption: it compares the
difference between a candidate and the reference with the same difference under unused secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError

ModelRows = Any
"""Flat models (M, d): a numpy array or a torch tensor."""
Tokens = npt.NDArray[np.int64]
Processor = Callable[[Any, Any], Any]
"""(tokens (B, t), logits (B, V)) -> logits (B, V), as tensors: the form transformers uses too."""


@runtime_checkable
class MarkScore(Protocol):
    """A mark's statistic: large for models that learnt the mark."""

    def __call__(self, models: ModelRows, probes: Any) -> Floats:
        """Models (M, d) and the mark's probes -> (M,)."""
        ...


@runtime_checkable
class CalibratedScore(MarkScore, Protocol):
    """A score that can also be computed for unused secrets."""

    def with_null(self, models: ModelRows, probes: Any) -> tuple[Floats, Floats]:
        """The statistic (M,), and the same under J unused secrets (M, J)."""
        ...


class Writer(Protocol):
    """A text generator."""

    def generate(
        self,
        models: ModelRows,
        prompts: Sequence[Sequence[int]],
        steps: int,
        *,
        uniforms: npt.NDArray[np.float64] | None = None,
        processor: Processor | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        banned: Sequence[int] = (),
    ) -> Tokens:
        """`steps` tokens after each prompt, (M, n, steps): greedy, or sampled by `uniforms`
        (n, steps), the same numbers for all models."""
        ...


class Reader(Writer, Protocol):
    """A language model as marks use it. All M models read the same tokens."""

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def longest(self) -> int:
        """Most tokens in one pass."""
        ...

    def log_probabilities(self, models: ModelRows, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Log-probabilities of every next token: tokens (n, L) -> (M, n, L, V)."""
        ...

    def last_log_probabilities(
        self,
        models: ModelRows,
        prompts: Sequence[Sequence[int]],
        tokens: Sequence[int] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Log-probabilities of the token after each of n prompts, of any length: (M, n, V).

        With `tokens`, only of those: (M, n, tokens).
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Differential:
    """Candidates compared with a reference: `difference` (M,); `z_score` (M,), the difference in
    standard deviations of the unused secrets; `p_value` (M,), its rank among them (never zero)."""

    difference: Floats
    z_score: Floats
    p_value: Floats
    unused: int


def differential(
    score: CalibratedScore, reference: ModelRows, candidates: ModelRows, probes: Any
) -> Differential:
    """Score candidates (M, d) against a reference (d,), calibrated by unused secrets.

    [FedAttr] Eq. (7) is the difference. The paper treats it as standard normal, which it is not.
    """
    import torch

    first = torch.as_tensor(reference).reshape(1, -1)
    rows = torch.cat([first, torch.as_tensor(candidates).reshape(-1, first.shape[1])])
    own, null = score.with_null(rows, probes)
    return calibrate(own[1:] - own[0], null[1:] - null[0])


def calibrate(observed: npt.ArrayLike, null: npt.ArrayLike) -> Differential:
    """Compare statistics (M,) with those of unused secrets (M, J), J >= 20."""
    own, others = np.asarray(observed, np.float64), np.asarray(null, np.float64)
    if others.ndim != 2 or own.shape != others.shape[:1] or others.shape[1] < 20:
        raise UsageError(
            "a null distribution is missing or too small",
            expected=f"unused secrets for each of {own.size} models, at least 20",
            got=f"an array of shape {others.shape}",
            remedy="draw more unused keys; a hundred are cheap",
        )
    spread = others.std(axis=1, ddof=1)
    z = np.zeros_like(own)
    # a model that equals the reference has difference 0 under every key
    np.divide(own - others.mean(axis=1), spread, out=z, where=spread > 0)
    beyond = (others >= own[:, None]).sum(axis=1)
    p = (beyond + 1) / (others.shape[1] + 1)
    return Differential(difference=own, z_score=z, p_value=p, unused=others.shape[1])


def check_prompts(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Prompts as lists of token numbers; raises UsageError if there are none, or an empty one."""
    found = [[int(t) for t in p] for p in prompts]
    if not found or not all(found):
        raise UsageError(
            "there are no prompts for the model",
            expected="at least one prompt of at least one token",
            got="no prompts" if not found else "an empty prompt",
            remedy="give held-out text as prompts",
        )
    return found
