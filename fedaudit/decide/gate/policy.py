"""A policy: limits that a run has to keep, read from TOML and checked before any run is opened."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from fedaudit.accounting import Unit
from fedaudit.audits import AUDITS
from fedaudit.decide.gate.measures import (
    EPSILON,
    LOSS,
    UTILITY,
    VERDICT,
    check_metric,
)
from fedaudit.errors import ConfigError, UsageError, nearest
from fedaudit.files import Unreadable, read_toml, write_atomically
from fedaudit.settings import check, refuse_unknown
from fedaudit.setup.toml import toml_value

Forbidden = Literal["leak", "disagreement", "attributed"]


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One limit, on the end of the interval that speaks against the run.

    `metric` as in `measures`; `per` every "client", or the "federation" as a whole. Bounds are
    absolute (`at_most`, `at_least`), multiples of what no leak would give (`_times_chance`), or
    differences from it (`_above_chance`). `forbid` and `must_detect` are for verdicts;
    `protection`, `unit` and `delta_at_most` for epsilon. `federation` and `variant` restrict the
    limit to runs of a study. `point_value` takes a number that has no interval as it stands.
    """

    metric: str
    name: str = ""
    why: str = ""
    per: Literal["federation", "client"] = "federation"
    at_most: float | None = None
    at_least: float | None = None
    at_most_times_chance: float | None = None
    at_least_times_chance: float | None = None
    at_most_above_chance: float | None = None
    forbid: tuple[Forbidden, ...] | None = None
    must_detect: float | None = None
    protection: str | None = None
    unit: Unit | None = None
    delta_at_most: float | None = None
    federation: str | None = None
    variant: str | None = None
    point_value: bool = False

    @property
    def audit(self) -> str:
        """The audit that is asked, or nothing."""
        return self.metric.partition(".")[0] if "." in self.metric else ""

    @property
    def measure(self) -> str:
        return self.metric.partition(".")[2] or self.metric

    @property
    def is_verdict(self) -> bool:
        return self.measure == VERDICT

    @property
    def forbidden(self) -> tuple[Forbidden, ...]:
        """Verdicts that break the limit; whoever wants attribution leaves it out of `forbid`."""
        return self.forbid or get_args(Forbidden)

    @property
    def per_client(self) -> bool:
        return self.per == "client" or self.metric == EPSILON

    def of_audit(self, audit: str) -> Limit:
        """A limit on all verdicts, as it reads for one audit."""
        return replace(self, metric=f"{audit}.{VERDICT}", name=expanded(self.name, audit))


def expanded(name: str, audit: str) -> str:
    return f"{name} ({audit})"


BOUNDS = (
    "at_most",
    "at_least",
    "at_most_times_chance",
    "at_least_times_chance",
    "at_most_above_chance",
)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Limits; evidence stated at less than `confidence` counts as none.

    Missing evidence fails, but for the limits named in `allow_missing`.
    """

    limits: tuple[Limit, ...]
    confidence: float = 0.95
    allow_missing: tuple[str, ...] = ()
    where: str = "policy.toml"

    def allowing(self, names: Sequence[str]) -> Policy:
        """The same policy, forgiving more missing evidence."""
        self._check_names(names, "--allow")
        return replace(self, allow_missing=(*self.allow_missing, *names))

    def _check_names(self, names: Iterable[str], where: str) -> None:
        valid = [limit.name for limit in self.limits]
        parts = [expanded(x.name, a) for x in self.limits if x.metric == VERDICT for a in AUDITS]
        for name in names:
            if name not in valid and name not in parts:
                raise ConfigError(
                    f"{where} names {name!r}, which is no limit of {self.where}",
                    expected="the name of a limit whose evidence may be missing",
                    got=repr(name),
                    remedy=nearest(name, valid),
                )


@dataclass(frozen=True, kw_only=True)
class _Head:
    """The section [policy]."""

    confidence: float = 0.95
    allow_missing: tuple[str, ...] = ()


def load_policy(source: str | Path | Mapping[str, Any]) -> Policy:
    """Read and check a policy: unknown names, values out of range and contradictions are errors."""
    if isinstance(source, Mapping):
        raw, where = dict(source), "the policy"
    else:
        raw, where = _read(Path(source)), str(source)
    refuse_unknown(raw, ["policy", "limit"], where)
    head = check(_Head, _table(raw.get("policy", {}), "policy"), "policy")
    if not 0 < head.confidence < 1:
        raise ConfigError(
            "policy.confidence is out of range",
            expected="a number strictly between 0 and 1",
            got=repr(head.confidence),
            remedy="write 0.95 for 95 %",
        )
    listed = raw.get("limit", [])
    if not isinstance(listed, list) or not listed:
        raise ConfigError(
            f"{where} sets no limit",
            expected="at least one [[limit]]: a policy without any would pass everything",
            got="[limit], a single table" if isinstance(listed, Mapping) else "none",
            remedy="write [[limit]] with two brackets, or start from `fedaudit gate --init FILE`",
        )
    limits = tuple(_limit(_table(given, "limit"), n) for n, given in enumerate(listed, 1))
    _refuse_contradictions(limits)
    _refuse_twins(limits)
    policy = Policy(
        limits=limits,
        confidence=head.confidence,
        allow_missing=head.allow_missing,
        where=where,
    )
    policy._check_names(head.allow_missing, "policy.allow_missing")
    return policy


_WRITTEN = re.compile(
    r"(?P<metric>.+?)\s*(?P<sign><=|>=|\bat most\b|\bat least\b)\s*"
    r"(?P<number>(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(?P<hundredths>%|points?\b)?"
    r"\s*(?P<of>(?:x|times) chance|above chance)?"
    r"(?:\s*,?\s*per (?P<per>client|record|person|example))?"
)


def read_limit(text: str) -> dict[str, Any]:
    """One line as a `[[limit]]`: the metric, "<=" or ">=" (or in words), and what it is held to.

        fingerprint.linkage_accuracy <= 1.5 x chance
        two_stage_membership.true_positive_rate (at 1 %) at most 2 %
        epsilon <= 8 per record
        accuracy_loss <= 2 points
        coverage.verdict                                  (neither a leak nor a disagreement)

    "per client" holds every client to it; an epsilon is always held so, and "per record" and its
    like name the unit of the promise.
    """
    line = " ".join(text.split())
    if line.rpartition(".")[2] == VERDICT:
        return {"metric": line}
    found = _WRITTEN.fullmatch(line)
    low = found is not None and found["sign"] in (">=", "at least")
    if found is None or (low and found["of"] == "above chance"):
        raise ConfigError(
            f"this limit cannot be read: {text!r}",
            expected="METRIC <= NUMBER or METRIC >= NUMBER, then perhaps %, points, x chance, "
            "above chance, per client",
            got=repr(text),
            remedy='"fingerprint.linkage_accuracy <= 1.5 x chance", "epsilon <= 8"',
        )
    value = float(found["number"]) / (100 if found["hundredths"] else 1)
    key = "at_least" if low else "at_most"
    if found["of"]:
        key += "_above_chance" if found["of"] == "above chance" else "_times_chance"
    out: dict[str, Any] = {"metric": found["metric"], key: value}
    if found["per"] == "client":
        out["per"] = "client"
    elif found["per"]:
        out["unit"] = found["per"]
    return out


def write_policy(policy: Policy) -> str:
    """A policy as the TOML it could have been read from."""
    lines = [
        "[policy]",
        f"confidence = {toml_value(policy.confidence)}",
        f"allow_missing = {toml_value(policy.allow_missing)}",
    ]
    for limit in policy.limits:
        lines += ["", "[[limit]]"]
        lines += [
            f"{f.name} = {toml_value(getattr(limit, f.name))}"
            for f in fields(limit)
            if getattr(limit, f.name) != f.default
        ]
    return "\n".join(lines) + "\n"


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except Unreadable as error:
        what, remedy = f"the policy {path} cannot be read", "correct it; texts stand in quotes"
        if error.absent or error.empty:
            remedy = f"write one with `fedaudit gate --init {path}`"
        raise error.as_error(ConfigError, what, remedy) from None


def _table(given: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{where} is not a table",
            expected=f"[{where}]" if where == "policy" else "[[limit]] and its settings",
            got=repr(given),
            remedy="start from `fedaudit gate --init FILE`",
        )
    return given


def _limit(given: Mapping[str, Any], number: int) -> Limit:
    called = given.get("name")
    where = f"limit {called!r}" if isinstance(called, str) and called else f"limit {number}"
    for key, value in given.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(
                f"{where}: {key} is {value}",
                expected="a finite number: a limit that nothing can break is none",
                got=str(value),
                remedy="leave the limit out",
            )
    limit = check(Limit, given, where)
    check_metric(limit.metric, limit.per == "client", where)
    _check_parts(limit, where)
    if limit.name:
        return limit
    about = [p for p in (limit.federation, limit.variant, limit.protection) if p]
    name = limit.metric + (" per client" if limit.per == "client" else "")
    return replace(limit, name=" ".join([name, *(f"[{p}]" for p in about)]))


def _check_parts(limit: Limit, where: str) -> None:
    """Each kind of limit has its own settings, and at least one that can fail."""
    given = {
        f.name for f in fields(limit) if getattr(limit, f.name) != f.default and f.name != "metric"
    }
    given -= {"name", "why", "federation", "variant"}
    if limit.is_verdict:
        allowed = {"forbid", "must_detect"}
    elif limit.metric == EPSILON:
        allowed = {"at_most", "protection", "unit", "delta_at_most", "per"}
    elif limit.metric == LOSS:
        allowed = {"at_most"}
    elif limit.metric in UTILITY:
        allowed = {"at_most", "at_least", "point_value"}
    else:
        allowed = {*BOUNDS, "per", "point_value"}
    for key in sorted(given - allowed):
        raise ConfigError(
            f"{where}: {key} means nothing for {limit.metric}",
            expected="one of " + ", ".join(sorted(allowed)),
            got=key,
            remedy=f"remove {key}, or set it on a limit of another metric",
        )
    if limit.is_verdict:
        if limit.forbid == ():
            raise ConfigError(
                f"{where} forbids nothing",
                expected=f"forbid = {toml_value(get_args(Forbidden))} (the default), or some of "
                "them",
                got="an empty list",
                remedy="leave forbid out",
            )
        return
    if not given & set(BOUNDS):
        raise ConfigError(
            f"{where} sets no bound",
            expected="one of " + ", ".join(b for b in BOUNDS if b in allowed),
            got="none",
            remedy="such as at_most = 0.05",
        )
    low, high = limit.at_least, limit.at_most
    _refuse_empty(where, where, low, high, "at_least", "at_most")
    low, high = limit.at_least_times_chance, limit.at_most_times_chance
    _refuse_empty(where, where, low, high, "at_least_times_chance", "at_most_times_chance")
    for key in ("at_most_times_chance", "at_least_times_chance", "delta_at_most"):
        value = getattr(limit, key)
        if value is not None and value <= 0:
            raise ConfigError(
                f"{where}: {key} is out of range",
                expected="a number above 0",
                got=f"{value:g}",
                remedy="1.5 for one and a half times what no leak would give"
                if "chance" in key
                else "1e-5",
            )
    if limit.metric == EPSILON and limit.at_most is not None and limit.at_most < 0:
        raise ConfigError(
            f"{where}: at_most is out of range",
            expected="an epsilon from 0",
            got=f"{limit.at_most:g}",
            remedy="8.0",
        )


def _refuse_empty(
    one: str, other: str, low: float | None, high: float | None, low_key: str, high_key: str
) -> None:
    if low is not None and high is not None and low > high:
        both = one if one == other else f"{one} and {other}"
        raise ConfigError(
            f"{both} contradict: nothing is at least {low:g} and at most {high:g}"
            if one != other
            else f"{both} contradicts itself: nothing is at least {low:g} and at most {high:g}",
            expected=f"{low_key} no greater than {high_key}",
            got=f"{low_key} = {low:g}, {high_key} = {high:g}",
            remedy="were the two exchanged? Otherwise drop one",
        )


def _refuse_twins(limits: Sequence[Limit]) -> None:
    seen: set[str] = set()
    for limit in limits:
        if limit.name in seen:
            raise ConfigError(
                f"two limits are called {limit.name!r}",
                expected="one name per limit: --allow and reports go by it",
                got="the same name twice",
                remedy="give each limit a name of its own",
            )
        seen.add(limit.name)


def _refuse_contradictions(limits: Sequence[Limit]) -> None:
    """Limits of one measure on the same runs that no run can keep at once."""
    for i, a in enumerate(limits):
        for b in limits[i + 1 :]:
            same = (a.metric, a.per, a.protection, a.unit) == (
                b.metric,
                b.per,
                b.protection,
                b.unit,
            )
            if not same or not _meet(a.federation, b.federation) or not _meet(a.variant, b.variant):
                continue
            names = (f"limit {a.name!r}", f"limit {b.name!r}")
            for ending in ("", "_times_chance"):
                low_key, high_key = f"at_least{ending}", f"at_most{ending}"
                for x, y in ((a, b), (b, a)):
                    _refuse_empty(
                        *names, getattr(x, low_key), getattr(y, high_key), low_key, high_key
                    )


def _meet(one: str | None, other: str | None) -> bool:
    return one is None or other is None or one == other


EXAMPLE = """\
# What a run must keep before it may be released. Check it with
#
#     fedaudit gate RUN --policy {file}
#
# Exit codes: 0 every limit is kept, 4 a limit is broken or has no evidence, 2 this file or the
# command is wrong, 3 the run cannot be read. Limits hold for the end of the interval that speaks
# against the run (the confidence bound), not for the measured value: little evidence, wide
# interval, no pass. What is missing, underpowered, not applicable or made of another trace fails.

[policy]
confidence = 0.95     # estimates stated at less count as no evidence
# Limits, by name, whose evidence may be missing (also: --allow NAME). A limit that was measured
# and is broken fails all the same.
allow_missing = []

# Can a curious server link shuffled updates? At most 1.5 times what guessing would give.
# This takes many clients: the upper end of the interval has to stay below the limit, which a
# federation of ten or twenty cannot show, however well it is protected. `fedaudit power RUN` says
# how many clients and rounds would do; with fewer, set a limit that they can keep, or let only a
# secure sum leave: then nothing is left to link, which keeps the limit. Names on the updates break
# it: they are known outright, at 100 %.
[[limit]]
name = "linkage"
metric = "fingerprint.linkage_accuracy"
at_most_times_chance = 1.5

# The same for every single client, in absolute terms. `per = "client"` takes the columns of an
# audit's client table; the worst client decides.
[[limit]]
name = "linkage of every client"
metric = "fingerprint.share"
per = "client"
at_most = 0.5

# Can records of a client be told from others?
[[limit]]
name = "membership"
metric = "two_stage_membership.membership_auc"
at_most = 0.6

[[limit]]
name = "membership at 1 % false positives"
metric = "two_stage_membership.true_positive_rate (at 1 %)"
at_most = 0.05

# What was promised: the largest epsilon of every client, over all that was promised to it.
# protection = "dp_sgd" looks at one protection. A promise is per record, per person or per client:
# unit = "person" takes promises per person alone (as `fedaudit init` sets them up where the data
# name persons), and what was promised per record is then no evidence. Without unit, any will do.
[[limit]]
name = "epsilon"
metric = "epsilon"
at_most = 8.0
# unit = "person"
delta_at_most = 1e-5

# The model must still be of use: held-out accuracy of the last model.
[[limit]]
name = "utility"
metric = "accuracy"
at_least = 0.80

# No audit may find a leak or contradict its theory ("verdict" alone stands for every audit of the
# run; "fingerprint.verdict" for one). "No evidence" from an audit that could not have seen
# anything counts as missing.
[[limit]]
name = "coverage"
metric = "coverage.verdict"
forbid = ["leak", "disagreement"]
why = "nothing may leave a client outside every protection"

# In a study, limits hold for every run unless they name one:
# [[limit]]
# name = "protected linkage"
# metric = "fingerprint.linkage_accuracy"
# federation = "digits"
# variant = "DP-SGD"
# at_most = 0.2
"""


def write_example(path: Path, force: bool = False) -> None:
    """Write the commented example policy."""
    if path.exists() and not force:
        raise UsageError(
            f"{path} exists",
            expected="a file that is not there yet",
            got="an existing file",
            remedy="choose another name, or overwrite it with --force",
        )
    try:
        write_atomically(path, EXAMPLE.replace("{file}", path.name))
    except OSError as error:
        raise UsageError(
            f"cannot write {path}",
            expected="a folder that exists and can be written",
            got=error.strerror or str(error),
            remedy="choose another place",
        ) from None
