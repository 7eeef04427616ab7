"""Federated fine-tuning with low-rank adapters B A on the layers of a frozen language model.

Two ways to aggregate adapters, both a sum over clients:

    FedIT   clients send A and B, which are averaged separately: a row holds all adapters.
    FLoRA   clients start from fresh adapters and send dense products: a row holds the weights of
            the adapted layers, and W <- W + sum_k p_k scale B_k A_k. Stacked adapters, as
            published, give the same model but are not a sum; therefore clients send products.

The average of products is not the product of averages: the two differ from the first step on.

`pretraining` holds the built-in tiny GPT. `local_model` reads a folder in Hugging Face's format,
never from a network.
"""

from __future__ import annotations

import copy
import fnmatch
import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedaudit.data.fetch import SOURCES, fetched_model
from fedaudit.data.text import IGNORE
from fedaudit.errors import ConfigError, DataError
from fedaudit.randomness import Seed
from fedaudit.settings import Count, require
from fedaudit.tasks import stacked
from fedaudit.tasks.language_model import LanguageModel, Vocabulary
from fedaudit.tasks.models import LowRank, TinyGPT
from fedaudit.tasks.stacked import Parameters
from fedaudit.tasks.task import seeded

PEFT = "base_model.model."  # peft's prefix of a layer's name
TRAINED_AT_ONCE = 1280  # tokens per step: measured, benchmarks/lora.py
TOKENS_AT_ONCE = 1024  # rows of logits in memory: they stay in the cache
EVALUATED_TOKENS = 4096  # of a model from a folder per forward pass, whose activations are large
#: model types of transformers whose logits are the output layer of the decoder's last hidden state
PLAIN_HEADS = ("llama", "mistral", "qwen2")


# -- adapters on a model -----------------------------------------------------------------------


def targets_of(module: nn.Module, patterns: Sequence[str]) -> tuple[str, ...]:
    """Names of the linear layers to adapt: for `all-linear` all except the output layer, as in
    peft; else those that match a shell pattern."""
    linear = [n for n, m in module.named_modules() if isinstance(m, nn.Linear)]
    if tuple(patterns) == ("all-linear",):
        chosen = [n for n in linear if n.split(".")[-1] not in ("head", "lm_head")]
    else:
        chosen = [n for n in linear if any(fnmatch.fnmatchcase(n, p) for p in patterns)]
    if not chosen:
        raise ConfigError(
            "no layer matches task.targets",
            expected='"all-linear", or shell patterns over linear layers',
            got=", ".join(map(repr, patterns)) or "nothing",
            remedy=f"for example {linear[0]!r}" if linear else "use a model with linear layers",
        )
    return tuple(chosen)


def adapted(
    module: nn.Module, *, rank: int, scale: float, patterns: Sequence[str], seed: Seed
) -> nn.Module:
    """A frozen copy of `module` with adapters on the matching layers."""
    require(Count, ConfigError, remedy="8 is a usual rank", **{"task.rank": rank})
    names = targets_of(module, patterns)

    def build() -> nn.Module:
        own = copy.deepcopy(module).requires_grad_(False)
        for name in names:
            parent, _, last = name.rpartition(".")
            layer = own.get_submodule(name)
            assert isinstance(layer, nn.Linear)
            setattr(own.get_submodule(parent), last, LowRank(layer, rank, scale))
        return own

    return seeded(seed, "adapters", build)


class AdapterLoRA(LanguageModel):
    """FedIT: a row holds the adapters alone, so averaging rows averages A and B.

    Names in the layout are `<layer>.lora_A.weight` and `<layer>.lora_B.weight`; `peft_state`
    converts a row to peft's format.
    """

    kind = "lora"

    def __init__(
        self,
        base: nn.Module,
        vocabulary: Vocabulary,
        length: int,
        *,
        rank: int,
        scale: float,
        targets: Sequence[str],
        seed: Seed,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        module = adapted(base, rank=rank, scale=scale, patterns=targets, seed=seed)
        super().__init__(module, vocabulary, length, settings)
        self.rank, self.scale = rank, scale
        self.targets = tuple(
            e.name.removesuffix(".lora_A.weight")
            for e in self.layout.entries
            if e.name.endswith(".lora_A.weight")
        )

    def frozen(self) -> dict[str, Tensor]:
        """Frozen parameters by name, shared by all clients, with a leading dimension of one."""
        own = self.module.named_parameters()
        return {n: p.unsqueeze(0) for n, p in own if not p.requires_grad}

    def clients_per_block(self, batch: int) -> int:
        """Adapters are small, so activations decide how many clients fit the cache."""
        if isinstance(self.module, LocalModel):  # one client fills the cores, two leave the cache
            return 1
        return max(1, TRAINED_AT_ONCE // (batch * self.length))

    def stacked_losses(self, p: Parameters, x: Tensor, y: Tensor, noise: Tensor | None) -> Tensor:
        every = {**self.frozen(), **p}
        (tokens,) = self.inputs(x, y, noise)
        m = self.module
        if isinstance(m, LocalModel) and m.has_plain_head():
            # all clients' tokens go through the frozen layers as one batch
            return _window_losses(self._local_hidden(p, tokens.flatten(0, 1)), m.head(), x)
        if not isinstance(m, TinyGPT) or not isinstance(m.head, nn.Linear):
            return self.criterion(stacked.forward(m, every, tokens), x, y)
        return _window_losses(stacked.tiny_gpt_hidden(m, every, tokens), m.head.weight, x)

    def losses(self, p: Parameters, x: Tensor, y: Tensor, noise: Tensor | None) -> Tensor:
        m = self.module
        if not isinstance(m, LocalModel) or not m.has_plain_head():
            return super().losses(p, x, y, noise)
        return _window_losses(self._local_hidden(p, *self.inputs(x, y, noise)), m.head(), x)

    def _local_hidden(self, p: Parameters, tokens: Tensor) -> Tensor:
        """Hidden states (n, L, D) before the output layer; K models each take n / K windows."""
        own = dict(self.module.named_buffers()) if self._aside else {}
        every = {**{name: own[name].clone() for name in self._aside}, **p}
        hidden: Tensor = functional_call(
            self.module, every, (tokens,), {"hidden": True}, tie_weights=False
        )
        return hidden

    def evaluated_at_once(self) -> int:
        if not isinstance(self.module, LocalModel):
            return super().evaluated_at_once()
        return max(1, EVALUATED_TOKENS // self.length)

    def products(self, row: Tensor) -> dict[str, Tensor]:
        """Layer -> the product scale * B A (out, in) that a row's adapters add to its weight."""
        named = self.named(row)
        return {
            t: self.scale * named[f"{t}.lora_B.weight"] @ named[f"{t}.lora_A.weight"]
            for t in self.targets
        }

    def peft_state(self, row: Tensor) -> dict[str, Tensor]:
        """A row (d,) with peft's names and shapes of a saved adapter."""
        return {self._peft_name(n): v.clone() for n, v in self.named(row).items()}

    def _peft_name(self, name: str) -> str:
        """A tensor's name in peft, which wraps the transformers model without `LocalModel`."""
        return PEFT + (name.removeprefix("model.") if isinstance(self.module, LocalModel) else name)

    def from_peft(self, state: Mapping[str, Tensor]) -> Tensor:
        """A row (d,) from the output of peft's `get_peft_model_state_dict`."""
        inside = {self._peft_name(n): n for n in self.layout.names}
        own = {inside.get(n, n): v.detach().float().numpy() for n, v in state.items()}
        return torch.from_numpy(self.layout.flatten(own))


def _window_losses(hidden: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    """Mean loss per window (...) from hidden states (..., L, D) and windows x (..., L + 1)."""
    target = x[..., 1:]
    losses: Tensor = _HeadLoss.apply(  # type: ignore[no-untyped-call]
        hidden.flatten(0, -2), weight, target.reshape(-1)
    )
    return losses.view(target.shape).sum(-1) / (target != IGNORE).sum(-1).clamp_min(1)


class _HeadLoss(torch.autograd.Function):
    """Cross-entropy per token through a frozen output layer, in chunks of tokens.

    Logits over a vocabulary are the largest tensor of a small model. Each chunk of them is dropped
    after its gradient of the hidden state: (N, D), (V, D), (N,) to (N,). The gradient of the
    gradient computes the logits again, by operations that torch can differentiate.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        wanted = ctx.needs_input_grad[0]
        losses = hidden.new_empty(len(hidden))
        slopes = torch.empty_like(hidden) if wanted else None
        for low in range(0, len(hidden), TOKENS_AT_ONCE):
            part = slice(low, low + TOKENS_AT_ONCE)
            goal = target[part].unsqueeze(1)
            kept = goal != IGNORE
            goal = goal.clamp_min(0)
            log_p = F.log_softmax(hidden[part] @ weight.T, dim=1)
            losses[part] = torch.where(kept, -log_p.gather(1, goal), 0.0).squeeze(1)
            if slopes is not None:
                ones = torch.ones_like(goal, dtype=log_p.dtype)
                delta = log_p.exp_().scatter_add_(1, goal, ones.neg_())
                slopes[part] = (delta @ weight).mul_(kept)
        if slopes is not None:
            ctx.save_for_backward(slopes, hidden, weight, target)
        return losses

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None]:
        slopes, hidden, weight, target = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: second derivatives are asked for
            slopes = _token_slopes(hidden, weight, target)
        return slopes * outer.unsqueeze(1), None, None


def _token_slopes(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Gradients (N, D) of `_HeadLoss` by the hidden state, themselves differentiable by it."""
    parts = []
    for low in range(0, len(hidden), TOKENS_AT_ONCE):
        part = slice(low, low + TOKENS_AT_ONCE)
        kept = (target[part] != IGNORE).unsqueeze(1)
        p = F.softmax(hidden[part] @ weight.T, dim=1)
        delta = p @ weight - weight[target[part].clamp_min(0)]
        parts.append(torch.where(kept, delta, 0.0))
    return torch.cat(parts)


class DenseLoRA(LanguageModel):
    """FLoRA: a row holds the dense weights of the adapted layers.

    Clients train fresh adapters on the received weights and send scale * B A; the federation adds
    the weighted mean of these products to the row. Clients may have different ranks.
    """

    kind = "lora"

    def __init__(
        self,
        base: nn.Module,
        vocabulary: Vocabulary,
        length: int,
        *,
        rank: int,
        scale: float,
        targets: Sequence[str],
        seed: Seed,
        ranks: Sequence[int] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        names = targets_of(base, targets)
        module = copy.deepcopy(base).requires_grad_(False)
        for name in names:
            layer = module.get_submodule(name)
            assert isinstance(layer, nn.Linear)
            layer.weight.requires_grad_()
        super().__init__(module, vocabulary, length, settings)
        self.rank, self.scale, self.ranks = rank, scale, tuple(ranks)
        self._base, self._patterns, self._seed = base, tuple(targets), seed

    def frozen(self) -> dict[str, Tensor]:
        own = self.module.named_parameters()
        return {n: p.unsqueeze(0) for n, p in own if not p.requires_grad}

    def stacked_losses(self, p: Parameters, x: Tensor, y: Tensor, noise: Tensor | None) -> Tensor:
        return super().stacked_losses({**self.frozen(), **p}, x, y, noise)

    def local(self, rank: int) -> AdapterLoRA:
        """The local task of a client of that rank; its trainer sets the weights below."""
        # all ranks share alpha, not scale: scale = alpha / rank
        return AdapterLoRA(
            self._base,
            self.vocabulary,
            self.length,
            rank=rank,
            scale=self.scale * self.rank / rank,
            targets=self._patterns,
            seed=self._seed,
        )

    def fresh(self, local: AdapterLoRA, round_number: int) -> Tensor:
        """Initial adapters (d,) of a round: A as in peft, B zero."""
        row = torch.zeros(local.layout.width)
        draw = self._seed.torch_generator("adapters", round_number, local.rank)
        for e in local.layout.entries:
            if e.name.endswith(".lora_A.weight"):
                row[e.columns].uniform_(-(e.shape[1] ** -0.5), e.shape[1] ** -0.5, generator=draw)
        return row


# -- any model in a folder -----------------------------------------------------------------------


class LocalModel(nn.Module):
    """A causal language model of transformers as a module: tokens (n, L) to logits (n, L, V).

    With `cache`, pass new tokens only: it holds the keys and values of earlier ones. `hidden`: the
    hidden states (n, L, D) before the output layer.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def has_plain_head(self) -> bool:
        """Whether logits are `head` times the hidden states, and the head is frozen."""
        kind = getattr(getattr(self.model, "config", None), "model_type", "")
        if kind not in PLAIN_HEADS:
            return False
        head = self.model.get_output_embeddings()  # type: ignore[operator]
        plain = type(head) is nn.Linear and head.bias is None
        return plain and not head.weight.requires_grad

    def head(self) -> Tensor:
        """The weight (V, D) of the output layer."""
        weight: Tensor = self.model.get_output_embeddings().weight  # type: ignore[operator]
        return weight

    def forward(self, tokens: Tensor, cache: Any = None, *, hidden: bool = False) -> Tensor:
        if hidden:
            inside: Any = self.model.get_decoder()  # type: ignore[operator]
            states: Tensor = inside(input_ids=tokens, use_cache=False).last_hidden_state
            return states
        out = self.model(input_ids=tokens, past_key_values=cache, use_cache=cache is not None)
        logits: Tensor = out.logits
        return logits


class TokenizerVocabulary:
    """A tokenizer of transformers as a vocabulary, without special tokens."""

    def __init__(self, tokenizer: Any, size: int) -> None:
        self.tokenizer, self._size = tokenizer, size

    def encode(self, text: str) -> list[int]:
        return [int(t) for t in self.tokenizer.encode(text, add_special_tokens=False)]

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode([t for t in tokens if t != IGNORE]))

    def __len__(self) -> int:
        return self._size


def local_model(
    folder: str | os.PathLike[str], *, gguf: str | None = None
) -> tuple[LocalModel, TokenizerVocabulary]:
    """A causal language model and its tokenizer from a local folder; downloads nothing.

    `folder` may also be a GGUF file, or the name of a model that `fedaudit data get` fetched.
    `gguf`: name of a GGUF file in the folder; needs the package gguf.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError:
        raise ConfigError(
            "reading a Hugging Face model needs transformers",
            expected="the text extra",
            got="no package transformers",
            remedy='pip install "fedaudit[text]"',
        ) from None
    place, gguf = _find_model(folder, gguf)
    options: dict[str, Any] = {"local_files_only": True}
    if gguf is not None:
        options["gguf_file"] = gguf
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **options)
        model: Any = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise DataError(
            f"model folder {place} cannot be read",
            expected="a causal language model with its tokenizer in Hugging Face's format",
            got=str(error).split("\n", 1)[0],
            remedy="load it once with transformers to see what is missing",
        ) from error
    model.eval()  # no dropout: every pass of a row is the same function
    size = int(model.get_output_embeddings().weight.shape[0])
    return LocalModel(model), TokenizerVocabulary(tokenizer, size)


def _find_model(folder: str | os.PathLike[str], gguf: str | None) -> tuple[Path, str | None]:
    """The folder of a model and the name of its GGUF file, if it is one; raises if incomplete."""
    place = Path(folder)
    if str(folder) in SOURCES and SOURCES[str(folder)].kind == "model":
        place = fetched_model(str(folder))
    if place.suffix == ".gguf" and place.is_file():
        place, gguf = place.parent, place.name
    if not place.is_dir():
        raise DataError(
            f"there is no model folder {place}",
            expected="a folder with config.json, weights and a tokenizer",
            got="no such folder",
            remedy="save a model there with save_pretrained",
        )
    files = sorted(f.name for f in place.iterdir())
    known = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
    if gguf is None and not set(known) & set(files):
        raise DataError(
            f"model folder {place} has no tokenizer",
            expected="one of " + ", ".join(known),
            got=", ".join(files[:8]) or "an empty folder",
            remedy="save it beside the model with tokenizer.save_pretrained",
        )
    if gguf is not None and importlib.util.find_spec("gguf") is None:
        raise ConfigError(
            f"reading {gguf} needs the package gguf",
            expected="the text extra",
            got="no package gguf",
            remedy='pip install "fedaudit[text]"',
        )
    return place, gguf
