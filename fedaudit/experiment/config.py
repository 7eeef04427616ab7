"""One TOML file is one experiment. Every key is known, or refused with the nearest valid name."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedaudit import settings
from fedaudit.errors import ConfigError, nearest
from fedaudit.experiment.catalogue import AUDITS, PROTECTIONS, find

DEFAULT = """\
# The built-in experiment: real handwritten digits, twenty clients with unequal class mixes,
# uploads shuffled on their way to a curious server.
seed = 1

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
    "protections",
    "audits",
    "trace",
)


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What is written down: tensors by name pattern, their dtype, and raw updates for the truth."""

    tensors: tuple[str, ...] = ("*",)
    dtype: str = "float32"
    raw_updates: bool = False
    purpose: str = ""
    retention: str = ""

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "float16"):
            raise ConfigError(
                "trace.dtype is not one a trace is written in",
                expected="float32 or float16",
                got=repr(self.dtype),
                remedy='trace.dtype = "float32"',
            )


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole experiment, checked. `data`, `partition`, `task`, `topology` keep their words until
    the objects they name are built, because some checks need the data."""

    seed: int
    data: Mapping[str, Any]
    partition: Mapping[str, Any]
    task: Any
    topology: Mapping[str, Any]
    federation: Any
    training: Any
    protections: Mapping[str, Any]
    audits: Mapping[str, Any]
    trace: Recording
    raw: Mapping[str, Any] = field(repr=False)

    @property
    def sha256(self) -> str:
        """Identity of the run (seed included, audits not: they can be added later)."""
        run = {k: v for k, v in self.raw.items() if k != "audits"}
        return hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()

    def public_toml(self) -> str:
        """The resolved config as TOML, without the seed."""
        return to_toml({k: v for k, v in self.raw.items() if k != "seed"})


def load(
    path: str | Path | None = None,
    *,
    overrides: Sequence[str] = (),
    seed: int | None = None,
) -> Config:
    """Read a config (or the built-in one), apply `section.key=value` overrides, check all of it."""
    if path is None:
        raw, where = tomllib.loads(DEFAULT), "the built-in config"
    else:
        raw, where = _read(Path(path)), str(path)
    for text in overrides:
        _override(raw, text)
    if seed is not None:
        raw["seed"] = seed
    return check(raw, where)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"there is no config {path}",
            expected="a TOML file",
            got="no such file",
            remedy="write one with `fedaudit init`, or run without a config",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read",
            expected="a UTF-8 text file",
            got=str(error),
            remedy="check the path and its permissions",
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{path} is not valid TOML",
            expected='lines such as key = "value"',
            got=str(error),
            remedy="correct that line",
        ) from None


def _override(raw: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(
            "--set needs a key and a value",
            expected="--set section.key=value",
            got=repr(text),
            remedy="for example --set federation.clients=10",
        )
    try:
        parsed = tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()  # a bare word is text
    here = raw
    for part in parts[:-1]:
        here = here.setdefault(part, {})
        if not isinstance(here, dict):
            raise ConfigError(
                f"{key} does not name a setting",
                expected="section.key",
                got=repr(key),
                remedy=f"{part} is a value, not a section",
            )
    here[parts[-1]] = parsed


def check(given: Mapping[str, Any], where: str = "the config") -> Config:
    """A checked config from plain values."""
    from fedaudit.federation.engine import Rounds
    from fedaudit.federation.local.schedule import Training
    from fedaudit.tasks.catalogue import CATALOGUE

    raw = copy.deepcopy(dict(given))
    for key in raw:
        if key not in SECTIONS:
            raise ConfigError(
                f"unknown section {key!r} in {where}",
                expected="a section of a config",
                got=repr(key),
                remedy=nearest(key, SECTIONS),
            )
    seed = raw.setdefault("seed", 1)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ConfigError(
            "seed is not a whole number",
            expected="0 or more",
            got=repr(seed),
            remedy="seed = 1",
        )
    for section in SECTIONS[1:]:
        if not isinstance(raw.setdefault(section, {}), dict):
            raise ConfigError(
                f"{section} is a section, not a value",
                expected=f"[{section}]",
                got=repr(raw[section]),
                remedy=f"write [{section}] on a line of its own",
            )
    if not raw["data"]:
        raw["data"] = {"name": "digits"}
    raw["partition"].setdefault("kind", "iid")
    raw["topology"].setdefault("kind", "star")
    text = raw["data"].get("name") in ("docs", "newsgroups", "spam", "sotu")
    raw["task"].setdefault("kind", "gpt" if text else "mlp")
    if not raw["audits"]:
        raw["audits"] = {"coverage": {}, "fingerprint": {}}
    kind = raw["task"]["kind"]
    if kind not in CATALOGUE:
        raise ConfigError(
            f"unknown task {kind!r}",
            expected="the name of a task",
            got=repr(kind),
            remedy=nearest(str(kind), CATALOGUE),
        )
    _check_data(raw["data"])
    _check_partition(raw["partition"])
    task = settings.check(
        CATALOGUE[kind], {k: v for k, v in raw["task"].items() if k != "kind"}, "task"
    )
    return Config(
        seed=seed,
        data=raw["data"],
        partition=raw["partition"],
        task=task,
        topology=raw["topology"],
        federation=settings.check(Rounds, raw["federation"], "federation"),
        training=settings.check(Training, raw["training"], "training"),
        protections=_named(raw["protections"], PROTECTIONS, "protection", "protections"),
        audits=_named(raw["audits"], AUDITS, "audit", "audits"),
        trace=settings.check(Recording, raw["trace"], "trace"),
        raw=raw,
    )


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


DATA_KEYS = ("name", "path", "test_fraction", "standardise")


def _check_data(data: dict[str, Any]) -> None:
    from fedaudit.data import builtin, files

    if ("name" in data) == ("path" in data):
        raise ConfigError(
            "data needs a source",
            expected="either data.name (built in or fetched) or data.path (your own file)",
            got="both" if "name" in data else "neither",
            remedy='data.name = "digits", or data.path = "mydata.csv"',
        )
    rest = {k: v for k, v in data.items() if k not in DATA_KEYS}
    fraction = data.get("test_fraction", 0.2)
    if not isinstance(fraction, int | float) or not 0 < fraction < 1:
        raise ConfigError(
            "data.test_fraction is out of range",
            expected="a number between 0 and 1",
            got=repr(fraction),
            remedy="data.test_fraction = 0.2",
        )
    if not isinstance(data.get("standardise", True), bool):
        raise ConfigError(
            "data.standardise is a switch",
            expected="true or false",
            got=repr(data["standardise"]),
            remedy="data.standardise = true",
        )
    if "name" in data:
        builtin.check_settings(str(data["name"]), rest)
        return
    import inspect

    known = [
        p.name
        for p in inspect.signature(files.read).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    ]
    for key in rest:
        if key not in known:
            raise ConfigError(
                f"unknown key data.{key}",
                expected="a setting for your own data",
                got=repr(key),
                remedy=nearest(key, [*known, *DATA_KEYS]),
            )


def _check_partition(given: dict[str, Any]) -> None:
    from fedaudit.data import partition

    values = {k: v for k, v in given.items() if k != "kind"}
    kind = str(given["kind"])
    if kind in partition.KINDS:
        settings.check(partition.KINDS[kind], values, "partition")
    else:
        partition.from_settings(kind, values)


def to_toml(values: Mapping[str, Any]) -> str:
    """Plain values as TOML: scalars first, then sections."""
    return "\n".join(_toml_lines(values, ())) + "\n"


def _toml_lines(values: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = []
    scalars = {k: v for k, v in values.items() if not isinstance(v, Mapping)}
    tables = {k: v for k, v in values.items() if isinstance(v, Mapping)}
    if path and (scalars or not tables):
        lines += ["", f"[{'.'.join(path)}]"]
    lines += [f"{k} = {_toml_value(v)}" for k, v in scalars.items() if v is not None]
    for name, table in tables.items():
        lines += _toml_lines(table, (*path, name))
    return lines


def _toml_value(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(v) for v in value) + "]"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    return json.dumps(value, ensure_ascii=False)
