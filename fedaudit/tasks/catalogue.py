"""The tasks a config can name: each a frozen settings object that builds a Task for a dataset."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedaudit import foreign
from fedaudit.data.dataset import Dataset
from fedaudit.errors import ConfigError, DataError
from fedaudit.randomness import Seed

if TYPE_CHECKING:
    from torch import nn

    from fedaudit.tasks.classifier import Classifier
    from fedaudit.tasks.language_model import Vocabulary
    from fedaudit.tasks.task import Task


FACTORY = "a function without arguments that returns a torch.nn.Module"


def _numbers(dataset: Dataset, kind: str) -> tuple[int, ...]:
    """Shape of one example; refuses text."""
    if isinstance(dataset.x, tuple):
        raise DataError(
            f"task {kind!r} cannot read dataset {dataset.name!r}",
            expected="features or images",
            got="text",
            remedy='use task.kind = "gpt"',
        )
    return tuple(int(s) for s in dataset.x.shape[1:])


def _image(dataset: Dataset, kind: str) -> tuple[int, int, int]:
    shape = _numbers(dataset, kind)
    if len(shape) != 3:
        raise DataError(
            f"task {kind!r} needs images",
            expected="records of shape (channels, height, width)",
            got=f"records of shape {shape}",
            remedy='use task.kind = "mlp"',
        )
    return shape[0], shape[1], shape[2]


def _classes(dataset: Dataset) -> int:
    return max(len(dataset.classes), int(dataset.y.max()) + 1)


def _positive(**settings: int | tuple[int, ...]) -> None:
    for name, value in settings.items():
        if min(value if isinstance(value, tuple) else (value,), default=1) < 1:
            raise ConfigError(
                f"task.{name} is too small",
                expected="at least 1",
                got=str(value),
                remedy="give a larger number",
            )


def _divides(heads: int, width: int) -> None:
    if width % heads:
        raise ConfigError(
            "task.heads does not divide task.width",
            expected=f"a divisor of {width}",
            got=str(heads),
            remedy="choose a width that is a multiple of the heads",
        )


def _documents(dataset: Dataset, kind: str) -> tuple[str, ...]:
    if not isinstance(dataset.x, tuple):
        raise DataError(
            f"task {kind!r} needs text",
            expected="documents",
            got=dataset.kind,
            remedy='use task.kind = "mlp" or "cnn"',
        )
    return dataset.x


Activation = Literal["relu", "gelu", "tanh", "silu"]


@dataclass(frozen=True, kw_only=True)
class MLP:
    """Fully connected classifier. All activations but `relu` are smooth."""

    kind: ClassVar[str] = "mlp"
    hidden: tuple[int, ...] = (128,)
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        _positive(hidden=self.hidden)

    def build(self, dataset: Dataset, seed: Seed) -> Task:
        from fedaudit.tasks import models
        from fedaudit.tasks.classifier import Classifier
        from fedaudit.tasks.task import seeded

        inputs = math.prod(_numbers(dataset, self.kind))
        module = seeded(
            seed, "weights", models.mlp, inputs, self.hidden, _classes(dataset), self.activation
        )
        return Classifier(module, {"kind": self.kind, **asdict(self)})


@dataclass(frozen=True, kw_only=True)
class CNN:
    """Convolutional classifier with group normalisation."""

    kind: ClassVar[str] = "cnn"
    channels: tuple[int, ...] = (16, 32)

    def __post_init__(self) -> None:
        _positive(channels=self.channels)

    def build(self, dataset: Dataset, seed: Seed) -> Task:
        from fedaudit.tasks import models
        from fedaudit.tasks.classifier import Classifier
        from fedaudit.tasks.task import seeded

        shape = _image(dataset, self.kind)
        if min(shape[1:]) < 2 ** len(self.channels):
            raise ConfigError(
                "task.channels has too many stages for these images",
                expected=f"sides of at least {2 ** len(self.channels)} pixels",
                got=f"{shape[1]} x {shape[2]}",
                remedy="list fewer channels",
            )
        module = seeded(seed, "weights", models.cnn, shape, self.channels, _classes(dataset))
        return Classifier(module, {"kind": self.kind, **asdict(self)})


@dataclass(frozen=True, kw_only=True)
class ViT:
    """Tiny vision transformer."""

    kind: ClassVar[str] = "vit"
    patch: int = 4
    width: int = 64
    depth: int = 2
    heads: int = 4

    def __post_init__(self) -> None:
        _positive(patch=self.patch, width=self.width, depth=self.depth, heads=self.heads)
        _divides(self.heads, self.width)

    def build(self, dataset: Dataset, seed: Seed) -> Task:
        from fedaudit.tasks import models
        from fedaudit.tasks.classifier import Classifier
        from fedaudit.tasks.task import seeded

        shape = _image(dataset, self.kind)
        if shape[1] % self.patch or shape[2] % self.patch:
            raise ConfigError(
                "task.patch does not divide the images",
                expected=f"a divisor of {shape[1]} and {shape[2]}",
                got=str(self.patch),
                remedy="choose another patch size",
            )
        module = seeded(
            seed,
            "weights",
            models.TinyViT,
            shape,
            self.patch,
            self.width,
            self.depth,
            self.heads,
            _classes(dataset),
        )
        return Classifier(module, {"kind": self.kind, **asdict(self)})


@dataclass(frozen=True, kw_only=True)
class VAE:
    """Variational autoencoder, fully connected (`channels` empty) or convolutional.

    `published` is the convolutional one of [TwoStage] Section 6.2: its layers are given, and
    smooth. All activations but `relu` are smooth.
    """

    kind: ClassVar[str] = "vae"
    hidden: int = 128
    latent: int = 16
    channels: tuple[int, ...] = ()
    conditional: bool = True
    activation: Activation = "relu"
    published: bool = False

    def __post_init__(self) -> None:
        _positive(hidden=self.hidden, latent=self.latent, channels=self.channels)
        if self.published and (self.hidden, self.channels, self.activation) != (128, (), "relu"):
            raise ConfigError(
                "task.published fixes the layers",
                expected="neither task.hidden, task.channels nor task.activation beside it",
                got=f"hidden {self.hidden}, channels {self.channels}, {self.activation}",
                remedy="leave them out, or set task.published = false",
            )

    def build(self, dataset: Dataset, seed: Seed) -> Task:
        from fedaudit.tasks import models
        from fedaudit.tasks.task import seeded
        from fedaudit.tasks.vae import Autoencoder

        classes = _classes(dataset) if self.conditional else 0
        sizes = (self.latent, classes)
        if self.published:
            shape = self._halved(dataset, 2)
            module = seeded(seed, "weights", models.published_vae, shape, *sizes)
        elif self.channels:
            shape = self._halved(dataset, len(self.channels))
            module = seeded(
                seed, "weights", models.conv_vae, shape, self.channels, *sizes, self.activation
            )
        else:
            inputs = math.prod(_numbers(dataset, self.kind))
            module = seeded(
                seed, "weights", models.mlp_vae, inputs, self.hidden, *sizes, self.activation
            )
        return Autoencoder(module, {"kind": self.kind, **asdict(self)})

    def _halved(self, dataset: Dataset, stages: int) -> tuple[int, int, int]:
        """Shape of images whose sides can be halved so many times."""
        shape = _image(dataset, self.kind)
        if any(s % 2**stages for s in shape[1:]):
            raise ConfigError(
                f"task.{'published' if self.published else 'channels'} has too many stages for "
                "these images",
                expected=f"sides that divide by {2**stages}",
                got=f"{shape[1]} x {shape[2]}",
                remedy="use other images" if self.published else "list fewer channels",
            )
        return shape


@dataclass(frozen=True, kw_only=True)
class GPT:
    """Tiny GPT language model with a vocabulary of its own, built from the corpus."""

    kind: ClassVar[str] = "gpt"
    width: int = 128
    depth: int = 4
    heads: int = 4
    length: int = 40
    vocabulary: Literal["word", "bytes"] = "word"
    vocabulary_size: int = 1000

    def __post_init__(self) -> None:
        _positive(width=self.width, depth=self.depth, heads=self.heads, length=self.length)
        _divides(self.heads, self.width)

    def build(self, dataset: Dataset, seed: Seed) -> Task:
        from fedaudit.data import text
        from fedaudit.tasks import models
        from fedaudit.tasks.language_model import LanguageModel
        from fedaudit.tasks.task import seeded

        documents = _documents(dataset, self.kind)
        vocabulary: Vocabulary
        if self.vocabulary == "word":
            vocabulary = text.WordVocabulary.build(documents, size=self.vocabulary_size)
        else:
            merges = max(0, self.vocabulary_size - 256)  # the bytes themselves come first
            vocabulary = text.BytePairVocabulary.build(documents, merges=merges)
        module = seeded(
            seed,
            "weights",
            models.TinyGPT,
            len(vocabulary),
            self.length,
            self.width,
            self.depth,
            self.heads,
        )
        return LanguageModel(module, vocabulary, self.length, {"kind": self.kind, **asdict(self)})


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """Low-rank adapters on a frozen language model: the built-in tiny GPT, which is trained on
    `docs` once and kept in the cache, or `model`, a folder in Hugging Face's format.

    `aggregation`: "fedit" sends A and B, which the server averages; "flora" sends dense products
    B A, which a secure sum can carry, and lets clients differ in rank (`ranks`, one per client).
    Adapters add (alpha / rank) B A; alpha = 0 stands for 2 * rank. `targets` are shell patterns
    over linear layers, or "all-linear": all but the output layer. `width` to `pretraining_steps`
    shape the built-in model; `length` is the window of either.
    """

    kind: ClassVar[str] = "lora"
    rank: int = 8
    alpha: float = 0.0
    targets: tuple[str, ...] = ("all-linear",)
    aggregation: Literal["fedit", "flora"] = "fedit"
    ranks: tuple[int, ...] = ()
    model: str = ""
    length: int = 40
    width: int = 128
    depth: int = 4
    heads: int = 4
    vocabulary_size: int = 1000
    pretraining_steps: int = 600

    def __post_init__(self) -> None:
        _positive(rank=self.rank, ranks=self.ranks, length=self.length)
        _positive(width=self.width, depth=self.depth, heads=self.heads)
        _positive(pretraining_steps=self.pretraining_steps)
        _divides(self.heads, self.width)
        if self.alpha < 0:
            raise ConfigError(
                "task.alpha is too small",
                expected="above 0, or 0 for 2 * rank",
                got=f"{self.alpha:g}",
                remedy="leave it out",
            )
        if self.aggregation == "fedit" and len({*self.ranks}) > 1:
            raise ConfigError(
                "adapters of unequal rank cannot be averaged",
                expected='one rank for all clients with task.aggregation = "fedit"',
                got=f"task.ranks from {min(self.ranks)} to {max(self.ranks)}",
                remedy='set task.aggregation = "flora", or remove task.ranks',
            )
        if self.aggregation == "fedit" and self.ranks and self.ranks[0] != self.rank:
            raise ConfigError(
                "task.rank and task.ranks disagree",
                expected=f"task.rank = {self.ranks[0]}",
                got=str(self.rank),
                remedy="remove task.ranks",
            )

    @property
    def scale(self) -> float:
        """alpha / rank."""
        return (self.alpha or 2.0 * self.rank) / self.rank

    def build(self, dataset: Dataset, seed: Seed) -> Task:
        from fedaudit.tasks import lora, pretraining

        _documents(dataset, self.kind)
        base: nn.Module
        vocabulary: Vocabulary
        if self.model:
            base, vocabulary = lora.local_model(self.model)
        else:
            base, vocabulary = pretraining.pretrained(
                pretraining.Pretraining(
                    width=self.width,
                    depth=self.depth,
                    heads=self.heads,
                    length=self.length,
                    vocabulary_size=self.vocabulary_size,
                    steps=self.pretraining_steps,
                )
            )
        settings = {"kind": self.kind, **asdict(self)}
        if self.aggregation == "flora":
            return lora.DenseLoRA(
                base,
                vocabulary,
                self.length,
                rank=self.rank,
                scale=self.scale,
                targets=self.targets,
                seed=seed,
                ranks=self.ranks,
                settings=settings,
            )
        return lora.AdapterLoRA(
            base,
            vocabulary,
            self.length,
            rank=self.rank,
            scale=self.scale,
            targets=self.targets,
            seed=seed,
            settings=settings,
        )


@dataclass(frozen=True, kw_only=True)
class Module:
    """Any torch module: `factory = "package.module:function"` returns it; logits out."""

    kind: ClassVar[str] = "module"
    factory: str

    def build(self, dataset: Dataset, seed: Seed, *, logits: bool = True) -> Task:
        """`logits`: whether they must come out. Not where somebody's own function makes scores of
        the module (an autoencoder's, say), and nothing is trained with it."""
        from fedaudit.tasks.classifier import Classifier
        from fedaudit.tasks.task import seeded

        _numbers(dataset, self.kind)
        module = seeded(seed, "weights", build_own, self.factory)
        task = Classifier(module, {"kind": self.kind, **asdict(self)})
        if logits:
            self._try(task, dataset)
        return task

    def _try(self, task: Classifier, dataset: Dataset) -> None:
        """One forward pass before anything is recorded: logits for every class must come out."""
        import torch

        few = task.encode(dataset.take(range(min(2, len(dataset)))))
        expected = f"logits of shape ({len(few)}, {_classes(dataset)})"
        remedy = f"records are {tuple(few.x.shape[1:])}: see that the module takes (n, ...) of them"
        try:
            with torch.no_grad(), task.evaluating():
                out = task.output(task.named(task.initial()), few.x, few.y, None)
        except Exception as error:  # whatever foreign code raises
            raise ConfigError(
                f"the model of {self.factory!r} cannot read dataset {dataset.name!r}",
                expected=expected,
                got=foreign.describe_error(error),
                remedy=remedy,
            ) from error
        shape = tuple(getattr(out, "shape", ()))
        if len(shape) != 2 or shape[0] != len(few) or shape[1] < _classes(dataset):
            raise ConfigError(
                f"the model of {self.factory!r} does not fit dataset {dataset.name!r}",
                expected=expected,
                got=f"{type(out).__name__} of shape {shape}",
                remedy=f"{remedy}; a trained model that gives no logits (an autoencoder) is "
                "audited with a score of your own: "
                "--set audits.two_stage_membership.score_by=mymodel:score",
            )


def load_factory(where: str) -> Callable[..., object]:
    """The function that `package.module:function` names, looked up from the working folder too."""
    return foreign.load_function(where, expected=FACTORY, example='"mymodel:build"')


def build_own(where: str) -> nn.Module:
    """The module that a factory of the user's own returns."""
    from torch import nn

    module = foreign.call(where, load_factory(where), expected=FACTORY)
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"{where!r} builds no model",
            expected="a torch.nn.Module",
            got=type(module).__name__,
            remedy="return the module, not its class or its outputs",
        )
    return module


CATALOGUE = {c.kind: c for c in (MLP, CNN, ViT, VAE, GPT, LoRA, Module)}
