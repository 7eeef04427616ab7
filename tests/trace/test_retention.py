"""How long a recording may be kept."""

import datetime

import numpy as np
import pytest

from fedaudit.errors import ConfigError, UsageError
from fedaudit.setup.config import load
from fedaudit.trace import Recorder
from fedaudit.trace.retention import ends

DAY = datetime.date(2026, 1, 31)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("", None),
        ("for ever", None),
        ("until 2027-02-28, then delete", "2027-02-28"),
        ("30 days", "2026-03-02"),
        ("1 day", "2026-02-01"),
        ("2 weeks after the study", "2026-02-14"),
        ("1 month", "2026-02-28"),
        ("13 months", "2027-02-28"),
        ("2 Years", "2028-01-31"),
        ("1 year 6 months", "2027-07-31"),
        ("2026-03-01", "2026-03-01"),
        ("P30D", "2026-03-02"),
        ("P1Y2M10D", "2027-04-10"),
        ("P2W", "2026-02-14"),
        ("PT36H", "2026-02-01"),
        ("90 days, at most until 2026-03-01", "2026-03-01"),
    ],
)
def test_ends(text, end):
    assert ends(text, DAY) == (None if end is None else datetime.date.fromisoformat(end))


@pytest.mark.parametrize(
    "text",
    [
        "1.5 years",
        "1,000 days",
        "100000 days",
        "not for ever: 30 days",
        "1 000 days",
        "1e9 days",
        "-5 days",
        "recorded 2024-01-01, keep 10 years",
        "thirty days",
        "soon",
        "P",
        "2026-13-01",
        "30",
        "99999 years",
        "Project X",
    ],
)
def test_what_says_no_end_is_refused_before_anything_is_recorded(tmp_path, text):
    with pytest.raises(UsageError, match="retention"):
        ends(text, DAY)
    with pytest.raises(UsageError, match="retention"):
        Recorder(tmp_path / "t", like={"w": np.zeros(2, np.float32)}, retention=text)
    assert not (tmp_path / "t").exists()
    with pytest.raises(ConfigError, match=r"trace\.retention"):
        load({"trace": {"retention": text}})
