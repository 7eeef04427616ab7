"""The one file of rules: which verdicts there are, when each is given, and in which words.

`findings` applies it; pages print the rule beside every verdict. A verdict says what was measured
and how it compares; no verdict reassures. What the verdict on one audit depends on, and
how it reads, the audit declares itself (`audits.facts`): no change of words changes a verdict.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedaudit.results import Finding, Need, Verdict


@dataclass(frozen=True)
class Rule:
    """When a verdict is given: in general, and how it is said of one result."""

    id: str
    verdict: Verdict
    text: str
    of_one: str

    def said(self, **filled: str) -> str:
        return self.of_one.format(**filled)


RULES = {
    rule.id: rule
    for rule in (
        Rule(
            "D1",
            "disagreement",
            "The whole interval of a measured value lies above an upper bound that theory gives, "
            "and p after correction for all bounds of the audit is at most 0.001: one of them is "
            "wrong. It comes first, whatever else was found.",
            "the interval lies wholly beyond an upper bound, p = {p} after "
            "correction for all bounds",
        ),
        Rule(
            "D2",
            "disagreement",
            "The whole interval of a measured value lies below a lower bound that theory gives, "
            "and p after correction for all bounds of the audit is at most 0.001: one of them is "
            "wrong. It comes first, whatever else was found.",
            "the interval lies wholly beyond a lower bound, p = {p} after "
            "correction for all bounds",
        ),
        Rule(
            "K1",
            "leak",
            "What is asked about reaches the observer without an attack: it is a leak at its full "
            "value, and no measurement is needed.",
            "no attack is needed",
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
            "L3",
            "leak",
            "The federation as a whole shows no leak, but single clients do: their own interval "
            "lies above chance, and still does after Holm correction for the number of clients. "
            "Where one test covers all readings and clients (L5), it decides on clients too.",
            "{clients} above {baseline} after correction for {many} clients",
        ),
        Rule(
            "L4",
            "leak",
            "The headline shows no leak, but another measure of the same audit does: its interval "
            "lies above what no leak would give. The measure is named.",
            "the low end of {measure} is above {baseline}",
        ),
        Rule(
            "L5",
            "leak",
            "Several readings of the same games or clients are tested at once (max-T permutation "
            "test): the strongest one exceeds chance after correction for all readings. It is "
            "named, with its p after that correction.",
            "{reading} decides with p = {p} after correction for {many}, at most {level}",
        ),
        Rule(
            "T1",
            "attributed",
            "The owner of marked records finds clients that trained on them: the low end of the "
            "interval lies above what no marks would give. Whether that is wanted is for a policy "
            "to say.",
            "the low end of the interval is above {baseline}",
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
            "E3",
            "no_evidence",
            "Several readings of the same games or clients are tested at once (max-T permutation "
            "test): not even the strongest one exceeds chance after correction for all readings. "
            "That is no proof of absence; the smallest leak that would have been seen is stated.",
            "{reading} comes closest with p = {p} after correction for {many}, above {level}",
        ),
        Rule(
            "E4",
            "no_evidence",
            "A declaration is held against a measurement, and what was measured lies within it. "
            "That is no proof that it is kept; how much could have been measured is stated.",
            "what was measured lies within what was declared",
        ),
        Rule(
            "N1",
            "nothing_to_say",
            "No leak was seen, and the audit could hardly have seen one: the smallest leak that "
            "it would have seen lies two fifths or more of the way from chance to the most that is "
            "possible (the end of the scale, or the tightest bound), or is not known, or a search "
            "ended undecided: both sides are possible.",
            "{unseen}; {power}",
        ),
        Rule(
            "N2",
            "nothing_to_say",
            "Too little was recorded to measure anything; what is missing is named.",
            "too little was recorded",
        ),
        Rule(
            "U1",
            "unscored",
            "The attack ran blind: no truth lies beside the recording, so that its guesses cannot "
            "be scored. They may be right.",
            "there is no truth to score the guesses with",
        ),
        Rule(
            "A1",
            "not_applicable",
            "What the audit asks about is not there in this recording, so nothing was measured; "
            "what is missing is named.",
            "what it asks about is not there",
        ),
        Rule(
            "F1",
            "failed",
            "The audit ended in an error, which is named. It says nothing about the federation.",
            "the audit failed",
        ),
    )
}

CALIBRATION = (
    "How often each audit alarms without a leak, finds a planted one, and covers the true value "
    "was measured on simulated federations: docs/calibration.md of fedaudit (`make calibrate`)."
)
"""Below the rules of every report."""

UNMEASURED = {"failed": "F1", "blind": "U1", "nothing_to_say": "N2", "not_applicable": "A1"}
"""Status of a result that states no number -> the rule of its verdict."""


@dataclass(frozen=True)
class Label:
    """How a verdict is written: in full, short for a terminal, and what it means in the key."""

    words: str
    mark: str
    style: str
    meaning: str


VERDICTS: dict[Verdict, Label] = {
    "disagreement": Label(
        "theory and measurement disagree", "DISAGREE", "bold magenta", "one of them is wrong"
    ),
    "leak": Label("leak", "LEAK", "bold red", "beyond chance, over all tries"),
    "attributed": Label("attributed", "ATTRIBUTED", "bold red", "marked records were traced"),
    "failed": Label("failed", "FAILED", "bold yellow", "the test broke off"),
    "nothing_to_say": Label("nothing to say", "nothing to say", "yellow", "too little data"),
    "unscored": Label("guess only", "guess only", "yellow", "no truth to score it with"),
    "no_evidence": Label(
        "no evidence", "no evidence", "cyan", "not beyond chance; a leak may still exist"
    ),
    "not_applicable": Label("not applicable", "n/a", "dim", "what it asks about is not sent"),
}
"""Worst first: what could not be said stands before "no evidence"."""
KNOWN = Label("known outright", "KNOWN", "bold red", "a leak without any attack")


def label_of(finding: Finding) -> Label:
    """How the verdict of a finding is written."""
    return KNOWN if finding.known else VERDICTS[finding.verdict]


OBSERVERS = {
    "server": "the server",
    "public": "everyone who gets the released model",
    "shuffler": "the shuffler",
    "aggregator": "the aggregator",
    "network": "everyone who sees who sends when and how much",
    "wiretap": "whoever reads all messages",
}


def observer(vantage: str) -> str:
    """Who looks, in words."""
    return " together with ".join(OBSERVERS.get(part, part) for part in vantage.split("+"))


WEAK = 2 / 5
"""How much of the way from chance to the most that is possible a leak may need to be seen (N1)."""

POWER = {
    "beyond": "a leak would have shown from {seen} on, at or {side} the bound of {most}",
    "large": "only a large leak, from {seen} on, would have shown",
    "nothing": "no leak of any size would have shown",
    "undecided": "it may be anything from {low} to {high}, on either side",
    "unknown": "how small a leak would have shown is not known",
}
"""Why an audit could hardly have found anything."""

GUESSED = (
    "the attack guessed, and what it guessed is listed below; no truth lies beside the recording "
    "to score it with"
)
"""Of an attack that ran blind and whose output can be shown."""


@dataclass(frozen=True)
class Lack:
    """What is missing where an audit could not measure, in plain words; `{who}` is the observer.

    Without `how`, the need's own remedy stands.
    """

    said: str
    how: str = ""


NEEDS = {
    "no_single_updates": Lack(
        "{who} gets no update of a single client here, only sums or finished models: there is "
        "nothing that this attack could work on",
        "audit a variant in which updates leave one by one; whether the sums give single updates "
        "back is a question of its own (query plan)",
    ),
    "no_sums": Lack(
        "no sums over groups of clients were asked for in this recording: there are none to "
        "combine",
        "run the federation with [protections.secure_aggregation]; in a hierarchy, whose sums "
        "only a region sees, name it in audits.query_plan.vantage",
    ),
    "no_answers": Lack(
        "sums over groups of clients were asked for, and every one was refused or failed",
        "see the ledger for why: a threshold that dropouts undercut, or a plan that was refused",
    ),
    "no_records": Lack(
        "this attack asks about given records, and none lie beside the recording",
    ),
    "no_keys": Lack(
        "marks are looked for with their owner's keys, and none lie beside the recording",
        "plant marks before training ([marks] with clients and share in the config)",
    ),
    "no_shadows": Lack(
        "this attack learns from federations that it simulates, and a recording alone does not "
        "say how clients train",
    ),
}
"""Code of a need -> its words; of others the audit's own words stand."""


def words_of_need(need: Need, vantage: str) -> tuple[str, str]:
    """A missing need and what to do about it, in plain words."""
    known = NEEDS.get(need.code)
    if known is not None:
        return known.said.format(who=observer(vantage)), known.how or need.remedy
    if need.expected and need.got:
        return f"{need.what}. It needs {need.expected}; found: {need.got}", need.remedy
    return str(need), need.remedy
