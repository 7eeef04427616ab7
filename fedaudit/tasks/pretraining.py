"""The tiny GPT that is fine-tuned when no other model is at hand.

Trained on the built-in `docs`, the same numbers for the same settings. The one of the
default settings and a smaller one come with the package (a byte per weight); others are trained
once and kept in the cache.

    python -m fedaudit.tasks.pretraining    # makes the shipped one anew
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from fedaudit.data.text import WordVocabulary
from fedaudit.errors import ConfigError, DataError
from fedaudit.randomness import Seed
from fedaudit.tasks.models import TinyGPT
from fedaudit.tasks.task import seeded

SHIPPED = Path(__file__).with_name("shipped")
"""Weights that come with the package. Python's documentation changes between its versions: where
the corpus is another, they do not count."""

SCALE = ".scale"
"""Behind the name of a matrix of bytes: what its rows are multiplied by, (rows, 1)."""


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """How the built-in model comes about: its shape, and the steps it is trained for on `docs`."""

    width: int = 128
    depth: int = 4
    heads: int = 4
    length: int = 40
    vocabulary_size: int = 1000
    steps: int = 600
    batch_size: int = 32
    learning_rate: float = 2e-3
    seed: int = 0

    def __post_init__(self) -> None:
        whole = asdict(self)
        whole.pop("learning_rate"), whole.pop("seed")
        for name, value in whole.items():
            if value < 1:
                raise ConfigError(
                    f"pretraining cannot have {name} = {value}",
                    expected="at least 1",
                    got=str(value),
                    remedy="leave it out for its default",
                )
        if self.width % self.heads or not self.learning_rate > 0:
            raise ConfigError(
                "pretraining has settings that do not fit",
                expected="a width that is a multiple of the heads, a learning rate above 0",
                got=f"width {self.width}, heads {self.heads}, rate {self.learning_rate:g}",
                remedy="leave them out for their defaults",
            )


def pretrained(
    settings: Pretraining | None = None, *, cache: str | os.PathLike[str] | None = None
) -> tuple[TinyGPT, WordVocabulary]:
    """The tiny GPT trained on `docs`, and its vocabulary: shipped, from the cache, or trained now.

    A cached file counts for the same settings, corpus and versions of torch only; a torn one is
    trained anew. `cache` is a folder, fedaudit's own by default.
    """
    import safetensors
    from safetensors.torch import load_file, save_file

    from fedaudit.data.fetch import cache_folder

    wanted = settings or Pretraining()
    model, vocabulary, texts = _untrained(wanted)
    corpus = _hash(texts)
    if _shipped(model, wanted, corpus):
        return model, vocabulary
    about = json.dumps(
        {"format": 1, "corpus": corpus, "torch": torch.__version__, **asdict(wanted)},
        sort_keys=True,
    )
    name = hashlib.sha256(about.encode()).hexdigest()[:16]
    folder = Path(cache) if cache is not None else cache_folder()
    path = folder / f"tiny-gpt-{name}.safetensors"
    if path.is_file():
        try:
            model.load_state_dict(load_file(path))
            return model, vocabulary
        except (safetensors.SafetensorError, RuntimeError, OSError):
            pass  # torn, or of another shape: made again below
    _pretrain(model, vocabulary, texts, wanted)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as beside:
            whole = Path(beside) / "model.safetensors"
            save_file(model.state_dict(), whole, metadata={"settings": about})
            os.replace(whole, path)  # under its final name only when complete
    except OSError as error:
        raise DataError(
            "the pretrained model cannot be kept",
            expected=f"a folder that can be written: {folder}",
            got=str(error),
            remedy="set FEDAUDIT_CACHE to another folder",
        ) from None
    return model, vocabulary


def _untrained(wanted: Pretraining) -> tuple[TinyGPT, WordVocabulary, tuple[str, ...]]:
    """The model before its first step, its vocabulary, and the texts of `docs`."""
    from fedaudit.data.builtin import load

    texts = load("docs", seed=Seed(wanted.seed)).x
    assert isinstance(texts, tuple)
    vocabulary = WordVocabulary.build(texts, size=wanted.vocabulary_size)
    shape = (wanted.length, wanted.width, wanted.depth, wanted.heads)
    model = seeded(Seed(wanted.seed), "weights", TinyGPT, len(vocabulary), *shape)
    assert isinstance(model, TinyGPT)
    return model, vocabulary, texts


def _hash(texts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _shipped(model: TinyGPT, wanted: Pretraining, corpus: str) -> bool:
    """Load shipped weights, if there are some of these settings and this corpus."""
    from safetensors import safe_open

    about = {"corpus": corpus, "settings": json.dumps(asdict(wanted), sort_keys=True)}
    for path in sorted(SHIPPED.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if file.metadata() == about:
                found = {name: file.get_tensor(name).float() for name in list(file.keys())}
                break
    else:
        return False
    scales = {n.removesuffix(SCALE): found.pop(n) for n in list(found) if n.endswith(SCALE)}
    model.load_state_dict({n: t * scales[n] if n in scales else t for n, t in found.items()})
    return True


def _pretrain(
    model: TinyGPT, vocabulary: WordVocabulary, texts: Sequence[str], wanted: Pretraining
) -> None:
    """Adam with a linear warm-up and decay on random windows of the whole corpus."""
    tokens = torch.tensor([t for text in texts for t in vocabulary.encode(text)])
    rng = Seed(wanted.seed).generator("pretraining")
    optimiser = torch.optim.Adam(model.parameters(), lr=wanted.learning_rate)
    warm = max(1, wanted.steps // 20)
    window = torch.arange(wanted.length + 1)
    for step in range(wanted.steps):
        for group in optimiser.param_groups:
            rise, fall = (step + 1) / warm, (wanted.steps - step) / wanted.steps
            group["lr"] = wanted.learning_rate * min(1.0, rise) * fall
        starts = rng.integers(0, len(tokens) - wanted.length - 1, size=wanted.batch_size)
        x = tokens[torch.from_numpy(starts)[:, None] + window]
        loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def ship(wanted: Pretraining) -> None:
    """Train a model and put it with the package: matrices as bytes with a scale per row."""
    from safetensors.torch import save_file

    model, vocabulary, texts = _untrained(wanted)
    _pretrain(model, vocabulary, texts, wanted)
    rounded = {}
    for name, tensor in model.state_dict().items():
        if tensor.ndim < 2:
            rounded[name] = tensor.half()
            continue
        scale = tensor.abs().amax(dim=1, keepdim=True) / 127
        rounded[name] = (tensor / scale).round().to(torch.int8)
        rounded[name + SCALE] = scale.half()
    about = {"corpus": _hash(texts), "settings": json.dumps(asdict(wanted), sort_keys=True)}
    save_file(rounded, SHIPPED / f"tiny-gpt-{wanted.width}.safetensors", metadata=about)


if __name__ == "__main__":
    ship(Pretraining())
    ship(Pretraining(width=64, depth=2))  # of the built-in default run
