"""Write docs/papers.md: which equation of which paper is where in the code.

The source is the code itself: tags such as `[FedAttr] Eq. (4)`, `[Fingerprint] Eqs. (10, 11)`,
`[TwoStage] Lemma 8, Theorem 1` or `[TopologyAwareDP] Section VI-B` in docstrings, comments and
texts of `fedaudit/**/*.py` and `reproductions/**/*.py`. A tag with an unknown key or in another
form is an error.

    python docs/generate_papers.py           write the page
    python docs/generate_papers.py --check   exit 1 if the page is stale
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "papers.md"
SOURCES = ("fedaudit", "reproductions")


@dataclass(frozen=True)
class Cited:
    """A paper, and what of it is not in the code.

    `where`: place and year of publication, as far as the paper states them. `equations`: the
    number of its last equation (0: cited for single results, not implemented as a whole).
    `left_out`: equations without a tag -> why; every equation has a
    tag or is listed. `remarks`: how an entry of the table differs from the print.
    """

    title: str
    authors: str
    where: str
    equations: int
    left_out: Mapping[str, str]
    remarks: tuple[str, ...] = ()


PAPERS = {
    "FedAttr": Cited(
        "FedAttr: Towards Privacy-preserving Client-Level Attribution in Federated LLM Fine-tuning",
        "Su Zhang, Junfeng Guo, Heng Huang",
        "arXiv:2605.06596, 2026",
        28,
        {
            "1": "definition of the federated average",
            "10": "definition of the leakage that Theorem 4 bounds",
            "11-12": "the estimator written out; the code has its coefficients by (4)",
            "13": "step of the proof of Theorem 4",
            "14-16": "definitions in the proof of Theorem 13",
            "18": "first claim of Theorem 13; the code has its consequences (19) and (20)",
            "24-25": "steps of the proof of (27)",
        },
    ),
    "ActiveMembership": Cited(
        "Theoretically Unmasking Inference Attacks Against LDP-Protected Clients in Federated "
        "Vision Models",
        "Quan Nguyen, Minh N. Vu, Truc Nguyen, My T. Thai",
        "Proceedings of the 42nd International Conference on Machine Learning, PMLR 267, 2025",
        88,
        {
            "9": "first layer written out; the code has its result (10)",
            "11-19": "steps of the proof of Theorem 1, which ends in (20)",
            "23-25": "example of a larger separation under noise; the code measures the separation",
            "28-34": "heads written out; the code has their decision (35)",
            "36-38": "the decision (35) again, and two steps to (39)",
            "40-41": "steps of the proof of Theorem 3, from (39)",
            "44-61": "steps of the proof of Theorem 3, from (42) and (43) to (62)",
            "63-65": "steps of the proof of Theorem 3, which ends in (66)",
            "70": "comparison of Theorems 4 and 2",
            "71-79": "proof of Theorem 2, which is (4)",
            "80-85": "proof of Lemma 3",
        },
    ),
    "TopologyAwareDP": Cited(
        "Topology-Aware Differential Privacy in Federated Learning",
        "Murtaza Rangwala, Richard O. Sinnott, Rajkumar Buyya",
        "arXiv:2506.19260v2, 2026",
        5,
        {},
        (
            "Eq. (3) is printed with a budget of at most U, the code spends exactly U: each bound "
            "falls as its noise grows, so that the best allocation leaves nothing over.",
        ),
    ),
    "TwoStage": Cited(
        "The Geometry of Privacy: A Two-Stage Analysis of Generative Membership Inference in "
        "Federated Learning",
        "Borja Arroyo Galende, Patricia A. Apellániz, Alejandro Almodóvar, Silvia Uribe, "
        "Federico Álvarez, Juan Parras",
        "2026",
        32,
        {
            "3": "definition of the observation; the code adds noise as it is declared",
            "20-22": "steps of the proof of Lemma 6, which is (19)",
            "27": "SUR of (8) with another argument",
            "29": "definition of an increment at the baseline of (14)",
        },
        (
            "Lemma 7 is printed in words. Its formula, phi(|s| |u| gamma) plus or minus "
            "sqrt(Var)/4 + L |u|^2 / 8, stands at the end of its proof.",
        ),
    ),
    "Fingerprint": Cited(
        "Fingerprint Attack: Client De-Anonymization in Federated Learning",
        "Qiongkai Xu, Trevor Cohn, Olga Ohrimenko",
        "",
        14,
        {
            "1": "definition of a client's update",
            "4": "the average (2) of shuffled updates, equal by (5)",
            "6-9": "why gradients of linear layers hold their inputs; the attack does not invert",
            "12": "definition of differential privacy",
        },
    ),
    "Geiping": Cited(
        "Inverting Gradients: How easy is it to break privacy in federated learning?",
        "Jonas Geiping, Hartmut Bauermeister, Hannah Dröge, Michael Moeller",
        "NeurIPS 2020",
        0,
        {},
    ),
    "Balle": Cited(
        "Reconstructing Training Data with Informed Adversaries",
        "Borja Balle, Giovanni Cherubin, Jamie Hayes",
        "2022",
        0,
        {},
    ),
    "LiRA": Cited(
        "Membership Inference Attacks From First Principles",
        "Nicholas Carlini, Steve Chien, Milad Nasr, Shuang Song, Andreas Terzis, Florian Tramèr",
        "IEEE Symposium on Security and Privacy 2022",
        0,
        {},
    ),
    "Hayes": Cited(
        "Bounding Training Data Reconstruction in DP-SGD",
        "Jamie Hayes, Saeed Mahloujifar, Borja Balle",
        "2023",
        0,
        {},
    ),
}

# Singular -> plural, in the order of the page.
KINDS = {
    "Eq.": "Eqs.",
    "Definition": "Definitions",
    "Assumption": "Assumptions",
    "Proposition": "Propositions",
    "Lemma": "Lemmas",
    "Theorem": "Theorems",
    "Corollary": "Corollaries",
    "Remark": "Remarks",
    "Algorithm": "Algorithms",
    "Section": "Sections",
    "Appendix": "Appendices",
    "Table": "Tables",
    "Figure": "Figures",
    "Footnote": "Footnotes",
}
_SINGULAR = {word: kind for kind, plural in KINDS.items() for word in (kind, plural)}

# Blanks within a line, or a line break, which in a comment is followed by a hash sign.
_GAP = r"(?:[ \t]+|[ \t]*\n[ \t]*(?:#[ \t]*)?)"
_NUMBER = (
    r"(?:[A-Z]{0,4}\d+(?:\.\d+)*[a-z]?"  # 8, 4.1, 10a, S3
    r"|[IVXLC]+(?:[-.][A-Z0-9]+)*"  # IV, VI-B, V.3
    r"|[A-Z](?:[-.][A-Z0-9]+)*)(?![A-Za-z])"  # A, B.3
)
_BETWEEN = rf"(?:,{_GAP}and{_GAP}|{_GAP}and{_GAP}|,{_GAP}|,|[-–]|{_GAP}to{_GAP})"
_ONE = "|".join(re.escape(k) for k in KINDS if k != "Eq.")
_MANY = "|".join(re.escape(p) for p in KINDS.values() if p != "Eqs.")
_REFERENCE = (
    rf"(?:Eq\.{_GAP}\({_NUMBER}\)"
    rf"|Eqs\.{_GAP}\({_NUMBER}(?:{_BETWEEN}{_NUMBER})*\)(?:{_BETWEEN}\({_NUMBER}\))*"
    rf"|(?:{_MANY}){_GAP}{_NUMBER}(?:{_BETWEEN}{_NUMBER})*"
    rf"|(?:{_ONE}){_GAP}{_NUMBER})"
)
_KEY = r"\[(?P<key>[A-Z][A-Za-z0-9]*)\]"
TAG = re.compile(rf"{_KEY}{_GAP}(?P<what>{_REFERENCE}(?:(?:[,;]|{_GAP}and){_GAP}{_REFERENCE})*)")
# What looks like the start of a tag; wherever TAG does not match, it is written wrongly.
_LOOSE = re.compile(
    rf"{_KEY}{_GAP}(?i:eqs?|equations?|thms?|theorems?|lemmas?|secs?|sect|sections?|tabs?|tables?"
    r"|figs?|figures?|defs?|definitions?|cors?|corollar(?:y|ies)|props?|propositions?|algs?"
    r"|algorithms?|app|appendix|appendices|assumptions?|remarks?|footnotes?)(?![A-Za-z])"
)


class TagError(ValueError):
    """A tag that names no known paper or is not in the agreed form."""


@dataclass(frozen=True)
class Use:
    """One reference of one tag: paper key, kind, number, and where it stands."""

    key: str
    kind: str
    number: str
    place: str

    @property
    def reference(self) -> str:
        return (
            f"{self.kind} ({self.number})" if self.kind == "Eq." else f"{self.kind} {self.number}"
        )


def references(text: str) -> Iterator[tuple[str, str]]:
    """(kind, number) of each item: "Eqs. (10, 11), Lemma 8" gives three; "(4-6)" is expanded."""
    for match in re.finditer(_REFERENCE, text):
        word, _, rest = re.sub(_GAP, " ", match.group()).partition(" ")
        kind = _SINGULAR[word]
        plural = word != kind
        tokens = re.findall(rf"{_NUMBER}|[-–]|\bto\b", rest) if plural else [rest.strip("()")]
        previous: str | None = None
        is_range = False
        for token in tokens:
            if token in ("-", "–", "to"):
                is_range = True
                continue
            if is_range and previous is not None and previous.isdigit() and token.isdigit():
                for number in range(int(previous) + 1, int(token)):
                    yield kind, str(number)
            is_range = False
            yield kind, token
            previous = token


def scan(path: str, source: str) -> list[Use]:
    """All uses in one file; `path` as it shall be printed."""
    spans = _spans(ast.parse(source))
    matched = {m.start(): m for m in TAG.finditer(source)}
    found = []
    for start in sorted({m.start() for m in _LOOSE.finditer(source)} | set(matched)):
        line = source.count("\n", 0, start) + 1
        shown = source[start : start + 60].split("\n")[0]
        match = matched.get(start)
        if match is None:
            raise TagError(
                f"{path}:{line}: {shown!r} is not in the agreed form, "
                "for example `[FedAttr] Eq. (4)` or `[TwoStage] Lemma 8`"
            )
        if match["key"] not in PAPERS:
            raise TagError(f"{path}:{line}: unknown paper in {shown!r}; known: {', '.join(PAPERS)}")
        inside = [name for first, last, name in spans if first <= line <= last]
        place = f"{path}:{inside[-1]}" if inside else path
        found += [Use(match["key"], kind, n, place) for kind, n in references(match["what"])]
    return found


def _spans(tree: ast.Module) -> list[tuple[int, int, str]]:
    """(first line, last line, qualified name) of functions and classes, outer before inner."""
    spans: list[tuple[int, int, str]] = []

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = prefix + child.name
                spans.append((child.lineno, child.end_lineno or child.lineno, name))
                visit(child, name + ".")
            else:
                visit(child, prefix)

    visit(tree, "")
    return spans


def _natural(number: str) -> list[tuple[int, int, str]]:
    parts = re.findall(r"\d+|[A-Za-z]+", number)
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts]


def page(uses: Iterable[Use]) -> str:
    """The whole page as Markdown."""
    order = list(KINDS)
    everything = list(uses)
    lines = [
        "# Papers",
        "",
        "Which equation of which paper is where in the code. Made by `docs/generate_papers.py`",
        "from the tags in the code; do not edit by hand.",
    ]
    for key, paper in PAPERS.items():
        places: dict[tuple[int, str], list[str]] = {}
        for use in everything:
            if use.key == key:
                row = places.setdefault((order.index(use.kind), use.number), [])
                if use.place not in row:
                    row.append(use.place)
        cited = ". ".join(text for text in (paper.authors, paper.where) if text)
        lines += ["", f"## {key}", "", f"*{paper.title}*. {cited}.", ""]
        if not places:
            lines.append("No tag in the code.")
            continue
        lines += ["| in the paper | in the code |", "| --- | --- |"]
        for kind, number in sorted(places, key=lambda row: (row[0], _natural(row[1]), row[1])):
            name = Use(key, order[kind], number, "").reference
            where = ", ".join(f"`{p}`" for p in sorted(places[kind, number]))
            lines.append(f"| {name} | {where} |")
        if paper.left_out:
            lines += ["", "Not in the code, because it is a definition or a step of a proof:", ""]
            lines += ["| in the paper | |", "| --- | --- |"]
            lines += [f"| {_equations(n)} | {why} |" for n, why in paper.left_out.items()]
        lines += [line for remark in paper.remarks for line in ("", remark)]
    return "\n".join(lines) + "\n"


def _equations(numbers: str) -> str:
    return f"Eqs. ({numbers})" if "-" in numbers else f"Eq. ({numbers})"


def unaccounted(uses: Iterable[Use]) -> list[str]:
    """Equations that have neither a tag nor a reason, and those that have both."""
    tagged = {(use.key, use.number) for use in uses if use.kind == "Eq."}
    out = []
    for key, paper in PAPERS.items():
        reasons = [n for span in paper.left_out for _, n in references(f"Eqs. ({span})")]
        for number in map(str, range(1, paper.equations + 1)):
            found = ((key, number) in tagged) + reasons.count(number)
            if found != 1:
                what = "neither a tag nor a reason" if not found else "a tag and a reason"
                out.append(f"[{key}] Eq. ({number}) has {what}")
    return out


def sources() -> Mapping[str, str]:
    """Every file of the package: path in the repository -> text."""
    files = sorted(f for folder in SOURCES for f in (ROOT / folder).rglob("*.py"))
    return {f.relative_to(ROOT).as_posix(): f.read_text(encoding="utf-8") for f in files}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write docs/papers.md from the tags in the code.")
    parser.add_argument("--check", action="store_true", help="exit 1 if the page is stale")
    check = parser.parse_args(arguments).check
    try:
        uses = [use for path, source in sources().items() for use in scan(path, source)]
        if wrong := unaccounted(uses):
            raise TagError("; ".join(wrong))
        text = page(uses)
    except TagError as error:
        print(error, file=sys.stderr)
        return 1
    if check:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            print("docs/papers.md is stale: run python docs/generate_papers.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
