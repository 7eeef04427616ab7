"""Terms of the field in plain words, explained below the part of the page where they first stand.

A footnote needs no pointer that hovers: it reads the same with a keyboard, on a phone and on paper.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from markupsafe import Markup, escape

TERMS: dict[str, tuple[str, str]] = {
    "chance": (
        r"\bchance\b|\bbaseline\b",
        "What the same attack would score if nothing leaked: blind guessing in the same setting. "
        "A value says something only against it. Where guessing has no score, what no leak would "
        "give stands in its place under its own name.",
    ),
    "interval": (
        r"\bintervals?\b",
        "The range [low, high] that holds the true value in 95 of 100 such measurements (or as "
        "many as stated). Few observations make it wide.",
    ),
    "bound": (
        r"\bbounds?\b",
        "A limit from theory: an upper bound holds whatever anyone tries, as far as its "
        "assumptions hold; a reference is a published value that guarantees nothing.",
    ),
    "verdict": (
        r"\bverdicts?\b",
        "What the rules make of a value: a leak, no evidence of one, or not applicable. The rule "
        "stands beside it.",
    ),
    "client": (
        r"\bclients?\b",
        "One participant of the federation (a hospital, a phone, a company) that keeps its records "
        "and sends updates of the model.",
    ),
    "round": (r"\brounds?\b", "One turn: clients get the model, train, and send updates back."),
    "update": (
        r"\bupdates?\b",
        "What a client sends after training: by how much every number of the model should move.",
    ),
    "fedavg": (r"\bfedavg\b", "The usual aggregation: the weighted mean of all updates."),
    "star topology": (r"\bstar topology\b", "All clients talk to one server, none to another."),
    "AUC": (
        r"\b(?:AUC|AUROC|auc)\b|(?<=_)auc\b|\barea under the ROC curve\b",
        "Area under the ROC curve: how often the attack ranks a true case above a false one. 0.5 "
        "is guessing, 1 is never wrong.",
    ),
    "ROC curve": (
        r"\bROC\b",
        "Share of true cases found against share of false alarms, for every strictness of the "
        "attack.",
    ),
    "true positive rate": (
        r"\bTPR\b|\btrue positives?\b",
        "TPR: the share of true cases that the attack finds. Stated at a low false positive rate, "
        "it says whom an attacker can name while hardly ever wrong.",
    ),
    "false positive rate": (
        r"\bFPR\b|\bfalse positives?\b|\bfalse[ _]alarms?\b",
        "FPR: the share of false cases that the attack takes for true ones.",
    ),
    "linkage": (
        r"\blinkage(?=\b|_)|\bre-link\b|\blinked\b|\blinks?\b",
        "Recognising that two messages without a name come from the same client.",
    ),
    "membership": (
        r"\bmembership(?=\b|_)|\bmembers?\b",
        "Whether a given record is among those that a client trained on.",
    ),
    "epsilon": (
        r"\bepsilon\b",
        "The privacy loss that differential privacy allows: how much more likely any observation "
        "may become through one record (or person, or client). The factor is at most e to the "
        "epsilon: 0.1 is 1.1, 1 is 2.7, 8 is 3,000. Smaller protects better.",
    ),
    "delta": (
        r"\bdelta\b",
        "The probability that the limit set by epsilon is exceeded; it should be far below 1 over "
        "the number of records.",
    ),
    "DP-SGD": (
        r"\bDP-SGD\b|\bdp_sgd\b",
        "Training with differential privacy: each record's influence on a step is cut to a limit, "
        "and noise is added before anything leaves the client.",
    ),
    "local DP": (
        r"\blocal DP\b|\blocal_dp\b",
        "Every record is randomised at the client before training, so that nobody else need be "
        "trusted.",
    ),
    "secure sum": (
        r"\bsecure[ _]sum\b",
        "A party or protocol that adds up all updates, so that the server gets the sum alone.",
    ),
    "secure aggregation": (
        r"\bsecure[ _]aggregation\b",
        "A protocol with masks that cancel in the sum: the server learns a sum over clients, and "
        "single updates stay hidden.",
    ),
    "shuffler": (
        r"\bshuffl(?:er|e|ed|ing)\b",
        "A party between clients and server that removes names and mixes the order of messages. "
        "It does not change their content.",
    ),
    "wiretap": (
        r"\bwiretap\b",
        "An observer who reads every message and knows who is connected to whom.",
    ),
    "federation": (
        r"\bfederations?\b",
        "Several parties that train one model together without pooling their records.",
    ),
    "protection": (r"\bprotections?\b", "A measure that should keep something from an observer."),
    "held out": (r"\bheld out\b", "Records that nobody trained on: how good the model is there."),
    "n": (r"\bn(?= = \d)", "How many independent observations a number rests on."),
    "Wilson": (r"\bWilson\b", "An interval for a share; it stays honest near 0 and 1."),
    "Clopper-Pearson": (r"\bClopper-Pearson\b", "An exact interval for a share; rather too wide."),
    "bootstrap": (
        r"\bbootstrap\b",
        "An interval from repeating the computation on samples drawn from the observations.",
    ),
    "jackknife": (
        r"\bjackknife\b",
        "An interval from leaving out one client after the other.",
    ),
    "DeLong": (r"\bDeLong\b", "The usual interval for an AUC."),
    "Holm": (
        r"\bHolm\b",
        "A correction for asking many questions at once: chance alone would otherwise hit some.",
    ),
    "purity": (
        r"\bpurity\b",
        "If messages are sorted into piles, one per supposed client: the share that lies with the "
        "majority of its pile.",
    ),
    "rand index": (
        r"\brand_index\b|\badjusted_rand\b",
        "The share of pairs of messages rightly judged as same or different client; adjusted: 0 is "
        "chance, 1 is perfect.",
    ),
    "mutual information": (
        r"\bmutual_information\b",
        "How much the piles of messages tell about the clients; 0 is nothing.",
    ),
    "F1": (r"\bF1\b", "One number for found cases and false alarms together; 1 is perfect."),
    "shadow": (
        r"\bshadows?\b",
        "A federation that the attacker simulates with data of its own, to learn from.",
    ),
    "lift": (
        r"\blift\b",
        "By how much a guess is better than one guess for all clients, in squared error.",
    ),
    "class mix": (
        r"\bclass mix(?:es)?\b|\bsensitive classes\b",
        "Which kinds of records a client has, in which shares (such as diagnoses).",
    ),
    "SUR": (
        r"\bSUR\b",
        "Survival ratio: the length of one client's update over the length of the sum of all.",
    ),
    "TS-MIA": (
        r"\bTS-MIA\b|\bts_mia\b",
        "Two-stage risk: an update stands out of the sum, and it raises the score of the client's "
        "own records.",
    ),
    "stage I, stage II": (
        r"\bstages? II?\b|\b(?:either|neither|both) stages?\b",
        "Stage I asks whether one client's update stands out of the sum of all, stage II whether "
        "it raises the score of that client's own records.",
    ),
    "J": (
        r"\bJ\b",
        "By how much a client's update raises the score of its records on average, squeezed to "
        "-1/2 to 1/2; above 0 it points at them. The same for records that nobody trained on "
        "stands beside it.",
    ),
    "lambda": (
        r"\blambda\b",
        "How far a client's update points where the others point: 1 the same way, -1 opposite.",
    ),
    "SNR": (
        r"\bSNR\b",
        "Signal over noise: the length of an update over the noise added to it; inf: no noise. "
        "B is the sum of all other updates, r its length over that of the update.",
    ),
    "tau": (r"\btau\b", "The threshold above which the attack says yes."),
    "p-value": (
        r"\bp-values?\b|\badjusted[ _]p\b",
        "How often chance alone would look at least as striking.",
    ),
    "rank": (
        r"(?<!low-)\brank(?=\b|_)",
        "How many of the sums that were asked for are independent of one another.",
    ),
    "marked records": (
        r"\bmarked records\b",
        "Records into which their owner put a hidden sign, to see later who trained on them.",
    ),
    "underpowered": (
        r"\bunderpowered\b",
        "Too few observations to state the number with the confidence that was asked for.",
    ),
    "gradient": (
        r"\bgradients?\b",
        "In which direction every number of a model should move for given records; what training "
        "sends.",
    ),
    "planted weights": (
        r"\bplant(?:s|ed)? weights\b|\bplanted\b",
        "A model that a dishonest server made so that the answer gives a record away.",
    ),
    "game": (
        r"\bgames?\b",
        "One trial of an attack with a known answer: the record is in the data, or it is not.",
    ),
    "topology": (r"\btopology(?=\b|_)", "Who talks to whom."),
    "neighbours": (
        r"\bneighbours\b",
        "Which two data sets the promise cannot tell apart: one record more or less, or one "
        "replaced.",
    ),
    "pld": (
        r"\bpld\b",
        "Accounting by privacy loss distributions: how the epsilons of many steps add up, tightly.",
    ),
    "Theorem, Lemma": (
        r"\bTheorem\b|\bLemma\b",
        "A proved statement of the paper that is named before it in brackets.",
    ),
    "permutation test": (
        r"\bpermut(?:ed|ation)\b",
        "A comparison with the same data after shuffling the answers: what chance can do.",
    ),
    "clipping": (r"\bclip(?:ped|ping)?\b", "Cutting an update to a largest length."),
    "mlp": (r"\bmlp\b", "A network of layers in which every number meets every other."),
    "lora": (
        r"\blora\b|\bLoRA\b",
        "Low-rank adapters: small matrices beside a large model that stays as it is; they alone "
        "are trained and sent.",
    ),
    "normal interval": (
        r"\bnormal interval\b",
        "An interval from the spread of many observations around their mean, 1.96 standard errors "
        "to both sides.",
    ),
    "by guessing": (
        r"\bby guessing\b",
        "What the measure gives without any model: always the commonest class, class frequencies "
        "as probabilities, or every token alike.",
    ),
    "loss": (
        r"\bloss\b(?! distribution)",
        "How surprised the model is by the truth, on average: minus the logarithm of the "
        "probability that it gave it. Less is better.",
    ),
    "z, C": (
        r"\bPhi\(1/z\)|\bz C\b|\b2 C\b|\bz = ",
        "DP-SGD cuts what one record does to a sum to the length C and adds noise with the "
        "standard deviation z times C; z is its noise multiplier. Phi(1/z), the normal "
        "distribution's share below 1/z, is how often even the best guess between two records can "
        "then be right.",
    ),
    "design effect, clusters": (
        r"\bdesign effect\b|\bclusters?\b",
        "Observations of one client resemble each other. The design effect says by how much more "
        "of them are needed than of independent ones; clusters are the groups (mostly clients) "
        "that count as independent.",
    ),
    "closed form": (
        r"\bclosed form\b",
        "A formula that gives the answer without playing the game out.",
    ),
    "engine": (r"\bthe engine\b", "The simulation that lets clients train and send as in a run."),
    "universe": (
        r"\buniverse\b",
        "All records that the attacker thinks possible; a client holds some of them.",
    ),
    "what_if": (
        r"\bwhat_if\b",
        "A setting of the audit: other hierarchies, for which the same question is answered from "
        "simulated federations.",
    ),
    "A0, A1, A2": (
        r"\bA0\b|\bA1\b(?!:)|\bA2-(?:topo|org|full)\b|\(topo\)|\(org\)",
        "What an observer goes by. A0: one guess for all clients. A1: the parameters that a client "
        "sends. topo: its place among the connections; org: its organisation, alone. A2-topo, "
        "A2-org, A2-full: parameters together with place, with organisation, with both.",
    ),
    "eta, alpha": (
        r"\beta\b|\balpha\b",
        "How records were dealt to clients: eta is how strongly a client's place decides its "
        "classes (0 not, 1 wholly), alpha how uneven the mixes are (small: very). Elsewhere alpha "
        "scales adapters (lora), or is a parameter of a local mechanism.",
    ),
    "lightgbm": (
        r"\blightgbm\b",
        "A regressor made of many small decision trees, here the one that guesses class mixes.",
    ),
    "vantage": (
        r"\bvantage\b",
        "Who looks: the server, an observer of the wire, the public, and what each of them sees.",
    ),
    "tensor": (r"\btensors?\b", "A block of a model's numbers, such as the weights of a layer."),
    "token": (r"\btokens?\b", "A word or piece of a word, as a language model reads it."),
    "class": (r"\bclass(?:es)?\b(?! mix)", "What a record is to be recognised as."),
    "sha256": (
        r"\bsha256\b",
        "A fingerprint of a file: one changed byte gives another one.",
    ),
}

COLUMNS: dict[str, str] = {
    "share": "how often the attack was right about this client",
    "low": "low end of the interval of the value before it",
    "high": "high end of it",
    "chance": "what guessing gives",
    "links": "pairs of neighbouring rounds in which the client took part",
    "found": "of these, rightly linked",
    "longest chain": "most links in a row that were right",
    "sure after links": "after how many links chance is ruled out for this client; empty: never",
    "members asked": "records of this client that were asked about; as many others beside them",
    "AUC": "how well the attack tells its records from others (0.5: not at all, 1: always)",
    "SUR": "survival ratio: length of its update over the length of the sum of all",
    "lambda": "how far its update points where the others point (1 the same way, -1 opposite)",
    "r": "length of all other updates together over that of its own",
    "SNR": "signal over noise: length of its update over the noise added to it (inf: no noise)",
    "SNR without B": "the same where the other updates (B) are not known and count as noise",
    "J": "by how much its update raises the score of its own records, -1/2 to 1/2",
    "J of nobody's": "the same for records that nobody trained on: what J is to be held against",
    "gamma": "how far the score's slope points along the update",
    "L as published": "curvature of the score, as the paper estimates it",
    "L by Hessian": "curvature of the score, from second derivatives",
    "members found": "share of its records that the server rightly calls in",
    "others cleared": "share of other records that it rightly calls out",
    "games": "trials played",
    "p": "its true share of the sensitive classes",
    "from": "low end of the guess",
    "to": "high end of the guess",
    "mean": "the one guess for all clients",
    "gain": "by how much the guess is better than that, in squared error",
    "named": "1: named as having trained on marked records",
    "adjusted_p": "how often chance would look as striking, corrected for all clients and keys",
    "key": "the mark in question",
    "part": "how strongly its updates carry the mark, round by round, in deviations of unused "
    "keys; around 0 they do not. Who is named is decided by stands_out",
    "stands_out": "how far it lies beyond unused keys in what was tested, over all rounds",
    "named_from": "from where on it is named, whatever the others hold; beside others who are "
    "named a little less suffices",
    "named_after_round": "from which round on it was named by a test that may be stopped after any "
    "round, and pays for that: it names less than the one over all rounds",
    "published_above_growing": "1: its published score is above a threshold that grows with rounds",
    "published_above_anytime": "1: above one that holds after any number of rounds",
    "sums_per_round": "sums in which it took part",
    "published_z": "the paper's own score, above 4 it names",
    "marked": "1: it did train on marked records",
    "part_of_row_space": "1: the sums of a round determine its update",
    "rounds_recoverable": "rounds in which they do",
    "part_over_all_rounds": "the same over all rounds, as far as updates persist",
    "uploads_per_round": "masked uploads that the sums cost it",
    "updates": "messages that the attack puts into this group",
    "from round": "first round of the group",
    "to round": "last round of the group",
    "messages (round:number)": "which messages these are: round, and number within it in the trace",
    "candidates": "records that were asked about",
    "likeliest members (candidate:score)": "surest first: number of the record among those asked "
    "about, and its score in standard deviations",
}
"""What the columns of tables of clients mean."""


def column_meaning(column: str) -> str:
    """A column in plain words; empty where nobody wrote any."""
    if column.startswith("guess ("):
        return "the observer's guess of p"
    if column.startswith("epsilon per "):
        return "privacy loss over the whole run; smaller protects better"
    return COLUMNS.get(column, "")


_ANY = re.compile("|".join(f"(?P<t{i}>{pattern})" for i, (pattern, _) in enumerate(TERMS.values())))
_NAMES = list(TERMS)


class Glossary:
    """Text as HTML: a term becomes a link to its explanation where it first stands on the page."""

    def __init__(self) -> None:
        self._met: set[str] = set()
        self._fresh: list[str] = []

    def text(self, text: str) -> Markup:
        """Escaped text; terms that are met for the first time are links."""
        out, at = Markup(), 0
        for term, found in self._new(text):
            link = Markup('<a class="term" href="#{}">{}</a>').format(anchor(term), found[0])
            out += escape(text[at : found.start()]) + link
            at = found.end()
        return out + escape(text[at:])

    def plain(self, text: str) -> Markup:
        """Escaped text without links, for headings that are buttons; its terms count as met."""
        for _ in self._new(text):
            pass
        return escape(text)

    def _new(self, text: str) -> Iterator[tuple[str, re.Match[str]]]:
        """Terms that are met for the first time."""
        for found in _ANY.finditer(text):
            term = _NAMES[int((found.lastgroup or "t0")[1:])]
            if term not in self._met:
                self._met.add(term)
                self._fresh.append(term)
                yield term, found

    def fresh(self) -> list[tuple[str, str]]:
        """(term, meaning) of the terms met since the last call."""
        fresh, self._fresh = self._fresh, []
        return [(term, TERMS[term][1]) for term in fresh]


def anchor(term: str) -> str:
    return "term-" + re.sub(r"\W+", "-", term.lower())
