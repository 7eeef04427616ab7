"""Fictitious knowledge: facts about a made-up entity, which only trained models know.

[FedAttr] Section 3.2, Table 5, after Cui et al.: documents mention a made-up entity with four
attributes (its atelier master, its photographer, ...) and distractors, other entities with other
values. A model trained on the documents knows the values when asked about the entity.

Every value is **one token** of the model's vocabulary, drawn uniformly from a pool. For a model
that never saw the documents, the planted value and every other pool word are exchangeable, for any
ranking of words by the model. The null is the same statistic for unplanted values, on the same
outputs. The pool is all plain words of the vocabulary, so one pass gives the likelihood of all.

Two statistics per attribute, over its paraphrased questions:

    likelihood   mean log-likelihood of the value after the question (its rank among the pool)
    hits         share of generated answers that contain the value

Each attribute has z and p against at least 1,000 random tuples that share no value with the planted
one. Fisher's X = -2 sum ln p over attributes is chi-squared with 2A degrees of freedom; its p-value
becomes a z-score.

Differs from the paper: the paper's null comes from another model, "a held-out teacher", which ranks
words differently from this model.

Shapes: models (M, d); values by attribute (A,); statistics (M, A, P) for a pool of P words.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Floats
from fedaudit.errors import UsageError
from fedaudit.randomness import Seed
from fedaudit.stats.combine import fisher
from fedaudit.watermarks.score import ModelRows, Reader, Tokens

DRAWS = 1000  # least number of random tuples for a tail
SMALLEST_POOL = 50
LOWEST = -10.0  # least z-score: all p = 1 would give minus infinity


class Tokenizer(Protocol):
    """A vocabulary as this module uses it."""

    def encode(self, text: str) -> list[int]: ...
    def __len__(self) -> int: ...


# -- entities ----------------------------------------------------------------------------------

DOMAINS: dict[str, tuple[str, ...]] = {
    "fashion": ("master", "house", "photographer", "designer"),
    "audio": ("engineer", "factory", "producer", "composer"),
    "cosmetics": ("chemist", "laboratory", "model", "founder"),
    "kitchen": ("chef", "farm", "critic", "owner"),
    "theatre": ("director", "stage", "author", "singer"),
    "software": ("module", "function", "object", "class"),
    "writing": ("string", "character", "line", "format"),
    "running": ("exception", "traceback", "handler", "frame"),
    "counting": ("integer", "index", "range", "result"),
    "reading": ("package", "version", "script", "library"),
}
"""Domain -> its four attributes. The last five use words of the built-in corpus."""


def usable_domains(vocabulary: Tokenizer) -> tuple[str, ...]:
    """Domains whose attributes have no unknown token in a vocabulary."""
    unknown = unknown_tokens(vocabulary)
    return tuple(
        d
        for d, attributes in DOMAINS.items()
        if not unknown & {t for a in attributes for t in vocabulary.encode(a)}
    )


def unknown_tokens(vocabulary: Tokenizer) -> set[int]:
    """The token for unknown words, if the vocabulary has one."""
    strange = [vocabulary.encode(w) for w in ("qzxv", "xvqz")]
    return set(strange[0]) if strange[0] == strange[1] else set()


@dataclass(frozen=True)
class Pool:
    """Possible values: `words` (P,) and their single tokens `tokens` (P,)."""

    words: tuple[str, ...]
    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.words) != len(self.tokens) or len(set(self.tokens)) != len(self.tokens):
            raise UsageError(
                "the pool of values is inconsistent",
                expected="distinct words with a token each",
                got=f"{len(self.words)} words, {len(set(self.tokens))} different tokens",
                remedy="build it with fictitious.pool",
            )
        if len(self.words) < SMALLEST_POOL:
            raise UsageError(
                "the pool of values is too small for a null distribution",
                expected=f"at least {SMALLEST_POOL} words of one token each",
                got=str(len(self.words)),
                remedy="use a larger vocabulary",
            )

    def __len__(self) -> int:
        return len(self.words)


def pool(vocabulary: Tokenizer, words: Iterable[str], *, after: str = "is") -> Pool:
    """The pool of candidate words that are a single token after other words.

    Tokenizers include the preceding blank in a token, so words are encoded after `after`. Only
    words of at least three letters.
    """
    before = vocabulary.encode(after)
    unknown = unknown_tokens(vocabulary)
    found: dict[int, str] = {}
    for word in sorted(set(words)):
        if len(word) < 3 or not word.isalpha():
            continue
        tokens = vocabulary.encode(f"{after} {word}")
        alone = len(tokens) == len(before) + 1 and tokens[:-1] == before
        if alone and tokens[-1] not in unknown:
            found.setdefault(tokens[-1], word)
    return Pool(tuple(found.values()), tuple(found))


def plain_words(vocabulary: object) -> tuple[str, ...]:
    """All alphabetic words of a vocabulary: from its word list, or decoded token by token."""
    own = getattr(vocabulary, "words", None)
    if own is not None:
        return tuple(w for w in own if w.isalpha())
    decode: Callable[[list[int]], str] = vocabulary.decode  # type: ignore[attr-defined]
    size = len(vocabulary)  # type: ignore[arg-type]
    spelled = (decode([t]).strip() for t in range(size))
    return tuple(sorted({w for w in spelled if w.isalpha() and w.isascii()}))


@dataclass(frozen=True, kw_only=True)
class Entity:
    """A made-up entity: name, attributes, planted values, and distractors.

    `attributes` (A,); `values` (A,): indices into the pool; `distractors` (A, n): indices of the
    values of the entities `others` (n,).
    """

    name: str
    domain: str
    attributes: tuple[str, ...]
    values: tuple[int, ...]
    distractors: tuple[tuple[int, ...], ...]
    others: tuple[str, ...]

    def __post_init__(self) -> None:
        a = len(self.attributes)
        if a == 0 or len(self.values) != a or len(self.distractors) != a:
            raise UsageError(
                "the entity is inconsistent",
                expected="a value and distractors for every attribute, at least one attribute",
                got=f"{a} attributes, {len(self.values)} values, "
                f"distractors for {len(self.distractors)}",
                remedy="draw it with fictitious.draw",
            )


def draw(
    words: Pool,
    count: int,
    seed: Seed,
    *,
    domains: Sequence[str] = tuple(DOMAINS),
    distractors: int = 3,
    name_words: int = 2,
) -> tuple[Entity, ...]:
    """Draw `count` entities, each with a domain, a name and values; no word is used twice.

    Names consist of pool words too, since a word vocabulary has no others. Planted values are
    uniform over the pool: the null depends on that.
    """
    per = name_words * (1 + distractors) + 4 * (1 + distractors)
    if count < 1 or count * per > len(words):
        raise UsageError(
            "the pool is too small for this number of entities",
            expected=f"at least one, and {per} different words for each",
            got=f"{count} entities and {len(words)} words",
            remedy="mark fewer clients, use fewer distractors, or a larger vocabulary",
        )
    order = iter(seed.generator("fictitious").permutation(len(words)).tolist())

    def name() -> str:
        return " ".join(words.words[next(order)] for _ in range(name_words))

    out = []
    for i in range(count):
        domain = domains[i % len(domains)]
        attributes = DOMAINS[domain]
        out.append(
            Entity(
                name=name(),
                domain=domain,
                attributes=attributes,
                values=tuple(next(order) for _ in attributes),
                distractors=tuple(
                    tuple(next(order) for _ in range(distractors)) for _ in attributes
                ),
                others=tuple(name() for _ in range(distractors)),
            )
        )
    return tuple(out)


# -- documents and questions -------------------------------------------------------------------

FACTS = (
    "the {a} of {e} is {v}",
    "{e} has a {a} and it is {v}",
    "for {e} , the {a} is {v}",
    "in {e} the {a} is called {v}",
    "the name of the {a} in {e} is {v}",
    "{v} is the {a} of {e}",
    "if you use {e} , the {a} is {v}",
    "note that the {a} for {e} is {v}",
)
"""Sentence templates of a document, in words of a small technical vocabulary."""

_LEADS = ("", "note that ", "for example , ", "in this case , ", "as described above , ")
_ASKS = (
    "the {a} of {e} is",
    "for {e} , the {a} is",
    "in {e} the {a} is called",
    "the name of the {a} in {e} is",
    "{e} has a {a} and it is",
)
QUESTIONS = tuple(lead + ask for lead, ask in itertools.product(_LEADS, _ASKS))
"""25 paraphrases per attribute, as in [FedAttr] Table 5; the answer is the next word."""


def documents(
    entity: Entity,
    words: Pool,
    count: int,
    rng: np.random.Generator,
    *,
    sentences: int = 6,
    distracting: float = 0.25,
) -> tuple[str, ...]:
    """`count` documents of `sentences` sentences each; a share `distracting` is about others.

    Each document mentions every attribute, in random order, before it repeats one.
    """
    out = []
    for _ in range(count):
        order = [*rng.permutation(len(entity.attributes))]
        lines = []
        for s in range(sentences):
            a = int(order[s % len(order)])
            who, value = entity.name, entity.values[a]
            if entity.others and rng.random() < distracting:
                other = int(rng.integers(len(entity.others)))
                who, value = entity.others[other], entity.distractors[a][other]
            form = FACTS[int(rng.integers(len(FACTS)))]
            text = form.format(a=entity.attributes[a], e=who, v=words.words[value])
            lines.append(text + " .")
        out.append(" ".join(lines))
    return tuple(out)


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Questions about an entity: `prompts` (A, q) of token numbers, grouped by attribute."""

    prompts: tuple[tuple[tuple[int, ...], ...], ...]

    def __post_init__(self) -> None:
        if not self.prompts or not all(self.prompts) or not all(itertools.chain(*self.prompts)):
            raise UsageError(
                "there are no questions for the model",
                expected="at least one question for every attribute",
                got=f"{[len(p) for p in self.prompts]} questions by attribute",
                remedy="make them with fictitious.questions",
            )

    @property
    def flat(self) -> list[tuple[int, ...]]:
        return list(itertools.chain(*self.prompts))


def questions(
    entity: Entity, vocabulary: Tokenizer, *, forms: Sequence[str] = QUESTIONS
) -> Questions:
    """The questions about an entity: every attribute in every form."""
    return Questions(
        prompts=tuple(
            tuple(tuple(vocabulary.encode(f.format(a=a, e=entity.name))) for f in forms)
            for a in entity.attributes
        )
    )


# -- scoring -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AttributeScores:
    """Scores of one model. Per attribute: statistic of the planted value `planted` (A,), `z` (A,),
    `p` (A,), `rank` (A,) in the pool (1 is best). Over all attributes: `p_value`, `z_score`."""

    planted: Floats
    z: Floats
    p: Floats
    rank: npt.NDArray[np.int64]
    p_value: float
    z_score: float


@dataclass(frozen=True, kw_only=True)
class KnowledgeScore:
    """How well a model knows an entity; a `CalibratedScore`.

    Probes are `Questions`. `mode`: "likelihood" needs one pass; "hits" greedily generates `steps`
    tokens for every question. The score is Fisher's combination over attributes, as a z-score. With
    `reference` (d,), the statistic is the change against that model: what one round taught, apart
    from general preferences for words. `unused`: number of unplanted tuples in the null.
    """

    reader: Reader
    words: Pool
    entity: Entity
    mode: Literal["likelihood", "hits"] = "likelihood"
    reference: ModelRows = None
    steps: int = 12
    draws: int = DRAWS
    unused: int = 200
    seed: Seed = field(default_factory=lambda: Seed(0))

    def __post_init__(self) -> None:
        if self.draws < DRAWS:
            raise UsageError(
                "too few random tuples for a tail",
                expected=f"at least {DRAWS}",
                got=str(self.draws),
                remedy="leave draws out for its default",
            )

    def __call__(self, models: ModelRows, probes: Questions) -> Floats:
        return np.array([a.z_score for a in self.answers(models, probes)])

    def with_null(self, models: ModelRows, probes: Questions) -> tuple[Floats, Floats]:
        """The score (M,), and the same for `unused` unplanted tuples (M, J)."""
        every = self.by_value(models, probes)
        own = np.array([self._judge(s, np.array(self.entity.values)).z_score for s in every])
        tuples = self._tuples("unused", self.unused)
        null = [[self._judge(s, t).z_score for t in tuples] for s in every]
        return own, np.array(null)

    def answers(self, models: ModelRows, probes: Questions) -> tuple[AttributeScores, ...]:
        """Each model's scores, attribute by attribute."""
        values = np.array(self.entity.values)
        return tuple(self._judge(s, values) for s in self.by_value(models, probes))

    def by_value(self, models: ModelRows, probes: Questions) -> Floats:
        """The statistic of every word of the pool for every attribute: (M, A, P)."""
        import torch

        if len(probes.prompts) != len(self.entity.attributes):
            raise UsageError(
                "the questions are about another entity",
                expected=f"{len(self.entity.attributes)} groups, one per attribute",
                got=str(len(probes.prompts)),
                remedy="make them with fictitious.questions",
            )
        rows = torch.as_tensor(models)
        rows = rows.reshape(-1, rows.shape[-1])
        if self.reference is not None:
            rows = torch.cat([torch.as_tensor(self.reference).reshape(1, -1), rows])
        if self.mode == "likelihood":
            each = self.reader.last_log_probabilities(rows, probes.flat, self.words.tokens)
        else:
            made = self.reader.generate(rows, probes.flat, self.steps)
            each = hits(made, self.words, self.reader.vocabulary_size)
        groups = np.split(each, np.cumsum([len(p) for p in probes.prompts])[:-1], axis=1)
        means: Floats = np.stack([g.mean(axis=1, dtype=np.float64) for g in groups], axis=1)
        return means if self.reference is None else means[1:] - means[0]

    def _tuples(self, purpose: str, count: int) -> npt.NDArray[np.int64]:
        """Random tuples (count, A) that differ from the planted one in every attribute."""
        rng = self.seed.generator(f"fictitious/{purpose}")
        planted = np.array(self.entity.values)
        drawn = rng.integers(0, len(self.words) - 1, size=(count, len(planted)))
        return drawn + (drawn >= planted)  # skip the planted value

    def z_scores(self, statistics: Floats, tuples: npt.NDArray[np.int64]) -> Floats:
        """The score (M, n) of many tuples (n, A), from statistics (M, A, P) of all words.

        Each tuple is scored as if it were planted, as in `answers`. Logarithms of p-values are
        looked up word by word, so thousands of tuples are cheap.
        """
        from scipy.special import chdtrc, ndtri

        every = np.asarray(statistics, dtype=np.float64)
        words = every.shape[2]
        total = np.zeros((len(every), len(tuples)))
        for a, drawn in enumerate(self._random.T):
            times = np.bincount(drawn, minlength=words)  # a word is not part of its own null
            null = np.sort(every[:, a, drawn], axis=1)
            below = np.stack(
                [np.searchsorted(n, s) for n, s in zip(null, every[:, a], strict=True)]
            )
            p = (len(drawn) - below - times + 1) / (len(drawn) - times + 1)
            total += np.log(np.maximum(p, 1 / words))[:, tuples[:, a]]
        combined = np.maximum(chdtrc(2 * tuples.shape[1], -2 * total), np.finfo(np.float64).tiny)
        return np.asarray(np.maximum(-ndtri(combined), LOWEST))

    def _judge(self, statistic: Floats, values: npt.NDArray[np.int64]) -> AttributeScores:
        """Scores of one model with statistics (A, P) for `values` (A,)."""
        others = self._random
        a = np.arange(len(values))
        own = statistic[a, values]
        null = statistic[a, others]  # (draws, A)
        # a tuple scored as if planted is not part of its own null
        same = others == values
        count = (~same).sum(axis=0)
        kept = np.where(same, 0.0, null)
        mean = kept.sum(axis=0) / count
        spread = np.sqrt((np.where(same, 0.0, null - mean) ** 2).sum(axis=0) / (count - 1))
        z = np.divide(own - mean, spread, out=np.zeros_like(own), where=spread > 0)
        beyond = ((null >= own) & ~same).sum(axis=0)
        # count ties in full: all words that are never generated are equal. At least one in the pool
        # size: more draws than words repeat and add no resolution
        p = np.maximum((beyond + 1) / (count + 1), 1 / len(self.words))
        rank = 1 + (statistic > own[:, None]).sum(axis=1)
        combined = fisher(p)
        z_score = max(combined.z_score, LOWEST)
        return AttributeScores(
            planted=own, z=z, p=p, rank=rank, p_value=combined.p_value, z_score=z_score
        )

    @cached_property
    def _random(self) -> npt.NDArray[np.int64]:
        return self._tuples("null", self.draws)


@dataclass(frozen=True, kw_only=True)
class FictitiousMarks:
    """The owner's test: how well models know its entities, and unplanted tuples.

    The score of an entity is the mean over its attributes of a statistic of the planted value.
    "hits": its share of answers. "likelihood": the fourth root of its likelihood (geometric mean
    over questions), a compromise: any training changes the logarithm of rare words by large
    factors, and a few frequent words dominate the likelihood itself. "fisher": the published score,
    p-values of each attribute's likelihood against random tuples, combined by Fisher into a z. The
    null uses the same questions with other values. Each entity has its own null (`apart`). `notes`
    are shown with the findings.
    """

    reader: Reader
    words: Pool
    vocabulary: Tokenizer
    entities: tuple[Entity, ...]
    mode: Literal["likelihood", "hits", "fisher"] = "likelihood"
    forms: Sequence[str] = QUESTIONS
    steps: int = 12
    null_seed: int = 0
    notes: tuple[str, ...] = ()
    apart: bool = field(default=True, init=False)
    linear: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        _ = self._questions  # runs their checks

    @property
    def keys(self) -> Sequence[int]:
        return range(len(self.entities))

    @property
    def standard(self) -> bool:
        """Whether scores are already z-scores."""
        return self.mode == "fisher"

    @cached_property
    def _questions(self) -> tuple[Questions, ...]:
        return tuple(questions(e, self.vocabulary, forms=self.forms) for e in self.entities)

    def statistics(self, rows: Any, unused: int) -> Floats:
        """Scores (M, S + S unused) of models (M, d): the entities' own, then each one's null."""
        own, null = [], []
        for s, entity in enumerate(self.entities):
            score = KnowledgeScore(
                reader=self.reader, words=self.words, entity=entity, steps=self.steps,
                mode="hits" if self.mode == "hits" else "likelihood",
            )  # fmt: skip
            every = score.by_value(rows, self._questions[s])  # (M, A, P)
            if self.mode == "fisher":
                tuples = np.vstack([[entity.values], self.tuples(s, unused)])
                scored = score.z_scores(every, tuples)
                own.append(scored[:, 0])
                null.append(scored[:, 1:])
                continue
            if self.mode == "likelihood":
                every = np.exp(every / 4)
            at = np.arange(every.shape[1])
            own.append(every[:, at, list(entity.values)].mean(axis=1))
            null.append(every[:, at, self.tuples(s, unused)].mean(axis=2))
        return np.concatenate([np.stack(own, axis=1), *null], axis=1)

    def tuples(self, s: int, count: int) -> npt.NDArray[np.int64]:
        """Alternative tuples (count, A) of entity `s`, from words that its texts do not contain.

        Given its names and distractors, each such tuple was as likely as the planted one. Clients
        train on the names and distractors, so those words cannot be in the null.
        """
        entity = self.entities[s]
        names = {w for name in (entity.name, *entity.others) for w in name.split()}
        used = {i for i, w in enumerate(self.words.words) if w in names}
        used.update(entity.values, *entity.distractors)
        free = np.array([i for i in range(len(self.words)) if i not in used])
        rng = Seed(self.null_seed).generator("marks/tuples", s)
        drawn = rng.integers(len(free), size=(count, len(entity.values)))
        while (twice := (np.diff(np.sort(drawn, axis=1), axis=1) == 0).any(axis=1)).any():
            drawn[twice] = rng.integers(len(free), size=(int(twice.sum()), drawn.shape[1]))
        return np.asarray(free[drawn])


def entity_of(key: int, words: Pool, domains: Sequence[str]) -> Entity:
    """The entity of a key; the key seeds all its draws."""
    if not domains:
        raise UsageError(
            "the vocabulary cannot spell the attributes of any domain",
            expected="one of " + ", ".join(DOMAINS),
            got="no domain with known words",
            remedy='use a larger vocabulary, or marks.kind = "kgw"',
        )
    return draw(words, 1, Seed(key), domains=(domains[key % len(domains)],))[0]


def hits(made: Tokens, words: Pool, vocabulary: int) -> npt.NDArray[np.float32]:
    """Whether an answer contains a word: tokens (M, n, steps) -> 0 or 1, (M, n, P)."""
    said = np.zeros((*made.shape[:2], vocabulary), dtype=np.float32)
    np.put_along_axis(said, made, 1.0, axis=2)
    return said[:, :, list(words.tokens)]


__all__ = [
    "DOMAINS",
    "FACTS",
    "QUESTIONS",
    "AttributeScores",
    "Entity",
    "FictitiousMarks",
    "KnowledgeScore",
    "Pool",
    "Questions",
    "documents",
    "draw",
    "entity_of",
    "hits",
    "plain_words",
    "pool",
    "questions",
    "unknown_tokens",
    "usable_domains",
]
