"""One TOML file is one experiment. Every key is known, or refused with the nearest valid name."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedaudit import settings
from fedaudit.audits import facts_of
from fedaudit.data import builtin, files
from fedaudit.data import partition as partitions
from fedaudit.errors import ConfigError, UsageError
from fedaudit.federation import topology as topologies
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.rounds import Rounds
from fedaudit.files import parse_toml
from fedaudit.hooks import Hook
from fedaudit.settings import Fraction, checked
from fedaudit.setup import seeds
from fedaudit.setup.catalogue import AUDITS, PROTECTIONS, find
from fedaudit.setup.toml import NAMING, PATHS, overlaid, override, parse_override, read, toml_value
from fedaudit.tasks.catalogue import CATALOGUE
from fedaudit.trace.retention import check_retention
from fedaudit.watermarks.marking import FITTING, GreenMarking, Marking

DEFAULT = """\
# The built-in experiment: real handwritten digits, twenty clients with unequal class mixes,
# uploads shuffled on their way to a curious server.

[data]
name = "digits"

[partition]
kind = "dirichlet"
alpha = 0.3

[task]
kind = "mlp"
hidden = [128]

[federation]
clients = 20
rounds = 10

[training]
learning_rate = 0.1
epochs = 2
batch_size = 16

[protections.shuffle]

[audits.coverage]

[audits.fingerprint]
"""

SECTIONS = (
    "seed",
    "data",
    "partition",
    "task",
    "topology",
    "federation",
    "training",
    "marks",
    "protections",
    "allocation",
    "audits",
    "trace",
)


@dataclass(frozen=True, kw_only=True)
@checked("trace")
class TraceSettings:
    """What a run records: tensors by name pattern, their dtype, and raw updates for the truth."""

    tensors: tuple[str, ...] = ("*",)
    dtype: Literal["float32", "float16"] = "float32"
    raw_updates: bool = False
    purpose: str = ""
    retention: str = ""

    def __post_init__(self) -> None:
        try:
            check_retention(self.retention)
        except UsageError as error:
            raise ConfigError(
                "trace.retention cannot be read",
                expected=error.expected,
                got=error.got,
                remedy=error.remedy,
            ) from None


@dataclass(frozen=True, kw_only=True)
class NoiseOwners:
    """Clients in the order of a protection's noise multipliers.

    `clients` holds their names, or their number if the table of clients had no names.
    """

    clients: tuple[str, ...] | int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return () if isinstance(self.clients, int) else self.clients

    def check_noise(self, hook: Hook) -> None:
        """Refuse noise per client that does not have one distinct name for each multiplier."""
        noise = hook.own_multipliers
        if not self.names or not noise:
            return
        if not len(set(self.names)) == len(self.names) == len(noise):
            raise ConfigError(
                f"allocation.clients does not fit protections.{hook.name}.noise_multiplier",
                expected=f"{len(noise)} names, each once",
                got=f"{len(self.names)} names, {len(set(self.names))} of them different",
                remedy="write the file again: fedaudit allocate CLIENTS.csv ...",
            )


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole experiment, checked.

    `data`, `partition` and `topology` stay plain values until their objects are built, because
    some checks need the data. `raw` holds all settings as plain values with every default filled
    in: it reruns the experiment. `drawn`: the seed was drawn (now or when the run began) rather
    than given in the config.
    """

    seed: int
    data: Mapping[str, Any]
    partition: Mapping[str, Any]
    task: Any
    topology: Mapping[str, Any]
    federation: Any
    training: Any
    protections: Mapping[str, Any]
    audits: Mapping[str, Any]
    trace: TraceSettings
    raw: Mapping[str, Any] = field(repr=False)
    marks: Any = None
    allocation: NoiseOwners = NoiseOwners()
    drawn: bool = field(default=False, compare=False)

    def with_seed(self, seed: int, *, drawn: bool) -> Config:
        """The same experiment with another seed."""
        return dataclasses.replace(self, seed=seed, raw={**self.raw, "seed": seed}, drawn=drawn)

    @property
    def sha256(self) -> str:
        """Identity of the run without seed, keys and names: a hash would reveal short ones.

        Audits do not count: they can be added later. Canaries of the run itself do.
        """
        run = {k: v for k, v in self._keyless().items() if k not in ("seed", "audits")}
        # the records' path does not count, their contents do (identity.py)
        if run_canaries(self.raw):
            run["canaries"] = run_canaries(self.raw)
        run["data"] = {k: v for k, v in run["data"].items() if k != "path"}
        return hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()

    @property
    def full_sha256(self) -> str:
        """Identity with seed and audits: for private files only."""
        return hashlib.sha256(json.dumps(self.raw, sort_keys=True).encode()).hexdigest()

    def _keyless(self) -> dict[str, Any]:
        """All values except the keys of marks (short ones can be guessed) and the sites' names."""
        marks = {k: v for k, v in self.raw.get("marks", {}).items() if k != "keys"}
        plain = {k: v for k, v in self.raw.items() if k != ALLOCATED}
        return {**plain, **({"marks": marks} if marks else {})}

    def public(self) -> dict[str, Any]:
        """The settings that may be published with a trace: no seed, key, client name or folder."""
        plain = {k: v for k, v in self._keyless().items() if k != "seed"}
        for at in PATHS:
            section, key = at.split(".")
            if plain[section].get(key):
                plain[section] = {**plain[section], key: Path(plain[section][key]).name}
        plain["topology"] = {k: v for k, v in plain["topology"].items() if k != "clients"}
        return plain


def run_canaries(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of canaries that the run itself holds, which an audit asks for; empty without."""
    own = raw.get("audits", {}).get("epsilon") or {}
    if own.get("mode") != "production":
        return {}
    return {k: own.get(k) for k in ("canaries", "kinds", "norms")}


def load(
    path: str | Path | Mapping[str, Any] | None = None,
    *,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    thorough: bool = False,
) -> Config:
    """Read a config (or the built-in one), apply `section.key=value` overrides, check all of it.

    Overrides of `task.kind`, `data.name` and the like come first and drop the section's other
    settings: those belonged to the former kind. For a config with `[compare]` (see
    `load_variants`) this returns the first variant.
    """
    return next(
        iter(load_variants(path, overrides=overrides, seed=seed, thorough=thorough).values())
    )


COMPARE, THOROUGH = "compare", "thorough"
ALLOCATED = "allocation"
"""The section that assigns noise multipliers to clients. It names sites, so it is stored in truth/
and left out of a run's public config."""


def load_variants(
    path: str | Path | Mapping[str, Any] | None = None,
    *,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    thorough: bool = False,
) -> dict[str, Config]:
    """All variants of a federation in one config, by name; the base variant first.

        [compare]
        base = "unprotected"                    # name of the config as written
        [compare."DP-SGD".protections.dp_sgd]   # the same federation with this change
        noise_multiplier = 1.0

    Each table is laid over the base config key by key; `false` in place of a section removes it.
    `[thorough]` holds changes of the same form, applied only with `thorough`. Without `[compare]`
    there is one variant with an empty name.
    """
    if path is None:
        raw, where = parse_toml(DEFAULT), "the built-in config"
    elif isinstance(path, Mapping):
        raw, where = copy.deepcopy(dict(path)), "the config"
    else:
        raw, where = read(Path(path)), str(path)
    compare, more = (_table(raw.pop(name, {}), name) for name in (COMPARE, THOROUGH))
    if thorough and not more:
        raise ConfigError(
            f"`thorough=True` changes nothing: {where} has no [thorough]",
            expected="a section with the settings of a thorough run",
            got="none",
            remedy="add for example [thorough.federation] rounds = 50, or leave `thorough` out",
        )
    base = compare.pop("base", "as configured" if compare else "")
    if not isinstance(base, str) or base in compare:
        raise ConfigError(
            "compare.base is not a name of its own",
            expected="text in quotes that no other variant uses as its name",
            got=f"{base!r}, which is a variant too" if isinstance(base, str) else repr(base),
            remedy=f"base = {toml_value(_free_name(compare))}",
        )
    changes = [parse_override(text) for text in overrides]
    out = {}
    shared = seeds.draw()  # variants share one seed, so that they differ in settings alone
    for name, change in {base: {}, **compare}.items():
        own = overlaid(raw, _table(change, f"{COMPARE}.{name}"))
        if thorough:
            own = overlaid(own, more)
        for key, value in sorted(changes, key=lambda change: change[0] not in NAMING):
            override(own, key, value)
        if seed is not None:
            own["seed"] = seed
        made = check(own, f"{where}, {name}" if name else where)
        out[name] = made.with_seed(shared, drawn=True) if made.drawn else made
    return out


def _free_name(used: Container[str]) -> str:
    """An unused name for the base config that does not describe its protections."""
    numbered = (f"base {n}" for n in itertools.count(2))
    return next(n for n in itertools.chain(("as configured", "base"), numbered) if n not in used)


def _table(found: Any, name: str) -> dict[str, Any]:
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"{name} is a section, not a value",
            expected=f"[{name}]",
            got=repr(found),
            remedy=f"write [{name}] on a line of its own",
        )
    return dict(found)


def check(given: Mapping[str, Any], where: str = "the config") -> Config:
    """A checked config from plain values; without a seed, one is drawn."""
    raw = copy.deepcopy(dict(given))
    drawn = "seed" not in raw
    _check_sections(raw, where)
    _fill_defaults(raw)
    seed = raw["seed"]
    data = _check_data(raw["data"])
    kind = _kind_of(raw["task"], CATALOGUE, "task")
    task = settings.check(CATALOGUE[kind], _rest(raw["task"]), "task", also=("kind",))
    partition = _check_partition(raw["partition"])
    federation = settings.check(Rounds, raw["federation"], "federation")
    training = settings.check(Training, raw["training"], "training")
    protections = _named(raw["protections"], PROTECTIONS, "protection", "protections")
    for hook in protections.values():
        if hook.fixed_domain:
            data = _unstandardised(data, hook)
        if hook.asks:
            for name in AUDITS:  # every requested sum is in the ledger
                if facts_of(name).single_updates_in_sums:
                    raw["audits"].setdefault(name, {})
    audits = _named(raw["audits"], AUDITS, "audit", "audits")
    recording = settings.check(TraceSettings, raw["trace"], "trace")
    marks = _check_marks(raw["marks"], kind)
    topology = _check_topology(raw["topology"])
    allocation = settings.check(NoiseOwners, raw[ALLOCATED], ALLOCATED)
    for hook in protections.values():
        allocation.check_noise(hook)
    resolved: dict[str, Any] = {
        "seed": seed,
        "data": data,
        "partition": {"kind": partition.kind, **plain(partition)},
        "task": {"kind": kind, **plain(task)},
        "topology": topology,
        "federation": plain(federation),
        "training": plain(training),
        "protections": {name: plain(p) for name, p in protections.items()},
        "audits": {name: plain(a) for name, a in audits.items()},
        "trace": plain(recording),
    }
    if marks is not None:
        resolved["marks"] = plain(marks)
    if raw[ALLOCATED]:
        resolved[ALLOCATED] = plain(allocation)
    return Config(
        seed=seed,
        data=data,
        partition=resolved["partition"],
        task=task,
        topology=topology,
        federation=federation,
        training=training,
        protections=protections,
        audits=audits,
        trace=recording,
        raw=resolved,
        marks=marks,
        allocation=allocation,
        drawn=drawn,
    )


def _check_sections(raw: dict[str, Any], where: str) -> None:
    """Refuse unknown sections and a wrong seed; fill in missing sections and the seed, in place."""
    for key in raw:
        if key not in SECTIONS:
            raise ConfigError.unknown(f"unknown section {key!r} in {where}", key, SECTIONS)
    seed = raw.setdefault("seed", seeds.draw())
    if not seeds.is_seed(seed):
        raise ConfigError(
            "seed is out of range" if isinstance(seed, int) else "seed is not a whole number",
            expected="a whole number from 0 to 2^64 - 1",
            got=repr(seed),
            remedy="leave seed out: fedaudit then draws one that nobody can guess",
        )
    for section in SECTIONS[1:]:
        if not isinstance(raw.setdefault(section, {}), dict):
            raise ConfigError(
                f"{section} is a section, not a value",
                expected=f"[{section}]",
                got=repr(raw[section]),
                remedy=f"write [{section}] on a line of its own",
            )
    if raw[ALLOCATED] and not raw["data"]:
        raise ConfigError(
            f"{where} allocates noise to clients and names no data",
            expected="[data], the records of these clients",
            got="[allocation] without [data]",
            remedy="name your config when you allocate",
        )


def _fill_defaults(raw: dict[str, Any]) -> None:
    """Fill in the data set, the kinds and the audits that a config leaves out, in place."""
    if not raw["data"]:
        raw["data"] = {"name": "digits"}
    raw["partition"].setdefault("kind", "iid")
    raw["topology"].setdefault("kind", "star")
    raw["task"].setdefault("kind", "gpt" if _is_text(raw["data"]) else "mlp")
    if not raw["audits"]:
        raw["audits"] = {"coverage": {}, "fingerprint": {}}


def _unstandardised(data: Mapping[str, Any], hook: Hook) -> dict[str, Any]:
    """Data for clients that randomise their own records: columns are not standardised.

    Standardising needs the means and deviations of all clients' records before anything is
    randomised. Every client's codes would then depend on every record.
    """
    if data.get("standardise"):
        raise ConfigError(
            f"standardised columns do not go with protections.{hook.name}",
            expected="features within bounds that are fixed beforehand",
            got="data.standardise = true: means and deviations of all clients' records",
            remedy=f"data.standardise = false, and protections.{hook.name}.low and high for the "
            "features as they are",
        )
    return {**data, "standardise": False}


def plain(settings_object: Any) -> dict[str, Any]:
    """The settings of a dataclass as JSON types, without those that are None: TOML has no null."""
    values = {
        f.name: getattr(settings_object, f.name)
        for f in dataclasses.fields(settings_object)
        if f.init
    }
    out: dict[str, Any] = json.loads(json.dumps({k: v for k, v in values.items() if v is not None}))
    return out


def _rest(section: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in section.items() if k != "kind"}


def _kind_of(section: Mapping[str, Any], table: Iterable[str], what: str) -> str:
    kind = section["kind"]
    if not isinstance(kind, str) or kind not in table:
        raise ConfigError.unknown(f"unknown {what} {kind!r}", kind, table)
    return kind


def _is_text(data: Mapping[str, Any]) -> bool:
    path = str(data.get("path", "")).lower().removesuffix(".gz")
    known = data.get("name") in ("docs", "newsgroups", "spam", "sotu")
    return known or path.endswith((".jsonl", ".ndjson"))


def _named(
    given: Mapping[str, Any], table: dict[str, str], kind: str, section: str
) -> dict[str, Any]:
    out = {}
    for name, values in given.items():
        cls = find(table, kind, name)
        if not isinstance(values, dict):
            raise ConfigError(
                f"{section}.{name} is a section, not a value",
                expected=f"[{section}.{name}]",
                got=repr(values),
                remedy=f"write [{section}.{name}] on a line of its own",
            )
        out[name] = settings.check(cls, values, f"{section}.{name}")
    return out


@dataclass(frozen=True, kw_only=True)
@checked("data")
class HoldOut:
    """Settings of [data] that do not depend on where the data come from."""

    test_fraction: Fraction | None = None
    standardise: bool | None = None


DATA_KEYS = ("name", "path", "test_fraction", "standardise")


def _check_data(data: Mapping[str, Any]) -> dict[str, Any]:
    rest = {k: v for k, v in data.items() if k not in DATA_KEYS}
    if ("name" in data) == ("path" in data):
        if "name" not in data:
            settings.refuse_unknown(
                rest, settings.argument_names(files.read), "data", also=DATA_KEYS
            )
        raise ConfigError(
            "data needs a source",
            expected="either data.name (built in or fetched) or data.path (your own file)",
            got="both" if "name" in data else "neither",
            remedy='data.name = "digits", or data.path = "mydata.csv"',
        )
    held = settings.check(
        HoldOut, {k: data[k] for k in ("test_fraction", "standardise") if k in data}, "data"
    )
    if "name" in data:
        name = data["name"]
        known = builtin.check_settings(str(name), {})
        settings.refuse_unknown(rest, known, "data", also=DATA_KEYS)
        return {"name": name, **builtin.check_settings(str(name), rest), **plain(held)}
    if not isinstance(data["path"], str):
        raise ConfigError(
            f"data.path cannot be {data['path']!r}",
            expected="text in quotes",
            got=repr(data["path"]),
            remedy='data.path = "mydata.csv"',
        )

    settings.check_arguments(files.read, rest, "data", also=DATA_KEYS)
    return {"path": data["path"], **rest, **plain(held)}


def _check_partition(given: Mapping[str, Any]) -> Any:
    kind = _kind_of(given, partitions.KINDS, "partition")
    return settings.check(partitions.KINDS[kind], _rest(given), "partition", also=("kind",))


def _check_marks(given: Mapping[str, Any], task: str) -> Any:
    """Marked records that some clients train on; None where the section is empty."""
    if not given:
        return None
    if task not in FITTING:
        raise ConfigError(
            f"marks cannot be planted for task.kind = {task!r}",
            expected=f"task.kind of {', '.join(FITTING)}",
            got=repr(task),
            remedy="remove [marks], or use another task",
        )
    kind = given.get("kind", FITTING[task][0])
    cls = GreenMarking if kind == "kgw" else Marking
    checked = settings.check(cls, {**given, "kind": kind}, "marks")
    if checked.kind not in FITTING[task]:
        raise ConfigError(
            f"{checked.kind} marks do not fit task.kind = {task!r}",
            expected="canary for classifiers, kgw or fictitious for language models",
            got=f"marks.kind = {checked.kind!r}",
            remedy=f'marks.kind = "{FITTING[task][0]}"',
        )
    return checked


def _check_topology(given: Mapping[str, Any]) -> dict[str, Any]:
    kind = _kind_of(given, topologies.KINDS, "topology")
    build = topologies.KINDS[kind].build
    settings.check_arguments(build, _rest(given), "topology", also=("kind",))
    return dict(given)
