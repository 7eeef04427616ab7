"""Run many language models at once: next-token probabilities, and generation.

All candidates of an attribution share one architecture, usually one frozen base, and the same
prompts. `ModelReader` runs them as one batch: stacked layers, one preallocated cache for keys and
values, one product per layer and token. The tokens equal those of each model run alone. A
`transformers` model runs row by row with its own cache.

Sampling inverts given uniform numbers. All models share them: two models with equal distributions
draw the same token, so texts differ only where models do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from fedaudit.errors import UsageError
from fedaudit.tasks import stacked
from fedaudit.tasks.language_model import LanguageModel
from fedaudit.tasks.lora import LocalModel
from fedaudit.tasks.models import Block, TinyGPT

Processor = Callable[[Tensor, Tensor], Tensor]
LOGITS_AT_ONCE = 32 << 20  # logits of all models in one pass
INNER_AT_ONCE = 1 << 20  # numbers in the widest layer of one pass: they stay in the cache


class ModelReader:
    """Reads probabilities from language models and generates text; `models` are flat rows (M, d).

    `longest`: most tokens in one pass (default: the positions of the built-in model, or the task's
    `length`).
    """

    def __init__(self, task: LanguageModel, *, longest: int | None = None) -> None:
        self.task = task
        module = task.module
        if longest is None:
            longest = len(module.position) if isinstance(module, TinyGPT) else task.length
        self._longest = longest

    @property
    def vocabulary_size(self) -> int:
        return len(self.task.vocabulary)

    @property
    def longest(self) -> int:
        return self._longest

    # -- reading -----------------------------------------------------------------------------

    def log_probabilities(
        self, models: npt.ArrayLike | Tensor, tokens: npt.ArrayLike
    ) -> npt.NDArray[np.float32]:
        """Log-probabilities of every next token, teacher-forced: tokens (n, L) -> (M, n, L, V)."""
        rows, read = _rows(models), torch.as_tensor(np.asarray(tokens, dtype=np.int64))
        self._fits(read.shape[1])
        return self._logits(rows, read, last=False).log_softmax(-1).numpy()

    def last_log_probabilities(
        self,
        models: npt.ArrayLike | Tensor,
        prompts: Sequence[Sequence[int]],
        tokens: Sequence[int] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Log-probabilities of the token after each prompt, of any length: (M, n, V).

        With `tokens`, only of those: (M, n, tokens).
        """
        rows = _rows(models)
        wanted = range(self.vocabulary_size) if tokens is None else tokens
        at = torch.tensor(list(wanted))
        out = np.empty((len(rows), len(prompts), len(at)), np.float32)
        for length, which in _by_length(prompts):
            self._fits(length)
            read = torch.tensor([list(prompts[i]) for i in which])
            logits = self._logits(rows, read, last=True)
            likely = logits.index_select(-1, at) - logits.logsumexp(-1, keepdim=True)
            out[:, which] = likely.numpy()
        return out

    def _fits(self, length: int) -> None:
        if length > self.longest:
            raise UsageError(
                "the text is longer than the model can read",
                expected=f"at most {self.longest} tokens",
                got=str(length),
                remedy="cut prompts, or generate fewer tokens",
            )

    @torch.no_grad()
    def _logits(self, rows: Tensor, tokens: Tensor, *, last: bool) -> Tensor:
        """(M, n, L, V), or (M, n, V) of the last position only."""
        n, length = tokens.shape
        m = self.task.module
        parts = []
        with self.task.evaluating():
            if isinstance(m, TinyGPT):
                inner = n * length * 4 * m.position.shape[1]  # of one model's widest layer
                step = max(1, INNER_AT_ONCE // inner)
                for low in range(0, len(rows), step):
                    some = rows[low : low + step]
                    parts.append(self._stacked_logits(m, some, tokens, last=last))
                return torch.cat(parts)
            for row in rows:
                out = self.task.output(self.task.named(row), *self._task_inputs(tokens))
                parts.append(out[:, -1] if last else out)
        return torch.stack(parts)

    def _stacked_logits(self, m: TinyGPT, rows: Tensor, tokens: Tensor, *, last: bool) -> Tensor:
        length = tokens.shape[1]
        each = len(rows) * length * (1 if last else self.vocabulary_size)
        p = self._parameters(rows)
        parts = []
        step = max(1, LOGITS_AT_ONCE // max(1, each))
        for low in range(0, len(tokens), step):
            read = tokens[low : low + step].expand(len(rows), -1, -1)
            h = stacked.tiny_gpt_hidden(m, p, read, last=last)
            parts.append(stacked.apply(m.head, p, "head.", h[:, :, -1] if last else h))
        return torch.cat(parts, dim=1)

    @staticmethod
    def _task_inputs(tokens: Tensor) -> tuple[Tensor, Tensor, None]:
        """Tokens as the task's arguments, with padding in place of a target."""
        padded = F.pad(tokens, (0, 1))
        return padded, torch.zeros(len(tokens), dtype=torch.int64), None

    def _parameters(self, rows: Tensor) -> dict[str, Tensor]:
        """Named parameters with a leading dimension M, or 1 if all models share them."""
        own = self.task.module.named_parameters()
        shared = {n: p.detach().unsqueeze(0) for n, p in own if not p.requires_grad}
        return {**shared, **self.task.named(rows)}

    # -- generating --------------------------------------------------------------------------

    @torch.no_grad()
    def generate(
        self,
        models: npt.ArrayLike | Tensor,
        prompts: Sequence[Sequence[int]],
        steps: int,
        *,
        uniforms: npt.NDArray[np.float64] | None = None,
        processor: Processor | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        banned: Sequence[int] = (),
    ) -> npt.NDArray[np.int64]:
        """Generate `steps` tokens after each of n prompts with each model: (M, n, steps).

        Greedy, or sampled by `uniforms` (n, steps) in [0, 1), shared by all models. `processor`:
        changes logits (B, V) given all tokens so far (B, t), as a watermark does. `top_p`: keeps
        the likeliest tokens up to that total probability. `banned`: tokens never drawn.
        """
        rows = _rows(models)
        if not prompts or not all(len(p) for p in prompts) or steps < 1:
            raise UsageError(
                "there is nothing to generate from",
                expected="at least one prompt of at least one token, and at least one step",
                got=f"{len(prompts)} prompts, {steps} steps",
                remedy="give held-out text as prompts",
            )
        if uniforms is not None and uniforms.shape != (len(prompts), steps):
            raise UsageError(
                "the random numbers do not fit the text",
                expected=f"shape ({len(prompts)}, {steps}): one per prompt and step",
                got=str(uniforms.shape),
                remedy="draw rng.random((prompts, steps))",
            )
        if not temperature > 0 or not 0 < top_p <= 1:
            raise UsageError(
                "sampling has a setting out of range",
                expected="temperature > 0 and 0 < top_p <= 1",
                got=f"{temperature:g} and {top_p:g}",
                remedy="the published values are 0.8 and 0.95",
            )
        draw = _TokenSampler(processor, temperature, top_p, tuple(banned))
        out = np.empty((len(rows), len(prompts), steps), np.int64)
        with self.task.evaluating():
            for length, which in _by_length(prompts):
                self._fits(length + steps - 1)  # the last token is not read again
                read = torch.tensor([list(prompts[i]) for i in which])
                u = None if uniforms is None else torch.from_numpy(uniforms[which])
                if isinstance(self.task.module, TinyGPT):
                    out[:, which] = self._generate_stacked(rows, read, steps, u, draw).numpy()
                else:
                    each = [self._generate_one(row, read, steps, u, draw) for row in rows]
                    out[:, which] = torch.stack(each).numpy()
        return out

    def _generate_stacked(
        self,
        rows: Tensor,
        prompts: Tensor,
        steps: int,
        uniforms: Tensor | None,
        draw: _TokenSampler,
    ) -> Tensor:
        m = self.task.module
        assert isinstance(m, TinyGPT)
        count, (n, start) = len(rows), prompts.shape
        p = self._parameters(rows)
        cache = _Cache(m, count * n, start + steps - 1)
        text = torch.empty(count, n, start + steps, dtype=torch.int64)
        text[..., :start] = prompts
        u = None if uniforms is None else uniforms.repeat(count, 1)
        at = 0
        for s in range(steps):
            now = start + s
            h = _advance(m, p, text[..., at:now], at, cache)
            at = now
            logits = stacked.apply(m.head, p, "head.", h[:, :, -1])
            new = draw(
                text[..., :now].flatten(0, 1),
                logits.flatten(0, 1),
                None if u is None else u[:, s],
            )
            text[..., now] = new.view(count, n)
        return text[..., start:]

    def _generate_one(
        self, row: Tensor, prompts: Tensor, steps: int, uniforms: Tensor | None, draw: _TokenSampler
    ) -> Tensor:
        """Tokens of one model of any kind; uses a cache if the module takes one."""
        cached = isinstance(self.task.module, LocalModel)
        cache = None
        if cached:
            from transformers import DynamicCache

            cache = DynamicCache()
        text, start, at = prompts, prompts.shape[1], 0
        named = self.task.named(row)
        for s in range(steps):
            if cached:
                given = (text[:, at:], cache)
                at = text.shape[1]
                logits = functional_call(self.task.module, named, given)[:, -1]
            else:
                logits = self.task.output(named, *self._task_inputs(text))[:, -1]
            new = draw(text, logits, None if uniforms is None else uniforms[:, s])
            text = torch.cat([text, new.unsqueeze(1)], dim=1)
        return text[:, start:]


class _TokenSampler:
    """Picks tokens (B,) from logits (B, V): greedy, or by inversion of given numbers."""

    def __init__(
        self,
        processor: Processor | None,
        temperature: float,
        top_p: float,
        banned: tuple[int, ...],
    ) -> None:
        self.processor, self.temperature, self.top_p = processor, temperature, top_p
        self.banned = list(banned)

    def __call__(self, text: Tensor, logits: Tensor, u: Tensor | None) -> Tensor:
        if self.processor is not None:
            logits = self.processor(text, logits)
        if self.banned:
            logits = logits.clone()
            logits[:, self.banned] = -torch.inf
        if u is None:
            return logits.argmax(-1)
        p = torch.softmax(logits.double() / self.temperature, dim=-1)
        if self.top_p < 1:
            ordered, which = p.sort(dim=-1, descending=True, stable=True)
            before = ordered.cumsum(-1) - ordered
            p = p.scatter(1, which, torch.where(before < self.top_p, ordered, 0.0))
        cumulative = p.cumsum(-1)
        goal = u.unsqueeze(1) * cumulative[:, -1:]
        found = torch.searchsorted(cumulative, goal, right=True).squeeze(1)
        # rounding at the upper end could step past the last token with non-zero probability
        last = p.shape[1] - 1 - (p > 0).flip(1).to(torch.int8).argmax(1)
        return torch.minimum(found, last)


class _Cache:
    """Preallocated keys and values of every block, (B, heads, positions, width)."""

    def __init__(self, m: TinyGPT, batch: int, positions: int) -> None:
        width = m.position.shape[1]
        self.layers: list[tuple[Tensor, Tensor]] = []
        for block in m.blocks:
            assert isinstance(block, Block)
            shape = (batch, block.attn.heads, positions, width // block.attn.heads)
            self.layers.append((torch.empty(shape), torch.empty(shape)))


def _advance(m: TinyGPT, p: dict[str, Tensor], tokens: Tensor, at: int, cache: _Cache) -> Tensor:
    """Hidden states (M, n, l, D) of new tokens (M, n, l) at positions `at` and later."""
    count, n, new = tokens.shape
    x = stacked.apply(m.tokens, p, "tokens.", tokens)
    x = x + p["position"][:, at : at + new].unsqueeze(1)
    for i, block in enumerate(m.blocks):
        assert isinstance(block, Block)
        name, heads = f"blocks.{i}.", block.attn.heads
        h = stacked.apply(block.norm1, p, f"{name}norm1.", x)
        qkv = stacked.apply(block.attn.qkv, p, f"{name}attn.qkv.", h)
        split = qkv.reshape(count * n, new, 3, heads, -1).permute(2, 0, 3, 1, 4)
        keys, values = cache.layers[i]
        keys[:, :, at : at + new], values[:, :, at : at + new] = split[1], split[2]
        seen = slice(0, at + new)
        # one new token attends to all earlier ones; the prompt is read causally
        mixed = F.scaled_dot_product_attention(
            split[0], keys[:, :, seen], values[:, :, seen], is_causal=new > 1
        )
        mixed = mixed.transpose(1, 2).reshape(count, n, new, -1)
        x = x + stacked.apply(block.attn.proj, p, f"{name}attn.proj.", mixed)
        h = stacked.apply(block.norm2, p, f"{name}norm2.", x)
        x = x + stacked.apply(block.mlp, p, f"{name}mlp.", h)
    return stacked.apply(m.norm, p, "norm.", x)


def _rows(models: Any) -> Tensor:
    rows = torch.as_tensor(models).float()
    if rows.dim() == 1:
        rows = rows.unsqueeze(0)
    if rows.dim() != 2 or not len(rows):
        raise UsageError(
            "models must be flat rows",
            expected="shape (M, d), at least one model",
            got=str(tuple(rows.shape)),
            remedy="stack the rows of all models",
        )
    return rows


def _by_length(prompts: Sequence[Sequence[int]]) -> list[tuple[int, list[int]]]:
    """Group prompts by length, so that none needs padding: (length, prompt numbers)."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    groups = itertools.groupby(order, key=lambda i: len(prompts[i]))
    return [(length, list(which)) for length, which in groups]
