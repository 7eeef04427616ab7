"""How long a recording may be kept: a date, or a time from its last change.

`until 2027-01-31`, `30 days`, `1 year 6 months`, `P30D`, `for ever`. A text with any other number
is refused, both when a recording begins and when it is purged: no mistake keeps a recording for
ever or removes it early.
"""

from __future__ import annotations

import calendar
import datetime
import re
from collections.abc import Mapping

from fedaudit.errors import UsageError

_DATE = re.compile(
    r"(?:^|\b(?:until|till|by|before)\s+)(\d{4}-\d{2}-\d{2})(?![\w-])", re.IGNORECASE
)
_UNIT = r"\d{1,5}\s*(?:day|week|month|year)s?\b"
_SPAN = re.compile(rf"(?<![\w.,-]){_UNIT}(?:(?:\s*,\s*|\s+and\s+|\s+){_UNIT})*", re.IGNORECASE)
_ISO = re.compile(
    r"(?<![\w-])P(?=\d|T\d)(?:(?P<year>\d{1,5})Y)?(?:(?P<month>\d{1,5})M)?"
    r"(?:(?P<week>\d{1,5})W)?(?:(?P<day>\d{1,5})D)?(?P<time>T(?:\d+H)?(?:\d+M)?(?:\d+S)?)?(?!\w)"
)
_NO_END = re.compile(r"\b(for ?ever|no end|without end|unlimited|indefinite(ly)?)\b", re.IGNORECASE)
UNITS = ("day", "week", "month", "year")


def ends(retention: str, recorded: datetime.date) -> datetime.date | None:
    """The last day to keep a recording made on `recorded`; None without an end.

    Takes the earliest end in the text, as in "30 days, at most until 2027-01-31".
    """
    if not retention.strip():
        return None
    try:
        found = [datetime.date.fromisoformat(text) for text in _DATE.findall(retention)]
        found += [_later(recorded, _counted(span)) for span in _SPAN.findall(retention)]
        for iso in _ISO.finditer(retention):
            counts = {u: int(iso[u] or 0) for u in UNITS}
            counts["day"] += bool(iso["time"])  # hours count as a whole day
            found.append(_later(recorded, counts))
    except (ValueError, OverflowError):
        found = []
    rest = retention
    for known in (_DATE, _SPAN, _ISO):
        rest = known.sub(" ", rest)
    open_ended = _NO_END.search(retention) is not None
    if bool(found) == open_ended or re.search(r"\d", rest):
        raise UsageError(
            f"the retention {retention!r} cannot be read",
            expected='a date ("until 2027-01-31") or a time ("30 days", "6 months", "P30D")',
            got=repr(retention),
            remedy='use one of these forms, or "for ever" for a recording without an end',
        )
    return min(found) if found else None


def _counted(span: str) -> dict[str, int]:
    """Unit -> count, for a text such as "1 year 6 months"."""
    counts = dict.fromkeys(UNITS, 0)
    for count, unit in re.findall(r"(\d+)\s*(day|week|month|year)", span, re.IGNORECASE):
        counts[unit.lower()] += int(count)
    return counts


def _later(start: datetime.date, counts: Mapping[str, int]) -> datetime.date:
    months = 12 * counts["year"] + counts["month"]
    year, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    day = min(start.day, calendar.monthrange(year, month + 1)[1])
    days = 7 * counts["week"] + counts["day"]
    return datetime.date(year, month + 1, day) + datetime.timedelta(days=days)


def check_retention(retention: str) -> None:
    """Refuse a retention that cannot be read."""
    ends(retention, datetime.date(2000, 1, 1))
