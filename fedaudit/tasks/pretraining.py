"""The built-in tiny GPT for fine-tuning.

It is trained on the built-in `docs`; equal settings give equal weights. The package ships the
models of the default settings and of a smaller size (a byte per weight); others are trained once
and cached.

    python -m fedaudit.tasks.pretraining    # remakes the shipped models
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedaudit.data.builtin import load
from fedaudit.data.fetch import cache_folder
from fedaudit.data.text import WordVocabulary
from fedaudit.errors import ConfigError, DataError
from fedaudit.randomness import Seed
from fedaudit.settings import Count, Positive, checked
from fedaudit.tasks.models import TinyGPT
from fedaudit.tasks.task import seeded

SHIPPED = Path(__file__).with_name("shipped")
"""Weights that come with the package. They are used only if the corpus is the same: Python's
documentation changes between versions."""

SCALE = ".scale"
"""Suffix of the row scales (rows, 1) of a matrix stored as bytes."""


@dataclass(frozen=True, kw_only=True)
@checked("pretraining")
class Pretraining:
    """Shape and training of the built-in model."""

    width: Count = 128
    depth: Count = 4
    heads: Count = 4
    length: Count = 40
    vocabulary_size: Count = 1000
    steps: Count = 600
    batch_size: Count = 32
    learning_rate: Positive = 2e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ConfigError(
                "pretraining.heads does not divide pretraining.width",
                expected=f"a divisor of {self.width}",
                got=str(self.heads),
                remedy="leave them out for their defaults",
            )


def pretrained(
    settings: Pretraining | None = None, *, cache: str | os.PathLike[str] | None = None
) -> tuple[TinyGPT, WordVocabulary]:
    """The tiny GPT trained on `docs`, and its vocabulary: shipped, cached, or trained now.

    A cached file is used only for the same settings, corpus and version of torch; a damaged one is
    replaced. `cache`: a folder (default: fedaudit's cache).
    """
    wanted = settings or Pretraining()
    model, vocabulary, texts = _initial(wanted)
    corpus = _hash(texts)
    if _load_shipped(model, wanted, corpus):
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
            pass  # damaged, or of another shape: replaced below
    _pretrain(model, vocabulary, texts, wanted)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as beside:
            whole = Path(beside) / "model.safetensors"
            save_file(model.state_dict(), whole, metadata={"settings": about})
            os.replace(whole, path)  # the final name appears only when the file is complete
    except OSError as error:
        raise DataError(
            "the pretrained model cannot be cached",
            expected=f"a writable folder: {folder}",
            got=str(error),
            remedy="set FEDAUDIT_CACHE to another folder",
        ) from None
    return model, vocabulary


def _initial(wanted: Pretraining) -> tuple[TinyGPT, WordVocabulary, tuple[str, ...]]:
    """The initial model, its vocabulary, and the texts of `docs`."""
    texts = load("docs", seed=Seed(wanted.seed)).x
    assert isinstance(texts, tuple)
    vocabulary = WordVocabulary.build(texts, size=wanted.vocabulary_size)
    shape = (wanted.length, wanted.width, wanted.depth, wanted.heads)
    model = seeded(Seed(wanted.seed), "weights", TinyGPT, len(vocabulary), *shape)
    assert isinstance(model, TinyGPT)
    return model, vocabulary, texts


def _hash(texts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _load_shipped(model: TinyGPT, wanted: Pretraining, corpus: str) -> bool:
    """Load shipped weights for these settings and this corpus; False if there are none."""
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
    """Train a model and store it in the package: matrices as bytes with a scale per row."""
    model, vocabulary, texts = _initial(wanted)
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
    ship(Pretraining(width=64, depth=2))  # the model of the default run
