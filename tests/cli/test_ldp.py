"""`fedaudit ldp check` as a user meets it."""

import json

import pytest


@pytest.fixture
def command(tmp_path, monkeypatch, in_process):
    """Run `fedaudit ldp check ...` in this process and in an empty folder: code, out, err."""
    monkeypatch.chdir(tmp_path)

    return lambda *arguments: in_process("ldp", "check", *arguments)


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_coin.py").write_text(
        "def coin(x, rng):\n    return x if rng.random() < 0.75 else 1 - x\n\n"
        "def broken(x, rng):\n    return 1 / 0\n\n"
        "def stuck(x, rng):\n    return 7\n"
    )
    (tmp_path / "own_slip.py").write_text("def f(x, rng)\n    return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_coin"


@pytest.mark.parametrize("name", ["bitrand", "ome"])
def test_published_settings_are_refuted(command, name):
    code, out, _ = command(name, "--epsilon", 5, "--features", 512, "--samples", 2000)
    assert code == 4
    assert "claimed   5 per record" in out
    assert {"bitrand": "9,238.86", "ome": "35,342.2"}[name] in out
    assert "verdict   refuted" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("grr", "--epsilon", 1, "--alphabet", 4),
        ("rappor", "--epsilon", 1, "--alphabet", 4, "--features", 2),
        ("rappor", "--epsilon", 1, "--alphabet", 9, "--filter-bits", 16, "--hashes", 2),
        ("dbitflip", "--epsilon", 1, "--alphabet", 4, "--buckets", 2),
        ("laplace", "--epsilon", 1),
        ("gaussian", "--epsilon", 1, "--delta", 1e-4),
    ],
    ids=lambda a: a[0],
)
def test_honest_mechanisms_are_consistent(command, arguments):
    code, out, _ = command(*arguments, "--samples", 3000)
    assert code == 0
    assert "verdict   consistent" in out


def test_json_is_the_whole_result(command):
    code, out, _ = command("grr", "--epsilon", 2, "--alphabet", 3, "--samples", 500, "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["claimed"], told["exact"], told["verdict"]) == (2.0, 2.0, "consistent")
    assert told["settings"] == {"epsilon": 2.0, "alphabet": 3, "features": 1}
    assert 0 <= told["measured"]["low"] <= 2.0


def test_the_seed_decides(command):
    first, again, other = (
        command("grr", "--epsilon", 1, "--alphabet", 3, "--samples", 500, "--json", "--seed", s)[1]
        for s in (1, 1, 2)
    )
    assert first == again != other


def test_a_mechanism_of_ones_own(command, own):
    given = ("--callable", f"{own}:coin", "--samples", 6000)
    code, out, _ = command(*given, "--epsilon", 1.1)
    assert code == 0
    assert "exact     unknown" in out
    assert "verdict   consistent" in out
    code, out, _ = command(*given, "--epsilon", 0.8)
    assert code == 4
    assert "verdict   refuted" in out
    code, out, _ = command(*given, "--epsilon", 15, "--json")
    assert code == 0
    assert json.loads(out)["verdict"] == "underpowered"
    assert json.loads(out)["permanent"] is None


def test_outputs_that_are_all_equal_are_said_to_be(command, own):
    _, out, _ = command("--callable", f"{own}:stuck", "--epsilon", 1, "--samples", 900)
    assert "all 1,800 outputs are equal" in " ".join(out.split())


def test_rappor_states_what_its_permanent_response_spends(command):
    """One report spends epsilon, any number of them on one response 2 epsilon at most."""
    given = ("rappor", "--epsilon", 1.5, "--alphabet", 4, "--samples", 500)
    _, out, _ = command(*given, "--features", 2)
    assert "exact     3 in the worst case" in out
    assert "permanent 6 at most, for any number of reports" in out
    assert json.loads(command(*given, "--json")[1])["permanent"] == pytest.approx(3.0)


def test_a_wide_unary_report_is_checked_by_the_bits_that_tell(command):
    """The bits of all other values have one law: a thousand values cost what two do."""
    given = ("--epsilon", 1, "--features", 20, "--samples", 3000, "--json")
    for name in ("rappor", "dbitflip"):
        wide = json.loads(command(name, "--alphabet", 1000, *given)[1])
        small = json.loads(command(name, "--alphabet", 2, *given)[1])
        assert wide["settings"]["alphabet"] == 1000
        assert wide["measured"] == small["measured"]
        assert wide["exact"] == small["exact"] == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing to check"),
        (("grr", "--callable", "own_coin:coin", "--epsilon", 1), "nothing to check"),
        (("grrr", "--epsilon", 1), "did you mean 'grr'"),
        (("grr",), "needs epsilon"),
        (("grr", "--epsilon", 1, "--alphabet", 1), "nothing to hide"),
        (("grr", "--epsilon", 1, "--alphabet", 3, "--bits", 8), "no setting 'bits'"),
        (("ome", "--epsilon", 1, "--bits", 9), "even"),
        (("bitrand", "--epsilon", -1), "epsilon is out of range"),
        (("bitrand", "--epsilon", 1, "--samples", 3), "too few draws"),
        (("bitrand", "--epsilon", 1, "--confidence", 2), "confidence"),
        (("bitrand", "--epsilon", 1, "--input", "3"), "--callable only"),
        (("--callable", "own_coin:coin"), "one claimed epsilon"),
        (("--callable", "own_coin:coin", "--epsilon", 1, "--bits", 3), "no settings here"),
        (("--callable", "own_coin:coin", "--epsilon", 1, "--input", "{"), "cannot be read"),
        (("--callable", "own_coin:nothing", "--epsilon", 1), "cannot load"),
        (("--callable", "own_coin:broken", "--epsilon", 1), "ZeroDivisionError"),
        (("--callable", "own_coin:broken", "--epsilon", 1), "own_coin.py:"),
        (("--callable", "own_slip:f", "--epsilon", 1), "SyntaxError: expected ':' (own_slip.py:1)"),
    ],
)
def test_mistakes_end_in_words_and_code_2(command, own, arguments, words):
    code, out, err = command(*arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert "Traceback" not in err
    assert "try:" in err


def test_a_file_of_options_and_what_is_typed_wins(command, tmp_path):
    lines = ['mechanism = "grr"', "epsilon = 1", "alphabet = 4", "samples = 2000", "json = true"]
    (tmp_path / "claim.toml").write_text("\n".join(lines), encoding="utf-8")
    done = command("--options", "claim.toml")
    assert done == command("grr", "--epsilon", 1, "--alphabet", 4, "--samples", 2000, "--json")
    wider = json.loads(command("--options", "claim.toml", "--epsilon", 2)[1])
    assert (wider["claimed"], wider["settings"]["alphabet"]) == (2, 4)


def test_inputs_of_a_mechanism_of_ones_own_may_stand_in_a_file(command, own, tmp_path):
    lines = [f'callable = "{own}:coin"', "epsilon = 1.2", 'input = ["0", "1"]', "samples = 2000"]
    (tmp_path / "claim.toml").write_text("\n".join(lines), encoding="utf-8")
    assert "verdict   consistent" in command("--options", "claim.toml")[1]


def test_an_unknown_option_in_a_file_is_refused_with_the_nearest(command, tmp_path):
    (tmp_path / "claim.toml").write_text("alphabets = 4", encoding="utf-8")
    code, _, err = command("grr", "--options", "claim.toml")
    assert code == 2
    assert "did you mean 'alphabet'?" in err
