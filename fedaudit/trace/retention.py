"""How long a recording may be kept: a date, or a time from its last change.

`until 2027-01-31`, `30 days`, `6 months`, `P30D`, `P1Y6M`, `for ever`. Any other text is refused
when a recording begins, and again when it is to be purged: nothing is kept for ever by mistake.
"""

from __future__ import annotations

import calendar
import datetime
import re

from fedaudit.errors import UsageError

_DATE = re.compile(r"\b(\d{4}-\d{2}-\d{2})\b")
_WORDS = re.compile(r"(?<![\d.,])(\d{1,5})\s*(day|week|month|year)s?\b", re.IGNORECASE)
_COUNTS = re.compile(r"\d[\d.,]*\s*(day|week|month|year)s?\b", re.IGNORECASE)
_ISO = re.compile(
    r"\bP(?=\d|T\d)(?:(?P<year>\d{1,5})Y)?(?:(?P<month>\d{1,5})M)?(?:(?P<week>\d{1,5})W)?"
    r"(?:(?P<day>\d{1,5})D)?(?P<time>T(?:\d+H)?(?:\d+M)?(?:\d+S)?)?(?![\w])"
)
_NO_END = re.compile(r"\b(for ?ever|no end|without end|unlimited|indefinite(ly)?)\b", re.IGNORECASE)
UNITS = ("day", "week", "month", "year")


def ends(retention: str, recorded: datetime.date) -> datetime.date | None:
    """The last day on which a recording of `recorded` may be kept; None where no end is stated.

    The earliest of all dates and times in the text: it may say "30 days, at most until ...".
    """
    if not retention.strip():
        return None
    open_ended = _NO_END.search(retention) is not None
    try:
        found = [datetime.date.fromisoformat(text) for text in _DATE.findall(retention)]
        for count, unit in _WORDS.findall(retention):
            found.append(_later(recorded, {unit.lower(): int(count)}))
        for iso in _ISO.finditer(retention):
            counts = {u: int(iso[u] or 0) for u in UNITS}
            # hours count as the day that they end in
            counts["day"] += bool(iso["time"])
            found.append(_later(recorded, counts))
    except (ValueError, OverflowError):
        found = []
    # a count that was not understood, or an end beside "for ever", leaves it open what is meant
    understood = len(_COUNTS.findall(retention)) == len(_WORDS.findall(retention))
    if open_ended and not found and understood:
        return None
    if not found or open_ended or not understood:
        raise UsageError(
            f"the retention {retention!r} cannot be read",
            expected='a date ("until 2027-01-31") or a time ("30 days", "6 months", "P30D")',
            got=repr(retention),
            remedy='state it in one of these ways; "for ever" for a recording without an end',
        )
    return min(found)


def _later(start: datetime.date, counts: dict[str, int]) -> datetime.date:
    months = 12 * counts.get("year", 0) + counts.get("month", 0)
    year, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    day = min(start.day, calendar.monthrange(year, month + 1)[1])
    days = 7 * counts.get("week", 0) + counts.get("day", 0)
    return datetime.date(year, month + 1, day) + datetime.timedelta(days=days)


def check_retention(retention: str) -> None:
    """Refuse a retention that nobody could end."""
    ends(retention, datetime.date(2000, 1, 1))
