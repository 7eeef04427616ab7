"""Federated LoRA on the tiny GPT: stacked adapters and batched generation against peft.

    python benchmarks/lora.py [--clients 10] [--steps 10] [--prompts 64] [--json FILE]

training    local steps of K clients' adapters (rank 8, all linear layers): one stacked batch and
            peft's adapter on the same module, one client after another, AdamW's plain Adam on both
            sides. Gathering batches is inside both timers. Weights after training are compared.
generation  K + 1 candidate models continue the same prompts, greedily: one batch with one cache
            against `generate` of transformers, adapter by adapter, on a GPT-2 with the same
            weights under peft (attention by `sdpa`, its cache on). Tokens are compared: they are
            equal but where rounding decides between two tokens of equal logits.
ranking     10 K + 1 candidate models say how likely each of 100 words is after each prompt: the
            last position alone, in blocks that stay in the cache, against a forward pass of peft's
            adapter after adapter. Log-probabilities are compared.

Both sides use the same number of threads; repetitions are interleaved.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import warnings
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from timing import interleaved, ratio
from torch import nn

from fedaudit.federation.local.schedule import Training
from fedaudit.federation.local.trainer import ClientData, Trainer
from fedaudit.randomness import Seed
from fedaudit.tasks.generation import ModelReader
from fedaudit.tasks.lora import AdapterLoRA
from fedaudit.tasks.models import TinyGPT
from fedaudit.tasks.task import seeded

VOCABULARY, LENGTH, WIDTH, DEPTH, HEADS, RANK = 1000, 40, 128, 4, 4, 8


class Numbers:
    """A vocabulary that is never asked to spell."""

    def encode(self, text: str) -> list[int]:
        raise TypeError("the benchmark reads token numbers")

    def __len__(self) -> int:
        return VOCABULARY


def base() -> TinyGPT:
    model = seeded(Seed(0), "weights", TinyGPT, VOCABULARY, LENGTH, WIDTH, DEPTH, HEADS)
    assert isinstance(model, TinyGPT)
    return model


def adapters(model: nn.Module) -> AdapterLoRA:
    return AdapterLoRA(
        model, Numbers(), LENGTH, rank=RANK, scale=2.0, targets=("all-linear",), seed=Seed(1)
    )


def with_peft(model: nn.Module, pattern: str, **more: Any) -> Any:
    import peft

    config = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=pattern, **more)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.get_peft_model(model, config)


def training(args: argparse.Namespace) -> dict[str, float]:
    import peft

    task = adapters(base())
    windows = torch.randint(
        0, VOCABULARY, (args.clients, 64, LENGTH + 1), generator=torch.Generator().manual_seed(0)
    )
    data = ClientData.join([(x, torch.zeros(len(x), dtype=torch.int64)) for x in windows])
    settings = Training(
        optimizer="adam", learning_rate=1e-3, steps=args.steps, batch_size=args.batch
    )
    trainer = Trainer(task, settings, Seed(0))
    start = task.initial()
    everybody = np.arange(args.clients)
    wrapped = with_peft(base(), r"blocks\..*(qkv|proj|fc)")
    trained = [p for p in wrapped.parameters() if p.requires_grad]
    begin = task.peft_state(start)
    ends: dict[str, torch.Tensor] = {}

    def stacked() -> None:
        ends["stacked"] = start + trainer.train(start, everybody, data, 1)

    def loop() -> None:
        from fedaudit.federation.local.schedule import plan

        batches = plan(settings, everybody, data.starts, data.sizes, Seed(0), 1, None)
        rows = [torch.empty(0)] * args.clients
        for position, client in enumerate(batches.order):
            peft.set_peft_model_state_dict(wrapped, begin)
            optimiser = torch.optim.Adam(trained, lr=1e-3)
            for s in range(args.steps):
                x = data.x[torch.from_numpy(batches.index[position, s])]
                loss = F.cross_entropy(wrapped(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            rows[int(client)] = task.from_peft(peft.get_peft_model_state_dict(wrapped))
        ends["peft"] = torch.stack(rows)

    taken = interleaved({"stacked": stacked, "peft": loop}, args.repeats, warm=True)
    times = ratio(taken["peft"], taken["stacked"])
    # Adam turns a gradient that is rounding error into a whole step: compared as vectors
    apart = float((ends["peft"] - ends["stacked"]).norm() / (ends["peft"] - start).norm())
    count = args.clients * args.steps
    print(
        f"training, K={args.clients}, batch {args.batch}, {args.steps} steps, tier"
        f" {trainer.kernel(data).name}: {count / statistics.median(taken['stacked']):.0f}"
        f" client-steps/s against {count / statistics.median(taken['peft']):.0f} by peft:"
        f" {times:.2f}x; updates differ by {apart:.1e} of their length"
    )
    return {"ratio": times, "apart": apart}


def as_gpt2(model: TinyGPT) -> Any:
    """The same function as a GPT-2 of transformers (whose layers are transposed)."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=WIDTH,
        n_layer=DEPTH,
        n_head=HEADS,
        activation_function="gelu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    twin = transformers.GPT2LMHeadModel(config)
    state = {
        "transformer.wte.weight": model.tokens.weight,
        "transformer.wpe.weight": model.position,
        "transformer.ln_f.weight": model.norm.weight,
        "transformer.ln_f.bias": model.norm.bias,
        "lm_head.weight": model.head.weight,
    }
    names = {
        "ln_1": "norm1",
        "attn.c_attn": "attn.qkv",
        "attn.c_proj": "attn.proj",
        "ln_2": "norm2",
        "mlp.c_fc": "mlp.fc",
        "mlp.c_proj": "mlp.proj",
    }
    for i, block in enumerate(model.blocks):
        for theirs, ours in names.items():
            layer: Any = block.get_submodule(ours)
            at = f"transformer.h.{i}.{theirs}"
            turned = isinstance(layer, nn.Linear)
            state[f"{at}.weight"] = layer.weight.T if turned else layer.weight
            bias = torch.zeros(3 * WIDTH) if layer.bias is None else layer.bias
            state[f"{at}.bias"] = bias
    twin.load_state_dict({n: v.detach().clone().contiguous() for n, v in state.items()})
    return twin.eval(), names


def candidates(count: int) -> tuple[ModelReader, torch.Tensor, Any, list[dict[str, torch.Tensor]]]:
    """Adapters as our rows, and as states of a GPT-2 wrapped by peft with the same weights."""
    model = base()
    with torch.no_grad():
        model.head.weight *= 8.0  # an untrained model is near ties everywhere
    task = adapters(model)
    draw = torch.Generator().manual_seed(0)
    rows = task.initial() + 0.02 * torch.randn(count, task.layout.width, generator=draw)
    twin, names = as_gpt2(model)
    wrapped = with_peft(twin, r".*\.(c_attn|c_proj|c_fc)", fan_in_fan_out=True).eval()
    states = []
    for row in rows:
        state = {}
        for name, value in task.peft_state(row).items():
            inside = name.removeprefix("base_model.model.blocks.")
            i, _, rest = inside.partition(".")
            layer, _, kind = rest.rpartition(".lora_")
            theirs = next(t for t, ours in names.items() if ours == layer)
            state[f"base_model.model.transformer.h.{i}.{theirs}.lora_{kind}"] = value
        states.append(state)
    return ModelReader(task), rows, wrapped, states


def some_prompts(count: int, length: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randint(0, VOCABULARY, (count, length), generator=draw)


def ranking(args: argparse.Namespace) -> dict[str, float]:
    """How likely are these words after these prompts, for each candidate model?"""
    import peft

    count, words = 10 * args.clients + 1, list(range(100))
    reading, rows, wrapped, states = candidates(count)
    prompts = some_prompts(24, 12)
    said: dict[str, np.ndarray] = {}

    def batched() -> None:
        said["batched"] = reading.last_log_probabilities(rows, prompts.tolist(), words)

    def one_by_one() -> None:
        each = [reading.last_log_probabilities(r, prompts.tolist())[..., words] for r in rows]
        said["one by one"] = np.concatenate(each)

    @torch.no_grad()
    def forward() -> None:
        found = []
        for state in states:
            peft.set_peft_model_state_dict(wrapped, state)
            logits = wrapped(input_ids=prompts, logits_to_keep=1).logits[:, -1]
            found.append(logits.log_softmax(-1)[:, words].numpy())
        said["forward"] = np.stack(found)

    taken = interleaved(
        {"batched": batched, "one by one": one_by_one, "forward": forward}, args.repeats, warm=True
    )
    out = {}
    for peer in ("forward", "one by one"):
        out[f"ratio, {peer}"] = ratio(taken[peer], taken["batched"])
        out[f"largest difference, {peer}"] = float(np.abs(said["batched"] - said[peer]).max())
    print(
        f"ranking, {count} models x {len(prompts)} prompts of {prompts.shape[1]} tokens:"
        f" {statistics.median(taken['batched']):.2f} s;"
        f" {out['ratio, forward']:.2f}x a forward pass per adapter"
        f" (largest difference {out['largest difference, forward']:.1e}),"
        f" {out['ratio, one by one']:.2f}x our own one by one"
        f" ({out['largest difference, one by one']:.1e})"
    )
    return out


def generation(args: argparse.Namespace) -> dict[str, float]:
    import peft

    count, new = args.clients + 1, LENGTH - 8
    reading, rows, wrapped, states = candidates(count)
    prompts = some_prompts(args.prompts, 8)
    said: dict[str, np.ndarray] = {}

    def batched() -> None:
        said["batched"] = reading.generate(rows, prompts.tolist(), new)

    def one_by_one() -> None:
        said["one by one"] = np.concatenate(
            [reading.generate(row, prompts.tolist(), new) for row in rows]
        )

    def theirs() -> None:
        found = []
        for state in states:
            peft.set_peft_model_state_dict(wrapped, state)
            out = wrapped.generate(
                input_ids=prompts,
                attention_mask=torch.ones_like(prompts),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
            )
            found.append(out[:, 8:].numpy())
        said["generate"] = np.stack(found)

    taken = interleaved(
        {"batched": batched, "one by one": one_by_one, "generate": theirs}, args.repeats, warm=True
    )
    out = {}
    for peer in ("generate", "one by one"):
        out[f"ratio, {peer}"] = ratio(taken[peer], taken["batched"])
        same = said["batched"] == said[peer]
        out[f"equal tokens, {peer}"] = float(same.mean())
    print(
        f"generation, {count} models x {args.prompts} prompts x {new} tokens:"
        f" {statistics.median(taken['batched']):.2f} s;"
        f" {out['ratio, generate']:.2f}x generate per adapter"
        f" (equal tokens {out['equal tokens, generate']:.5f}),"
        f" {out['ratio, one by one']:.2f}x our own one by one"
        f" ({out['equal tokens, one by one']:.5f})"
    )
    return out


PARTS = {"training": training, "generation": generation, "ranking": ranking}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=tuple(PARTS), action="append")
    parser.add_argument("--json")
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    print(
        f"cores {os.cpu_count()}, threads {torch.get_num_threads()}, load {os.getloadavg()[0]:.1f}"
    )
    rows = {name: PARTS[name](args) for name in args.only or PARTS}
    print(f"load {os.getloadavg()[0]:.1f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
