"""What an audit of a stored trace is asked to do: the trace, the audits and the options.

Everything here runs before the first attack: names become objects, and requests that cannot be
served are refused.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedaudit.audits.audit import Audit
from fedaudit.errors import ConfigError, TraceError, UsageError, nearest
from fedaudit.files import is_lost, read_toml
from fedaudit.hooks import Hook
from fedaudit.progress import Progress, no_progress
from fedaudit.settings import check
from fedaudit.setup.catalogue import AUDITS, PROTECTIONS, find
from fedaudit.setup.config import Config, load, plain
from fedaudit.setup.toml import toml_value
from fedaudit.study.folders import config_of, recording_at
from fedaudit.study.reuse import Explain, no_explain
from fedaudit.study.summary import UNNAMED
from fedaudit.trace import Trace, Truth

Place = str | os.PathLike[str]
AuditChoice = Mapping[str, Any] | Sequence[str | Audit] | None
"""Audits to run: objects or names, or name -> settings. None: those of the run's config, or all."""

AUDIT_SEED = 1
"""Seed of the audits' own draws (random guesses, resampling). It is not the seed of the run: a
Monte-Carlo figure in a published result would let others try small seeds until one fits."""


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """The options of `audit`, which describes each."""

    as_if: tuple[Hook, ...] = ()
    truth: Place | None = None
    out: Place | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    data: Place | None = None
    model: str | None = None
    marks: Place | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    opacus: Place | None = None
    delta: float = 1e-5
    seed: int = AUDIT_SEED
    names: bool = False
    fresh: bool = False
    trust_code: bool = False
    show_records: Place | None = None
    progress: Progress = no_progress
    explain: Explain = no_explain

    def __post_init__(self) -> None:
        marked = self.marks is not None and not self.columns
        if self.data is None and not marked and (self.model is not None or self.columns):
            raise UsageError(
                "a model or a column was named, and no records",
                expected="`data`, the file with the records to ask about, or `marks`",
                got=", ".join([*(["model"] if self.model is not None else []), *self.columns]),
                remedy="name the file, or leave these out: a run knows its own records and model",
            )


# -- the trace ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AuditTarget:
    """The trace to audit and the folder that holds it; `in_run`: this folder is a run.

    `configured` maps the audits of the run's config to their settings.
    """

    trace: Trace
    home: Path
    in_run: bool
    configured: Mapping[str, Any]

    @classmethod
    def open(cls, folder: Place) -> AuditTarget:
        trace = Trace.open(recording_at(folder, "audit"))
        home = trace.path.parent
        claimed = (home / "run.json").is_file() or not is_lost(home / "truth" / "identity.json")
        in_run = claimed and trace.path.name == "trace"
        configured = config_of(home).get("audits", {}) if in_run else {}
        return cls(trace=trace, home=home, in_run=in_run, configured=configured)

    def truth(self, place: Place | None) -> Truth | None:
        """The truth at `place`, or the one beside the trace; None where there is none."""
        folder = self.home / "truth" if place is None else Path(place)
        if place is None and not (folder / "truth.json").exists():
            return None
        truth = Truth.open(folder)
        _refuse_other_truth(truth, self.trace)
        return truth

    def folder_for(self, as_if: Sequence[Hook]) -> Path:
        """Where results go: the run, or a folder beside the run or trace."""
        name = self.trace.path.resolve().name
        if as_if:
            base = self.home.resolve() if self.in_run else self.home.resolve() / name
            return base.with_name(f"{base.name}-as-{'-'.join(h.name for h in as_if)}")
        return self.home if self.in_run else self.home / f"{name}-audit"

    def private_config(self) -> Config | None:
        """The whole config of a run, where it lies beside its truth."""
        file = self.home / "truth" / "config.toml"
        if not self.in_run or not file.is_file():
            return None
        try:
            raw = read_toml(file)
            return load({k: v for k, v in raw.items() if k != "audits"})
        except ConfigError:
            return None  # audits that need it say so


def _refuse_other_truth(truth: Truth, trace: Trace) -> None:
    for number in trace.rounds:
        messages = trace.messages(number)
        wrong = [
            i
            for i, name in truth.senders(number).items()
            if i >= len(messages) or messages[i].sender not in (name, *UNNAMED)
        ]
        if wrong:
            raise TraceError(
                f"{truth.path} is not the truth of {trace.path}",
                expected=f"senders of the messages of round {number}",
                got=f"message {wrong[0]}, which the trace does not have or ascribes to another",
                remedy="pass the folder that was written with this trace",
            )


# -- audits and protections -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ChosenAudits:
    """Audits to run, by name.

    `typed` names those whose settings the caller gave, as an object or one by one; `texts` are the
    texts in these settings, which may name code to load. `asked`: the caller chose the audits; else
    they are those of the run's config, or all.
    """

    audits: Mapping[str, Any]
    typed: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    asked: bool = False

    @property
    def ask_about_records(self) -> bool:
        return any(asks_about_records(audit) for audit in self.audits.values())


def choose_audits(
    given: AuditChoice,
    settings: Mapping[str, Mapping[str, Any]],
    configured: Mapping[str, Any],
) -> ChosenAudits:
    """The audits to run. A name takes its settings from the run's config, else the defaults;
    `settings` changes single ones."""
    if isinstance(given, Mapping):
        items = list(given.items())
    else:
        names = as_list(given) or [*(configured or AUDITS)]
        items = [
            (g, configured.get(g, {})) if isinstance(g, str) else (_name_of(g), g) for g in names
        ]
    objects = {name: value for name, value in items if not isinstance(value, Mapping)}
    _refuse_repeated([name for name, _ in items])
    _refuse_settings(settings, [name for name, _ in items], objects)
    by_name = [v for n, v in items if n not in objects] if isinstance(given, Mapping) else []
    words = [settings, by_name, *map(plain, objects.values())]
    return ChosenAudits(
        audits={
            name: value if name in objects else _built(name, {**value, **settings.get(name, {})})
            for name, value in items
        },
        typed=frozenset({*settings, *objects}),
        texts=frozenset(_texts(words)),
        asked=bool(given),
    )


def _refuse_repeated(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"{name} was given twice",
                expected="each audit once: its result is stored under its name",
                got=", ".join(names),
                remedy="audit twice, into different folders (out)",
            )


def _refuse_settings(
    settings: Mapping[str, Any], names: Sequence[str], objects: Mapping[str, Any]
) -> None:
    """Refuse settings of an audit that does not run, or that was given as an object."""
    for name in settings:
        if name not in names:
            raise UsageError(
                f"a setting of {name} was given, which does not run",
                expected="settings of the audits that run: " + ", ".join(names),
                got=f"settings of {name}",
                remedy=f"`audits=[{name!r}]`" if name in AUDITS else nearest(name, list(AUDITS)),
            )
        if name in objects:
            raise UsageError(
                f"{name} was given as an object and by single settings",
                expected="one of the two",
                got=f"{objects[name]!r} and {', '.join(settings[name])}",
                remedy="change the object",
            )


def _built(name: str, settings: Mapping[str, Any]) -> Any:
    return check(find(AUDITS, "audit", name), dict(settings), f"audits.{name}")


def _name_of(audit: Any) -> str:
    if isinstance(audit, type) or not hasattr(audit, "attack"):
        raise UsageError(
            "this is not an audit",
            expected="the name of an audit, or an object such as Fingerprint()",
            got=repr(audit),
            remedy="from fedaudit.audits import Fingerprint; audits=[Fingerprint()]",
        )
    return str(audit.name)


def choose_protections(given: Sequence[str | Hook]) -> tuple[Hook, ...]:
    """Protections to apply to a trace, given as objects or by name."""
    return tuple(_protection(g) for g in as_list(given))


def as_list(given: Any) -> list[Any]:
    """A list, of one thing too: one name or one object stands for itself."""
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple | set | frozenset) else [given]


def _protection(given: str | Hook) -> Hook:
    if isinstance(given, str):
        hook: Hook = check(find(PROTECTIONS, "protection", given), {}, f"protections.{given}")
        return hook
    if isinstance(given, Hook):
        return given
    raise UsageError(
        "this is not a protection",
        expected="the name of a protection, or an object such as Shuffle()",
        got=repr(given),
        remedy="from fedaudit.protections import Shuffle; as_if=[Shuffle()]",
    )


def asks_about_records(audit: Any) -> bool:
    """Whether an audit asks about records, which may be given with a recording."""
    return bool({"records", "games", "prior"}.intersection(audit.needs))


def refuse_unused_records(chosen: ChosenAudits, configured: bool) -> None:
    """Refuse records and a model that no audit would look at."""
    if chosen.ask_about_records:
        return
    which = "of the run's config" if configured and not chosen.asked else "to run"
    asking = [n for n in AUDITS if asks_about_records(find(AUDITS, "audit", n))]
    raise UsageError(
        "records were given, and no audit asks about any",
        expected=f"one of the audits that do: {', '.join(asking)}",
        got=f"the audits {which}: {', '.join(chosen.audits) or 'none'}",
        remedy='`audits=["two_stage_membership"]`, or leave `data` and `model` out',
    )


def refuse_unused_marks(chosen: ChosenAudits) -> None:
    """Refuse marks that no audit would look for."""
    if any("marks" in audit.needs for audit in chosen.audits.values()):
        return
    raise UsageError(
        "marks were given, and no audit looks for any",
        expected="the audit attribution",
        got=f"the audits to run: {', '.join(chosen.audits) or 'none'}",
        remedy='`audits=["attribution"]`, or leave `marks` out',
    )


def refuse_nothing_to_show(chosen: ChosenAudits) -> None:
    """Refuse to show records where no audit rebuilds any."""
    if any(hasattr(audit, "pairs") for audit in chosen.audits.values()):
        return
    raise UsageError(
        "records are to be shown, and no audit rebuilds any",
        expected="the audit reconstruction",
        got=f"the audits to run: {', '.join(chosen.audits) or 'none'}",
        remedy='`audits=["reconstruction"]`, or leave `show_records` out',
    )


def _texts(value: Any) -> set[str]:
    """Every text in plain values."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, Mapping):
        value = list(value.values())
    return set().union(*map(_texts, value)) if isinstance(value, list | tuple) else set()


# -- the same as a command ------------------------------------------------------------------------


def as_command(target: AuditTarget, chosen: ChosenAudits, options: AuditOptions) -> str:
    """The command line that asks for the same audit. It gives files by name, without folders."""
    words = ["fedaudit", "audit", "RUN" if target.in_run else "TRACE"]
    if chosen.asked and [*chosen.audits] != [*(target.configured or AUDITS)]:
        words += [word for name in chosen.audits for word in ("--only", name)]
    words += ["--truth", "TRUTH"] if options.truth is not None else []
    for hook in options.as_if:
        words += ["--as", _hook_text(hook)]
    words += [] if options.data is None else ["--data", Path(options.data).name]
    words += [] if options.marks is None else ["--marks", Path(options.marks).name]
    words += [] if options.model is None else ["--model", options.model]
    for name, value in options.columns.items():
        if name in ("label", "client"):
            words += [f"--{name}", str(value)]
        else:
            words += ["--set", f"data.{name}={toml_value(value)}"]
    for name, audit in chosen.audits.items():
        usual = target.configured.get(name, {})
        for key, value in _changed(audit, _built(name, usual) if name in AUDITS else audit).items():
            words += ["--set", f"audits.{name}.{key}={toml_value(value)}"]
    if options.opacus is not None:
        words += ["--opacus", Path(options.opacus).name, "--delta", f"{options.delta:g}"]
    words += [] if options.seed == AUDIT_SEED else ["--seed", str(options.seed)]
    words += ["--trust-code"] if options.trust_code else []
    return shlex.join(words)


def _hook_text(hook: Hook) -> str:
    """A protection as `--as` takes it: its name, and the settings that are not the default."""
    required = [
        f.name
        for f in dataclasses.fields(hook)  # type: ignore[arg-type]
        if f.init and f.default is f.default_factory is dataclasses.MISSING
    ]
    own = plain(hook)
    usual = {} if required else plain(type(hook)())
    given = {k: v for k, v in own.items() if usual.get(k) != v}
    settings = ",".join(f"{k}={toml_value(v)}" for k, v in given.items())
    return f"{hook.name}:{settings}" if settings else hook.name


def _changed(audit: Any, usual: Any) -> dict[str, Any]:
    before = plain(usual)
    return {k: v for k, v in plain(audit).items() if before.get(k) != v}
