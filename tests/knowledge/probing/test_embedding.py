"""Attention on tokens and on patches, embedded as the run embeds them."""

import pytest


@pytest.mark.parametrize("embedding", ["fourier", "linear", "one_hot", "model"])
def test_attention_finds_windows_of_tokens(audited, text, embedding):
    own = {"adversary": "attention", "embedding": embedding, "recorded": 12, "records": 3}
    result = audited({**own, "games": 100, "simulated": 60}, other=text)
    assert result.estimates["success"].low > 0.7
    assert any("12 of 12 games" in note for note in result.notes)
    assert any("of 400 tokens" in note for note in result.notes)


def test_attention_sees_the_patches_of_the_runs_own_transformer(audited):
    own = {"adversary": "attention", "embedding": "model", "recorded": 12, "records": 2}
    images = {"task": {"kind": "vit", "width": 32, "depth": 1, "heads": 2, "patch": 2}}
    result = audited(own, other=images)
    assert result.status == "ok"
    assert any("12 of 12 games" in note for note in result.notes)
    none = audited(own)
    assert none.need.code == "unsuitable_embedding"
    tokens = audited({**own, "embedding": "one_hot"})
    assert tokens.need.code == "unsuitable_embedding"
