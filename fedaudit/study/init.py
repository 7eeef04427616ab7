"""`fedaudit.init`: write a commented config for a user's own data, and give the reasons."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedaudit.data import files, partition, prepare
from fedaudit.data.files.suggest import OpenQuestion
from fedaudit.data.shortage import shortage
from fedaudit.data.text import WordVocabulary
from fedaudit.errors import DataError, UsageError
from fedaudit.files import write_atomically, writing
from fedaudit.frames import Row, Tabular
from fedaudit.randomness import Seed
from fedaudit.setup.config import DEFAULT, plain
from fedaudit.setup.toml import toml_value
from fedaudit.study.init_audits import (
    asked_audits,
    audit_lines,
    audits_off,
    compared_lines,
    thorough_lines,
)
from fedaudit.tasks.catalogue import SCIKIT, scikit_learn

if TYPE_CHECKING:
    import pandas as pd

    from fedaudit.data.dataset import Dataset
    from fedaudit.data.files.suggest import Suggestion

ROLES = ("label", "client", "organisation", "person")
"""What a column of a table can mean."""


@dataclass(frozen=True, kw_only=True)
class ConfigChoice:
    """One thing that `init` chose or found: a setting, its value and the reason.

    `kind`: "chosen" for settings and facts, "detail" for what a choice implies, "note" for what a
    reader should know, "doubt" for what looks like a mistake.
    """

    setting: str
    value: Any
    why: str = ""
    kind: Literal["chosen", "detail", "note", "doubt"] = "chosen"

    @property
    def line(self) -> str:
        """The choice in words, as the command line prints it."""
        before = {"chosen": f"{self.setting}: ", "detail": "  ", "note": "NOTE: "}
        because = f" ({self.why})" if self.why else ""
        return f"{before.get(self.kind, 'DOUBTFUL: ')}{self.value}{because}"


@dataclass(frozen=True, kw_only=True)
class WrittenConfig(Tabular):
    """The config that `init` wrote: its file, its text, and what was chosen and why.

    It stands for its file: `fedaudit.run(fedaudit.init("patients.csv"))`.
    """

    path: Path
    text: str
    choices: tuple[ConfigChoice, ...]

    def __fspath__(self) -> str:
        return str(self.path)

    def __getitem__(self, setting: str) -> Any:
        """The value that was chosen for a setting."""
        return self._chosen(setting).value

    def why(self, setting: str) -> str:
        """The reason for a choice."""
        return self._chosen(setting).why

    def _chosen(self, setting: str) -> ConfigChoice:
        chosen = {c.setting: c for c in self.choices if c.kind == "chosen"}
        if setting not in chosen:
            raise UsageError.unknown(f"init chose nothing called {setting!r}", setting, chosen)
        return chosen[setting]

    @property
    def doubts(self) -> tuple[str, ...]:
        """What looks like a mistake in the data or the columns."""
        return tuple(str(c.value) for c in self.choices if c.kind == "doubt")

    def rows(self) -> Sequence[Row]:
        return [
            {"setting": c.setting, "value": str(c.value), "why": c.why, "kind": c.kind}
            for c in self.choices
        ]


Answers = Callable[[OpenQuestion], str]
"""Answers a question about a setting with one of its options."""


def init(
    source: str | os.PathLike[str] | pd.DataFrame | Mapping[str, pd.DataFrame] | None = None,
    out: str | os.PathLike[str] = "fedaudit.toml",
    *,
    label: str | None = None,
    client: str | None = None,
    organisation: str | None = None,
    person: str | None = None,
    missing: str | None = None,
    files: str | None = None,
    model: str | None = None,
    shuffle: bool = False,
    force: bool = False,
    ask: Answers | None = None,
) -> WrittenConfig:
    """Write a config for the data at `source`; without it, for built-in data.

    `source`: a file, a folder of tables (one per site), a pandas frame, or one frame per site by
    name; frames are written to a CSV file beside `out`, because a run reads files. `label`,
    `client`, `organisation`, `person` name columns; those not given are guessed. `ask` is called
    where two guesses are about equally likely. `missing`: what to do about missing values of a
    table (refuse, drop, mean, category). `files`: a pattern of the files of a folder to read.
    `model`: `package.module:function` that builds a torch module, or `sklearn:LogisticRegression`.
    `shuffle` adds a shuffler to the comparison. `force` overwrites `out`.
    """
    file = Path(out)
    if file.exists() and not force:
        raise UsageError(
            f"{file} exists already",
            expected="a new file",
            got=str(file),
            remedy="choose another with `out`, or overwrite it with `force=True`",
        )
    if source is None:
        why = "the built-in experiment on handwritten digits"
        text = DEFAULT
        choices: tuple[ConfigChoice, ...] = (ConfigChoice(setting="data", value="digits", why=why),)
    else:
        named = {"label": label, "client": client, "organisation": organisation, "person": person}
        wishes = Wishes(
            columns={role: column for role, column in named.items() if column is not None},
            missing=missing,
            files=files,
            model=model,
            shuffle=shuffle,
            ask=ask,
        )
        place, notes = _place_of(source, file, force)
        text, choices = config_for(place, wishes, file.parent)
        choices = (*notes, *choices)
    _write(file, text)
    return WrittenConfig(path=file, text=text, choices=choices)


def _write(file: Path, text: str) -> None:
    with writing(file, UsageError):
        file.write_text(text, encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """The user's wishes for the config to write; see `init`."""

    columns: Mapping[str, str] = field(default_factory=dict)
    missing: str | None = None
    files: str | None = None
    model: str | None = None
    shuffle: bool = False
    ask: Answers | None = None


def _place_of(source: Any, out: Path, force: bool) -> tuple[Path, list[ConfigChoice]]:
    """Where the data lie. Frames are written to a private file beside the config."""
    if isinstance(source, str | os.PathLike):
        return Path(source), []
    frame = _one_frame(source)
    place = out.with_suffix(".csv")
    if place.exists() and not force:
        raise UsageError(
            f"{place} exists already",
            expected="a new file for the records of the frame",
            got=str(place),
            remedy="choose another config with `out`, or overwrite both with `force=True`",
        )
    write_atomically(place, frame.to_csv(index=False), private=True)
    said = f"the records were written to {place}, readable by you alone: a run reads files"
    return place, [ConfigChoice(setting="data", value=said, kind="note")]


SITE = "site"
"""The client column of frames given by site."""


def _one_frame(source: Any) -> pd.DataFrame:
    """One frame from a frame, or from frames by site with the column `SITE`."""
    import pandas as pd

    frames = source if isinstance(source, Mapping) else {"": source}
    if not frames or not all(isinstance(f, pd.DataFrame) for f in frames.values()):
        raise UsageError(
            "the data are of a kind that init does not know",
            expected="a path, a pandas DataFrame, or a mapping of names to DataFrames",
            got=type(source).__name__,
            remedy="name a file, or build a DataFrame",
        )
    if not isinstance(source, Mapping):
        return frames[""]
    parts = [frame.assign(**{SITE: str(name)}) for name, frame in frames.items()]
    return pd.concat(parts, ignore_index=True)


def config_for(source: Path, wishes: Wishes, folder: Path) -> tuple[str, tuple[ConfigChoice, ...]]:
    """The text of a config in `folder` for the data at `source`, and the choices made."""
    guess = files.sniff(source, wishes.files)
    _refuse_options(guess.format, source, wishes.columns.get("label"), wishes.missing)
    draft = ConfigDraft(source, dict(guess.reasons or {}), folder)
    draft.chose("format", guess.format, draft.reasons.get("format"))
    columns = _settle(guess, wishes, draft)
    guess = _assign_roles(guess, columns, draft)
    draft.columns(guess)
    if guess.format == "table":
        guess = _fill_missing(guess, wishes.missing, draft)
    dataset = _read(source, draft.read)
    draft.choices += _doubts(dataset, guess.label)
    classes = f", {len(dataset.classes)} classes" if dataset.classes else ""
    draft.chose("read", f"{len(dataset)} records{classes}")
    if dataset.test is None:
        draft.lines.append("test_fraction = 0.2   # held out of every client's training")
    else:
        draft.chose("held out", f"{len(dataset.test)} records, the data's own part for it")
    draft.lines += ["", *_federation(dataset, guess.client, draft)]
    draft.lines += [*_task(dataset, draft, wishes.model), ""]
    return _questions(dataset, wishes, draft), tuple(draft.choices)


def _settle(guess: Suggestion, wishes: Wishes, draft: ConfigDraft) -> dict[str, str]:
    """The columns that the user named, or names now where a guess is open."""
    columns = dict(wishes.columns)
    for question in guess.questions:
        role, (first, *others) = question.setting, question.options
        others = [c for c in others if c not in columns.values()]
        if role in columns or not others or first in columns.values():
            continue
        if wishes.ask is not None:
            columns[role] = wishes.ask(replace(question, options=(first, *others)))
            continue
        rest = " or ".join(f"`{role}={c}`" for c in others)
        draft.choices.append(
            ConfigChoice(setting=role, value=f"{role}: {first} is a guess; {rest}?", kind="note")
        )
    return columns


def _questions(dataset: Dataset, wishes: Wishes, draft: ConfigDraft) -> str:
    """The whole text: protections side by side, and the audits that do not cost too much."""
    is_text = isinstance(dataset.x, tuple)
    audits = asked_audits(
        is_text=is_text,
        organisations=dataset.organisation is not None,
        shuffle=wishes.shuffle,
    )
    compared, names = compared_lines(
        draft.clients,
        persons=_persons_apart(dataset),
        shuffle=wishes.shuffle,
        is_text=is_text,
    )
    off: dict[str, str] = {}

    def text() -> str:
        asked = [*audit_lines(audits, off), *compared, *THOROUGH, *thorough_lines(audits, off)]
        return "\n".join([*draft.lines, *asked])

    dear, wrong = audits_off(text(), audits, draft.folder)
    marked = [audit.name for audit in audits if audit.marks]
    if wrong and marked:  # marks fit few corpora
        off |= dict.fromkeys(marked, wrong)
        dear, wrong = audits_off(text(), audits, draft.folder)
    off |= dear
    draft.chose("compared", "; ".join(names))
    on = [a.name for a in audits if a.name not in off]
    draft.chose("audits", ", ".join(on))
    for name, why in off.items():
        said = f"{name} is off: {why}; the config says how to switch it on"
        draft.choices.append(ConfigChoice(setting="audits", value=said, kind="note"))
    if wrong:
        draft.choices.append(ConfigChoice(setting="run", value=wrong, kind="doubt"))
    return text()


class ConfigDraft:
    """A config being written: its lines, the choices, and the settings to read the data with."""

    def __init__(self, source: Path, reasons: dict[str, str], folder: Path = Path()) -> None:
        self.reasons = reasons
        self.folder = folder
        self.clients = 0
        self.choices: list[ConfigChoice] = []
        self.read: dict[str, object] = {}
        self.lines = [
            "# Written by `fedaudit init`. `fedaudit list` shows every setting there is.",
            "# There is no seed in here: a run draws one and keeps it in truth/. Whoever knows it",
            "# can redraw every random number of the run.",
            "",
            "[data]",
            f"path = {toml_value(_from_folder(source, folder))}   # relative to this file",
        ]

    def chose(self, setting: str, value: Any, why: str | None = None) -> None:
        self.choices.append(ConfigChoice(setting=setting, value=value, why=why or ""))

    def details(self, setting: str, lines: Sequence[str]) -> None:
        self.choices += [ConfigChoice(setting=setting, value=x, kind="detail") for x in lines]

    def columns(self, guess: Suggestion) -> None:
        """Write the role of every column, and the columns that are left out."""
        if guess.files is not None:
            self.read["files"] = guess.files
            self.lines.append(f"files = {toml_value(guess.files)}   # the tables that are read")
        for name in ROLES:
            value = getattr(guess, name)
            if value is not None:
                self.read[name] = value
                reason = self.reasons.get(name)
                self.lines.append(f"{name} = {toml_value(value)}{_comment(reason)}")
                self.chose(name, value, reason)
        if guess.ignore:
            self.read["ignore"] = guess.ignore
            self.lines.append(f"ignore = {toml_value(guess.ignore)}   # columns that are left out")
            for column in guess.ignore:
                self.chose("ignore", column, self.reasons.get(f"ignore {column}"))


def _from_folder(source: Path, folder: Path) -> str:
    """The path of the data as a config in `folder` names it."""
    if source.is_absolute():
        return str(source)
    try:
        return Path(os.path.relpath(source, folder)).as_posix()
    except ValueError:  # another drive
        return str(source.absolute())


def _assign_roles(guess: Suggestion, given: Mapping[str, str], draft: ConfigDraft) -> Suggestion:
    """The guess with the columns that the user named."""
    # a column has one role, and organisations were guessed for the guessed client column
    dropped = {"organisation"} if given.get("client") not in (None, guess.client) else set()
    roles: dict[str, Any] = {}
    for name in ROLES:
        guessed = getattr(guess, name)
        free = name not in dropped and guessed not in given.values()
        roles[name] = given.get(name, guessed if free else None)
    draft.reasons |= dict.fromkeys(given, "as you said")
    used = set(roles.values())
    ignore = [c for c in guess.ignore if c not in used]
    for column in guess.columns if guess.format == "table" else ():
        if column not in (*used, *ignore) and files.names_an_owner(column):
            ignore.append(column)
            draft.reasons[f"ignore {column}"] = (
                "it names an owner of records, and a model would learn it by heart"
            )
    return replace(guess, **roles, ignore=tuple(ignore))


def _fill_missing(guess: Suggestion, missing: str | None, draft: ConfigDraft) -> Suggestion:
    """Write how missing values and decimals of a table are read."""
    reasons = draft.reasons
    if missing is not None:
        guess = replace(guess, missing=missing)  # type: ignore[arg-type]
        reasons["missing"] = "; ".join(["as you said", *filter(None, [reasons.get("missing")])])
    draft.read["missing"], draft.read["decimal"] = guess.missing, guess.decimal
    draft.lines.append(f"missing = {toml_value(guess.missing)}   # refuse, drop, mean or category")
    if guess.missing != "refuse":
        draft.chose("missing", guess.missing, reasons.get("missing"))
    if guess.missing in FILLS:
        draft.lines += [f"# {line}" for line in FILLS[guess.missing]]
        draft.details("missing", FILLS[guess.missing])
    if guess.decimal != ".":
        reason = reasons.get("decimal")
        draft.lines.append(f"decimal = {toml_value(guess.decimal)}{_comment(reason)}")
        draft.chose("decimal", guess.decimal, reason)
    return guess


def _read(source: Path, settings: Mapping[str, Any]) -> Dataset:
    """Read the data once, so that a mistake shows here and not in a long run."""
    try:
        return files.read(source, **settings)
    except DataError as error:
        if 'missing = "drop"' not in (error.remedy or ""):
            raise
        raise DataError(
            error.what,
            expected=error.expected,
            got=error.got,
            remedy=f"{error.remedy}: `missing=drop`",
        ) from None


FILLS = {
    "mean": (
        "mean: a number that is missing becomes the mean of its column, a missing text the",
        'category "(missing)". The mean is taken over the records of all clients, before any',
        "protection: no epsilon covers it. Without that: drop (leave such records out).",
    ),
    "category": (
        "category: as mean, and a column more says which numbers were missing. The mean is taken",
        "over the records of all clients, before any protection: no epsilon covers it.",
    ),
}
"""What filling a missing value does, written where it is chosen."""

MANY_CLASSES = 20
BATCH_SIZE = 16


def _refuse_options(kind: str, source: Path, label: str | None, missing: str | None) -> None:
    """Refuse options that this kind of data does not have."""
    if label is not None and kind in ("images", "idx"):
        raise UsageError(
            f"{source}: there is no label to name",
            expected="no `label`: the folder of an image is its class"
            if kind == "images"
            else "no `label`: labels lie in a file of their own",
            got=f"`label={label}`",
            remedy="leave `label` out",
        )
    if missing is not None and (kind != "table" or missing not in MISSING):
        raise UsageError(
            "`missing` cannot be used so",
            expected=f"one of {', '.join(MISSING)}, for a table",
            got=f"{missing!r} for data of kind {kind}",
            remedy="`missing=drop`" if kind == "table" else "leave `missing` out",
        )


MISSING = ("refuse", "drop", "mean", "category")


def _doubts(dataset: Dataset, label: str | None) -> list[ConfigChoice]:
    """Doubts about the label: a quantity makes a poor class."""
    if dataset.kind != "features" or len(dataset.classes) <= MANY_CLASSES:
        return []
    try:
        [float(name) for name in dataset.classes]
    except ValueError:
        return []
    doubt = (
        f"{label} has {len(dataset.classes)} different numbers, and looks like a quantity. Every "
        "number would be a class of its own: there is no regression. Name another label, or put it "
        "into a few groups first."
    )
    return [ConfigChoice(setting="label", value=doubt, kind="doubt")]


THOROUGH = (
    "# Counts only with `fedaudit run --thorough`: more evidence and time, narrower intervals.",
    "# More rounds also spend more epsilon.",
    "[thorough.federation]",
    "rounds = 30",
    "",
    "[thorough.audits.two_stage_membership]",
    "records = 256   # asked about at every client, if it has as many",
    "",
)


def _persons_apart(dataset: Dataset) -> bool:
    """Whether every person's records lie with one client, so that noise can cover the person."""
    if dataset.person is None or dataset.client is None:
        return dataset.person is not None
    pairs = set(zip(dataset.person, dataset.client, strict=True))
    return len(pairs) == len(set(dataset.person))


def _federation(dataset: Dataset, owner: str | None, draft: ConfigDraft) -> list[str]:
    """Write who takes part: the owners in the data, or clients drawn at random."""
    if dataset.client is not None:
        count, short = _owners(dataset)
        # a pseudo-column such as (file) stands for no column of the table
        split, why = ['kind = "by_owner"'], "one per " + (owner or "owner").strip("()")
        known = count == len(set(dataset.client))  # else it depends on who is held out
    else:
        known, short = True, []
        whole = len(dataset) if dataset.person is None else len(set(dataset.person))
        count = max(1, min(10, whole // 20) if whole >= 40 else min(2, whole))
        why = "no client column, so records are dealt out at random"
        split = ['kind = "iid"   # every client draws from the same mix']
        if len(dataset.classes) > 1:
            why = "no client column, so classes are dealt out unequally"
            split = ['kind = "dirichlet"', "alpha = 0.5   # smaller: class mixes differ more"]
    draft.chose("clients", count, why)
    draft.clients = count
    draft.choices += [ConfigChoice(setting="clients", value=x, kind="note") for x in short]
    return [
        "[partition]",
        *split,
        "",
        "[federation]",
        f"clients = {count}{_comment(why)}" if known else f"# clients: {why}",
        "rounds = 10",
        "",
    ]


def _owners(dataset: Dataset) -> tuple[int, list[str]]:
    """The number of owners that take part, and lines on those that lost records or have few.

    The split has a seed of its own: in a run, sizes are within one record of these.
    """
    seed = Seed(0)
    train, _ = prepare.split(dataset, test_fraction=None, seed=seed)
    parts = partition.ByOwner().partition(train, None, seed)
    return len(parts), shortage(train, parts, BATCH_SIZE).lines()


def _task(dataset: Dataset, draft: ConfigDraft, model: str | None = None) -> list[str]:
    """Write a small model that can read the data, or the user's own, and how to train it."""
    if model is not None:
        draft.chose("task", model, "as you said")
        named: Any = {"kind": "module", "factory": model}
        if model.startswith(SCIKIT):
            named = {"kind": "sklearn", **plain(scikit_learn(model))}
        task, rate = [f"{key} = {toml_value(value)}" for key, value in named.items()], 0.05
    elif isinstance(dataset.x, tuple):
        length, why = _window(dataset.x, dataset.client)
        draft.chose("task", f"gpt, a small language model with windows of {length} tokens", why)
        task, rate = ['kind = "gpt"', f"length = {length}   # tokens in a window"], 0.1
    else:
        small = dataset.kind != "image" or min(dataset.x.shape[-2:]) < 4
        kind = "mlp" if small else "cnn"
        draft.chose("task", kind, f"records of shape {dataset.x.shape[1:]}")
        task, rate = [f'kind = "{kind}"'], 0.05
        if small:
            task.append('activation = "gelu"   # smooth: bounds on what an update gives away apply')
    training = ["[training]", f"learning_rate = {rate}", "epochs = 1", f"batch_size = {BATCH_SIZE}"]
    return ["[task]", *task, "", *training]


def _window(texts: tuple[str, ...], owners: tuple[str, ...] | None) -> tuple[int, str]:
    """A window length that every client can fill; half a window counts as full."""
    vocabulary = WordVocabulary.build(texts, size=1000)
    sizes: dict[str, list[int]] = {}
    for i, text in enumerate(texts):
        sizes.setdefault(owners[i] if owners else "", []).append(len(vocabulary.encode(text)))
    # some texts are held out: the middle one of an owner, or the tenth part of all, must do
    part = 2 if owners else 10
    typical = min(sorted(own)[(len(own) - 1) // part] for own in sizes.values())
    length = max(1, min(40, 2 * typical - 1))
    return length, "the usual length" if length == 40 else f"short texts of {typical} tokens"


def _comment(reason: str | None) -> str:
    return f"   # {' '.join(reason.split())}" if reason else ""
