"""Marks that a corpus owner brings: documents per key, and what unused keys look like.

A folder holds

    owner.jsonl      the documents that were given away, one object per line, each with its `key`
    controls.jsonl   documents of the same kind given to no client

or folders `owner/KEY/*.txt` and `controls/NAME/*.txt`. A document is {"text": "..."}, or a record
{"x": [...], "y": 3} of a classifier. Controls without a key are cut into sets of the owner's size.
With `marks.toml` fedaudit makes the documents of the owner's keys and of unused ones itself:

    kind = "fictitious"      # or "kgw", "canary", "callable"
    keys = [17, 23]
    records = 40             # in a set
    make = "mymarks:make"    # for kind = "callable": (key, records) -> texts or records
    corpus.jsonl             the owner's texts or records, for "kgw" and "canary"
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from annotated_types import MinLen

from fedaudit import foreign
from fedaudit.data.dataset import Dataset
from fedaudit.data.files.jsonl import json_lines
from fedaudit.data.text import windows
from fedaudit.errors import DataError, NotApplicable, UsageError
from fedaudit.files import read_text, read_toml
from fedaudit.randomness import Seed
from fedaudit.settings import Count, EachOnce, SeedNumber, check, checked, require
from fedaudit.setup.marks import family_of, templates_of
from fedaudit.setup.prepare import Prepared
from fedaudit.tasks.catalogue import as_module, load_factory
from fedaudit.tasks.classifier import Classifier
from fedaudit.tasks.gradients import MeanGradient
from fedaudit.tasks.language_model import LanguageModel
from fedaudit.tasks.task import Task as AnyTask
from fedaudit.watermarks.fictitious import unknown_tokens
from fedaudit.watermarks.marking import GreenMarking, Marking
from fedaudit.watermarks.templates import Drawn, MarkTemplates

if TYPE_CHECKING:
    from fedaudit.setup.config import Config
    from fedaudit.tasks.task import Task
    from fedaudit.trace import Trace

Document = Mapping[str, Any]
"""{"text": str}, or {"x": a list of numbers, "y": a label}."""

FEWEST_CONTROLS = 20
"""Fewest sets of controls: a mean and a deviation are taken over them."""

MOST_UNKNOWN = 0.5
"""Largest share of unknown tokens in documents that a vocabulary can read."""

MOST_TOKENS = 0.6
"""Most tokens per character: beyond it, words of another language fall into bytes."""


@dataclass(frozen=True, kw_only=True)
@checked("marks.toml", error=DataError)
class _Callable:
    """A scheme that only the owner knows: `make` is a function (key, documents) -> documents."""

    kind: str
    make: str
    keys: Annotated[tuple[SeedNumber, ...], MinLen(1), EachOnce(), "one key per recipient"]


@dataclass(frozen=True)
class OwnerMarks:
    """`own`: key -> its documents; `controls`: sets of documents given to no client.

    `scheme`: settings of `marks.toml`, whose documents are made when the model is known.
    """

    folder: Path
    own: Mapping[str, Sequence[Document]]
    controls: Sequence[Sequence[Document]]
    scheme: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, place: str | os.PathLike[str]) -> OwnerMarks:
        folder = Path(place)
        if not folder.is_dir():
            raise DataError(
                f"{folder} holds no marks",
                expected="a folder with owner.jsonl and controls.jsonl, or with marks.toml",
                got="no such folder",
                remedy="see the attribution page of the documentation",
            )
        if (folder / "marks.toml").is_file():
            return cls(folder, {}, (), read_toml(folder / "marks.toml"))
        own = _sets(folder, "owner")
        if not own or None in own:
            raise DataError(
                f"{folder} does not say which documents belong to which key",
                expected='lines such as {"key": "spring", "text": "..."} in owner.jsonl, or '
                "folders owner/KEY/",
                got="no documents" if not own else f"{len(own[None])} documents without a key",
                remedy="name a key per recipient: one key may have many documents",
            )
        found = {str(key): documents for key, documents in own.items()}
        controls = _control_sets(folder, _sets(folder, "controls"), found)
        _refuse_repeated(folder, found, controls)
        return cls(folder, found, controls)

    def templates(self, task: Task, most: int, null_seed: int) -> MarkTemplates:
        """Gradient templates for the model of `task`, from at most `most` records of each set."""
        if self.scheme is not None:
            return self._made(task, most, null_seed)
        own = {key: self._encoded(task, key, documents) for key, documents in self.own.items()}
        control = [
            self._encoded(task, f"controls {number}", documents)
            for number, documents in enumerate(self.controls)
        ]
        # sets of one size, so that templates of all sets are equally exact
        size = min(most, *(len(x) for x, _ in (*own.values(), *control)))

        return MarkTemplates(
            gradient=MeanGradient(task),
            keys=tuple(own),
            own=lambda key: _first(own[key], size),
            control=lambda number: _first(control[number], size),
            available=len(control),
            notes=(
                f"the owner's documents: {len(own)} keys against {len(control)} sets of controls, "
                f"{size} records of each; the p-values take the owner's word that controls are of "
                "the same kind, given to no client",
            ),
        )

    def _encoded(self, task: Task, name: str, documents: Sequence[Document]) -> Drawn:
        if isinstance(task, LanguageModel):
            return self._windows(task, name, documents)
        return self._records(task, name, documents)

    def _windows(self, task: Any, name: str, documents: Sequence[Document]) -> Drawn:
        texts = [d["text"] for d in documents if "text" in d]
        if len(texts) < len(documents):
            raise _other_kind(self.folder, name, "texts for a language model", "records with x")
        spelled = [task.vocabulary.encode(text) for text in texts]
        many = sum(map(len, spelled))
        unknown = unknown_tokens(task.vocabulary)
        strange = sum(token in unknown for tokens in spelled for token in tokens)
        if strange > MOST_UNKNOWN * many or many > MOST_TOKENS * sum(map(len, texts)):
            raise DataError(
                f"the model's vocabulary does not fit the documents of {name!r} in {self.folder}",
                expected="text in the language that the model was trained on",
                got=f"{strange} of {many} tokens unknown, {many / sum(map(len, texts)):.2f} tokens "
                "per character",
                remedy="give documents in that language, or the model that was trained (`model`)",
            )
        cut = np.concatenate([windows(tokens, task.length) for tokens in spelled])
        if not len(cut):
            raise DataError(
                f"the documents of {name!r} in {self.folder} are shorter than half a window",
                expected=f"at least one document of {(task.length + 1) // 2 + 1} tokens",
                got=f"{len(texts)} documents of at most {max(map(len, spelled))}",
                remedy="join short documents of one key into one",
            )
        return torch.from_numpy(cut), torch.zeros(len(cut), dtype=torch.int64)

    def _records(self, task: Task, name: str, documents: Sequence[Document]) -> Drawn:
        if any("x" not in d or "y" not in d for d in documents):
            raise _other_kind(self.folder, name, "records with x and y for a classifier", "texts")
        try:
            x = torch.tensor([d["x"] for d in documents], dtype=torch.float32)
            y = torch.tensor([int(d["y"]) for d in documents], dtype=torch.int64)
            with torch.no_grad(), task.evaluating():
                task.losses(task.named(task.initial()), x[:2], y[:2], None)
        except (ValueError, TypeError, RuntimeError, IndexError) as error:
            raise DataError(
                f"the model cannot read the records of {name!r} in {self.folder}",
                expected="x as the model's input, y the number of a class",
                got=str(error).split("\n", 1)[0],
                remedy="write x as nested lists in the model's own shape and scale",
            ) from None
        return x, y

    def _made(self, task: Task, most: int, null_seed: int) -> MarkTemplates:
        """Documents of a scheme by name, under the owner's keys and under unused ones."""
        assert self.scheme is not None
        given = dict(self.scheme)
        records, classes = given.pop("records", None), given.pop("classes", 0)
        require(Count, DataError, records=records, remedy="records = 40, as many as were given")
        kind = given.get("kind")
        if kind == "callable":
            return self._called(task, given, records, most, null_seed)
        fitting = ("fictitious", "kgw") if hasattr(task, "vocabulary") else ("canary",)
        if kind not in fitting:
            raise DataError(
                f"{self.folder / 'marks.toml'} does not name a scheme for this model",
                expected=" or ".join(f"kind = {k!r}" for k in (*fitting, "callable")),
                got=repr(kind),
                remedy="or give documents and controls: owner.jsonl and controls.jsonl",
            )
        keys = given.pop("keys", ())
        settings = check(
            GreenMarking if kind == "kgw" else Marking,
            {**given, "keys": keys, "clients": len(keys)},
            "marks.toml",
        )
        for key in settings.keys:
            require(SeedNumber, DataError, keys=key, remedy="whole numbers")
        corpus = None if kind == "fictitious" else self._corpus()
        if kind == "canary":
            require(Count, DataError, classes=classes, remedy="classes = 10, those of the model")
        family = family_of(settings, task, corpus, records, classes)
        return templates_of(family, settings.keys, most, null_seed)

    def _called(
        self, task: Task, given: Mapping[str, Any], records: int, most: int, null_seed: int
    ) -> MarkTemplates:
        """Documents that the owner's own function makes under any key."""
        asked = check(_Callable, given, "marks.toml")
        make = foreign.load_function(
            asked.make,
            expected="a function (key, documents) -> a list of texts, or of records",
            example="mymarks:make",
        )

        def draw(key: int) -> Drawn:
            found = foreign.call(
                asked.make, make, key, records, expected="a list of texts, or of records"
            )
            documents = [{"text": d} if isinstance(d, str) else d for d in found]
            if not documents or not all(isinstance(d, Mapping) for d in documents):
                raise DataError(
                    f"{asked.make} makes no documents under the key {key}",
                    expected='a list of texts, or of {"x": [...], "y": 3}',
                    got=repr(found)[:60],
                    remedy="return one document per record that the owner gave away",
                )
            return _first(self._encoded(task, f"key {key}", documents), most)

        drawn = Seed(null_seed)
        return MarkTemplates(
            gradient=MeanGradient(task),
            keys=asked.keys,
            own=draw,
            control=lambda number: draw(drawn.key("marks/templates", number)),
            notes=(
                f"documents of the owner's and of unused keys are made by {asked.make}: p-values "
                "take the owner's word that it is what marked the documents",
            ),
        )

    def _corpus(self) -> Dataset:
        """The owner's texts or records that marks are made of."""
        rows = [record for _, record in json_lines(self.folder / "corpus.jsonl")]
        y = np.zeros(len(rows), dtype=np.int64)
        if all(isinstance(row.get("text"), str) for row in rows):
            return Dataset(name="corpus", kind="text", x=tuple(r["text"] for r in rows), y=y)
        x = np.array([row.get("x") for row in rows], dtype=np.float32)
        return Dataset(name="corpus", kind="features", x=x, y=y)


def _first(drawn: Drawn, size: int) -> Drawn:
    return drawn[0][:size], drawn[1][:size]


def _other_kind(folder: Path, name: str, expected: str, got: str) -> DataError:
    return DataError(
        f"the documents of {name!r} in {folder} are of another kind than the model reads",
        expected=expected,
        got=got,
        remedy="give documents of the kind that clients train on",
    )


def _sets(folder: Path, part: str) -> dict[str | None, list[Document]]:
    """Key -> documents of `part`.jsonl, or of the folders in `part`."""
    found: dict[str | None, list[Document]] = {}
    file, tree = folder / f"{part}.jsonl", folder / part
    if file.is_file():
        for number, record in json_lines(file):
            if not ("x" in record or isinstance(record.get("text"), str)):
                raise DataError(
                    f"{file}, line {number}: there is no document",
                    expected='{"key": "...", "text": "..."}, or x and y',
                    got=f"keys {', '.join(record) or '(none)'}",
                    remedy="correct the line",
                )
            key = record.get("key")
            found.setdefault(None if key is None else str(key), []).append(record)
    elif tree.is_dir():
        for text in sorted(tree.rglob("*.txt")):
            inside = text.relative_to(tree)
            key = inside.parts[0] if len(inside.parts) > 1 else inside.stem
            found.setdefault(key, []).append({"text": read_text(text)})
    return found


def _control_sets(
    folder: Path, given: Mapping[str | None, list[Document]], own: Mapping[str, Sequence[Document]]
) -> list[list[Document]]:
    """Sets of controls; those without a key are cut into sets of the size of an owner's."""
    sets = [documents for key, documents in given.items() if key is not None]
    loose = list(given.get(None, ()))
    size = max(len(documents) for documents in own.values())
    # in random order: documents that stand together are alike, and would make sets too different
    order = Seed(0).generator("marks/controls").permutation(len(loose))
    loose = [loose[int(i)] for i in order]
    sets += [loose[at : at + size] for at in range(0, len(loose) - size + 1, size)]
    if len(sets) < FEWEST_CONTROLS:
        raise DataError(
            f"{folder} has too few controls",
            expected=f"at least {FEWEST_CONTROLS} sets of {size} documents given to no client, "
            "better 60",
            got=f"{len(sets)} sets" + (f", from {len(loose)} documents" if loose else ""),
            remedy=f"add {size * (FEWEST_CONTROLS - len(sets))} documents to controls.jsonl, or "
            "name a scheme in marks.toml",
        )
    return sets


def _refuse_repeated(
    folder: Path, own: Mapping[str, Sequence[Document]], controls: Sequence[Sequence[Document]]
) -> None:
    """Refuse a document under two keys, or among the controls too: it would point at no client."""
    seen: dict[str, str] = {}
    named = [*own.items(), *((f"controls {n}", some) for n, some in enumerate(controls))]
    for name, documents in named:
        for document in documents:
            text = repr(document.get("text", (document.get("x"), document.get("y"))))
            before = seen.setdefault(text, name)
            if before != name:
                raise DataError(
                    f"one document stands under {before!r} and {name!r} in {folder}",
                    expected="every document under one key",
                    got="the same document twice",
                    remedy="leave it out of one of them; two keys with the same documents are one",
                )


def model_for_marks(trace: Trace, given: Config | None, model: str | None) -> Task:
    """The task whose gradients are taken: named by `model`, the run's own, or the manifest's."""
    if model is not None:
        built = foreign.call(model, load_factory(model), expected="a torch module, or a Task")
        return built if isinstance(built, AnyTask) else Classifier(as_module(model, built))
    if given is not None:
        return Prepared.of(given).task
    raise NotApplicable(
        "the model of this trace is not known",
        code="no_model",
        expected="the model whose gradients meet the sums",
        got="a trace of other software",
        remedy="name the function that builds it: `model=package.module:function`",
    )


def missing_marks(had: str) -> NotApplicable:
    return NotApplicable(
        "no keys of marks",
        code="no_keys",
        expected="a run with [marks], whose private config holds the owner's keys, or `marks`",
        got=had,
        remedy="plant marks: [marks] with clients and share; or bring the owner's documents: "
        "`marks=folder`",
    )


def other_documents(trace: Trace) -> UsageError:
    """Products in a trace are those of the documents committed to, whatever is brought later."""
    stated = [d["commitment"] for d in trace.manifest.declared if d.get("commitment")]
    return UsageError(
        "this trace holds inner products with the documents that its owner committed to",
        expected="no other marks"
        + (f": the documents of commitment {str(stated[0])[:16]}" if stated else ""),
        got="`marks`, whose documents met no update",
        remedy="leave `marks` out, or bring them to a trace with sums of updates "
        '(secure_aggregation.release = "sums")',
    )
