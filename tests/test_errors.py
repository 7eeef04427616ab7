"""The remedy line of a misspelt name."""

from fedaudit.errors import DataError, nearest


def test_few_names_are_all_listed():
    assert (
        nearest("shufle", ["shuffle", "dp_sgd"]) == "did you mean 'shuffle'? Valid: dp_sgd, shuffle"
    )
    assert nearest("x", ["shuffle"]) == "one of: shuffle"
    assert nearest("x", []) == "one of: (none)"


def test_of_many_names_the_nearest_are_listed_and_the_others_counted():
    names = [f"audit_{i}.measure" for i in range(60)] + ["fingerprint.share", "fingerprint.part"]
    said = nearest("fingerprint.shar", names, see="fedaudit list")
    assert said.startswith("did you mean 'fingerprint.share'? Valid: fingerprint.share, ")
    assert said.endswith(" and 54 more: fedaudit list")
    assert "fingerprint.part" in said
    listed = said.partition("Valid: ")[2].partition(" and ")[0].split(", ")
    assert len(set(listed)) == 8
    assert set(listed) <= set(names)
    # nothing is like it: still eight of them, not all
    assert nearest("zzz", names).startswith("one of: ")
    assert nearest("zzz", names).endswith("and 54 more")


def test_more_advice_keeps_the_error():
    plain = DataError("no", expected="a", got="b", remedy="c")
    more = plain.with_advice("d")
    assert type(more) is DataError
    assert (more.what, more.expected, more.got, more.remedy) == ("no", "a", "b", "c; d")
    assert DataError("no").with_advice("d").remedy == "d"
