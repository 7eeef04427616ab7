"""The facts an audit declares: measures, client table, verdict, words and drawings.

An audit class has `facts: ClassVar[AuditFacts]`. Gate, diff, findings and report look them up by
the audit's name (`audits.facts_of`) and keep no tables of their own. A verdict depends on
`Measure`, `Column` and `Decision`. `Words` hold the text; they change no verdict.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from fedaudit.results import Verdict

GREATER, LESS, UNKNOWN = 1, -1, 0
"""Direction in which a measure gets worse for the data owners."""


# -- measures -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """One number that an audit states.

    `name` is in snake_case. An estimate has this name, perhaps with a qualifier in brackets: the
    method, channel or rate, as in "explained (weights)". `worse` is the direction in which the
    measure gets worse, `unit` its unit, `words` its description in plain English.
    `above_non_members`: only the excess over the baseline counts, because the same number can rise
    on non-members too. `given`: in a few words, what it assumes beyond the headline.
    """

    name: str
    worse: int
    unit: str
    words: str
    above_non_members: bool = False
    given: str = ""


@dataclass(frozen=True)
class Column:
    """One column of an audit's client table.

    `worse` and `words` as for a measure. `has_interval`: `low` and `high` of the same row are
    its interval. `exact`: a count or an algebraic fact of the recording, which has no error.
    """

    name: str
    worse: int = UNKNOWN
    has_interval: bool = False
    exact: bool = False
    words: str = ""


P_COLUMN = Column(
    "p",
    LESS,
    exact=True,
    words="how often chance alone gives as much, adjusted for all clients and readings",
)
MESSAGES_COLUMN = Column("messages", words="round and number of each message in the trace")

COMMON_COLUMNS = {
    "low": "low end of the interval of the preceding value",
    "high": "high end of that interval",
    "chance": "score of guessing",
}
"""Words of the columns that accompany another column, in any client table."""


def base_name(name: str) -> str:
    """The name without its qualifier: "explained (weights)" -> "explained"."""
    base, bracket, qualifier = name.partition(" (")
    return base if bracket and qualifier.endswith(")") and len(qualifier) > 1 else name


# -- verdicts -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The inputs of the verdict on an audit's headline.

    `found`: the verdict if the interval lies beyond the baseline; "no_evidence" if only a bound can
    be broken, as for an audit of what was declared. `counts`: the headline is a
    count. `client_value`: the column with each client's value of the headline; `client_counts`: the
    columns (found, tried) behind it; `sample_size`: the column with its sample size; `ranked`: it
    is an AUC over that many members and as many non-members. `client_p`: the column with each
    client's p-value in the result's test, adjusted for all readings and clients. If a result has
    the estimate `headline_differs_with`, its headline measures something else than the column.
    `side_measures`: measure -> column; such a measure can show a leak if the headline shows none,
    and an exposed client has a 1 in the column, if there is one. `strength`: the column with the
    smallest signal that would be found. `bounds_error`: the setting with the error that the audit
    has divided among its bounds; without it, rule D1 corrects for their number.

    A protection can remove the question; a limit is met then, although the audit is not
    applicable. `removed_by`: code of a need -> fact (as in `Advice`) of the protection that must
    be in force for it. `single_updates_only`: without single updates there is nothing to find
    (code "no_single_updates"), unless sums reveal one.
    """

    found: Verdict = "leak"
    counts: bool = False
    client_value: str = ""
    client_p: str = ""
    client_counts: tuple[str, str] | None = None
    sample_size: str = ""
    ranked: bool = False
    headline_differs_with: str = ""
    side_measures: Mapping[str, str] = field(default_factory=dict)
    strength: str = ""
    bounds_error: str = ""
    removed_by: Mapping[str, str] = field(default_factory=dict)
    single_updates_only: bool = False


# -- words ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Advice:
    """A remedy. It applies `unless`, or `only` if, a protection in force has one of these facts.

    Facts are those of `hooks.STATED`, and "noise_at_step" and the like.
    """

    text: str
    unless: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def fits(self, in_force: Collection[str] | None) -> bool:
        """Whether the remedy applies. If the protections are unknown, every remedy does."""
        if in_force is None:
            return True
        asked = not self.only or any(fact in in_force for fact in self.only)
        return asked and not any(fact in in_force for fact in self.unless)


ONLY_SUMS = Advice("let only a secure sum leave", unless=("only_sums",))
NOISE = (
    Advice("add noise at the clients (DP-SGD)", unless=("noise_at_step",)),
    Advice("add more noise in DP-SGD", only=("noise_at_step",)),
)
HIDE_SENDERS = (
    Advice(
        "put a shuffler between clients and server ([protections.shuffle])",
        unless=("hides_senders",),
    ),
    Advice("send no field beside the update that identifies clients", only=("hides_senders",)),
    ONLY_SUMS,
)
"""What helps where senders are known outright."""
UNITS = Advice("withhold what only few records change (exposure_limit)", unless=("limits_units",))


@dataclass(frozen=True, kw_only=True)
class Words:
    """How an audit's headline reads.

    `short` is the question in at most 30 characters, `learns` what an observer can do after a leak
    (it follows "the server can"); both stand on a report's first page. `measure` describes the
    headline. Templates take `{value}`, `{baseline}`, `{notes}` (the result's remarks) and `{first}`
    (the first remark), `learns` only the first two. `against` names the baseline; `counted` names
    what a count counts (singular, plural), `counted_in` the setting of
    a result that lists it. `known`: the statement if no attack is needed;
    `known_advice` its remedies, since noise does not help there. `beside`: measure -> statement
    (`Decision.side_measures`). `only_with`: part of the question -> the fact it mentions; the part
    is dropped if no protection in force has that fact. `weak`: the statement, with `{strength}`, of
    how strong a signal must be (`Decision.strength`).
    """

    short: str = ""
    learns: str = ""
    measure: str = "headline estimate"
    leak: str = "The estimate {value} lies beyond its value without a leak ({baseline})."
    no_evidence: str = "The estimate {value} is compatible with no leak ({baseline})."
    advice: tuple[Advice, ...] = (Advice("see the audit's page"),)
    percent: bool = False
    against: str = "chance"
    counted: tuple[str, str] | None = None
    counted_in: str = ""
    known: str = "Known outright, without an attack: {notes}."
    known_advice: tuple[Advice, ...] = ()
    beside: Mapping[str, str] = field(default_factory=dict)
    only_with: Mapping[str, str] = field(default_factory=dict)
    weak: str = ""

    def advised(self, in_force: Collection[str] | None = None, *, known: bool = False) -> str:
        """The remedies that fit the protections in force, as one phrase."""
        advice = (self.known_advice if known else ()) or self.advice
        return _phrase([a.text for a in advice if a.fits(in_force)] or [advice[0].text])

    def untried(
        self, in_force: Collection[str], tried: Collection[str], *, known: bool = False
    ) -> str:
        """The same without what was `tried`: facts of protections under which it still leaks.
        Empty if nothing is left."""
        advice = (self.known_advice if known else ()) or self.advice
        left = [a for a in advice if not any(fact in tried for fact in a.unless)]
        return _phrase([a.text for a in left if a.fits(in_force)])

    @property
    def remedy(self) -> str:
        return self.advised()

    def question(self, text: str, in_force: Collection[str] | None = None) -> str:
        for piece, fact in self.only_with.items():
            if in_force is not None and fact not in in_force:
                text = text.replace(piece, "")
        return text


def _phrase(texts: list[str]) -> str:
    *others, last = texts or [""]
    return f"{', '.join(others)}, or {last}" if others else last


# -- curves ---------------------------------------------------------------------------------------

FigureKind = Literal["lines", "roc", "equality", "bound", "survival", "none"]
"""Figures that the report can draw of a curve.

`lines`: all columns over the first. `roc`: y over x, both logarithmic, with chance. `equality`:
dots of y over x and the line of equal values. `bound`: the same on logarithmic axes for remainders
y and their bounds x, with the number above. `survival`: dots on the map of SUR, from lambda, r and
SUR. `none`: no figure, the table is for computations.
"""


@dataclass(frozen=True, kw_only=True)
class CurveDrawing:
    """How the report draws one curve of an audit's results; other curves are lines.

    `axes`: the columns that the figure shows, x before y. `needs`: further columns without which
    the curve is drawn as lines. `dashed`: columns that are references for others. `error`: the
    column with the numerical error of y. `words`: the text below the figure.
    """

    curve: str
    kind: FigureKind
    axes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    dashed: tuple[str, ...] = ()
    error: str = ""
    words: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.axes, *self.needs)


ROC = CurveDrawing(
    curve="ROC",
    kind="roc",
    axes=("false positives", "true positives"),
    words="Both axes are logarithmic, few false alarms on the left.",
)


# -- gravity --------------------------------------------------------------------------------------

Gravity = Literal["rebuilt", "named", "traced", "metadata"]
GRAVITIES: tuple[Gravity, ...] = get_args(Gravity)
"""What a leak gives away, gravest first: records before clients, since they are about persons."""


# -- one audit ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AuditFacts:
    """All declared facts of one audit. The defaults fit any audit.

    `columns` belong to the client table of a scored result; limits can name them. `guess_columns`
    belong to the table of guesses that a result without truth has instead. `for_owner`: columns
    that the owner of marks is given, and no others. `under_client_noise`: what was measured of
    its question under noise for whole clients. `checks_declaration`: the audit compares a
    recording with its declared protections; it measures no attack.
    `single_updates_in_sums`: the measure that counts single updates which requested sums give away.
    An audit with it runs whenever a protection requests sums; without any, sums keep a limit on
    single updates (`Decision.single_updates_only`).
    `words_by_headline`: headline -> its words, for an audit with a second headline.
    `beside_headline`: measures that every table of results shows next to the headline.
    `gravity`: what a leak gives away, gravest first: records are "rebuilt"; a given record is
    "named" as one that was used; a client is "traced" (followed, named, its data described); or
    "metadata" of messages. A report names the gravest leaks first.
    """

    measures: tuple[Measure, ...] = ()
    columns: tuple[Column, ...] = ()
    guess_columns: tuple[Column, ...] = ()
    drawings: tuple[CurveDrawing, ...] = ()
    decision: Decision = Decision()
    words: Words = Words()
    words_by_headline: Mapping[str, Words] = field(default_factory=dict)
    needs_truth: bool = True
    for_owner: tuple[str, ...] = ()
    under_client_noise: str = ""
    checks_declaration: bool = False
    single_updates_in_sums: str = ""
    beside_headline: tuple[str, ...] = ()
    gravity: Gravity = "traced"

    def shows(self, name: str) -> bool:
        """Whether tables show an estimate with this name next to the headline."""
        return base_name(name) in self.beside_headline

    def words_of(self, headline: str | None) -> Words:
        """The words of a headline; by default those of the audit."""
        return self.words_by_headline.get(headline or "", self.words)

    def measure(self, name: str) -> Measure | None:
        """The declared measure of an estimate with this name."""
        base = base_name(name)
        return next((m for m in self.measures if m.name == base), None)

    def column(self, name: str) -> Column | None:
        """The declared column; "guess (A1)" belongs to the column "guess"."""
        base = base_name(name)
        return next((c for c in self.columns if c.name in (name, base)), None)

    def column_words(self, name: str) -> str:
        """The meaning of a column of any table of clients; empty if it is not declared."""
        if name in COMMON_COLUMNS:
            return COMMON_COLUMNS[name]
        found = self.column(name) or next((c for c in self.guess_columns if c.name == name), None)
        return "" if found is None else found.words

    def drawing(self, curve: str) -> CurveDrawing | None:
        """The declared drawing of a curve with this name."""
        return next((d for d in self.drawings if d.curve == curve), None)

    def direction(self, name: str) -> int:
        """Direction in which an estimate gets worse; UNKNOWN if it is not declared."""
        found = self.measure(name)
        return UNKNOWN if found is None else found.worse
