"""The one file of rules: which verdicts there are, when each is given, and in which words.

`findings` applies it; pages print the rule beside every verdict. A verdict says what was measured
and how it compares; there is no verdict that calms.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedaudit.results import Verdict


@dataclass(frozen=True)
class Rule:
    """When a verdict is given: in general, and how it is said of one result."""

    id: str
    verdict: Verdict
    text: str
    of_one: str

    def said(self, **filled: str) -> str:
        return f"{self.id}: {self.of_one.format(**filled)}"


RULES = {
    rule.id: rule
    for rule in (
        Rule(
            "D1",
            "disagreement",
            "The whole interval of a measured value lies above an upper bound that theory gives: "
            "one of them is wrong. It comes first, whatever else was found.",
            "the interval lies wholly beyond an upper bound",
        ),
        Rule(
            "D2",
            "disagreement",
            "The whole interval of a measured value lies below a lower bound that theory gives: "
            "one of them is wrong. It comes first, whatever else was found.",
            "the interval lies wholly beyond a lower bound",
        ),
        Rule(
            "L1",
            "leak",
            "Where more is worse: the low end of the interval lies above chance, so that chance "
            "alone does not explain the value.",
            "the low end of the interval is above {baseline}",
        ),
        Rule(
            "L2",
            "leak",
            "Where less is worse: the high end of the interval lies below what a federation "
            "without this leak would give.",
            "the high end of the interval is below {baseline}",
        ),
        Rule(
            "E1",
            "no_evidence",
            "Where more is worse: the low end of the interval does not lie above chance. That is "
            "no proof of absence; the smallest leak that would have been seen is stated.",
            "the low end of the interval is not above {baseline}",
        ),
        Rule(
            "E2",
            "no_evidence",
            "Where less is worse: the high end of the interval does not lie below what a "
            "federation without this leak would give. That is no proof of absence.",
            "the high end of the interval is not below {baseline}",
        ),
        Rule(
            "A1",
            "not_applicable",
            "A need of the audit is not met by this recording, so nothing was measured; the need "
            "is named.",
            "a need of the audit is not met",
        ),
        Rule(
            "A2",
            "not_applicable",
            "The attack ran blind: no truth lies beside the recording, so that its guesses cannot "
            "be scored. They may be right.",
            "there is no truth to score the guesses with",
        ),
        Rule(
            "A3",
            "not_applicable",
            "The audit ended in an error, which is named. It says nothing about the federation.",
            "the audit failed",
        ),
    )
}


@dataclass(frozen=True)
class Label:
    """How a verdict is written: in full, and short for a terminal."""

    words: str
    mark: str
    style: str


VERDICTS: dict[Verdict, Label] = {
    "disagreement": Label("theory and measurement disagree", "DISAGREE", "bold magenta"),
    "leak": Label("leak", "LEAK", "bold red"),
    "no_evidence": Label("no evidence", "no evidence", "green"),
    "not_applicable": Label("not applicable", "n/a", "dim"),
}
"""Worst first."""


OBSERVERS = {
    "server": "the server",
    "public": "everyone who gets the released model",
    "shuffler": "the shuffler",
    "aggregator": "the aggregator",
    "network": "everyone who sees who sends when and how much",
    "wiretap": "everyone who can read all messages",
}


def observer(vantage: str) -> str:
    """Who looks, in words."""
    return " together with ".join(OBSERVERS.get(part, part) for part in vantage.split("+"))


@dataclass(frozen=True)
class Words:
    """How one audit's headline reads.

    `{value}`, `{baseline}` and `{notes}` (the result's own remarks) are filled in. `against` says
    what the baseline is.
    """

    measure: str
    leak: str
    no_evidence: str
    remedy: str
    percent: bool = False
    against: str = "chance"


WORDS = {
    "active_membership": Words(
        measure="share of games in which the server was right, members and others alike",
        leak="With planted weights the server is right about a record in {value} of games (chance "
        "{baseline}): one gradient tells whether the record is in a client's data.",
        no_evidence="With planted weights the server is right about a record in {value} of games, "
        "which chance ({baseline}) can explain.",
        remedy="check received models before training, add noise at the clients (DP-SGD), or "
        "choose local DP with a smaller exact budget",
        percent=True,
    ),
    "attribution": Words(
        measure="clients that are named as having trained on marked records",
        leak="{value} clients are named as having trained on marked records, all of them rightly "
        "but for the stated error rate: {notes}.",
        no_evidence="No client is named as having trained on marked records.",
        remedy="if this is unwanted: fewer subset sums, larger groups, or noise at the clients; "
        "what the sums give away besides is in the query_plan audit",
    ),
    "fingerprint": Words(
        measure="links between neighbouring rounds that were right",
        leak="{value} of a client's updates were linked to its next one (chance {baseline}): "
        "shuffling hides names, not content.",
        no_evidence="{value} of a client's updates were linked to its next one, which chance "
        "({baseline}) can explain.",
        remedy="add noise at the clients (DP-SGD; more of it where it is on already), or let only "
        "a secure sum leave",
        percent=True,
    ),
    "two_stage_membership": Words(
        measure="area under the ROC curve of the membership attack",
        leak="An attack on the recorded round tells records that a client trained on from matched "
        "others with AUC {value} (chance {baseline}).",
        no_evidence="The membership attack reaches AUC {value}, which chance ({baseline}) can "
        "explain.",
        remedy="add noise at the clients (DP-SGD), train fewer local epochs, or let only a secure "
        "sum leave",
    ),
    "topology_inference": Words(
        measure="share of the spread of class mixes between clients that an observer explains",
        leak="An observer of the wire explains {value} of how clients differ in their share of the "
        "sensitive classes ({baseline}: no better than one guess for all).",
        no_evidence="An observer of the wire explains {value} of how clients differ in their share "
        "of the sensitive classes, which chance ({baseline}) can explain.",
        remedy="noise against the parameter channel (DP-SGD hides records, a class mix needs far "
        "more); against place and organisation no noise helps: see what_if",
        percent=True,
    ),
    "coverage": Words(
        measure="kinds of data that left a client outside every declared protection",
        leak="Outside every declared protection left: {notes}.",
        no_evidence="Everything that left a client falls under a declared protection.",
        remedy="declare a protection that covers them, or stop sending them",
    ),
    "query_plan": Words(
        measure="clients in the smallest group that some combination of answers exposes",
        leak="Combined, the answers expose a group of {value} below the threshold of {baseline}: "
        "{notes}.",
        no_evidence="No combination of a round's answers was found to involve fewer than {value} "
        "clients (threshold {baseline}).",
        remedy="ask for disjoint groups (`fedaudit plan design`), or let the aggregator refuse "
        "such queries (refuse_isolating = true)",
        against="threshold",
    ),
}
GENERIC = Words(
    measure="headline estimate",
    leak="The estimate {value} lies beyond what no leak would give ({baseline}).",
    no_evidence="The estimate {value} is compatible with no leak ({baseline}).",
    remedy="see the audit's page",
)
