"""Terminal table and JSON of sample sizes."""

import io

from rich.console import Console

from fedaudit.audits.planning import SampleSize
from fedaudit.decide.power.page import plain_power, show_power

MEASURED = SampleSize(
    audit="fingerprint", measure="linkage", unit="links", chance=0.05, have=40, seen=0.2,
    wanted=0.1, needed=300, how="16 rounds", rule="binomial",
)  # fmt: skip


def shown(*needs):
    out = io.StringIO()
    show_power(Console(file=out, width=100), needs, 0.9, 0.95)
    return out.getvalue()


def test_only_a_run_has_the_column_saw_from():
    assert "saw from" in shown(MEASURED)
    planned = SampleSize(
        audit="fingerprint", measure="linkage", unit="links", wanted=0.1, needed=300
    )
    assert "saw from" not in shown(planned)
    assert "300 links" in shown(planned)


def test_nothing_seen_no_number_and_nothing_needed_read_differently():
    blind = SampleSize(audit="a", measure="m", have=3, wanted=0.1)
    assert "nothing" in shown(blind)
    assert "no number will do" in shown(blind)
    assert "nothing more" in shown(SampleSize(audit="a", measure="m", have=3, exact=True))
    assert "not known" in shown(SampleSize(audit="a", measure="m"))


def test_enough_is_decided_by_what_there_is():
    assert MEASURED.enough is False
    assert SampleSize(audit="a", measure="m", have=300, needed=300).enough is True
    assert SampleSize(audit="a", measure="m", needed=300).enough is None
    assert SampleSize(audit="a", measure="m", exact=True).enough is True
    (plain,) = plain_power([MEASURED], 0.9, 0.95)["needs"]
    assert plain["enough"] is False
    assert plain["smallest_seen"] == 0.2
