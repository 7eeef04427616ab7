"""Which runs of two folders correspond, whatever their files were called.

Runs of the same federation and variant first. What is left is paired by what it is: the same
clients, model and data under the same variant, or behind the same protections. A pair has to be the
only one of its kind.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedaudit.decide.gate.evidence import Evidence
from fedaudit.errors import UsageError, count_of

FEDERATION = ("data", "partition", "task")
"""Config sections that define the federation."""

Alike = Callable[[Evidence, Evidence], bool]
Pair = tuple[Evidence, Evidence]


@dataclass
class _Unpaired:
    """Runs without a partner so far, and the pairs that were found."""

    first: list[Evidence]
    second: list[Evidence]
    pairs: list[Pair] = field(default_factory=list)

    def pair(self, alike: Alike) -> None:
        """Pair what is alike, where both have one candidate only."""
        for a in list(self.first):
            there = [b for b in self.second if alike(a, b)]
            if len(there) == 1 and sum(alike(x, there[0]) for x in self.first) == 1:
                self.pairs.append((a, there[0]))
                self.first.remove(a)
                self.second.remove(there[0])


def pair_runs(
    first: Sequence[Evidence], second: Sequence[Evidence]
) -> tuple[list[Pair], list[str], list[str]]:
    """Pairs of runs that correspond; runs of the first side only; runs of the second only.

    A single run is compared with the run of the other side that it corresponds to; the others there
    are left out, and are not evidence that got lost.
    """
    left = _Unpaired(list(first), list(second))
    single = any(len(side) == 1 and not side[0].label for side in (first, second))
    if len(first) == len(second) == 1 and single:
        return [(first[0], second[0])], [], []
    left.pair(lambda a, b: bool(a.label) and a.label == b.label)
    left.pair(lambda a, b: bool(a.variant) and a.variant == b.variant and _one_federation(a, b))
    left.pair(lambda a, b: _protections(a) == _protections(b) and _one_federation(a, b))
    if not left.pairs:
        raise UsageError(
            "no run of the first corresponds to one of the second",
            expected="runs of one federation, under the same variant or protections, in both",
            got=f"{_listed(first)} and {_listed(second)}",
            remedy=f"compare single runs by their folders: fedaudit diff {first[0].path} "
            f"{second[0].path}",
        )
    order = {id(e): i for i, e in enumerate(first)}
    pairs = sorted(left.pairs, key=lambda pair: order[id(pair[0])])
    if single:
        return pairs, [], []
    gone = [f"only in the first study: {e.label}" for e in left.first]
    new = [f"only in the second study: {e.label}" for e in left.second]
    return pairs, gone, new


def _listed(side: Sequence[Evidence]) -> str:
    return "; ".join(e.label or str(e.path) for e in side)


def _protections(e: Evidence) -> str:
    return json.dumps(e.config.get("protections", {}), sort_keys=True, default=str)


def _one_federation(a: Evidence, b: Evidence) -> bool:
    """Whether two runs are known to be of one federation."""
    return bool(a.clients and b.clients) and not federation_differences(a, b)


def federation_differences(a: Evidence, b: Evidence) -> tuple[str, ...]:
    """Differences in clients, model, task or data of two federations; settings do not count."""
    out = []
    if (a.unusable and not a.clients) or (b.unusable and not b.clients):
        return ()
    if set(a.clients) != set(b.clients):
        out.append(
            f"{len(a.clients)} and {count_of(len(b.clients), 'client')}"
            if len(a.clients) != len(b.clients)
            else f"{len(set(a.clients) - set(b.clients))} of {len(a.clients)} clients have "
            "different names"
        )
    if a.layout != b.layout:
        out.append(f"different models ({_size(a)} and {_size(b)} numbers)")
    elif a.task.get("kind") != b.task.get("kind"):
        out.append(f"different tasks ({a.task.get('kind')} and {b.task.get('kind')})")
    same_records = a.data_sha256 and a.data_sha256 == b.data_sha256
    if not same_records:
        known = a.config and b.config
        for section in FEDERATION[:2]:
            keys = changed_settings(
                {section: a.config.get(section, {})}, {section: b.config.get(section, {})}
            )
            if known and keys:
                shown = ", ".join(f"{k} ({x} and {y})" for k, x, y in keys[:3])
                out.append(f"different {section}: {shown}")
        if not known and a.data_sha256 and b.data_sha256:
            out.append("different records")
    return tuple(out)


def _size(e: Evidence) -> str:
    return f"{sum(math.prod(shape) for _, shape in e.layout):,}"


def changed_settings(
    first: Mapping[str, Any], second: Mapping[str, Any], at: str = ""
) -> list[tuple[str, str, str]]:
    """(key, first value, second value) of every setting that differs."""
    out = []
    for key in dict.fromkeys([*first, *second]):
        a, b = first.get(key), second.get(key)
        if a == b and (key in first) == (key in second):
            continue
        if isinstance(a, Mapping | None) and isinstance(b, Mapping | None) and (a or b):
            out += changed_settings(a or {}, b or {}, f"{at}{key}.")
        else:
            out.append(
                (f"{at}{key}", _setting_text(a, key in first), _setting_text(b, key in second))
            )
    # an empty section, such as "shuffle", is a difference too
    for key in dict.fromkeys([*first, *second]):
        empty = {} in (first.get(key), second.get(key))
        if empty and (key in first) != (key in second):
            row = (f"{at}{key}", _presence(key in first), _presence(key in second))
            out = [r for r in out if r[0] != row[0]] + [row]
    return out


def _setting_text(value: Any, there: bool) -> str:
    return json.dumps(value, default=str) if there else "not set"


def _presence(there: bool) -> str:
    return "there" if there else "not set"
