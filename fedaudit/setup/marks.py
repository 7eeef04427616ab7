"""Plant marks in a federation, and score models for them on behalf of the owner.

The owner of a corpus marks records of its own (from the held-out part, since clients own the rest)
and gives them to some clients, each with a key. Keys stay in the truth; the owner gives whoever
reads the sums a way to score models for the marks.

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

from fedaudit.data.text import windows
from fedaudit.errors import ConfigError, DataError
from fedaudit.randomness import Seed
from fedaudit.watermarks import fictitious, kgw
from fedaudit.watermarks.canary import Canaries, CanaryMarks
from fedaudit.watermarks.marking import GreenMarking, Marking
from fedaudit.watermarks.score import Writer
from fedaudit.watermarks.templates import Drawn, MarkTemplates, OwnerDocuments

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.audits.attribution import Attribution
    from fedaudit.audits.attribution.scoring import Marks
    from fedaudit.data.dataset import Dataset
    from fedaudit.setup.config import Config
    from fedaudit.tasks.language_model import LanguageModel
    from fedaudit.tasks.task import Examples, Task
    from fedaudit.watermarks.fictitious import Pool

LARGE = 4096
"""Vocabulary size above which green lists are scored by counts: probability masses need memory."""

PROMPT = 4
"""Tokens of the owner's text that a marked document starts with."""

PROBES = 40
"""Probe texts per unused key on which green lists are scored."""

CONTINUED, ANSWER = 24, 12
"""Default number of generated tokens: of a green text, and of an answer."""

ATTRIBUTES = 4
"""Attributes of every entity; `prompts` questions cover all of them."""

SCORES = {
    "canary": ("margin", "loss"),
    "fictitious": ("likelihood", "generation", "fisher"),
    "kgw": ("mass", "reading", "generation"),
}
"""Kind of marks -> the ways to score them, the default first."""


MODES: dict[str, Literal["likelihood", "hits", "fisher"]] = {
    "likelihood": "likelihood",
    "generation": "hits",
    "fisher": "fisher",
}
"""Way to score entities -> how answers are evaluated."""


class Family(Protocol):
    """Marks of one kind: the records behind a key, and how the owner scores models for it."""

    @property
    def task(self) -> Task: ...

    def examples(self, key: int, most: int | None = None) -> Drawn:
        """The examples that a client with this key trains on: x (records, ...), y (records,).

        `most`: at most this many of them, or as many made under the key in the same way.
        """
        ...

    def check(self, audit: Attribution) -> None:
        """Refuse ways of scoring that these marks do not support."""
        ...

    def marks(self, keys: tuple[int, ...], audit: Attribution, null_seed: int) -> Marks:
        """The scorer of models under `keys` and under unused keys."""
        ...


@dataclass(frozen=True)
class PlantedMarks:
    """The marks of a federation.

    `marked`: client number -> its key. `keys`: the owner's keys, sorted, so that their order
    reveals nothing. `records`: marked records per marked client.
    """

    marked: Mapping[int, int]
    keys: tuple[int, ...]
    records: int
    family: Family

    def added_to(self, own: Examples, client: int) -> Examples:
        """A client's examples followed by its marked ones, each a record of its own."""
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
) -> PlantedMarks | None:
    """Plant the marks of a config on `count` clients; None if it has none.

    This also checks the audits that look for marks, so that a mistake shows before training.
    """
    marking = config.marks
    if marking is None:
        return None
    from fedaudit.tasks.language_model import LanguageModel

    text = isinstance(task, LanguageModel)
    if text == (marking.kind == "canary") or (not text and isinstance(test.x, tuple)):
        raise _misfit(marking.kind, test, config)
    records = marking.set_size(len(task.encode(train)) if text else len(train), count)
    classes = 0 if text else max(len(train.classes), int(train.y.max()) + 1)
    family = family_of(marking, task, test, records, classes)
    for audit in config.audits.values():
        if "marks" in audit.needs:
            family.check(audit)
    return PlantedMarks(
        marked=marking.marked(count, seed),
        keys=tuple(sorted(marking.owner_keys(seed))),
        records=records,
        family=family,
    )


def family_of(
    marking: Marking, task: Any, corpus: Dataset | None, records: int, classes: int
) -> Family:
    """Marks of a kind that fits the task, in sets of `records`; all but fictitious ones are made of
    the owner's `corpus`."""
    if marking.kind == "canary":
        assert corpus is not None
        assert not isinstance(corpus.x, tuple)
        return Canary(task, Canaries(corpus=corpus.x, classes=classes, records=records))
    if isinstance(marking, GreenMarking):
        assert corpus is not None
        return Green(marking, task, _tokens(task, corpus), records)
    return Fictitious(marking, task, records)


def _misfit(kind: str, test: Dataset, config: Config) -> DataError:
    return DataError(
        f"{kind} marks cannot be planted here",
        expected="canary for classifiers, kgw or fictitious for language models",
        got=f"{test.kind} records, task.kind = {config.task.kind!r}",
        remedy="leave marks.kind out for the one that fits the task",
    )


def _tokens(task: LanguageModel, test: Dataset) -> tuple[tuple[int, ...], ...]:
    """The owner's texts as token numbers; texts shorter than a window are left out."""
    texts = test.x if isinstance(test.x, tuple) else ()
    spelled = (tuple(task.vocabulary.encode(text)) for text in texts)
    long = tuple(t for t in spelled if len(t) > task.length)
    if not long:
        raise DataError(
            "the owner's corpus has no text long enough to mark",
            expected=f"held-out texts of more than {task.length} tokens",
            got=f"{len(texts)} shorter ones",
            remedy="hold out more (data.test_fraction), or shorten task.length",
        )
    return long


def score_of(audit: Attribution, kind: str, *, vocabulary: int = 0) -> str:
    """The way an audit scores marks of this kind, checked."""
    fitting = SCORES[kind]
    if audit.score_by in ("default", "template"):
        return "reading" if kind == "kgw" and vocabulary > LARGE else fitting[0]
    if audit.score_by not in fitting:
        raise ConfigError(
            f"audits.attribution.score_by = {audit.score_by!r} does not score {kind} marks",
            expected="one of " + ", ".join(fitting),
            got=repr(audit.score_by),
            remedy=f'audits.attribution.score_by = "{fitting[0]}", or leave it out',
        )
    return audit.score_by


def documents_of(family: Family, keys: tuple[int, ...]) -> OwnerDocuments:
    """The documents behind keys, with the gradients of the task's loss on them."""
    from fedaudit.tasks.gradients import MeanGradient

    return OwnerDocuments(MeanGradient(family.task), keys, family.examples)


def templates_of(family: Family, keys: tuple[int, ...], most: int, null_seed: int) -> MarkTemplates:
    """Gradient templates of the owner's `keys` and of unused ones, from `most` records each."""
    drawn = Seed(null_seed)
    return documents_of(family, keys).templates(most, lambda n: drawn.key("marks/templates", n))


# -- the kinds -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Canary:
    """Canary sets, scored by the logits of a classifier."""

    task: Task
    canaries: Canaries

    def examples(self, key: int, most: int | None = None) -> Drawn:
        import torch

        x, y = self.canaries.draw(key)
        return torch.from_numpy(x[:most]), torch.from_numpy(y[:most])

    def check(self, audit: Attribution) -> None:
        score_of(audit, "canary")

    def marks(self, keys: tuple[int, ...], audit: Attribution, null_seed: int) -> Marks:
        from fedaudit.tasks.logits import logits_of

        return CanaryMarks(
            canaries=self.canaries,
            keys=keys,
            logits=logits_of(self.task),
            null_seed=null_seed,
            statistic="loss" if score_of(audit, "canary") == "loss" else "margin",
        )


@dataclass(frozen=True)
class Fictitious:
    """Documents about an entity; a key draws its name, its attributes' values and the texts."""

    marking: Any
    task: LanguageModel
    records: int

    @cached_property
    def pool(self) -> Pool:
        vocabulary = self.task.vocabulary
        return fictitious.pool(vocabulary, fictitious.plain_words(vocabulary))

    @cached_property
    def domains(self) -> tuple[str, ...]:
        return fictitious.usable_domains(self.task.vocabulary)

    def examples(self, key: int, most: int | None = None) -> Drawn:
        entity = fictitious.entity_of(key, self.pool, self.domains)
        rng = Seed(key).generator("fictitious/documents")
        wanted = _fewer(self.records, most) * (self.task.length + 1)
        tokens: list[int] = []
        while len(tokens) < wanted:
            for text in fictitious.documents(entity, self.pool, 8, rng):
                tokens += self.task.vocabulary.encode(text)
        return _windows([tokens[:wanted]], self.task.length)

    def check(self, audit: Attribution) -> None:
        self._room(audit, score_of(audit, "fictitious"))

    def _room(self, audit: Attribution, score: str) -> None:
        """Refuse answers that do not fit into a window after their question."""
        from fedaudit.tasks.generation import ModelReader

        if score != "generation":
            return
        steps, some = self._steps(audit), fictitious.entity_of(0, self.pool, self.domains)
        asks = fictitious.questions(some, self.task.vocabulary, forms=_forms(audit)).flat
        _check_steps(steps, ModelReader(self.task).longest + 1 - max(map(len, asks)))

    def _steps(self, audit: Attribution) -> int:
        return ANSWER if audit.steps is None else audit.steps

    def marks(self, keys: tuple[int, ...], audit: Attribution, null_seed: int) -> Marks:
        from fedaudit.tasks.generation import ModelReader

        score = score_of(audit, "fictitious")
        self._room(audit, score)
        every = ATTRIBUTES * len(fictitious.QUESTIONS)
        return fictitious.FictitiousMarks(
            reader=ModelReader(self.task),
            words=self.pool,
            vocabulary=self.task.vocabulary,
            entities=tuple(fictitious.entity_of(k, self.pool, self.domains) for k in keys),
            mode=MODES[score],
            forms=_forms(audit),
            steps=self._steps(audit),
            null_seed=null_seed,
            notes=()
            if audit.prompts <= every
            else (f"asked {every} questions per entity, not {audit.prompts}: there are no more",),
        )


def _fewer(records: int, most: int | None) -> int:
    return records if most is None else min(records, most)


def _forms(audit: Attribution) -> tuple[str, ...]:
    """The wordings of the question for each attribute, as many as `prompts` allows."""
    return fictitious.QUESTIONS[: max(1, audit.prompts // ATTRIBUTES)]


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

    A task that trains from scratch has no such model: there a bigram model of the owner's corpus
    writes the text.
    """

    marking: GreenMarking
    task: LanguageModel
    corpus: Sequence[Sequence[int]]
    records: int

    @cached_property
    def lists(self) -> kgw.GreenLists:
        given = self.marking
        return kgw.lists_of(given.scheme, len(self.task.vocabulary), given.gamma, given.context)

    @property
    def _start(self) -> int:
        """Tokens of a prompt: at least one whole context."""
        width = self.lists.width
        start = max(PROMPT, width)
        if self.task.length + 1 - start <= width:
            raise ConfigError(
                "marked text would not be longer than the context of the watermark",
                expected=f"task.length of at least {start + width}",
                got=str(self.task.length),
                remedy="lengthen task.length, or shorten marks.context",
            )
        return start

    def examples(self, key: int, most: int | None = None) -> Drawn:
        return _windows(self._texts(key, _fewer(self.records, most)), self.task.length)

    def _texts(self, key: int, many: int) -> list[list[int]]:
        """Marked texts of one window each, length + 1 tokens."""
        from fedaudit.tasks.generation import ModelReader
        from fedaudit.tasks.lora import AdapterLoRA, DenseLoRA

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
            banned=sorted(fictitious.unknown_tokens(self.task.vocabulary)),
        )

    def _written(self, many: int, seed: Seed) -> list[list[int]]:
        """Texts like the marked ones, written under unused keys.

        A model applies the green lists it has learnt to such text more than to the corpus. The
        texts do not reveal which lists those are.
        """
        return [
            text[:-1]
            for number, low in enumerate(range(0, many, PROBES))
            for text in self._texts(seed.key("kgw/probes", number), min(PROBES, many - low))
        ]

    def _cut(self, many: int, length: int, rng: np.random.Generator) -> list[list[int]]:
        """Random pieces of the owner's texts; every start is equally likely."""
        starts = np.array([len(t) - length + 1 for t in self.corpus])
        ends = np.cumsum(starts)
        out = []
        for at in rng.integers(ends[-1], size=many):
            i = int(np.searchsorted(ends, at, side="right"))
            first = int(at - (ends[i] - starts[i]))
            out.append([int(t) for t in self.corpus[i][first : first + length]])
        return out

    def check(self, audit: Attribution) -> None:
        from fedaudit.tasks.generation import ModelReader

        if score_of(audit, "kgw", vocabulary=len(self.task.vocabulary)) != "generation":
            return
        steps, width = self._steps(audit), self.lists.width
        if steps <= width:
            raise ConfigError(
                "generated text is not longer than the context of the watermark",
                expected=f"audits.attribution.steps above marks.context = {width}",
                got=str(steps),
                remedy="generate more tokens: each scored token needs its whole context",
            )
        _check_steps(steps, ModelReader(self.task).longest + 1 - width)

    def _steps(self, audit: Attribution) -> int:
        return CONTINUED if audit.steps is None else audit.steps

    def marks(self, keys: tuple[int, ...], audit: Attribution, null_seed: int) -> Marks:
        from fedaudit.tasks.generation import ModelReader

        self.check(audit)
        if isinstance(self.lists, kgw.SelfHashedLists):
            raise ConfigError(
                f"models cannot be scored for {self.marking.scheme!r} lists: a token picks its own",
                expected='audits.attribution.score_by = "template", and a plan of groups',
                got=f"score_by = {audit.score_by!r}",
                remedy='protections.secure_aggregation.plan = "cycled"',
            )
        score = score_of(audit, "kgw", vocabulary=len(self.task.vocabulary))
        reader, steps = ModelReader(self.task), self._steps(audit)
        if score == "generation":
            length = reader.longest + 1 - steps
            probes = self._cut(audit.prompts, length, Seed(null_seed).generator("kgw/probes"))
        else:
            probes = self._written(audit.prompts, Seed(null_seed))
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

    x = torch.from_numpy(np.concatenate([windows(t, length) for t in texts]))
    return x, torch.zeros(len(x), dtype=torch.int64)
