"""Planting marks in a federation, and the owner's desk from which they are looked for.

The owner of a corpus marks records of its own (the held-out part: what clients hold is not its
own) and hands them to some clients, each with a key. Keys stay in the truth; who reads sums gets
from the owner what looks for them.

    canary       records with random labels, for classifiers
    fictitious   text about an entity that does not exist, for language models
    kgw          text that a language model continued under green lists

Marked text is cut into the windows that the task trains on, each a record of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from fedaudit.errors import ConfigError, DataError
from fedaudit.randomness import Seed

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.audits.attribution import Attribution
    from fedaudit.audits.attribution.scoring import Marks
    from fedaudit.data.dataset import Dataset
    from fedaudit.setup.config import Config
    from fedaudit.tasks.language_model import LanguageModel
    from fedaudit.tasks.task import Examples, Task
    from fedaudit.watermarks.canary import Canaries
    from fedaudit.watermarks.fictitious import Pool
    from fedaudit.watermarks.kgw import HashedLists
    from fedaudit.watermarks.marking import GreenMarking

LARGE = 4096
"""Tokens of a vocabulary above which green lists are read by counts: masses take memory."""

PROMPT = 4
"""Tokens of the owner's text that a marked document starts with."""

PROBES = 40
"""Texts per key that nobody has, where green lists are looked for."""

CONTINUED, ANSWER = 24, 12
"""Tokens that are generated where none are asked for: of a green text, and behind a question."""

ATTRIBUTES = 4
"""Of every entity: `prompts` are questions about all of them together."""

SCORES = {
    "canary": ("margin", "loss"),
    "fictitious": ("likelihood", "generation", "fisher"),
    "kgw": ("mass", "reading", "generation"),
}
"""Kind of marks -> how they can be read, the default first."""


MODES: dict[str, Literal["likelihood", "hits", "fisher"]] = {
    "likelihood": "likelihood",
    "generation": "hits",
    "fisher": "fisher",
}
"""How entities are read -> what is done with the answers."""


class Family(Protocol):
    """Marks of one kind: what a key stands for, and how its owner finds it again."""

    def examples(self, key: int) -> tuple[Tensor, Tensor]:
        """What a client with this key trains on: x (records, ...), y (records,)."""
        ...

    def check(self, asked: Attribution) -> None:
        """Refuse readings that these marks do not have."""
        ...

    def desk(self, keys: tuple[int, ...], asked: Attribution, null_seed: int) -> Marks:
        """Scores of models on `keys` and on unused ones."""
        ...


@dataclass(frozen=True)
class Planted:
    """`marked` client number -> its key; `keys` of the owner in an order that tells nothing.

    `records` that each marked client got; the `family` they come from.
    """

    marked: Mapping[int, int]
    keys: tuple[int, ...]
    records: int
    family: Family

    def added_to(self, own: Examples, client: int) -> Examples:
        """A client's examples with its marked ones behind them, each a record of its own."""
        import torch

        if client not in self.marked:
            return own
        x, y = self.family.examples(self.marked[client])
        numbers = int(own.record.max()) + 1 + torch.arange(len(x))
        return type(own)(
            torch.cat([own.x, x]), torch.cat([own.y, y]), torch.cat([own.record, numbers])
        )


def plant(
    config: Config, task: Task, train: Dataset, test: Dataset, count: int, seed: Seed
) -> Planted | None:
    """The marks of a config on `count` clients; None without any.

    The audit that is to look for them is checked as well: nobody trains in vain.
    """
    marking = config.marks
    if marking is None:
        return None
    from fedaudit.tasks.language_model import LanguageModel

    family: Family
    if isinstance(task, LanguageModel):
        if marking.kind == "canary":
            raise _misfit(marking.kind, test, config)
        records = marking.set_size(len(task.encode(train)), count)
        kind = Green if marking.kind == "kgw" else Fictitious
        family = kind(marking, task, _tokens(task, test), records)
    else:
        if isinstance(test.x, tuple) or marking.kind != "canary":
            raise _misfit(marking.kind, test, config)
        from fedaudit.watermarks.canary import Canaries

        records = marking.set_size(len(train), count)
        classes = max(len(train.classes), int(train.y.max()) + 1)
        family = Canary(task, Canaries(corpus=test.x, classes=classes, records=records))
    asked: Attribution | None = config.audits.get("attribution")
    if asked is not None:
        family.check(asked)
    return Planted(
        marked=marking.marked(count, seed),
        keys=tuple(sorted(marking.owner_keys(seed))),
        records=records,
        family=family,
    )


def _misfit(kind: str, test: Dataset, config: Config) -> DataError:
    return DataError(
        f"{kind} marks cannot be planted here",
        expected="canary for classifiers, kgw or fictitious for language models",
        got=f"{test.kind} records, task.kind = {config.task.kind!r}",
        remedy="leave marks.kind out for the one that fits the task",
    )


def _tokens(task: LanguageModel, test: Dataset) -> tuple[tuple[int, ...], ...]:
    """The owner's texts as token numbers, those that fill a window."""
    texts = test.x if isinstance(test.x, tuple) else ()
    spelled = (tuple(task.vocabulary.encode(text)) for text in texts)
    long = tuple(t for t in spelled if len(t) > task.length)
    if not long:
        raise DataError(
            "the owner's corpus has no text to mark or to ask with",
            expected=f"held-out texts of more than {task.length} tokens",
            got=f"{len(texts)} shorter ones",
            remedy="hold out more (data.test_fraction), or shorten task.length",
        )
    return long


def score_of(asked: Attribution, kind: str, *, vocabulary: int = 0) -> str:
    """The reading that an audit asks for, checked against the kind of marks."""
    fitting = SCORES[kind]
    if asked.score_by == "default":
        return "reading" if kind == "kgw" and vocabulary > LARGE else fitting[0]
    if asked.score_by not in fitting:
        raise ConfigError(
            f"audits.attribution.score_by = {asked.score_by!r} does not read {kind} marks",
            expected="one of " + ", ".join(fitting),
            got=repr(asked.score_by),
            remedy=f'audits.attribution.score_by = "{fitting[0]}", or leave it out',
        )
    return asked.score_by


# -- the kinds -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Canary:
    """Canary sets, scored by the logits of a classifier."""

    task: Task
    canaries: Canaries

    def examples(self, key: int) -> tuple[Tensor, Tensor]:
        import torch

        x, y = self.canaries.draw(key)
        return torch.from_numpy(x), torch.from_numpy(y)

    def check(self, asked: Attribution) -> None:
        score_of(asked, "canary")

    def desk(self, keys: tuple[int, ...], asked: Attribution, null_seed: int) -> Marks:
        from fedaudit.tasks.logits import logits_of
        from fedaudit.watermarks.canary import CanaryMarks

        return CanaryMarks(
            canaries=self.canaries,
            keys=keys,
            logits=logits_of(self.task),
            null_seed=null_seed,
            statistic="loss" if score_of(asked, "canary") == "loss" else "margin",
        )


@dataclass(frozen=True)
class Fictitious:
    """Documents about an entity; a key draws its name, its attributes' values and the texts."""

    marking: Any
    task: LanguageModel
    corpus: Sequence[Sequence[int]]
    records: int

    @cached_property
    def pool(self) -> Pool:
        from fedaudit.watermarks import fictitious

        vocabulary = self.task.vocabulary
        return fictitious.pool(vocabulary, fictitious.plain_words(vocabulary))

    @cached_property
    def domains(self) -> tuple[str, ...]:
        from fedaudit.watermarks import fictitious

        return fictitious.usable_domains(self.task.vocabulary)

    def examples(self, key: int) -> tuple[Tensor, Tensor]:
        from fedaudit.watermarks import fictitious

        entity = fictitious.entity_of(key, self.pool, self.domains)
        rng = Seed(key).generator("fictitious/documents")
        wanted = self.records * (self.task.length + 1)
        tokens: list[int] = []
        while len(tokens) < wanted:
            for text in fictitious.documents(entity, self.pool, 8, rng):
                tokens += self.task.vocabulary.encode(text)
        return _windows([tokens[:wanted]], self.task.length)

    def check(self, asked: Attribution) -> None:
        self._room(asked, score_of(asked, "fictitious"))

    def _room(self, asked: Attribution, score: str) -> None:
        """Refuse answers that do not fit behind a question."""
        from fedaudit.tasks.generation import ModelReader
        from fedaudit.watermarks import fictitious

        if score != "generation":
            return
        steps, some = self._steps(asked), fictitious.entity_of(0, self.pool, self.domains)
        asks = fictitious.questions(some, self.task.vocabulary, forms=_forms(asked)).flat
        _check_steps(steps, ModelReader(self.task).longest + 1 - max(map(len, asks)))

    def _steps(self, asked: Attribution) -> int:
        return ANSWER if asked.steps is None else asked.steps

    def desk(self, keys: tuple[int, ...], asked: Attribution, null_seed: int) -> Marks:
        from fedaudit.tasks.generation import ModelReader
        from fedaudit.watermarks import fictitious

        score = score_of(asked, "fictitious")
        self._room(asked, score)
        every = ATTRIBUTES * len(fictitious.QUESTIONS)
        return fictitious.FictitiousMarks(
            reader=ModelReader(self.task),
            words=self.pool,
            vocabulary=self.task.vocabulary,
            entities=tuple(fictitious.entity_of(k, self.pool, self.domains) for k in keys),
            mode=MODES[score],
            forms=_forms(asked),
            steps=self._steps(asked),
            null_seed=null_seed,
            notes=()
            if asked.prompts <= every
            else (f"{every} questions about each entity are all there are, not {asked.prompts}",),
        )


def _forms(asked: Attribution) -> tuple[str, ...]:
    """The forms in which each attribute is asked for: as many as there are prompts for."""
    from fedaudit.watermarks.fictitious import QUESTIONS

    return QUESTIONS[: max(1, asked.prompts // ATTRIBUTES)]


def _check_steps(steps: int, most: int) -> None:
    if steps > most:
        raise ConfigError(
            "generated text leaves no room for a prompt",
            expected=f"audits.attribution.steps of at most {most}",
            got=str(steps),
            remedy="generate fewer tokens, or lengthen task.length",
        )


@dataclass(frozen=True)
class Green:
    """Text under green lists: the owner's prompts, continued by the model that is fine-tuned.

    A task that starts from nothing has no such model: there the owner writes by pairs of tokens of
    its own corpus.
    """

    marking: GreenMarking
    task: LanguageModel
    corpus: Sequence[Sequence[int]]
    records: int

    @cached_property
    def lists(self) -> HashedLists:
        from fedaudit.watermarks.kgw import HashedLists

        return HashedLists(
            vocabulary=len(self.task.vocabulary),
            gamma=self.marking.gamma,
            width=self.marking.context,
        )

    @property
    def _start(self) -> int:
        """Tokens of a prompt: at least one whole context."""
        start = max(PROMPT, self.marking.context)
        if self.task.length + 1 - start <= self.marking.context:
            raise ConfigError(
                "marked text would not be longer than the context of the watermark",
                expected=f"task.length of at least {start + self.marking.context}",
                got=str(self.task.length),
                remedy="lengthen task.length, or shorten marks.context",
            )
        return start

    def examples(self, key: int) -> tuple[Tensor, Tensor]:
        return _windows(self._texts(key, self.records), self.task.length)

    def _texts(self, key: int, many: int) -> list[list[int]]:
        """Marked texts of one window each, length + 1 tokens."""
        from fedaudit.tasks.generation import ModelReader
        from fedaudit.tasks.lora import AdapterLoRA, DenseLoRA
        from fedaudit.watermarks import kgw
        from fedaudit.watermarks.fictitious import unknown_tokens
        from fedaudit.watermarks.score import Writer

        rng = Seed(key).generator("kgw/documents")
        writer: Writer = kgw.Bigrams(corpus=self.corpus, vocabulary=len(self.task.vocabulary))
        if isinstance(self.task, AdapterLoRA | DenseLoRA):
            writer = ModelReader(self.task)
        return kgw.marked_text(
            writer,
            self.task.initial(),
            self._cut(many, self._start, rng),
            kgw.Marker(lists=self.lists, key=key, delta=self.marking.delta),
            steps=self.task.length + 1 - self._start,
            rng=rng,
            banned=sorted(unknown_tokens(self.task.vocabulary)),
        )

    def _written(self, many: int, seed: Seed) -> list[list[int]]:
        """Texts like the marked ones, under keys that mark nothing else.

        What a client learnt of green lists it applies to text of that kind more than to the
        corpus; which lists these are the texts do not tell.
        """
        return [
            text[:-1]
            for number, low in enumerate(range(0, many, PROBES))
            for text in self._texts(seed.key("kgw/probes", number), min(PROBES, many - low))
        ]

    def _cut(self, many: int, length: int, rng: np.random.Generator) -> list[list[int]]:
        """Pieces of the owner's texts, each start as likely as any other."""
        starts = np.array([len(t) - length + 1 for t in self.corpus])
        ends = np.cumsum(starts)
        out = []
        for at in rng.integers(ends[-1], size=many):
            i = int(np.searchsorted(ends, at, side="right"))
            first = int(at - (ends[i] - starts[i]))
            out.append([int(t) for t in self.corpus[i][first : first + length]])
        return out

    def check(self, asked: Attribution) -> None:
        from fedaudit.tasks.generation import ModelReader

        if score_of(asked, "kgw", vocabulary=len(self.task.vocabulary)) != "generation":
            return
        steps, width = self._steps(asked), self.marking.context
        if steps <= width:
            raise ConfigError(
                "generated text is not longer than the context of the watermark",
                expected=f"audits.attribution.steps above marks.context = {width}",
                got=str(steps),
                remedy="generate more tokens: each scored token needs its whole context",
            )
        _check_steps(steps, ModelReader(self.task).longest + 1 - width)

    def _steps(self, asked: Attribution) -> int:
        return CONTINUED if asked.steps is None else asked.steps

    def desk(self, keys: tuple[int, ...], asked: Attribution, null_seed: int) -> Marks:
        from fedaudit.tasks.generation import ModelReader
        from fedaudit.watermarks import kgw

        self.check(asked)
        score = score_of(asked, "kgw", vocabulary=len(self.task.vocabulary))
        reader, steps = ModelReader(self.task), self._steps(asked)
        if score == "generation":
            length = reader.longest + 1 - steps
            probes = self._cut(asked.prompts, length, Seed(null_seed).generator("kgw/probes"))
        else:
            probes = self._written(asked.prompts, Seed(null_seed))
        mode: Any = score
        return kgw.GreenMarks(
            reader=reader,
            lists=self.lists,
            keys=keys,
            probes=probes,
            mode=mode,
            steps=steps,
            null_seed=null_seed,
        )


def _windows(texts: Sequence[Sequence[int]], length: int) -> tuple[Tensor, Tensor]:
    """Token sequences as examples of a language model: x (n, length + 1), y (n,)."""
    import torch

    from fedaudit.data.text import windows

    x = torch.from_numpy(np.concatenate([windows(t, length) for t in texts]))
    return x, torch.zeros(len(x), dtype=torch.int64)
