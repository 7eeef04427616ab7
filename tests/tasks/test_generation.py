"""Many models in one batch say what each says by itself, with a cache or without."""

import numpy as np
import pytest
import torch

from fedaudit.errors import UsageError
from fedaudit.randomness import Seed
from fedaudit.tasks.generation import ModelReader
from fedaudit.tasks.language_model import LanguageModel
from fedaudit.tasks.lora import AdapterLoRA, LocalModel
from fedaudit.tasks.models import TinyGPT
from fedaudit.tasks.task import seeded

V, L = 50, 16


class Letters:
    def encode(self, text):
        return [ord(c) % V for c in text]

    def __len__(self):
        return V


def base():
    model = seeded(Seed(0), "weights", TinyGPT, V, L, 16, 2, 2)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0)  # far from uniform: ties would prove nothing
    return model


def tasks():
    adapters = AdapterLoRA(
        base(), Letters(), L, rank=3, scale=2.0, targets=("all-linear",), seed=Seed(1)
    )
    return {"adapters": adapters, "whole models": LanguageModel(base(), Letters(), L)}


def rows_of(task, count=2):
    draw = torch.Generator().manual_seed(0)
    start = task.initial()
    return start + 0.2 * torch.randn(count, len(start), generator=draw)


PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8], [9]]
WAYS = {
    "greedy": {},
    "sampled": {"uniforms": np.random.default_rng(0).random((4, 8))},
    "nucleus": {
        "uniforms": np.random.default_rng(1).random((4, 8)),
        "temperature": 0.8,
        "top_p": 0.7,
        "banned": (0, 3),
    },
    "processed": {"processor": lambda text, logits: logits + 5.0 * (text[:, -1:] % 2)},
}


def naive(task, row, prompt, steps, *, uniforms=None, **way):
    """One model, one prompt, the whole text anew for every token."""
    text = list(prompt)
    for s in range(steps):
        with torch.no_grad():
            x = torch.tensor([[*text, 0]])
            logits = task.output(task.named(row), x, torch.zeros(1), None)[:, -1]
        if "processor" in way:
            logits = way["processor"](torch.tensor([text]), logits)
        for t in way.get("banned", ()):
            logits[0, t] = -torch.inf
        if uniforms is None:
            text.append(int(logits.argmax()))
            continue
        p = torch.softmax(logits[0].double() / way.get("temperature", 1.0), 0).numpy()
        order, total = np.argsort(-p, kind="stable"), 0.0
        for t in order:
            if total >= way.get("top_p", 1.0):
                p[t] = 0.0
            total += p[t]
        sums = np.cumsum(p)
        text.append(int(np.searchsorted(sums, uniforms[s] * sums[-1], side="right")))
    return text[len(prompt) :]


@pytest.mark.parametrize("which", ["adapters", "whole models"])
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_says_what_each_model_says_alone(which, way):
    task = tasks()[which]
    rows, reading = rows_of(task), ModelReader(task)
    found = reading.generate(rows, PROMPTS, 8, **WAYS[way])
    assert found.shape == (2, 4, 8)
    alone = np.concatenate([reading.generate(r, PROMPTS, 8, **WAYS[way]) for r in rows])
    np.testing.assert_array_equal(found, alone)
    for m, row in enumerate(rows):
        for i, prompt in enumerate(PROMPTS):
            own = dict(WAYS[way])
            if "uniforms" in own:
                own["uniforms"] = own["uniforms"][i]
            assert found[m, i].tolist() == naive(task, row, prompt, 8, **own)
    assert len(np.unique(found.reshape(2, -1), axis=0)) > 1, "models differ"
    if way == "nucleus":
        assert not np.isin(found, (0, 3)).any()


@pytest.mark.parametrize("which", ["adapters", "whole models"])
def test_probabilities_are_those_of_the_plain_module(which):
    task = tasks()[which]
    rows, reading = rows_of(task), ModelReader(task)
    tokens = np.random.default_rng(0).integers(0, V, size=(5, L))
    found = reading.log_probabilities(rows, tokens)
    last = reading.last_log_probabilities(rows, PROMPTS)
    some = reading.last_log_probabilities(rows, PROMPTS, [7, 2])
    np.testing.assert_array_equal(some, last[..., [7, 2]])
    for m, row in enumerate(rows):
        with torch.no_grad():
            x = torch.nn.functional.pad(torch.from_numpy(tokens), (0, 1))
            slow = task.output(task.named(row), x, torch.zeros(5), None).log_softmax(-1)
        np.testing.assert_allclose(found[m], slow, rtol=1e-4, atol=5e-4)
        for i, prompt in enumerate(PROMPTS):
            whole = reading.log_probabilities(row, [prompt])[0, 0, -1]
            np.testing.assert_allclose(last[m, i], whole, rtol=1e-4, atol=5e-4)


def test_blocks_of_models_and_prompts_change_nothing(monkeypatch):
    task = tasks()["adapters"]
    rows, reading = rows_of(task), ModelReader(task)
    tokens = np.random.default_rng(0).integers(0, V, size=(5, L))
    whole = reading.log_probabilities(rows, tokens)
    monkeypatch.setattr("fedaudit.tasks.generation.LOGITS_AT_ONCE", 1)
    monkeypatch.setattr("fedaudit.tasks.generation.INNER_AT_ONCE", 1)
    np.testing.assert_allclose(reading.log_probabilities(rows, tokens), whole, rtol=1e-4, atol=5e-4)


def test_equal_models_draw_the_same_text_from_shared_numbers():
    task = tasks()["adapters"]
    rows = rows_of(task, 1).repeat(3, 1)
    found = ModelReader(task).generate(
        rows, PROMPTS, 8, uniforms=np.random.default_rng(2).random((4, 8))
    )
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_sampling_follows_the_probabilities():
    task = tasks()["whole models"]
    row = task.initial()
    reading = ModelReader(task)
    n = 4000
    u = (np.arange(n)[:, None] + 0.5) / n  # every quantile once
    drawn = reading.generate(row, [[1, 2]] * n, 1, uniforms=u)[0, :, 0]
    p = np.exp(reading.last_log_probabilities(row, [[1, 2]])[0, 0])
    np.testing.assert_allclose(np.bincount(drawn, minlength=V) / n, p, atol=1.5 / n)


def test_bad_input_is_refused():
    task = tasks()["adapters"]
    rows, reading = rows_of(task), ModelReader(task)
    for prompts, steps in (([], 3), ([[]], 3), ([[1]], 0)):
        with pytest.raises(UsageError, match="nothing to generate"):
            reading.generate(rows, prompts, steps)
    with pytest.raises(UsageError, match="longer than the model can read"):
        reading.generate(rows, [[1, 2]], L)
    reading.generate(rows, [[1, 2]], L - 1)  # the last token is not read again
    with pytest.raises(UsageError, match="longer than the model can read"):
        reading.log_probabilities(rows, np.zeros((1, L + 1)))
    with pytest.raises(UsageError, match="do not fit the text"):
        reading.generate(rows, [[1]], 3, uniforms=np.zeros((1, 2)))
    with pytest.raises(UsageError, match="out of range"):
        reading.generate(rows, [[1]], 3, temperature=0.0)
    with pytest.raises(UsageError, match="flat rows"):
        reading.generate(torch.zeros(0, 3), [[1]], 3)


@pytest.mark.text
def test_a_model_of_transformers_says_the_same_with_its_own_cache():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=V,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=L,
        initializer_range=0.5,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).eval()
    task = AdapterLoRA(
        LocalModel(model), Letters(), L, rank=2, scale=1.0, targets=("*.q_proj",), seed=Seed(0)
    )
    rows = rows_of(task, 2)
    reading = ModelReader(task)
    for way in ("greedy", "nucleus"):
        found = reading.generate(rows, PROMPTS, 8, **WAYS[way])
        for m, row in enumerate(rows):
            for i, prompt in enumerate(PROMPTS):
                own = dict(WAYS[way])
                if "uniforms" in own:
                    own["uniforms"] = own["uniforms"][i]
                assert found[m, i].tolist() == naive(task, row, prompt, 8, **own)
    greedy = model.generate(
        torch.tensor([PROMPTS[0]]), max_new_tokens=8, do_sample=False, eos_token_id=None
    )
    zero = torch.zeros_like(task.initial())
    mine = reading.generate(zero, PROMPTS[:1], 8)[0, 0]
    assert mine.tolist() == greedy[0, 3:].tolist()
