"""Progress: one live line in a terminal, else a line per finished stage, or per tenth of it."""

import io

from fedaudit.cli.output import Bar


def said(capsys, calls, **how):
    with Bar(quiet=False, **how) as bar:
        for call in calls:
            bar(*call)
    return capsys.readouterr().err.splitlines()


def test_a_log_has_a_line_per_tenth_and_none_twice(capsys):
    calls = [("train", n, 100, "") for n in (0, 0, 0, 3, 9, 10, 11, 55, 100, 100)]
    got = said(capsys, calls)
    assert got == ["train 0/100", "train 10/100", "train 55/100", "train 100/100"]


def test_the_next_run_of_a_study_is_told_too(capsys):
    calls = [("train", n, 2, who) for who in ("a", "b") for n in (0, 1, 2)]
    assert said(capsys, calls) == ["train 0/2 a", "train 2/2 a", "train 0/2 b", "train 2/2 b"]


def test_a_quiet_one_says_nothing(capsys):
    with Bar(quiet=True) as bar:
        bar("train", 0, 1, "")
        bar.say("a line")
    assert capsys.readouterr().err == ""


def test_a_plain_log_has_a_line_per_finished_stage(capsys):
    calls = [("train", n, 20, who) for who in ("a", "b") for n in range(21)]
    whole = [("all", n, 40, "") for n in (0, 20, 40)]
    assert said(capsys, [*calls, *whole], tenths=False) == ["train 20/20 a", "train 20/20 b"]


def test_a_terminal_shows_one_line_that_vanishes(monkeypatch):
    shown = io.StringIO()
    shown.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    with Bar(quiet=False) as bar:
        bar("all", 0, 40, "")
        for n in range(4):
            bar("train", n, 3, "a")
        bar("audit", 0, 1, "a")
    assert "audit 0/1 a" in shown.getvalue()
    assert shown.getvalue().count("\n") == 1
    assert shown.getvalue().rstrip().endswith("\x1b[2K")  # the line is erased
