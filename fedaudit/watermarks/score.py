"""What a mark asks of a model, and how its answer becomes a number with a known null.

A `Score` is any callable (models, probes) -> floats, so that other marks plug in. `models` are flat
rows (M, d): a reference and all candidates are scored together, on the same probes and with the
same random numbers. A mark that can be read under secrets nobody used (other keys, other attribute
values) also has a null: the same statistic, which nobody planted.

A watermark's z-score assumes that scored tokens are independent coin flips, and a difference of
two z-scores has no unit variance. `differential` does without both assumptions: the difference
between a candidate and the reference is compared with the same difference under unused secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError

Rows = Any
"""Flat models (M, d): a numpy array or a torch tensor."""
Tokens = npt.NDArray[np.int64]
Processor = Callable[[Any, Any], Any]
"""(tokens (B, t), logits (B, V)) -> logits (B, V), as tensors: the form transformers uses too."""


@runtime_checkable
class Score(Protocol):
    """A mark's statistic, large where the mark was learnt."""

    def __call__(self, models: Rows, probes: Any) -> Floats:
        """Models (M, d) and whatever the mark asks with -> (M,)."""
        ...


@runtime_checkable
class CalibratedScore(Score, Protocol):
    """A score that can also be read under secrets nobody used."""

    def with_null(self, models: Rows, probes: Any) -> tuple[Floats, Floats]:
        """The statistic (M,), and the same under J unused secrets (M, J)."""
        ...


class Writer(Protocol):
    """Who can continue texts."""

    def generate(
        self,
        models: Rows,
        prompts: Sequence[Sequence[int]],
        steps: int,
        *,
        uniforms: npt.NDArray[np.float64] | None = None,
        processor: Processor | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        banned: Sequence[int] = (),
    ) -> Tokens:
        """`steps` tokens after each prompt, (M, n, steps): the most likely, or by `uniforms`
        (n, steps), the same numbers for all models."""
        ...


class Reader(Writer, Protocol):
    """What a mark needs of a language model. All M models read the same tokens."""

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def longest(self) -> int:
        """Tokens that fit into one pass."""
        ...

    def log_probabilities(self, models: Rows, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Of every next token: tokens (n, L) -> (M, n, L, V)."""
        ...

    def last_log_probabilities(
        self,
        models: Rows,
        prompts: Sequence[Sequence[int]],
        tokens: Sequence[int] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Of the token after each of n prompts, which may differ in length: (M, n, V).

        With `tokens`, of those alone: (M, n, tokens).
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Differential:
    """Candidates against a reference: `difference` (M,), the same in units of the unused secrets'
    standard deviation `z_score` (M,), and `p_value` (M,), the rank among them (never zero)."""

    difference: Floats
    z_score: Floats
    p_value: Floats
    unused: int


def differential(
    score: CalibratedScore, reference: Rows, candidates: Rows, probes: Any
) -> Differential:
    """Score candidates (M, d) against a reference (d,), calibrated by unused secrets.

    [FedAttr] Eq. (7) is the difference; the paper reads it as standard normal, which it is not.
    """
    import torch

    first = torch.as_tensor(reference).reshape(1, -1)
    rows = torch.cat([first, torch.as_tensor(candidates).reshape(-1, first.shape[1])])
    own, null = score.with_null(rows, probes)
    return calibrate(own[1:] - own[0], null[1:] - null[0])


def calibrate(observed: npt.ArrayLike, null: npt.ArrayLike) -> Differential:
    """Observed statistics (M,) in the light of the same under unused secrets (M, J), J >= 20."""
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
    # a model that equals the reference says nothing under any key
    np.divide(own - others.mean(axis=1), spread, out=z, where=spread > 0)
    beyond = (others >= own[:, None]).sum(axis=1)
    p = (beyond + 1) / (others.shape[1] + 1)
    return Differential(difference=own, z_score=z, p_value=p, unused=others.shape[1])


def check_prompts(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Prompts as lists of token numbers; refuses an empty set and empty prompts."""
    found = [[int(t) for t in p] for p in prompts]
    if not found or not all(found):
        raise UsageError(
            "there is nothing to ask the model with",
            expected="at least one prompt of at least one token",
            got="no prompts" if not found else "an empty prompt",
            remedy="give held-out text as prompts",
        )
    return found
