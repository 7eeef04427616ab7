"""Glossary: terms in plain words, at the end of the page and as tooltips at their first mention.

A mention also links to the glossary: unlike a tooltip, that works with a keyboard and on a phone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from markupsafe import Markup, escape

from fedaudit.reporting.wording import said

TERMS: dict[str, tuple[str, str]] = {
    "chance": (
        r"\bchance\b|\bbaseline\b",
        "The score of the same attack without a leak: blind guessing in the same setting. Compare "
        "every value with it. If guessing has no score, the report names the value without a leak "
        "instead.",
    ),
    "interval": (
        r"\bintervals?\b",
        "The range [low, high] that contains the true value in 95 of 100 such measurements, or as "
        "stated. Few observations make it wide.",
    ),
    "bound": (
        r"\bbounds?\b",
        "A limit from theory. An upper bound holds for every attack if its assumptions hold; a "
        "reference is a published value without guarantee.",
    ),
    "verdict": (
        r"\bverdicts?\b",
        "The conclusion from a value by fixed rules, such as leak, no evidence or not applicable. "
        "The rule is stated beside it.",
    ),
    "client": (
        r"\bclients?\b",
        "One participant of the federation (a hospital, a phone, a company) that keeps its records "
        "and sends updates of the model.",
    ),
    "round": (r"\brounds?\b", "One cycle: clients get the model, train it, and send updates back."),
    "update": (
        r"\bupdates?\b",
        "The message of a client after training: the change of every model parameter.",
    ),
    "fedavg": (r"\bfedavg\b", "The usual aggregation: the weighted mean of all updates."),
    "star topology": (r"\bstar topology\b", "All clients talk to one server, not to each other."),
    "AUC": (
        r"\b(?:AUC|AUROC|auc)\b|(?<=_)auc\b|\barea under the ROC curve\b",
        "Area under the ROC curve: how often the attack ranks a true case above a false one. 0.5 "
        "is guessing, 1 is perfect.",
    ),
    "ROC curve": (
        r"\bROC\b",
        "Share of true cases found against share of false alarms, for every threshold of the "
        "attack.",
    ),
    "true positive rate": (
        r"\bTPR\b|\btrue positives?\b",
        "TPR: the share of true cases that the attack finds. At a low false positive rate, it "
        "counts the cases that an attacker can name with few errors.",
    ),
    "false positive rate": (
        r"\bFPR\b|\bfalse positives?\b|\bfalse[ _]alarms?\b",
        "FPR: the share of false cases that the attack calls true.",
    ),
    "linkage": (
        r"\blinkage(?=\b|_)|\bre-link\b|\blinked\b|\blinks?\b",
        "Recognising two anonymous messages as messages of the same client.",
    ),
    "membership": (
        r"\bmembership(?=\b|_)|\bmembers?\b",
        "Whether a client trained on a given record.",
    ),
    "epsilon": (
        r"\bepsilon\b",
        "The privacy loss that differential privacy allows: one record (or person or client) makes "
        "any observation more likely by a factor of at most e to the epsilon. An epsilon of 0.1 "
        "means 1.1, 1 means 2.7, 8 means 3,000. Smaller protects better.",
    ),
    "delta": (
        r"\bdelta\b",
        "The probability that the limit of epsilon fails; it should be far below 1 over the number "
        "of records.",
    ),
    "DP-SGD": (
        r"\bDP-SGD\b|\bdp_sgd\b",
        "Training with differential privacy: the client limits each record's influence on a step "
        "and adds noise before it sends anything.",
    ),
    "local DP": (
        r"\blocal DP\b|\blocal_dp\b",
        "The client randomises every record before training, so it need not trust anyone else.",
    ),
    "secure sum": (
        r"\bsecure[ _]sum\b",
        "A party or protocol that adds all updates; the server receives only the sum.",
    ),
    "secure aggregation": (
        r"\bsecure[ _]aggregation\b",
        "A protocol with masks that cancel in the sum: the server learns a sum over clients, not "
        "single updates.",
    ),
    "shuffler": (
        r"\bshuffl(?:er|e|ed|ing)\b",
        "A party between clients and server that removes names and shuffles the order of messages. "
        "It does not change their content.",
    ),
    "wiretap": (
        r"\bwiretap\b",
        "An observer who reads all messages and knows the topology.",
    ),
    "federation": (
        r"\bfederations?\b",
        "Several parties that train one model together without sharing their records.",
    ),
    "protection": (r"\bprotections?\b", "A mechanism that hides information from an observer."),
    "held out": (r"\bheld out\b", "Records outside the training data, used to test the model."),
    "n": (r"\bn(?= = \d)", "Number of independent observations behind a value."),
    "Wilson": (r"\bWilson\b", "An interval for a share; it is reliable near 0 and 1."),
    "Clopper-Pearson": (
        r"\bClopper-Pearson\b",
        "An exact, conservative interval for a share.",
    ),
    "bootstrap": (
        r"\bbootstrap\b",
        "An interval from repeated computations on samples of the observations.",
    ),
    "jackknife": (
        r"\bjackknife\b",
        "An interval from computations that each leave out one client.",
    ),
    "DeLong": (r"\bDeLong\b", "The usual interval for an AUC."),
    "Holm": (
        r"\bHolm\b",
        "A correction for many tests at once, some of which would alarm by chance.",
    ),
    "purity": (
        r"\bpurity\b",
        "The attack groups messages by supposed client. Purity is the share of messages from the "
        "majority client of their group.",
    ),
    "rand index": (
        r"\brand_index\b|\badjusted_rand\b",
        "The share of message pairs correctly judged as same or different client. Adjusted: 0 is "
        "chance, 1 is perfect.",
    ),
    "mutual information": (
        r"\bmutual_information\b",
        "How much the groups of messages reveal about the clients; 0 is nothing.",
    ),
    "F1": (r"\bF1\b", "One score for found cases and false alarms; 1 is perfect."),
    "shadow": (
        r"\bshadows?\b",
        "A federation that the attacker simulates with its own data to train the attack.",
    ),
    "lift": (
        r"\blift\b",
        "Improvement in squared error over one guess for all clients.",
    ),
    "class mix": (
        r"\bclass mix(?:es)?\b|\bsensitive classes\b",
        "The shares of the classes in a client's records, such as diagnoses.",
    ),
    "SUR": (
        r"\bSUR\b",
        "Survival ratio: the length of one client's update over the length of the sum of all.",
    ),
    "TS-MIA": (
        r"\bTS-MIA\b|\bts_mia\b",
        "Two-stage risk: an update stands out in the sum, and it raises the score of the client's "
        "own records.",
    ),
    "stage I, stage II": (
        r"\bstages? II?\b|\b(?:either|neither|both) stages?\b",
        "Stage I tests whether a client's update stands out in the sum, stage II whether it raises "
        "the score of that client's own records.",
    ),
    "J": (
        r"\bJ\b",
        "Mean increase of the score of a client's records by its update, scaled to -1/2 to 1/2; "
        "above 0 the update points at them. Compare it with J of records that nobody trained on.",
    ),
    "lambda": (
        r"\blambda\b",
        "Alignment of a client's update with the others: 1 same direction, -1 opposite.",
    ),
    "SNR": (
        r"\bSNR\b",
        "Signal-to-noise ratio: length of an update over the added noise; inf: no noise. B is the "
        "sum of all other updates, r its length over that of the update.",
    ),
    "tau": (r"\btau\b", "The threshold above which the attack says yes."),
    "p-value": (
        r"\bp-values?\b|\badjusted[ _]p\b",
        "Probability that chance alone gives a result at least this extreme.",
    ),
    "rank": (
        r"\brank(?= per client|_per_client)|(?<=\bfull )rank\b|\brank of (?:the )?queries\b",
        "Number of linearly independent sums among the queries.",
    ),
    "marked records": (
        r"\bmarked records\b",
        "Records with a hidden mark, by which their owner later detects who trained on them.",
    ),
    "underpowered": (
        r"\bunderpowered\b",
        "Too few observations to state the number with the requested confidence.",
    ),
    "gradient": (
        r"\bgradients?\b",
        "The direction in which each model parameter should change for given records.",
    ),
    "planted weights": (
        r"\bplant(?:s|ed)? weights\b|\bplanted\b",
        "Model weights that a dishonest server chose so that an update reveals a record.",
    ),
    "game": (
        r"\bgames?\b",
        "One trial of an attack with a known answer: the record is in the data or not.",
    ),
    "topology": (r"\btopology(?=\b|_)", "Who talks to whom."),
    "neighbours": (
        r"\bneighbours\b",
        "The pairs of data sets that the promise covers: one record more or less, or one record "
        "replaced.",
    ),
    "pld": (
        r"\bpld\b",
        "Privacy loss distributions: a tight way to add up the epsilons of many steps.",
    ),
    "Theorem, Lemma": (
        r"\bTheorem\b|\bLemma\b",
        "A proven statement in the paper named in brackets before it.",
    ),
    "permutation test": (
        r"\bpermut(?:ed|ation)\b",
        "A comparison with the same data after shuffling the answers, which shows chance.",
    ),
    "clipping": (r"\bclip(?:ped|ping)?\b", "Scaling an update down to a maximum length."),
    "mlp": (r"\bmlp\b", "A network of fully connected layers."),
    "lora": (
        r"\blora\b|\bLoRA\b",
        "Low-rank adapters: small matrices added to a frozen large model; only they are trained "
        "and sent.",
    ),
    "normal interval": (
        r"\bnormal interval\b",
        "The mean of many observations plus or minus 1.96 standard errors.",
    ),
    "by guessing": (
        r"\bby guessing\b",
        "The score without a model: always the most frequent class, class frequencies as "
        "probabilities, or equal probability for every token.",
    ),
    "loss": (
        r"\bloss\b(?! distribution)",
        "Mean negative logarithm of the probability that the model gives to the true answer. Less "
        "is better.",
    ),
    "z, C": (
        r"\bPhi\(1/z\)|\bz C\b|\b2 C\b|\bz = ",
        "DP-SGD clips the contribution of one record to the length C and adds noise with standard "
        "deviation z times C; z is the noise multiplier. Phi(1/z), the normal distribution's share "
        "below 1/z, is the success rate of the best guess between two records.",
    ),
    "design effect, clusters": (
        r"\bdesign effect\b|\bclusters?\b",
        "Observations of one client are correlated. The design effect is the factor by which more "
        "of them are needed than of independent ones. Clusters are the groups (mostly clients) "
        "that count as independent.",
    ),
    "closed form": (
        r"\bclosed form\b",
        "A formula that gives the answer without simulating the game.",
    ),
    "engine": (r"\bthe engine\b", "The simulation in which clients train and send as in a run."),
    "universe": (
        r"\buniverse\b",
        "All records that the attacker considers; a client holds some of them.",
    ),
    "what_if": (
        r"\bwhat_if\b",
        "A setting of the audit: other hierarchies, for which simulated federations answer the "
        "same question.",
    ),
    "A0, A1, A2": (
        r"\bA0\b|\bA1\b(?!:)|\bA2-(?:topo|org|full)\b|\(topo\)|\(org\)",
        "Information that an observer uses. A0: one guess for all clients. A1: the parameters that "
        "a client sends. topo: its place in the topology alone; org: its organisation alone. "
        "A2-topo, A2-org, A2-full: parameters with place, with organisation, with both.",
    ),
    "eta, alpha": (
        r"\beta\b|\balpha\b",
        "Settings of the partition: eta is the influence of a client's place on its classes (0 "
        "none, 1 full); a small alpha gives uneven class mixes. Elsewhere alpha scales adapters "
        "(lora), or is a parameter of a local mechanism.",
    ),
    "lightgbm": (
        r"\blightgbm\b",
        "A regressor made of many small decision trees; here it guesses class mixes.",
    ),
    "vantage": (
        r"\bvantage\b",
        "The observer and what it sees: the server, a wiretap, the public.",
    ),
    "tensor": (r"\btensors?\b", "A block of model parameters, such as the weights of a layer."),
    "token": (r"\btokens?\b", "A word or part of a word, the unit of a language model."),
    "class": (r"\bclass(?:es)?\b(?! mix)", "The category that a classifier predicts for a record."),
    "sha256": (
        r"\bsha256\b",
        "A hash of a file: any change of the file changes it.",
    ),
}

_EACH = "|".join(f"(?P<t{i}>{pattern})" for i, (pattern, _) in enumerate(TERMS.values()))
# every term begins a word, follows an underscore, or opens a bracket: the rest is skipped fast
_ANY = re.compile(rf"(?:(?<![A-Za-z0-9])|(?=\())(?:{_EACH})")
_NAMES = list(TERMS)


@lru_cache(maxsize=1 << 14)
def mentions(text: str) -> tuple[tuple[str, int, int], ...]:
    """Terms in a text with start and end; the reports of a study repeat most of their texts."""
    return tuple(
        (_NAMES[int((found.lastgroup or "t0")[1:])], *found.span()) for found in _ANY.finditer(text)
    )


class Glossary:
    """Text as HTML; the first mention of a term on the page links to its explanation."""

    def __init__(self) -> None:
        self._mentioned: set[str] = set()
        self._fresh: list[str] = []

    def text(self, text: str) -> Markup:
        """Escaped text with links at first mentions of terms."""
        text, out, at = said(text), Markup(), 0
        for term, start, end in self._first_mentions(text):
            link = Markup('<a class="term" href="#{}" title="{}">{}</a>').format(
                anchor(term), TERMS[term][1], text[start:end]
            )
            out += escape(text[at:start]) + link
            at = end
        return out + escape(text[at:])

    def plain(self, text: str) -> Markup:
        """Escaped text without links, for buttons; its terms count as mentioned."""
        text = said(text)
        for _ in self._first_mentions(text):
            pass
        return escape(text)

    def _first_mentions(self, text: str) -> Iterator[tuple[str, int, int]]:
        """Terms that the page mentions for the first time, with start and end in the text."""
        for term, start, end in mentions(text):
            if term not in self._mentioned:
                self._mentioned.add(term)
                self._fresh.append(term)
                yield term, start, end

    def fresh(self) -> list[tuple[str, str]]:
        """(term, meaning) of the terms first mentioned since the last call."""
        fresh, self._fresh = self._fresh, []
        return [(term, TERMS[term][1]) for term in fresh]


def anchor(term: str) -> str:
    return "term-" + re.sub(r"\W+", "-", term.lower())
