"""The one file of rules: which verdicts there are, when each is given, and in which words.

`findings` applies it; pages print the rule beside every verdict. A verdict says what was measured
and how it compares; there is no verdict that calms. What a verdict depends on stands in `FACTS`,
how it reads in `WORDS`, `NEEDS` and `VERDICTS`: no change of words changes a verdict.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

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
            "lies above chance, and still does after Holm correction for the number of clients.",
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
            "N1",
            "nothing_to_say",
            "No leak was seen, and the audit could hardly have seen one: the smallest leak that "
            "it would have seen lies two fifths or more of the way from chance to the most that is "
            "possible (the end of the scale, or the tightest bound), or is not known, or a search "
            "ended undecided: both sides are possible.",
            "the {end} end of the interval is not {side} {baseline}; {power}",
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

UNMEASURED = {"failed": "F1", "blind": "U1", "nothing_to_say": "N2", "not_applicable": "A1"}
"""Status of a result that states no number -> the rule of its verdict."""


@dataclass(frozen=True)
class Label:
    """How a verdict is written: in full, and short for a terminal."""

    words: str
    mark: str
    style: str


VERDICTS: dict[Verdict, Label] = {
    "disagreement": Label("theory and measurement disagree", "DISAGREE", "bold magenta"),
    "leak": Label("leak", "LEAK", "bold red"),
    "attributed": Label("attributed", "ATTRIBUTED", "bold red"),
    "failed": Label("failed", "FAILED", "bold yellow"),
    "nothing_to_say": Label("nothing to say", "nothing to say", "yellow"),
    "unscored": Label("guess only", "guess only", "yellow"),
    "no_evidence": Label("no evidence", "no evidence", "cyan"),
    "not_applicable": Label("not applicable", "n/a", "dim"),
}
"""Worst first: what could not be said stands before "no evidence"."""
KNOWN = Label("known outright", "KNOWN", "bold red")


def label_of(finding: Finding) -> Label:
    """How the verdict of a finding is written."""
    return KNOWN if finding.known else VERDICTS[finding.verdict]


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

NOTHING_TO_CHANGE = "nothing that was measured calls for a change"
NOTHING_MEASURED = "nothing was measured"
GUESSED = (
    "the attack guessed, and what it guessed is listed below; no truth lies beside the recording "
    "to score it with"
)
"""Of an attack that ran blind and whose output can be shown."""


@dataclass(frozen=True)
class Advice:
    """What helps against a leak; `unless` or `only` where one of these protections is in force."""

    text: str
    unless: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def fits(self, in_force: Collection[str] | None) -> bool:
        """Whether it can be followed; where nobody knows what is in force, all of it is said."""
        if in_force is None:
            return True
        asked = not self.only or any(name in in_force for name in self.only)
        return asked and not any(name in in_force for name in self.unless)


SUMS = ("secure_aggregation", "secure_sum")
NOISE = (
    Advice("add noise at the clients (DP-SGD)", unless=("dp_sgd",)),
    Advice("add more noise in DP-SGD", only=("dp_sgd",)),
)


@dataclass(frozen=True)
class Facts:
    """What the verdict on one audit's headline depends on.

    `found` is the verdict where the interval lies beyond the baseline. `counts`: the headline is a
    number of things. `own` is the column in which a client has the same measure for itself, `hits`
    the columns (found, tried) behind it, `asked` what it rests on; `ranked` where it is an AUC, of
    what was asked about against as many others. It is another measure where the result has the
    estimate `unlike`. `beside`: measures that show a leak of their own where the headline shows
    none, and the column in which an exposed client has a 1.
    """

    found: Verdict = "leak"
    counts: bool = False
    own: str = ""
    hits: tuple[str, str] | None = None
    asked: str = ""
    ranked: bool = False
    unlike: str = ""
    beside: Mapping[str, str] = field(default_factory=dict)


FACTS = {
    "active_membership": Facts(
        own="share", asked="games", unlike="success (gradient in the clear)"
    ),
    "attribution": Facts(found="attributed", counts=True),
    "coverage": Facts(counts=True),
    "fingerprint": Facts(own="share", hits=("found", "links"), asked="links"),
    "query_plan": Facts(
        counts=True, beside={"recoverable_if_updates_persist": "part_over_all_rounds"}
    ),
    "two_stage_membership": Facts(own="AUC", asked="members asked", ranked=True),
}


@dataclass(frozen=True)
class Words:
    """How one audit's headline reads.

    `{value}`, `{baseline}` and `{notes}` (the result's own remarks) are filled in. `against` says
    what the baseline is, `counted` what a count counts (one, several). `only_with`: pieces of the
    question that stand only where a protection is in force. `known`: what is said where no attack
    was needed, `known_advice` what helps there; noise does not. `beside`: what is said of a measure
    that shows a leak where the headline shows none.
    """

    measure: str
    leak: str
    no_evidence: str
    advice: tuple[Advice, ...]
    percent: bool = False
    against: str = "chance"
    counted: tuple[str, str] | None = None
    known: str = "Known outright, without an attack: {notes}."
    known_advice: tuple[Advice, ...] = ()
    beside: Mapping[str, str] = field(default_factory=dict)
    only_with: Mapping[str, str] = field(default_factory=dict)

    def advised(self, in_force: Collection[str] | None = None, *, known: bool = False) -> str:
        """What helps, where these protections are in force already; against what is `known`."""
        advice = (self.known_advice if known else ()) or self.advice
        *others, last = [a.text for a in advice if a.fits(in_force)] or [advice[0].text]
        return f"{', '.join(others)}, or {last}" if others else last

    @property
    def remedy(self) -> str:
        return self.advised()

    def question(self, text: str, in_force: Collection[str] | None = None) -> str:
        for piece, protection in self.only_with.items():
            if in_force is not None and protection not in in_force:
                text = text.replace(piece, "")
        return text


WORDS = {
    "active_membership": Words(
        measure="share of games in which the server was right, members and others alike",
        leak="With planted weights the server is right about a record in {value} of games (chance "
        "{baseline}): one gradient tells whether the record is in a client's data.",
        no_evidence="With planted weights the server is right about a record in {value} of games, "
        "which chance ({baseline}) can explain.",
        advice=(
            Advice("check received models before training (fedaudit guard)"),
            *NOISE,
            Advice("give local DP a smaller exact budget", only=("local_dp",)),
        ),
        percent=True,
        only_with={", even under local DP": "local_dp"},
    ),
    "attribution": Words(
        measure="clients that are named as having trained on marked records",
        leak="{value} clients are named as having trained on marked records, all of them rightly "
        "but for the stated error rate: {first}.",
        no_evidence="No client is named as having trained on marked records.",
        advice=(
            Advice("if this is unwanted: fewer subset sums"),
            Advice("larger groups"),
            Advice(
                "noise at the clients; what the sums give away besides is in the query_plan audit"
            ),
        ),
        against="without marks",
        counted=("client named", "clients named"),
    ),
    "fingerprint": Words(
        measure="links between neighbouring rounds that were right",
        leak="{value} of a client's updates were linked to its next one (chance {baseline}): "
        "shuffling hides names, not content.",
        no_evidence="{value} of a client's updates were linked to its next one, which chance "
        "({baseline}) can explain.",
        advice=(*NOISE, Advice("let only a secure sum leave", unless=SUMS)),
        known="Nobody has to link anything: whose an update is, is known {first}.",
        known_advice=(
            Advice(
                "put a shuffler between clients and server ([protections.shuffle])",
                unless=("shuffle",),
            ),
            Advice("send nothing beside the update that tells clients apart", only=("shuffle",)),
            Advice("let only a secure sum leave", unless=SUMS),
        ),
        percent=True,
    ),
    "two_stage_membership": Words(
        measure="area under the ROC curve of the membership attack",
        leak="An attack on the recorded rounds tells records that a client trained on from matched "
        "others with AUC {value} (chance {baseline}).",
        no_evidence="The membership attack reaches AUC {value}, which chance ({baseline}) can "
        "explain.",
        advice=(
            *NOISE,
            Advice("train fewer local epochs"),
            Advice("let only a secure sum leave", unless=SUMS),
        ),
    ),
    "topology_inference": Words(
        measure="share of the spread of class mixes between clients that an observer explains",
        leak="An observer of the wire explains {value} of how clients differ in their share of the "
        "sensitive classes ({baseline}: no better than one guess for all).",
        no_evidence="An observer of the wire explains {value} of how clients differ in their share "
        "of the sensitive classes, no more than one guess for all ({baseline}) can reach by "
        "chance.",
        advice=(
            Advice(
                "noise against what parameters tell (DP-SGD hides records, a class mix needs far "
                "more)"
            ),
            Advice(
                "another hierarchy against what place and organisation tell, where no noise helps "
                "(the audit's setting what_if measures others)"
            ),
        ),
        percent=True,
        against="one guess for all clients",
    ),
    "coverage": Words(
        measure="kinds of data that left a client outside every declared protection",
        leak="Outside every declared protection left: {notes}.",
        no_evidence="Everything that left a client falls under a declared protection.",
        advice=(Advice("declare a protection that covers them"), Advice("stop sending them")),
        against="with full protection",
        counted=("kind of data", "kinds of data"),
    ),
    "query_plan": Words(
        measure="clients in the smallest group that some combination of answers exposes",
        leak="Combined, the answers expose a group of {value} below the threshold of {baseline}: "
        "{notes}.",
        no_evidence="No combination of a round's answers was found to involve fewer than {value} "
        "clients (threshold {baseline}): {notes}.",
        advice=(
            Advice("ask for disjoint groups (fedaudit plan design)"),
            Advice("let the aggregator refuse such queries (refuse_isolating = true)"),
        ),
        against="threshold",
        counted=("client in the smallest group", "clients in the smallest group"),
        known="No sum has to be taken apart: single updates arrive as they are, {first}.",
        known_advice=(
            Advice("let only sums leave ([protections.secure_sum] or secure_aggregation)"),
        ),
        beside={
            "recoverable_if_updates_persist": "{value} of the clients can be estimated alone from "
            "the sums of all rounds together, as far as their updates persist."
        },
    ),
}
GENERIC = Words(
    measure="headline estimate",
    leak="The estimate {value} lies beyond what no leak would give ({baseline}).",
    no_evidence="The estimate {value} is compatible with no leak ({baseline}).",
    advice=(Advice("see the audit's page"),),
)


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
        return f"{need.what}. It needs {need.expected}; there is {need.got}", need.remedy
    return str(need), need.remedy
