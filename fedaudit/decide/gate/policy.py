"""Policy: limits that a run must keep. Read from TOML, checked before any run is opened."""

from __future__ import annotations

import math
import os
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
from fedaudit.errors import ConfigError, UsageError
from fedaudit.files import Unreadable, read_toml, write_atomically, writing
from fedaudit.settings import Fraction, check, checked, refuse_unknown
from fedaudit.setup.toml import toml_value

Forbidden = Literal["leak", "disagreement", "attributed"]


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One limit on the worst end of an interval.

    `metric` is a name in `measures`. `per` is every "client" or the whole "federation". Bounds are
    absolute (`at_most`, `at_least`), multiples of chance (`_times_chance`), or differences from
    chance (`_above_chance`). `forbid` and `must_detect` apply to verdicts; `protection`, `unit` and
    `delta_at_most` to epsilon. `federation` and `variant` select runs of a study. `point_value`
    accepts a number without an interval.
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
        """Name of the audit; empty for epsilon, utility and all verdicts."""
        return self.metric.partition(".")[0] if "." in self.metric else ""

    @property
    def measure(self) -> str:
        return self.metric.partition(".")[2] or self.metric

    @property
    def is_verdict(self) -> bool:
        return self.measure == VERDICT

    @property
    def forbidden(self) -> tuple[Forbidden, ...]:
        """Verdicts that break the limit."""
        return self.forbid or get_args(Forbidden)

    @property
    def per_client(self) -> bool:
        return self.per == "client" or self.metric == EPSILON

    def of_audit(self, audit: str) -> Limit:
        """The limit on all verdicts, applied to one audit."""
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
    """Limits, and the `confidence` that evidence must have to count.

    Missing evidence fails unless `allow_missing` names the limit.
    """

    limits: tuple[Limit, ...]
    confidence: float = 0.95
    allow_missing: tuple[str, ...] = ()
    where: str = "policy.toml"

    def allowing(self, names: Sequence[str]) -> Policy:
        """The policy with more names in `allow_missing`."""
        self._check_names(names, "`allow`")
        return replace(self, allow_missing=(*self.allow_missing, *names))

    def may_lack(self, name: str, audit: str, *, verdict: bool) -> bool:
        """Whether evidence for a limit may be missing: it is named, or is the part, for `audit`,
        of a limit on all verdicts that is named."""
        if name in self.allow_missing:
            return True
        if not verdict or any(x.name == name for x in self.limits):
            return False
        whole = (x.name for x in self.limits if x.metric == VERDICT)
        return any(w in self.allow_missing and name == expanded(w, audit) for w in whole)

    def _check_names(self, names: Iterable[str], where: str) -> None:
        valid = [limit.name for limit in self.limits]
        parts = [expanded(x.name, a) for x in self.limits if x.metric == VERDICT for a in AUDITS]
        for name in names:
            if name not in valid and name not in parts:
                raise ConfigError.unknown(
                    f"{where} names {name!r}, which is not a limit in {self.where}", name, valid
                )


@dataclass(frozen=True, kw_only=True)
@checked("policy")
class _PolicySection:
    """The section [policy]."""

    confidence: Fraction = 0.95
    allow_missing: tuple[str, ...] = ()


def load_policy(source: str | Path | Mapping[str, Any]) -> Policy:
    """Read a policy; unknown names, values out of range and contradictions are errors."""
    if isinstance(source, Mapping):
        raw, where = dict(source), "the policy"
    elif not isinstance(source, str | os.PathLike):
        raise UsageError(
            "this is not a policy",
            expected='a file, or a mapping such as {"limit": [{"metric": ...}]}',
            got=type(source).__name__,
            remedy="fedaudit gate --init policy.toml writes one",
        )
    else:
        raw, where = _read(Path(source)), str(source)
    refuse_unknown(raw, ["policy", "limit"], where)
    head = check(_PolicySection, _table(raw.get("policy", {}), "policy"), "policy")
    listed = raw.get("limit", [])
    if not isinstance(listed, list) or not listed:
        raise ConfigError(
            f"{where} sets no limit",
            expected="at least one [[limit]]: a policy without limits passes everything",
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
    """Read a limit from one line: metric, "<=" or ">=" (or in words), and the bound.

        fingerprint.linkage_accuracy <= 1.5 x chance
        two_stage_membership.true_positive_rate (at 1 %) at most 2 %
        epsilon <= 8 per record
        accuracy_loss <= 2 points
        coverage.verdict                                  (neither a leak nor a disagreement)

    "per client" applies the bound to every client. An epsilon always applies to every client; "per
    record", "per person" and "per example" are the unit of its promise.
    """
    line = " ".join(text.split())
    if line.rpartition(".")[2] == VERDICT:
        return {"metric": line}
    found = _WRITTEN.fullmatch(line)
    low = found is not None and found["sign"] in (">=", "at least")
    if found is None or (low and found["of"] == "above chance"):
        raise ConfigError(
            f"cannot read the limit {text!r}",
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
    """The policy as TOML; `load_policy` reads it back."""
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
        what, remedy = f"cannot read the policy {path}", "correct the file; text needs quotes"
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
                expected="a finite number",
                got=str(value),
                remedy="remove the limit",
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
    """Check that the settings fit the metric and that at least one of them is a bound."""
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
            f"{where}: {key} does not apply to {limit.metric}",
            expected="one of " + ", ".join(sorted(allowed)),
            got=key,
            remedy=f"remove {key}, or set it on a limit of another metric",
        )
    if limit.is_verdict:
        if limit.forbid == ():
            raise ConfigError(
                f"{where} forbids nothing",
                expected=f"forbid = {toml_value(get_args(Forbidden))} (default), or a part of it",
                got="an empty list",
                remedy="remove forbid",
            )
        return
    if not given & set(BOUNDS):
        raise ConfigError(
            f"{where} sets no bound",
            expected="one of " + ", ".join(b for b in BOUNDS if b in allowed),
            got="none",
            remedy="add a bound, for example at_most = 0.05",
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
                remedy="1.5 means one and a half times chance" if "chance" in key else "1e-5",
            )
    if limit.metric == EPSILON and limit.at_most is not None and limit.at_most < 0:
        raise ConfigError(
            f"{where}: at_most is out of range",
            expected="an epsilon of at least 0",
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
            remedy="exchange the two bounds, or remove one",
        )


def _refuse_twins(limits: Sequence[Limit]) -> None:
    seen: set[str] = set()
    for limit in limits:
        if limit.name in seen:
            raise ConfigError(
                f"two limits are called {limit.name!r}",
                expected="a unique name for each limit",
                got="the same name twice",
                remedy="rename one of them",
            )
        seen.add(limit.name)


def _refuse_contradictions(limits: Sequence[Limit]) -> None:
    """Refuse two limits on the same measure and runs that no run can keep together."""
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
# Limits that a run must keep before release. Check a run with
#
#     fedaudit gate RUN --policy {file}
#
# Exit codes: 0 every limit is kept, 4 a limit is broken or has no evidence, 2 this file or the
# command is wrong, 3 the run cannot be read. A limit applies to the worst end of the interval (the
# confidence bound), not to the measured value: little evidence means a wide interval and no pass.
# Missing, underpowered or stale evidence fails, and so does an audit that is not applicable.

[policy]
confidence = 0.95     # estimates with a lower confidence count as no evidence
# Names of limits whose evidence may be missing (also: --allow NAME). A measured limit that is
# broken still fails.
allow_missing = []

# Can a curious server link shuffled updates? At most 1.5 times the success of guessing.
# This takes many clients: with ten or twenty, the upper end of the interval stays above the limit,
# even with perfect protection. `fedaudit power RUN` says how many clients and rounds are enough.
# With fewer, set a higher limit, or use a secure sum: it leaves nothing to link, which keeps the
# limit. Named updates break it: the link is known at 100 %.
[[limit]]
name = "linkage"
metric = "fingerprint.linkage_accuracy"
at_most_times_chance = 1.5

# The same for every client, as an absolute bound. `per = "client"` uses the columns of an audit's
# client table; the worst client decides.
[[limit]]
name = "linkage of every client"
metric = "fingerprint.share"
per = "client"
at_most = 0.5

# Can an attacker tell the records of a client from others?
[[limit]]
name = "membership"
metric = "two_stage_membership.membership_auc"
at_most = 0.6

[[limit]]
name = "membership at 1 % false positives"
metric = "two_stage_membership.true_positive_rate (at 1 %)"
at_most = 0.05

# The largest epsilon that is promised to each client. protection = "dp_sgd" selects one protection.
# A promise is per record, per person or per client. unit = "person" counts promises per person
# only; a promise per record is then no evidence. Without unit, every promise counts.
[[limit]]
name = "epsilon"
metric = "epsilon"
at_most = 8.0
# unit = "person"
delta_at_most = 1e-5

# The model must stay useful: held-out accuracy of the last model.
[[limit]]
name = "utility"
metric = "accuracy"
at_least = 0.80

# The audit finds no leak and no disagreement with theory. "verdict" alone applies to every audit of
# the run, "fingerprint.verdict" to one. "No evidence" from an audit that could not have detected a
# leak counts as missing.
[[limit]]
name = "coverage"
metric = "coverage.verdict"
forbid = ["leak", "disagreement"]
why = "no data may leave a client without protection"

# In a study, a limit applies to every run unless it names one:
# [[limit]]
# name = "protected linkage"
# metric = "fingerprint.linkage_accuracy"
# federation = "digits"
# variant = "DP-SGD"
# at_most = 0.2
"""


def write_example(path: Path, force: bool = False, text: str = EXAMPLE) -> None:
    """Write the commented example policy, or another one."""
    if path.exists() and not force:
        raise UsageError(
            f"{path} exists",
            expected="a new file",
            got="an existing file",
            remedy="choose another name, or overwrite it with `force=True`",
        )
    with writing(path, UsageError, remedy="choose another place"):
        write_atomically(path, text.replace("{file}", path.name))
