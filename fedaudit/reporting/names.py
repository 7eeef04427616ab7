"""Rename clients: "client 1" to "client K" in a report, or the owners' names.

Names also occur in sentences ("named: client-00, client-06"). They are replaced as whole tokens,
never inside a longer word or name. A name that is a number or shorter than three characters is
ambiguous in a sentence. It is replaced only if it is the whole text, in quotes, after a word for a
party, in a list after a word for several parties, in braces with names only, or at an end of an
edge.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from fedaudit.reporting.chapter import Chapter
from fedaudit.results import AuditResult, Finding

T = TypeVar("T")

PARTY = "clients?|sites?|nodes?|party|parties|hospitals?|devices?|owners?|senders?|named:"

SEVERAL = (
    "(?:clients|sites|nodes|parties|hospitals|devices|owners|senders|between|among|named):?"
    # audits use these words before names
    "|combination is|none known, in"
)
"""Words before a list of names."""

BETWEEN = "(?:,? and |,? or |, | & )"


def pseudonyms(clients: Sequence[str]) -> dict[str, str]:
    """Client -> "client i", counted from 1 in the order given."""
    return {name: f"client {i}" for i, name in enumerate(dict.fromkeys(clients), 1)}


class Renaming:
    """Replaces names in texts, and in containers and dataclasses of texts."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = dict(names)
        self._ours = set(names.values()) - set(names)
        strong = [n for n in names if len(n) >= 3 and not n.isdigit()]
        weak = [n for n in names if n and n not in strong]
        parts = []
        if strong:
            parts.append(rf"(?<!\w)(?<!\w-)(?P<strong>{_alternatives(strong)})(?!-?\w)")
        if weak:
            one = _alternatives(weak)
            each = rf"(?:{one})(?!\w)(?!\.\d)(?! more\b)"
            if strong:
                each = rf"(?:(?:{_alternatives(strong)})(?!-?\w)|{each})"
            self._each = re.compile(each)
            # lists first: a list and a single name start at the same word
            parts = [
                rf"(?P<several>\b(?:{SEVERAL})[ ])(?P<list>{each}(?:{BETWEEN}{each})+)",
                rf"(?P<edge>\bedges?[ ])(?P<ends>{each}[ ](?:-|to)[ ]{each})",
                rf"(?P<brace>{{)(?P<inside>{each}(?:, {each})*)(?=(?:, \.\.\.)?}})",
                *parts,
                rf"(?P<before>\b(?:{PARTY}|combination is|none known, in)[ ])"
                rf"(?P<weak>{one})(?!\w)(?!\.\d)"
                # "2 clients: 3" ends there; "clients: 3 of 10" is a count
                rf"|(?P<colon>\b(?:{PARTY}):[ ])(?P<last>{one})(?=$|[;)]|\.(?:$|\s))"
                rf"|(?P<open>['\"])(?P<quoted>{one})(?P=open)",
            ]
        self._pattern = re.compile("|".join(parts)) if parts else None

    def text(self, text: str) -> str:
        """Replace all names in a text."""
        if text in self._names:
            return self._names[text]
        return self._pattern.sub(self._replace, text) if self._pattern is not None else text

    def _replace(self, found: re.Match[str]) -> str:
        groups = found.groupdict()
        if groups.get("strong") is not None:
            return self._names[groups["strong"]]
        for before, names in (
            ("several", "list"),
            ("edge", "ends"),
            ("brace", "inside"),
            ("colon", "last"),
        ):
            if groups.get(names) is not None:
                made = self._each.sub(lambda one: self._names[one[0]], groups[names])
                return str(groups[before] + made)
        if groups.get("weak") is not None:
            new = self._names[groups["weak"]]
            # "client 7" becomes "client 8", not "client client 8"
            doubled = groups["before"].rstrip() == new.partition(" ")[0]
            return new if doubled else groups["before"] + new
        return groups["open"] + self._names[groups["quoted"]] + groups["open"]

    def apply(self, value: T) -> T:
        """The value with names replaced in all its texts and keys."""
        made: Any = value
        if isinstance(value, str):
            made = self.text(value)
        elif is_dataclass(value) and not isinstance(value, type):
            new = {
                f.name: self.apply(getattr(value, f.name))
                for f in fields(value)
                if f.name not in UNCHANGED_FIELDS
            }
            made = replace(value, **new)
        elif isinstance(value, Mapping):
            made = {self.apply(k): self.apply(v) for k, v in value.items()}
        elif isinstance(value, list | tuple):
            made = type(value)(self.apply(v) for v in value)
        return made


UNCHANGED_FIELDS = frozenset(
    {"verdict", "status", "rule", "code", "audit", "variant", "kind", "trace_sha256", "names"}
)
"""Fields without names of clients."""


def _alternatives(names: Sequence[str]) -> str:
    """Regex alternatives, longest name first."""
    return "|".join(re.escape(n) for n in sorted(names, key=len, reverse=True))


def renamed(chapter: Chapter, names: bool = False) -> Chapter:
    """The chapter with pseudonyms, or with `names` of the owners."""
    new = pseudonyms(chapter.clients)
    if names:
        called = {c: chapter.names.get(c, c) for c in new}
        counted = Counter(called.values())
        # equal names stay distinct
        new = {c: f"{n} ({c})" if counted[n] > 1 else n for c, n in called.items() if n != c}
        # clients in the data, but not in the trace
        new |= {c: n for c, n in chapter.names.items() if c not in called}
    by = Renaming(new)
    found: list[Finding] = [by.apply(f) for f in chapter.findings]
    results: list[AuditResult] = [by.apply(r) for r in chapter.results]
    return replace(
        chapter,
        summary={k: by.text(v) for k, v in chapter.summary.items()},
        findings=found,
        results=results,
        guarantees=by.apply(dict(chapter.guarantees)),
        evidence={k: by.text(v) for k, v in chapter.evidence.items()},
        config=by.text(chapter.config),
        clients=[new.get(c, c) for c in chapter.clients],
        notices=[by.text(n) for n in chapter.notices],
        data_notes=[by.text(n) for n in chapter.data_notes],
        names={},
        allocation=by.apply(chapter.allocation),
    )
