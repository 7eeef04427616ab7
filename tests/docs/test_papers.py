import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "generate_papers.py"


@pytest.fixture(scope="module")
def papers():
    spec = importlib.util.spec_from_file_location("generate_papers", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


SAMPLE = '''
"""Card. Paper: [FedAttr] Section 4.1."""

def bound(x):
    """The bound, [FedAttr] Eq. (4)."""
    # as in [TwoStage] Lemma
    # 8, Theorem 1 and Eqs. (10, 11)
    return Bound(source="[ActiveMembership] Theorem 2")


class Linker:
    """[Fingerprint] Eqs. (4-6) and (9)."""

    def match(self):
        """cf. [TopologyAwareDP] Theorem V.3; Section VI-B. And [FedAttr] is cited without one."""

        def inner():
            return 1  # [FedAttr] Tables 10 and 17

        return inner
'''


def test_scanner_finds_kind_number_and_qualified_name(papers):
    found = [(u.key, u.reference, u.place) for u in papers.scan("fedaudit/x.py", SAMPLE)]
    assert found == [
        ("FedAttr", "Section 4.1", "fedaudit/x.py"),
        ("FedAttr", "Eq. (4)", "fedaudit/x.py:bound"),
        ("TwoStage", "Lemma 8", "fedaudit/x.py:bound"),
        ("TwoStage", "Theorem 1", "fedaudit/x.py:bound"),
        ("TwoStage", "Eq. (10)", "fedaudit/x.py:bound"),
        ("TwoStage", "Eq. (11)", "fedaudit/x.py:bound"),
        ("ActiveMembership", "Theorem 2", "fedaudit/x.py:bound"),
        ("Fingerprint", "Eq. (4)", "fedaudit/x.py:Linker"),
        ("Fingerprint", "Eq. (5)", "fedaudit/x.py:Linker"),
        ("Fingerprint", "Eq. (6)", "fedaudit/x.py:Linker"),
        ("Fingerprint", "Eq. (9)", "fedaudit/x.py:Linker"),
        ("TopologyAwareDP", "Theorem V.3", "fedaudit/x.py:Linker.match"),
        ("TopologyAwareDP", "Section VI-B", "fedaudit/x.py:Linker.match"),
        ("FedAttr", "Table 10", "fedaudit/x.py:Linker.match.inner"),
        ("FedAttr", "Table 17", "fedaudit/x.py:Linker.match.inner"),
    ]


@pytest.mark.parametrize(
    "tag",
    [
        "[FedAtr] Eq. (4)",
        "[Fedattr] Lemma 1",
        "[Someone] Theorem 2",
    ],
)
def test_an_unknown_key_is_an_error(papers, tag):
    with pytest.raises(papers.TagError, match=r"fedaudit/x.py:2: unknown paper"):
        papers.scan("fedaudit/x.py", f"import os\n# {tag}\n")


@pytest.mark.parametrize(
    "tag",
    [
        "[FedAttr] Equation 4",
        "[FedAttr] eq. 4",
        "[FedAttr] Thm. 2",
        "[FedAttr] Eq. 4",
        "[X] Sec. 3",
        "[FedAttr] Lemma Above",
    ],
)
def test_another_form_is_an_error(papers, tag):
    with pytest.raises(papers.TagError, match="agreed form"):
        papers.scan("fedaudit/x.py", f"# {tag}\n")


def test_ordinary_code_is_no_tag(papers):
    assert papers.scan("x.py", "a: list[int] = []\nb = a[0]  # Table 3 of nobody\n") == []


def test_page_is_sorted_and_free_of_line_numbers(papers):
    text = papers.page(papers.scan("fedaudit/x.py", SAMPLE))
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`" in line]
    fingerprint = [r.split("|")[1].strip() for r in rows if "Linker`" in r]
    assert fingerprint == ["Eq. (4)", "Eq. (5)", "Eq. (6)", "Eq. (9)"]
    assert "| Eq. (4) | `fedaudit/x.py:bound` |" in rows
    for key, paper in papers.PAPERS.items():
        assert f"## {key}\n\n*{paper.title}*. {paper.authors}." in text
        assert all(why in text for why in (*paper.left_out.values(), *paper.remarks))
    moved = papers.page(papers.scan("fedaudit/x.py", "\n\n\n" + SAMPLE))
    assert moved == text


def test_every_equation_has_a_tag_or_a_reason_and_not_both(papers):
    uses = [u for path, source in papers.sources().items() for u in papers.scan(path, source)]
    assert papers.unaccounted(uses) == []
    untagged = [u for u in uses if (u.key, u.reference) != ("FedAttr", "Eq. (4)")]
    assert papers.unaccounted(untagged) == ["[FedAttr] Eq. (4) has neither a tag nor a reason"]
    both = papers.Use("Fingerprint", "Eq.", "7", "x.py")
    assert papers.unaccounted([*uses, both]) == ["[Fingerprint] Eq. (7) has a tag and a reason"]


def test_numbers_sort_as_numbers(papers):
    uses = [papers.Use("FedAttr", "Eq.", n, "x.py:f") for n in ("10", "9", "A.2", "2")]
    rows = [line.split("|")[1].strip() for line in papers.page(uses).splitlines() if "x.py" in line]
    assert rows == ["Eq. (2)", "Eq. (9)", "Eq. (10)", "Eq. (A.2)"]


def test_check_tells_stale_from_fresh(papers, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(papers, "PAGE", tmp_path / "papers.md")
    assert papers.main(["--check"]) == 1
    assert "stale" in capsys.readouterr().err
    assert papers.main([]) == 0
    assert papers.main(["--check"]) == 0
    papers.PAGE.write_text(papers.PAGE.read_text() + "\n")
    assert papers.main(["--check"]) == 1


def test_the_page_in_the_repository_is_fresh(papers):
    assert papers.main(["--check"]) == 0
