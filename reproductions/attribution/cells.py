"""One setting changed at a time: the cells of [FedAttr] Tables 9 to 17, 20 and 21.

A cell has a name, what is changed, and the paper's TPR / FPR in per cent. Cells that read one run
stand together, the longest first: a shorter run is the beginning of a longer one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OTHER = "spam"
"""The second corpus: e-mails, as many windows a client as `docs` gives."""


@dataclass(frozen=True)
class Cell:
    """`name` ends in the value; `label` is what the page calls it."""

    name: str
    label: str
    paper: str
    changes: dict[str, Any] = field(default_factory=dict)


def other_corpus(clients: int) -> dict[str, Any]:
    """So many e-mails that a client has about as much text as one of ten has of `docs`."""
    return {"name": OTHER, "records": round(7.8 * clients)}


def _skewed(alpha: float) -> dict[str, Any]:
    return {"partition": {"kind": "dirichlet", "alpha": alpha}}


def _many(clients: int) -> dict[str, Any]:
    return {
        "clients": clients, "marked": round(0.3 * clients), "data": other_corpus(clients)
    }  # fmt: skip


TINY = (
    Cell("tiny/default", "default: r = 3, N = 5, M = 5, 20 % marked, rank 16", "100 / 0"),
    *(Cell(f"tiny/N/{n}", f"N = {n}", "100 / 0", {"others": n}) for n in (1, 2, 4, 6, 8)),
    *(
        Cell(f"tiny/M/{m}", f"M = {m}", "100 / 29" if m == 2 else "100 / 0", {"repeats": m})
        for m in (2, 3, 10, 20)
    ),
    Cell("tiny/r/0", "r = 0", "- / 0", {"marked": 0}),
    Cell("tiny/r/1", "r = 1", "100 / 0", {"marked": 1}),
    Cell("tiny/r/5", "r = 5", "100 / 0", {"marked": 5}),
    *(
        Cell(f"tiny/share/{s}", f"{100 * s:g} % marked", "100 / 0", {"share": s})
        for s in (0.05, 0.1, 0.3)
    ),
    *(
        Cell(f"tiny/rank/{r}", f"rank {r}", paper, {"task": {"rank": r}})
        for r, paper in ((4, "- (16: 100 / 0)"), (64, "100 / 0"))
    ),
    Cell("tiny/alpha/0.5", "Dirichlet 0.5", "100 / 0", _skewed(0.5)),
    *(
        Cell(
            f"tiny/alpha-T/{t}",
            f"Dirichlet 0.1, T = {t}",
            "67 / 0" if t == 5 else "100 / 0",
            {**_skewed(0.1), "rounds": t},
        )
        for t in (20, 15, 10, 5)
    ),
    Cell("tiny/alpha/0.05", "Dirichlet 0.05", "67 / 11", _skewed(0.05)),
    Cell(
        "tiny/model/128",
        "the larger tiny GPT: 4 blocks of width 128",
        "100 / 0",
        {"task": {"width": 128, "depth": 4}},
    ),
    Cell(f"tiny/corpus/{OTHER}", f"corpus: {OTHER}", "100 / 0", {"data": other_corpus(10)}),
    *(
        Cell(
            f"tiny/K-{name}/{k}",
            f"K = {k}, N = {others}, r = {round(0.3 * k)}, {OTHER}",
            "100 / 0",
            {**_many(k), "others": others},
        )
        for k in (20, 50, 100)
        for name, others in (("fixed", 4), ("third", k // 3))
    ),
)
"""On the tiny GPT: fictitious knowledge, FedIT, T = 5 where nothing else is said."""

PARTIAL = tuple(
    Cell(f"tiny/part/{c}", f"K = 20, r = 6, T = 10, {100 * c:g} % take part", "100 / 0", {"c": c})
    for c in (1.0, 0.7, 0.5)
)
"""Table 20, by the package's own plan and audit: who takes part changes by the round."""

CANARY = (
    Cell("default", "default", "100 / 0"),
    *(
        Cell(f"marked/{r}", f"r = {r}", paper, {"marked": r})
        for r, paper in ((0, "- / 0"), (1, "100 / 0"), (5, "100 / 0"))
    ),
    *(Cell(f"N/{n}", f"N = {n}", "100 / 0", {"others": n}) for n in (1, 2, 4, 6, 8)),
    *(
        Cell(f"M/{m}", f"M = {m}", "100 / 29" if m == 2 else "100 / 0", {"repeats": m})
        for m in (2, 3, 10, 20)
    ),
    *(
        Cell(f"share/{s}", f"{100 * s:g} % marked", "100 / 0", {"share": s})
        for s in (0.05, 0.1, 0.3)
    ),
    Cell("alpha/0.5", "Dirichlet 0.5", "100 / 0", _skewed(0.5)),
    Cell("alpha/0.1", "Dirichlet 0.1", "67 / 0", _skewed(0.1)),
    *(Cell(f"T/{t}", f"T = {t}", "-", {"rounds": t}) for t in (10, 20)),
    *(
        Cell(
            f"K/{k}",
            f"K = {k}, N = 4, r = {round(0.3 * k)}",
            "100 / 0",
            {"clients": k, "marked": round(0.3 * k), "others": 4},
        )
        for k in (20, 50)
    ),
)
"""On the classifier with canary sets, T = 5."""

GREEN = (
    Cell("unmarked-text/kgw", "r = 0", "- / 0", {"marked": 0}),
    Cell("text-M/kgw/2", "M = 2", "100 / 29", {"repeats": 2}),
)
"""The same for green lists."""
