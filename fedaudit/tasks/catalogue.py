"""The tasks of a config: each is a frozen settings object that builds a Task for a dataset."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from fedaudit import foreign
from fedaudit.data import text
from fedaudit.data.dataset import Dataset
from fedaudit.errors import ConfigError, DataError
from fedaudit.randomness import Seed
from fedaudit.settings import Count, check, checked

if TYPE_CHECKING:
    from torch import nn

    from fedaudit.layout import Layout
    from fedaudit.tasks.classifier import Classifier
    from fedaudit.tasks.language_model import Vocabulary
    from fedaudit.tasks.task import Task


FACTORY = "a function without arguments that returns a torch.nn.Module"


def _example_shape(dataset: Dataset, kind: str) -> tuple[int, ...]:
    """Shape of one example; refuses text."""
    from fedaudit.tasks.task import refuse_text

    refuse_text(dataset, f"task {kind!r}")
    assert not isinstance(dataset.x, tuple)
    return tuple(int(s) for s in dataset.x.shape[1:])


def _image_shape(dataset: Dataset, kind: str) -> tuple[int, int, int]:
    """(channels, height, width) of one image; refuses other records."""
    shape = _example_shape(dataset, kind)
    if len(shape) != 3:
        raise DataError(
            f"task {kind!r} needs images",
            expected="records of shape (channels, height, width)",
            got=f"records of shape {shape}",
            remedy='use task.kind = "mlp"',
        )
    return shape[0], shape[1], shape[2]


def _class_count(dataset: Dataset) -> int:
    return max(len(dataset.classes), int(dataset.y.max()) + 1)


def _classifier(
    made: Any, seed: Seed, build: Callable[..., nn.Module], *sizes: object
) -> Classifier:
    """A classifier with seeded weights, which keeps the settings that it was `made` of."""
    from fedaudit.tasks.classifier import Classifier
    from fedaudit.tasks.task import seeded

    module = seeded(seed, "weights", build, *sizes)
    return Classifier(module, {"kind": made.kind, **asdict(made)})


def _check_heads(heads: int, width: int) -> None:
    if width % heads:
        raise ConfigError(
            "task.heads does not divide task.width",
            expected=f"a divisor of {width}",
            got=str(heads),
            remedy="choose a width that is a multiple of the heads",
        )


def _documents(dataset: Dataset, kind: str) -> tuple[str, ...]:
    """The texts of a dataset; refuses other records."""
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
@checked("task")
class MLP:
    """Fully connected classifier. All activations except `relu` are smooth."""

    kind: ClassVar[str] = "mlp"
    hidden: tuple[Count, ...] = (128,)
    activation: Activation = "relu"

    def build(self, dataset: Dataset, seed: Seed) -> Task:
        from fedaudit.tasks import models

        inputs = math.prod(_example_shape(dataset, self.kind))
        sizes = (inputs, self.hidden, _class_count(dataset))
        return _classifier(self, seed, models.mlp, *sizes, self.activation)


@dataclass(frozen=True, kw_only=True)
@checked("task")
class CNN:
    """Convolutional classifier with group normalisation."""

    kind: ClassVar[str] = "cnn"
    channels: tuple[Count, ...] = (16, 32)

    def build(self, dataset: Dataset, seed: Seed) -> Task:
        from fedaudit.tasks import models

        shape = _image_shape(dataset, self.kind)
        if min(shape[1:]) < 2 ** len(self.channels):
            raise ConfigError(
                "task.channels has too many stages for these images",
                expected=f"sides of at least {2 ** len(self.channels)} pixels",
                got=f"{shape[1]} x {shape[2]}",
                remedy="list fewer channels",
            )
        return _classifier(self, seed, models.cnn, shape, self.channels, _class_count(dataset))


@dataclass(frozen=True, kw_only=True)
@checked("task")
class ViT:
    """Tiny vision transformer."""

    kind: ClassVar[str] = "vit"
    patch: Count = 4
    width: Count = 64
    depth: Count = 2
    heads: Count = 4

    def __post_init__(self) -> None:
        _check_heads(self.heads, self.width)

    def build(self, dataset: Dataset, seed: Seed) -> Task:
        from fedaudit.tasks import models

        shape = _image_shape(dataset, self.kind)
        if shape[1] % self.patch or shape[2] % self.patch:
            raise ConfigError(
                "task.patch does not divide the images",
                expected=f"a divisor of {shape[1]} and {shape[2]}",
                got=str(self.patch),
                remedy="choose another patch size",
            )
        sizes = (self.patch, self.width, self.depth, self.heads, _class_count(dataset))
        return _classifier(self, seed, models.TinyViT, shape, *sizes)


@dataclass(frozen=True, kw_only=True)
@checked("task")
class VAE:
    """Variational autoencoder, fully connected (`channels` empty) or convolutional.

    `published`: the convolutional autoencoder of [TwoStage] Section 6.2, with fixed, smooth layers.
    All activations except `relu` are smooth; the default is that of the published code.
    """

    kind: ClassVar[str] = "vae"
    hidden: Count = 128
    latent: Count = 16
    channels: tuple[Count, ...] = ()
    conditional: bool = True
    activation: Activation = "gelu"
    published: bool = False

    def __post_init__(self) -> None:
        if self.published and (self.hidden, self.channels, self.activation) != (128, (), "gelu"):
            raise ConfigError(
                "task.published fixes the layers",
                expected="no task.hidden, task.channels or task.activation beside it",
                got=f"hidden {self.hidden}, channels {self.channels}, {self.activation}",
                remedy="leave them out, or set task.published = false",
            )

    def build(self, dataset: Dataset, seed: Seed) -> Task:
        from fedaudit.tasks import models
        from fedaudit.tasks.task import seeded
        from fedaudit.tasks.vae import Autoencoder

        classes = _class_count(dataset) if self.conditional else 0
        sizes = (self.latent, classes)
        if self.published:
            shape = self._halvable_shape(dataset, 2)
            module = seeded(seed, "weights", models.published_vae, shape, *sizes)
        elif self.channels:
            shape = self._halvable_shape(dataset, len(self.channels))
            module = seeded(
                seed, "weights", models.conv_vae, shape, self.channels, *sizes, self.activation
            )
        else:
            inputs = math.prod(_example_shape(dataset, self.kind))
            module = seeded(
                seed, "weights", models.mlp_vae, inputs, self.hidden, *sizes, self.activation
            )
        return Autoencoder(module, {"kind": self.kind, **asdict(self)})

    def _halvable_shape(self, dataset: Dataset, stages: int) -> tuple[int, int, int]:
        """Shape of the images; refuses sides that cannot be halved `stages` times."""
        shape = _image_shape(dataset, self.kind)
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
@checked("task")
class GPT:
    """Tiny GPT language model with a vocabulary built from the corpus."""

    kind: ClassVar[str] = "gpt"
    width: Count = 128
    depth: Count = 4
    heads: Count = 4
    length: Count = 40
    vocabulary: Literal["word", "bytes"] = "word"
    vocabulary_size: int = 1000

    def __post_init__(self) -> None:
        _check_heads(self.heads, self.width)

    def build(self, dataset: Dataset, seed: Seed) -> Task:
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
        sizes = (len(vocabulary), self.length, self.width, self.depth, self.heads)
        module = seeded(seed, "weights", models.TinyGPT, *sizes)
        return LanguageModel(module, vocabulary, self.length, {"kind": self.kind, **asdict(self)})


@dataclass(frozen=True, kw_only=True)
@checked("task")
class LoRA:
    """Low-rank adapters on a frozen language model: the built-in tiny GPT, trained on `docs` once
    and cached, or `model`, a folder in Hugging Face's format.

    `aggregation`: "fedit" sends A and B, which the server averages; "flora" sends dense products
    B A, which a secure sum can carry, and allows different ranks (`ranks`, one per client).
    Adapters add (alpha / rank) B A; alpha = 0 means 2 * rank. `targets`: shell patterns over linear
    layers, or "all-linear": all except the output layer. `width` to `pretraining_steps` describe
    the built-in model; `length` is the window of either model.
    """

    kind: ClassVar[str] = "lora"
    rank: Count = 8
    alpha: Annotated[float, Ge(0), "0 means 2 * rank"] = 0.0
    targets: tuple[str, ...] = ("all-linear",)
    aggregation: Literal["fedit", "flora"] = "fedit"
    ranks: tuple[Count, ...] = ()
    model: str = ""
    length: Count = 40
    width: Count = 128
    depth: Count = 4
    heads: Count = 4
    vocabulary_size: int = 1000
    pretraining_steps: Count = 600

    def __post_init__(self) -> None:
        _check_heads(self.heads, self.width)
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
        shared: dict[str, Any] = {
            "rank": self.rank,
            "scale": self.scale,
            "targets": self.targets,
            "seed": seed,
            "settings": {"kind": self.kind, **asdict(self)},
        }
        if self.aggregation == "flora":
            return lora.DenseLoRA(base, vocabulary, self.length, ranks=self.ranks, **shared)
        return lora.AdapterLoRA(base, vocabulary, self.length, **shared)


@dataclass(frozen=True, kw_only=True)
class Module:
    """Any torch module that returns logits: `factory = "package.module:function"` builds it."""

    kind: ClassVar[str] = "module"
    factory: str

    def build(self, dataset: Dataset, seed: Seed, *, logits: bool = True) -> Task:
        """`logits`: whether the module must return logits. A module that is only scored, by a
        user's own function (an autoencoder, for example), need not."""
        _example_shape(dataset, self.kind)
        task = _classifier(self, seed, build_module, self.factory)
        if logits:
            self._check_logits(task, dataset)
        return task

    def _check_logits(self, task: Classifier, dataset: Dataset) -> None:
        """Raise unless one forward pass returns logits for every class."""
        import torch

        few = task.encode(dataset.take(range(min(2, len(dataset)))))
        expected = f"logits of shape ({len(few)}, {_class_count(dataset)})"
        remedy = f"records are {tuple(few.x.shape[1:])}: the module must take (n, ...) of them"
        try:
            with torch.no_grad(), task.evaluating():
                out = task.output(task.named(task.initial()), few.x, few.y, None)
        except Exception as error:  # user code may raise anything
            raise ConfigError(
                f"the model of {self.factory!r} cannot read dataset {dataset.name!r}",
                expected=expected,
                got=foreign.describe_error(error),
                remedy=remedy,
            ) from error
        shape = tuple(getattr(out, "shape", ()))
        if len(shape) != 2 or shape[0] != len(few) or shape[1] < _class_count(dataset):
            raise ConfigError(
                f"the model of {self.factory!r} does not fit dataset {dataset.name!r}",
                expected=expected,
                got=f"{type(out).__name__} of shape {shape}",
                remedy=f"{remedy}; to audit a trained model without logits (an autoencoder), give "
                "your own score: "
                'audits.two_stage_membership.score_by = "mymodel:score"',
            )


@dataclass(frozen=True, kw_only=True)
@checked("task")
class ScikitLearn:
    """A classifier of scikit-learn as a torch module: same arrays, same function, log loss.

    `hidden_layer_sizes` and `activation` are those of MLPClassifier.
    """

    kind: ClassVar[str] = "sklearn"
    estimator: Literal["LogisticRegression", "SGDClassifier", "MLPClassifier"] = (
        "LogisticRegression"
    )
    hidden_layer_sizes: tuple[Count, ...] = (100,)
    activation: Literal["relu", "tanh", "logistic", "identity"] = "relu"

    def build(self, dataset: Dataset, seed: Seed) -> Task:
        from fedaudit.tasks import scikit

        inputs, classes = math.prod(_example_shape(dataset, self.kind)), _class_count(dataset)
        if self.estimator == "MLPClassifier":
            sizes = (self.hidden_layer_sizes, classes, self.activation)
            return _classifier(self, seed, scikit.NetworkTwin, inputs, *sizes)
        return _classifier(self, seed, scikit.LinearTwin, inputs, classes)


SCIKIT = "sklearn:"
"""What a model of scikit-learn begins with where a model is named as text."""


def scikit_learn(where: str, layout: Layout | None = None) -> ScikitLearn:
    """The task that "sklearn:LogisticRegression" names, or with settings as scikit-learn has them:
    "sklearn:MLPClassifier(hidden_layer_sizes=(50,), activation='tanh')".

    `layout`: tensors of a recorded MLPClassifier, whose hidden sizes are used if none are named.
    """
    try:
        named = ast.parse(where.removeprefix(SCIKIT), mode="eval").body
        call = named if isinstance(named, ast.Call) else ast.Call(named, [], [])
        if not isinstance(call.func, ast.Name) or call.args:
            raise ValueError("a name, with settings by name")
        given = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ConfigError(
            f"{where!r} does not name a model of scikit-learn",
            expected="sklearn:NAME, or sklearn:NAME(setting=value)",
            got=repr(where),
            remedy="sklearn:LogisticRegression; sklearn:MLPClassifier(hidden_layer_sizes=(50,))",
        ) from None
    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}
    if layout is not None and call.func.id == "MLPClassifier":
        matrices = [e.shape for e in layout.entries if len(e.shape) == 2]
        settings.setdefault("hidden_layer_sizes", [shape[1] for shape in matrices[:-1]])
    return check(ScikitLearn, {"estimator": call.func.id, **settings}, f"model {where!r}")


def build_named(
    where: str, dataset: Dataset, *, layout: Layout | None = None, logits: bool = True
) -> Task:
    """The task of "package.module:function" or "sklearn:NAME" for a dataset; see `Module.build` and
    `scikit_learn` for `logits` and `layout`."""
    if where.startswith(SCIKIT):
        return scikit_learn(where, layout).build(dataset, Seed(0))
    return Module(factory=where).build(dataset, Seed(0), logits=logits)


def load_factory(where: str) -> Callable[..., object]:
    """Load the function `package.module:function`; also looks in the working folder."""
    if where.startswith(SCIKIT):
        raise ConfigError(
            f"{where!r} cannot be built here: its shape follows from records",
            expected=FACTORY,
            got="a model of scikit-learn, and no records",
            remedy='write it as a torch module and name that function, "mymodel:build"',
        )
    return foreign.load_function(where, expected=FACTORY, example='"mymodel:build"')


def build_module(where: str) -> nn.Module:
    """Call the user's factory `package.module:function` and return its module."""
    return as_module(where, foreign.call(where, load_factory(where), expected=FACTORY))


def as_module(where: str, module: object) -> nn.Module:
    """What a user's factory built, if it is a module."""
    from torch import nn

    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"{where!r} does not build a model",
            expected="a torch.nn.Module",
            got=type(module).__name__,
            remedy="return the module, not its class or its outputs",
        )
    return module


CATALOGUE = {c.kind: c for c in (MLP, CNN, ViT, VAE, GPT, LoRA, Module, ScikitLearn)}
