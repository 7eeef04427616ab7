"""Adapters on a frozen model: equal to peft's, one batch over clients, a base made once."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedaudit.data.text import IGNORE
from fedaudit.errors import ConfigError, DataError
from fedaudit.federation.local.loop import Loop
from fedaudit.federation.local.stacked import Stacked
from fedaudit.randomness import Seed
from fedaudit.tasks import catalogue
from fedaudit.tasks.lora import (
    AdapterLoRA,
    DenseLoRA,
    LocalModel,
    _HeadLoss,
    local_model,
    targets_of,
)
from fedaudit.tasks.models import LowRank, TinyGPT
from fedaudit.tasks.pretraining import Pretraining
from fedaudit.tasks.stacked import NotStackable
from fedaudit.tasks.task import seeded

V, L = 30, 8
SMALL = Pretraining(width=8, depth=1, heads=2, length=8, vocabulary_size=60, steps=4, batch_size=4)


class Letters:
    def encode(self, text):
        return [ord(c) % V for c in text]

    def __len__(self):
        return V


def base():
    return seeded(Seed(0), "weights", TinyGPT, V, L, 8, 2, 2)


def lora(targets=("all-linear",), rank=3, scale=2.0):
    return AdapterLoRA(base(), Letters(), L, rank=rank, scale=scale, targets=targets, seed=Seed(1))


def rows_of(task, count=3):
    draw = torch.Generator().manual_seed(0)
    start = task.initial()
    return start + 0.3 * torch.randn(count, len(start), generator=draw)


def windows(count, n):
    x = torch.randint(0, V, (count, n, L + 1), generator=torch.Generator().manual_seed(1))
    x[0, 0, -3:] = IGNORE
    return x, torch.zeros(count, n, dtype=torch.int64)


def test_only_adapters_travel_and_a_fresh_one_changes_nothing():
    task = lora()
    assert all(".lora_A." in n or ".lora_B." in n for n in task.layout.names)
    assert len(task.targets) == 8
    assert not any("head" in n for n in task.layout.names)
    x, y = windows(1, 2)
    plain = base()(x[0, :, :-1].clamp_min(0))
    adapted = task.output(task.named(task.initial()), x[0], y[0], None)
    assert torch.equal(plain, adapted)


def test_products_are_what_adapters_add_to_the_weights():
    task = lora()
    task.module.double()  # the product is formed in one order or in the other
    row = rows_of(task, 1)[0].double()
    merged = base().double()
    with torch.no_grad():
        for layer, product in task.products(row).items():
            merged.get_submodule(layer).weight += product
    x, y = windows(1, 2)
    with torch.no_grad():
        expected = merged(x[0, :, :-1].clamp_min(0))
        found = task.output(task.named(row), x[0], y[0], None)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("targets", [("all-linear",), ("*.attn.*",), ("*.mlp.fc", "head")])
def test_stacked_adapters_train_as_one_client_after_another(targets):
    task = lora(targets)
    rows = rows_of(task)
    x, y = windows(3, 2)
    weight = torch.tensor([[1.0, 0.5], [0.25, 0.0], [1.0, 1.0]])
    fast = Stacked(task).sums(rows, x, y, weight, None)
    slow = Loop(task).sums(rows, x, y, weight, None)
    torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-5 * float(slow.abs().max()))
    each = Stacked(task).per_example(rows, x, y, weight, None)
    summed = torch.einsum("kb,kbd->kd", weight, each)
    torch.testing.assert_close(summed, slow, rtol=1e-3, atol=1e-5 * float(slow.abs().max()))
    stepped = rows.clone()
    Stacked(task).sgd_(stepped, x, y, weight, None, 0.1)
    torch.testing.assert_close(stepped, rows - 0.1 * slow, rtol=1e-3, atol=1e-4)


def test_head_and_loss_in_chunks_are_plain_cross_entropy(monkeypatch):
    monkeypatch.setattr("fedaudit.tasks.lora.TOKENS_AT_ONCE", 4)
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(11, 5, generator=draw, dtype=torch.float64).requires_grad_()
    weight = torch.randn(7, 5, generator=draw, dtype=torch.float64)
    target = torch.randint(0, 7, (11,), generator=draw)
    target[3] = IGNORE
    outer = torch.randn(11, generator=draw, dtype=torch.float64)
    mine = _HeadLoss.apply(hidden, weight, target)
    slow = F.cross_entropy(hidden @ weight.T, target, reduction="none", ignore_index=IGNORE)
    torch.testing.assert_close(mine, slow)
    (fast_slope,) = torch.autograd.grad((mine * outer).sum(), hidden)
    (slow_slope,) = torch.autograd.grad((slow * outer).sum(), hidden)
    torch.testing.assert_close(fast_slope, slow_slope)


def test_head_and_loss_have_the_second_derivatives_of_plain_cross_entropy(monkeypatch):
    monkeypatch.setattr("fedaudit.tasks.lora.TOKENS_AT_ONCE", 4)
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(11, 5, generator=draw, dtype=torch.float64).requires_grad_()
    weight = torch.randn(7, 5, generator=draw, dtype=torch.float64)
    target = torch.randint(0, 7, (11,), generator=draw)
    target[3] = IGNORE
    outer = torch.randn(11, generator=draw, dtype=torch.float64).requires_grad_()
    along = torch.randn(11, 5, generator=draw, dtype=torch.float64)

    def second(losses):
        (slope,) = torch.autograd.grad((losses * outer).sum(), hidden, create_graph=True)
        return slope, *torch.autograd.grad((slope * along).sum(), (hidden, outer))

    plain = F.cross_entropy(hidden @ weight.T, target, reduction="none", ignore_index=IGNORE)
    for mine, slow in zip(
        second(_HeadLoss.apply(hidden, weight, target)), second(plain), strict=True
    ):
        torch.testing.assert_close(mine, slow)


def test_a_dense_task_holds_the_layers_that_carry_adapters():
    task = DenseLoRA(base(), Letters(), L, rank=3, scale=2.0, targets=("*.attn.qkv",), seed=Seed(1))
    assert task.layout.names == ("blocks.0.attn.qkv.weight", "blocks.1.attn.qkv.weight")
    x, y = windows(2, 2)
    rows = rows_of(task, 2)
    with torch.no_grad():
        fast = task.stacked_losses(task.named(rows), x, y, None)
        slow = torch.stack(
            [task.losses(task.named(r), x[i], y[i], None) for i, r in enumerate(rows)]
        )
    torch.testing.assert_close(fast, slow)
    local = task.local(6)
    assert local.scale == 1.0, "alpha is shared, scale is alpha / rank"
    first, second = task.fresh(local, 1), task.fresh(local, 2)
    assert torch.equal(first, task.fresh(local, 1))
    assert not torch.equal(first, second)
    for name, value in local.named(first).items():
        assert bool((value == 0).all()) == name.endswith("lora_B.weight")
    a = local.named(first)["blocks.0.attn.qkv.lora_A.weight"]
    assert float(a.abs().max()) <= 8**-0.5


# -- peft --------------------------------------------------------------------------------------


@pytest.mark.text
def test_an_adapter_is_peft_s_adapter():
    peft = pytest.importorskip("peft")
    task = lora()
    row = rows_of(task, 1)[0]
    config = peft.LoraConfig(
        r=3, lora_alpha=6, target_modules=r"blocks\..*(qkv|proj|fc)", lora_dropout=0.0
    )
    model = peft.get_peft_model(base(), config)
    assert set(peft.get_peft_model_state_dict(model)) == set(task.peft_state(row))
    peft.set_peft_model_state_dict(model, task.peft_state(row))
    x, y = windows(1, 2)
    tokens = x[0, :, :-1].clamp_min(0)
    out = model(tokens)
    torch.testing.assert_close(
        task.output(task.named(row), x[0], y[0], None), out, rtol=1e-4, atol=1e-5
    )
    # one step of training is the same step
    loss = F.cross_entropy(out.flatten(0, 1), x[0, :, 1:].flatten(), ignore_index=IGNORE)
    loss.backward()
    counted = (x[0, :, 1:] != IGNORE).sum(-1)
    weight = (counted / counted.sum()).unsqueeze(0)
    mine = task.named(Stacked(task).sums(row.unsqueeze(0), x[:1], y[:1], weight, None)[0])
    trained = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == len(mine)
    for name, slope in trained.items():
        own = name.removeprefix("base_model.model.").replace(".default", "")
        torch.testing.assert_close(mine[own], slope, rtol=1e-3, atol=1e-6)
    back = task.from_peft(peft.get_peft_model_state_dict(model))
    assert torch.equal(back, row)


# -- the base ----------------------------------------------------------------------------------


# -- settings ----------------------------------------------------------------------------------


def test_a_config_builds_both_aggregations(tmp_path, monkeypatch):
    from fedaudit.data.builtin import load

    monkeypatch.setenv("FEDAUDIT_CACHE", str(tmp_path))
    shape = {
        "width": 8,
        "depth": 1,
        "heads": 2,
        "length": 8,
        "vocabulary_size": 60,
        "pretraining_steps": 2,
    }
    data = load("docs", seed=Seed(0)).take(range(3))
    fedit = catalogue.LoRA(rank=2, **shape).build(data, Seed(1))
    flora = catalogue.LoRA(rank=2, aggregation="flora", **shape).build(data, Seed(1))
    assert isinstance(fedit, AdapterLoRA)
    assert isinstance(flora, DenseLoRA)
    assert fedit.scale == 2.0
    assert catalogue.LoRA(rank=4, alpha=2.0).scale == 0.5
    assert len(list(tmp_path.iterdir())) == 1, "one base for both"
    assert fedit.settings["kind"] == "lora"
    assert len(fedit.encode(data)) > 10
    numbers = load("digits", seed=Seed(0))
    with pytest.raises(DataError, match="needs text"):
        catalogue.LoRA().build(numbers, Seed(1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank is out of range"),
        ({"alpha": -1.0}, "alpha"),
        ({"ranks": (4, 8)}, "unequal rank"),
        ({"ranks": (4, 4)}, "disagree"),
        ({"heads": 3}, "divide"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        catalogue.LoRA(**settings)
    if "ranks" in settings:
        catalogue.LoRA(aggregation="flora", **settings)


def test_targets_that_match_nothing_are_refused():
    with pytest.raises(ConfigError, match="no layer matches"):
        targets_of(base(), ("*.query",))
    with pytest.raises(ConfigError, match=r"task\.rank is out of range"):
        lora(rank=0)


# -- models in a folder ------------------------------------------------------------------------


@pytest.mark.text
def test_a_folder_without_a_model_or_tokenizer_is_refused(tmp_path):
    pytest.importorskip("transformers")
    with pytest.raises(DataError, match="no model folder"):
        local_model(tmp_path / "none")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DataError, match=r"has no tokenizer(.|\n)*tokenizer\.json"):
        local_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="cannot be read"):
        local_model(tmp_path)


@pytest.mark.text
def test_a_gguf_file_without_the_package_that_reads_it_names_the_extra(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    with pytest.raises(ConfigError, match=r"needs the package gguf(.|\n)*fedaudit\[text\]"):
        local_model(file)


@pytest.mark.text
def test_a_folder_of_transformers_is_fine_tuned_and_saved_under_peft_s_names(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    peft = pytest.importorskip("peft")
    words = ["<unk>", *(f"w{i}" for i in range(29))]
    level = tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>")
    plain = tokenizers.Tokenizer(level)
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>")
    wrapped.save_pretrained(tmp_path)
    config = transformers.LlamaConfig(
        vocab_size=30,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    model, vocabulary = local_model(tmp_path)
    assert vocabulary.encode("w3 w5 nothing") == [4, 6, 0]
    assert vocabulary.decode([4, 6]) == "w3 w5"
    assert len(vocabulary) == 30
    task = AdapterLoRA(
        model, vocabulary, 6, rank=2, scale=1.0, targets=("all-linear",), seed=Seed(0)
    )
    assert len(task.targets) == 7
    row = rows_of(task, 1)[0]
    own = peft.get_peft_model(
        transformers.LlamaForCausalLM.from_pretrained(tmp_path),
        peft.LoraConfig(r=2, lora_alpha=2, target_modules="all-linear", task_type="CAUSAL_LM"),
    ).eval()
    peft.set_peft_model_state_dict(own, task.peft_state(row))
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 7]])
    with torch.no_grad():
        expected = own(input_ids=tokens[:, :-1]).logits
        found = task.output(task.named(row), tokens, torch.zeros(1), None)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert np.isfinite(float(task.losses(task.named(row), tokens, torch.zeros(1), None)))


def test_a_layer_takes_the_adapters_of_several_models_at_once():
    layer = LowRank(torch.nn.Linear(5, 4), rank=2, scale=1.5)
    draw = torch.Generator().manual_seed(2)
    down, up = torch.randn(3, 2, 5, generator=draw), torch.randn(3, 4, 2, generator=draw)
    x = torch.randn(6, 7, 5, generator=draw)  # two windows of each of three models

    def call(a, b, part):
        return torch.func.functional_call(layer, {"lora_A.weight": a, "lora_B.weight": b}, (part,))

    together = call(down, up, x)
    apart = torch.cat([call(down[k], up[k], x[2 * k : 2 * k + 2]) for k in range(3)])
    torch.testing.assert_close(together, apart)


def llama(transformers, kind="llama"):
    """A tiny model of transformers with random weights: grouped queries, a tied output layer."""
    config = transformers.AutoConfig.for_model(
        kind,
        vocab_size=V,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return LocalModel(transformers.AutoModelForCausalLM.from_config(config).eval())


@pytest.mark.text
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2"])
@pytest.mark.parametrize("targets", [("all-linear",), ("*q_proj", "*v_proj")])
def test_a_model_of_transformers_trains_stacked_as_one_client_after_another(kind, targets):
    model = llama(pytest.importorskip("transformers"), kind)
    task = AdapterLoRA(model, Letters(), L, rank=3, scale=2.0, targets=targets, seed=Seed(1))
    rows = rows_of(task)
    x, y = windows(3, 2)
    weight = torch.tensor([[1.0, 0.5], [0.25, 0.0], [1.0, 1.0]])
    for k in range(3):  # the plain pass: logits of the whole model, and cross-entropy
        plain = task.criterion(task.output(task.named(rows[k]), x[k], y[k], None), x[k], y[k])
        one = task.losses(task.named(rows[k]), x[k], y[k], None)
        torch.testing.assert_close(one, plain, rtol=1e-5, atol=1e-5)
        together = task.stacked_losses(task.named(rows), x, y, None)[k]
        torch.testing.assert_close(together, plain, rtol=1e-5, atol=1e-5)
    fast = Stacked(task).sums(rows, x, y, weight, None)
    slow = Loop(task).sums(rows, x, y, weight, None)
    torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-5 * float(slow.abs().max()))
    each = Stacked(task).per_example(rows, x, y, weight, None)
    summed = torch.einsum("kb,kbd->kd", weight, each)
    torch.testing.assert_close(summed, slow, rtol=1e-3, atol=1e-5 * float(slow.abs().max()))


@pytest.mark.text
def test_a_model_whose_logits_are_not_its_head_alone_is_not_stacked():
    model = llama(pytest.importorskip("transformers"), "cohere")
    task = AdapterLoRA(model, Letters(), L, rank=3, scale=2.0, targets=("*q_proj",), seed=Seed(1))
    x, y = windows(3, 2)
    with pytest.raises(NotStackable):
        task.stacked_losses(task.named(rows_of(task)), x, y, None)


@pytest.mark.text
def test_a_model_with_adapters_on_its_output_layer_keeps_its_logits():
    targets = ("*lm_head", "*q_proj")
    model = llama(pytest.importorskip("transformers"))
    task = AdapterLoRA(model, Letters(), L, rank=3, scale=2.0, targets=targets, seed=Seed(1))
    row = rows_of(task, 1)[0]
    x, y = windows(1, 2)
    plain = task.criterion(task.output(task.named(row), x[0], y[0], None), x[0], y[0])
    torch.testing.assert_close(task.losses(task.named(row), x[0], y[0], None), plain)
    with pytest.raises(NotStackable):
        task.stacked_losses(task.named(row.unsqueeze(0)), x, y, None)
