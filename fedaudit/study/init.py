"""`fedaudit init`: a commented config for a user's own file, and the reasons for each choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.errors import DataError, UsageError
from fedaudit.randomness import Seed
from fedaudit.setup.config import DEFAULT
from fedaudit.setup.toml import toml_value

if TYPE_CHECKING:
    from fedaudit.data.dataset import Dataset


def write_config(
    source: Path | None,
    out: Path,
    *,
    label: str | None = None,
    client: str | None = None,
    organisation: str | None = None,
    person: str | None = None,
    missing: str | None = None,
    force: bool = False,
) -> list[str]:
    """Write a config to `out`; returns what was chosen, a line each."""
    if out.exists() and not force:
        raise UsageError(
            f"{out} exists already",
            expected="a new file",
            got=str(out),
            remedy="choose another with --out, or pass --force",
        )
    if source is None:
        text, chosen = DEFAULT, ["the built-in experiment on handwritten digits"]
    else:
        text, chosen = config_for(
            source,
            label=label,
            client=client,
            organisation=organisation,
            person=person,
            missing=missing,
        )
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write {out}",
            expected="a folder that can be written",
            got=error.strerror or str(error),
            remedy="choose another with --out",
        ) from None
    return [*chosen, f"wrote {out}; next: fedaudit run {out}"]


def config_for(
    source: Path,
    *,
    label: str | None,
    client: str | None,
    organisation: str | None,
    person: str | None,
    missing: str | None = None,
) -> tuple[str, list[str]]:
    """The text of a config for the data at `source`, and the choices made.

    `missing`: what to do about missing values of a table (refuse, drop, mean, category).
    """
    from fedaudit.data import files

    guess = files.sniff(source)
    _refuse_parts(guess.format, source, label, missing)
    reasons = dict(guess.reasons or {})
    said = {"label": label, "client": client, "organisation": organisation, "person": person}
    told = {name: column for name, column in said.items() if column is not None}
    # a column cannot play two parts, and who belongs to whom was guessed for another client column
    lost = {"organisation"} if client not in (None, guess.client) else set()
    roles: dict[str, Any] = {}
    for name in said:
        guessed = getattr(guess, name)
        roles[name] = told.get(name, None if name in lost or guessed in told.values() else guessed)
    guess = replace(guess, **roles)
    reasons |= dict.fromkeys(told, "as you said")
    taken = {getattr(guess, name) for name in said}
    guess = replace(guess, ignore=tuple(c for c in guess.ignore if c not in taken))
    lines = [
        "# Written by `fedaudit init`. `fedaudit list` shows every setting there is.",
        "# There is no seed in here: a run draws one and keeps it in truth/. Whoever knows it can",
        "# redraw every random number of the run.",
        "",
        "[data]",
        f"path = {toml_value(str(source))}   # relative to the folder you run from",
    ]
    chosen = [f"format: {guess.format}" + _because(reasons.get("format"))]
    read: dict[str, object] = {}
    for name in ("label", "client", "organisation", "person"):
        value = getattr(guess, name)
        if value is not None:
            read[name] = value
            lines.append(f"{name} = {toml_value(value)}{_comment(reasons.get(name))}")
            chosen.append(f"{name}: {value}" + _because(reasons.get(name)))
    if guess.ignore:
        read["ignore"] = guess.ignore
        lines.append(f"ignore = {toml_value(guess.ignore)}   # columns that are left out")
        chosen += [
            f"ignore: {column}" + _because(reasons.get(f"ignore {column}"))
            for column in guess.ignore
        ]
    if guess.format == "table":
        if missing is not None:
            guess = replace(guess, missing=missing)  # type: ignore[arg-type]
            reasons["missing"] = "; ".join(["as you said", *_known(reasons.get("missing"))])
        read["missing"], read["decimal"] = guess.missing, guess.decimal
        lines.append(f"missing = {toml_value(guess.missing)}   # refuse, drop, mean or category")
        if guess.missing != "refuse":
            chosen.append(f"missing: {guess.missing}" + _because(reasons.get("missing")))
        if guess.missing in FILLS:
            lines += [f"# {line}" for line in FILLS[guess.missing]]
            chosen += [f"  {line}" for line in FILLS[guess.missing]]
        if guess.decimal != ".":
            lines.append(f"decimal = {toml_value(guess.decimal)}{_comment(reasons.get('decimal'))}")
            chosen.append(f"decimal: {guess.decimal}" + _because(reasons.get("decimal")))
    # the file is read once now, so that a mistake shows here and not in a long run
    try:
        dataset = files.read(source, **read)  # type: ignore[arg-type]
    except DataError as error:
        if 'missing = "drop"' not in (error.remedy or ""):
            raise
        raise DataError(
            error.what,
            expected=error.expected,
            got=error.got,
            remedy=f"{error.remedy}: --missing drop",
        ) from None
    chosen += _doubts(dataset, guess.label)
    chosen.append(
        f"read: {len(dataset)} records"
        + (f", {len(dataset.classes)} classes" if dataset.classes else "")
    )
    if dataset.test is None:
        lines.append("test_fraction = 0.2   # held out of every client's training")
    else:
        chosen.append(f"held out: {len(dataset.test)} records, the data's own part for it")
    lines += ["", *_federation(dataset, guess.client, chosen)]
    lines += [*_task(dataset, chosen), ""]
    lines += ["# Without this the server sees who sent which update.", "[protections.shuffle]", ""]
    lines += ["# What left a client outside the declared protection?", "[audits.coverage]", ""]
    lines += ["# Can the server tell which updates come from the same client?"]
    lines += ["[audits.fingerprint]", ""]
    lines += ["# Does a client's update point back at the records that it trained on?"]
    lines += ["[audits.two_stage_membership]", ""]
    if not isinstance(dataset.x, tuple):
        lines += ["# Could a server that plants weights tell that a record is there?"]
        lines += ["[audits.active_membership]", ""]
    lines += _compared(_persons_apart(dataset), chosen)
    lines += _thorough(isinstance(dataset.x, tuple))
    return "\n".join(lines), chosen


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
"""What filling does, and to whom it shows: said where it is chosen."""

MANY_CLASSES = 20
BATCH_SIZE = 16


def _refuse_parts(kind: str, source: Path, label: str | None, missing: str | None) -> None:
    """Options that mean nothing for a kind of data, by their own name."""
    if label is not None and kind in ("images", "idx"):
        raise UsageError(
            f"{source}: there is no label to name",
            expected="no --label: the folder of an image is its class"
            if kind == "images"
            else "no --label: labels lie in a file of their own",
            got=f"--label {label}",
            remedy="leave --label out",
        )
    if missing is not None and (kind != "table" or missing not in MISSING):
        raise UsageError(
            "--missing cannot be used so",
            expected=f"one of {', '.join(MISSING)}, for a table",
            got=f"{missing!r} for data of kind {kind}",
            remedy="--missing drop" if kind == "table" else "leave --missing out",
        )


MISSING = ("refuse", "drop", "mean", "category")


def _known(text: str | None) -> list[str]:
    return [] if text is None else [text]


def _doubts(dataset: Dataset, label: str | None) -> list[str]:
    """What looks like a mistake and is not one for certain."""
    if dataset.kind != "features" or len(dataset.classes) <= MANY_CLASSES:
        return []
    try:
        [float(name) for name in dataset.classes]
    except ValueError:
        return []
    return [
        f"DOUBTFUL: {label} has {len(dataset.classes)} different numbers, and looks like a "
        "quantity. Every number would be a class of its own: there is no regression. Name another "
        "label, or put it into a few groups first."
    ]


def _thorough(text: bool) -> list[str]:
    """More of everything, for those who have the time."""
    return [
        "# Counts only with `fedaudit run --thorough`: more evidence and time, narrower intervals.",
        "# More rounds also spend more epsilon.",
        "[thorough.federation]",
        "rounds = 30",
        "",
        "[thorough.audits.two_stage_membership]",
        "records = 256   # asked about at every client, if it has as many",
        "",
        *([] if text else ["[thorough.audits.active_membership]", "games = 10000", ""]),
    ]


def _persons_apart(dataset: Dataset) -> bool:
    """Whether every person's records lie with one client, so that noise can cover the person."""
    if dataset.person is None or dataset.client is None:
        return dataset.person is not None
    pairs = set(zip(dataset.person, dataset.client, strict=True))
    return len(pairs) == len(set(dataset.person))


def _compared(persons: bool, chosen: list[str]) -> list[str]:
    """The same federation with noise at the clients, beside the plain one."""
    whose = "person" if persons else "record"
    chosen.append("compared: shuffled alone, and with DP-SGD at the clients (noise multiplier 1)")
    return [
        "# The same federation once more with noise at the clients: one report, side by side.",
        "[compare]",
        'base = "shuffled"',
        "",
        '[compare."shuffled, DP-SGD".protections.dp_sgd]',
        "noise_multiplier = 1.0   # more noise, less risk: `fedaudit harden` searches for enough",
        f"clip = 1.0               # bound on what one {whose} can change",
        *(['unit = "person"          # all records of one person together'] if persons else []),
        "",
    ]


def _federation(dataset: Dataset, owner: str | None, chosen: list[str]) -> list[str]:
    """Who takes part: the owners in the data, or a draw."""
    if dataset.client is not None:
        count, short = _owners(dataset)
        split, why = ['kind = "by_owner"'], f"one per {owner}"
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
    chosen.append(f"clients: {count} ({why})")
    chosen += [f"NOTE: {line}" for line in short]
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
    """How many owners take part, and which of them lost records or have few, by name.

    Drawn by a seed of its own: in a run, sizes are within one record of these.
    """
    from fedaudit.data import partition, prepare
    from fedaudit.data.shortage import shortage

    seed = Seed(0)
    train, _ = prepare.split(dataset, test_fraction=None, seed=seed)
    parts = partition.ByOwner().partition(train, None, seed)
    return len(parts), shortage(train, parts, BATCH_SIZE).lines()


def _task(dataset: Dataset, chosen: list[str]) -> list[str]:
    """A small model that can read the data."""
    if isinstance(dataset.x, tuple):
        length, why = _window(dataset.x, dataset.client)
        chosen.append(f"task: gpt, a small language model with windows of {length} tokens ({why})")
        task, rate = ['kind = "gpt"', f"length = {length}   # tokens in a window"], 0.1
    else:
        small = dataset.kind != "image" or min(dataset.x.shape[-2:]) < 4
        kind = "mlp" if small else "cnn"
        chosen.append(f"task: {kind}" + _because(f"records of shape {dataset.x.shape[1:]}"))
        task, rate = [f'kind = "{kind}"'], 0.05
    training = ["[training]", f"learning_rate = {rate}", "epochs = 1", f"batch_size = {BATCH_SIZE}"]
    return ["[task]", *task, "", *training]


def _window(texts: tuple[str, ...], owners: tuple[str, ...] | None) -> tuple[int, str]:
    """A window that every client can fill: half a window is enough to be kept."""
    from fedaudit.data.text import WordVocabulary

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


def _because(reason: str | None) -> str:
    return f" ({reason})" if reason else ""
