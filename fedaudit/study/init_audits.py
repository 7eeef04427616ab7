"""The audits and protections that `init` writes into a config, with the price of each."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedaudit.errors import FedauditError
from fedaudit.files import parse_toml
from fedaudit.setup.config import load_variants
from fedaudit.setup.prepare import Prepared
from fedaudit.setup.toml import located
from fedaudit.study.forecast import estimate_cost

DEAR = 180.0
"""Seconds, over all variants, above which an audit is written but not switched on."""

AS_IT_IS = "as it is"


MARKS = (
    "# a corpus owner's marked documents, laid with two of the clients",
    "[marks]",
    "clients = 2",
    "share = 0.25",
)


THOROUGH_GAMES = (
    "games = 10000",
    "recorded = 2000   # behind noise, sums or a shuffler the headline is made of these",
)


@dataclass(frozen=True)
class AskedAudit:
    """An audit that the data allow: what it asks, and settings besides the usual ones."""

    name: str
    question: str
    settings: tuple[str, ...] = ()
    marks: bool = False
    thorough: tuple[str, ...] = ()

    def lines(self, off: str | None) -> list[str]:
        """Its section; as a comment with the reason if it is `off`."""
        body = [f"[audits.{self.name}]", *self.settings, *(MARKS if self.marks else ())]
        if off is None:
            return [f"# {self.question}", *body, ""]
        why = textwrap.wrap(f"{self.question} Off: {off}.", 96)
        return [*(f"# {t}" for t in (*why, "Remove the # below to switch it on.", *body)), ""]


def asked_audits(*, is_text: bool, organisations: bool, shuffle: bool) -> list[AskedAudit]:
    """The audits that a kind of data and the protections to compare allow."""
    out = [
        AskedAudit("coverage", "What left a client outside the declared protection?"),
        AskedAudit("fingerprint", "Can the server tell which updates come from the same client?"),
        AskedAudit(
            "two_stage_membership",
            "Does a client's update point back at the records that it trained on?",
        ),
        AskedAudit(
            "active_membership",
            "Could a server that plants weights tell that a record is there?",
            thorough=THOROUGH_GAMES,
        ),
    ]
    if shuffle:
        out.append(
            AskedAudit(
                "reidentification",
                "Can a server that holds a few records of every client name an update's sender?",
            )
        )
    out.append(
        AskedAudit("membership", "Was a record used? By training the federation again many times.")
    )
    question = "Which words did a client read?" if is_text else "Can a record be rebuilt?"
    out.append(AskedAudit("reconstruction", f"{question} From what was sent."))
    if organisations:
        out.append(
            AskedAudit(
                "topology_inference",
                "Do a client's updates show its organisation's mix of classes?",
                ("shadows = 30", "by_rounds = false"),
            )
        )
    if is_text:
        out.append(
            AskedAudit(
                "attribution",
                "Which clients trained on a corpus owner's marked documents?",
                marks=True,
            )
        )
    return out


def audit_lines(audits: Iterable[AskedAudit], off: Mapping[str, str]) -> list[str]:
    """The sections of the audits; `off`: audit -> why it is off."""
    return [line for audit in audits for line in audit.lines(off.get(audit.name))]


def thorough_lines(audits: Iterable[AskedAudit], off: Mapping[str, str]) -> list[str]:
    """The `[thorough]` sections of the audits that are on."""
    own = [a for a in audits if a.thorough and a.name not in off]
    return [line for a in own for line in (f"[thorough.audits.{a.name}]", *a.thorough, "")]


def audits_off(text: str, audits: Sequence[AskedAudit], folder: Path) -> tuple[dict[str, str], str]:
    """Audit -> why it is off: its price if that is above `DEAR`, or what keeps it from running
    under every protection. Besides, why prices are unknown.

    The price is the sum over the variants of the config `text` in `folder`, in which every audit
    is on. It is held against `DEAR` on the reference machine, so that the same data give the same
    config on a busy machine, and stated for this one.
    """
    names = {audit.name for audit in audits}
    here: dict[str, float] = {}
    reference: dict[str, float] = {}
    missing: dict[str, list[str]] = {}
    beside = None
    try:
        for config in load_variants(located(parse_toml(text), folder)).values():
            beside = Prepared(config, beside)
            marks = beside.marks
            if marks is not None:  # whether a corpus has the words shows when they are written
                marks.family.examples(next(iter(marks.marked.values())))
            for stage in estimate_cost(beside).stages:
                if stage.name in names:
                    here[stage.name] = here.get(stage.name, 0.0) + stage.seconds
                    cost = reference.get(stage.name, 0.0) + stage.reference_seconds
                    reference[stage.name] = cost
                    missing.setdefault(stage.name, []).append(stage.cannot)
    except FedauditError as error:
        return {}, error.what
    dear = {name: here[name] for name, seconds in reference.items() if seconds > DEAR}
    off = {name: why[0] for name, why in missing.items() if all(why)}
    return off | {n: f"about {s / 60:.0f} min on this machine" for n, s in dear.items()}, ""


def compared_lines(
    clients: int, *, persons: bool, shuffle: bool, is_text: bool
) -> tuple[list[str], list[str]]:
    """The `[compare]` section, and the names of its variants, the base first.

    Variants with noise rehearse it with canaries; those of language models would take too long.
    """
    whose = "person" if persons else "record"
    noise = [
        "noise_multiplier = 1.0   # more noise, less risk: `fedaudit harden` searches for enough",
        f"clip = 1.0               # bound on what one {whose} can change",
        *(['unit = "person"          # all records of one person together'] if persons else []),
        "",
    ]
    lines = [
        "# The same federation with other protections: one report, side by side.",
        "[compare]",
        f'base = "{AS_IT_IS}"   # the server sees who sent which update',
        "",
    ]

    def rehearsed(variant: str) -> list[str]:
        asked = "# Is the declared epsilon kept? One more training, with canaries."
        return [] if is_text else [asked, f'[compare."{variant}".audits.epsilon]', ""]

    names = [AS_IT_IS]
    hidden = []
    if clients >= 2:
        most = max(2, clients // 2 + 1)
        hidden.append(
            ("secure aggregation", "secure_aggregation",
             [f"threshold = {most}            # only sums over at least so many clients open", ""])
        )  # fmt: skip
    if shuffle:
        hidden.append(("shuffled", "shuffle", [""]))
    for name, protection, body in hidden:
        both = f"{name}, DP-SGD"
        lines += [f'[compare."{name}".protections.{protection}]', *body]
        lines += [f'[compare."{both}".protections.{protection}]', *body]
        lines += [f'[compare."{both}".protections.dp_sgd]', *noise, *rehearsed(both)]
        names += [name, both]
    if not hidden:
        lines += ['[compare."DP-SGD".protections.dp_sgd]', *noise, *rehearsed("DP-SGD")]
        names.append("DP-SGD")
    return lines, names
