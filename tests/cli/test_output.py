"""Progress where nobody watches a terminal: few lines, and all stages of all runs."""

from fedaudit.cli.output import Bar


def said(capsys, calls):
    with Bar(quiet=False) as bar:
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
