"""The page's summary: sentences made from the numbers, so that no rerun makes them wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reproductions.fingerprint.linking import chance

Score = Mapping[str, Any]
PAPER_SET = {"newsgroups": "News", "docs": "Dial", "sotu": "Dial"}
"""Corpus -> the paper's set whose figures stand beside it."""


def reaches(pair: Sequence[float], level: float) -> str:
    """Where a measured purity stands against chance, by its interval."""
    value, half = pair
    return "above chance" if value - half > level else "not told from chance"


def purity(score: Score | None, method: str) -> str:
    if not score or method not in score:
        return "not measured"
    value, half = score[method]["purity"]
    return f"{value:.3f} ± {half:.3f}"


def summary(r: Any, published: Mapping[str, Any]) -> str:
    """Every claim of the paper that was tried, and what came out."""
    lines = ["## In short\n"]
    for c in r.corpora:
        base = (r.of("base", c) or {}).get("clients")
        if not base:
            continue
        k, level = r.count(c), chance(r.count(c), r.scale["rounds"])["purity"]
        lines.append(
            f"**`{c}`**, {k} clients, purity of greedy, and of joint (chance {level:.3f}):\n"
        )
        rows = {
            "nearly frozen, independent batches": base,
            "nearly frozen, same batches every round": r.of("same", c, 1e-4),
            "ordinary server step (rate 1.0), independent batches": r.of("rate", c, 1.0),
            "clipping only, smallest bound": r.of("grid", c, f"{r.scale['clips'][0]:g} 0"),
        }
        for name, score in rows.items():
            if score:
                lines.append(f"- {name}: {purity(score, 'greedy')}, {purity(score, 'joint')};")
        for z in r.scale["noises"]:
            if z:
                lines += _noise(r, c, z, level)
        lines += _half(r, c)
        lines[-1] = lines[-1].rstrip(";") + ".\n"
    known = published["table 2"]["20"]["greedy"][0], published["table 3"]["20"]["greedy"][0]
    lines.append(
        f"Published with 20 clients: greedy {known[0]:.3f} on News and {known[1]:.3f} on Dial.\n"
    )
    return "\n".join(lines + _unlike(r, published) + _beyond(r))


PUBLISHED = ("kmeans", "spectral", "greedy")


def _unlike(r: Any, published: Mapping[str, Any]) -> list[str]:
    """What came out unlike the paper, each with its figures; nothing where it did not."""
    lines = [line for c in r.corpora for line in (*_reversed(r, c, published), *_worst(r, c))]
    noises = [z for z in r.scale["noises"] if z]
    cells = [r.of("grid", c, f"{q:g} {z:g}") for c in r.corpora for q in r.scale["clips"]
             for z in noises]  # fmt: skip
    measured = [s["greedy"]["purity"] for s in cells if s and "greedy" in s]
    level = max(chance(r.count(c), r.scale["rounds"])["purity"] for c in r.corpora)
    if measured and not any(reaches(p, level) == "above chance" for p in measured):
        batch = r.scale["train"] // r.scale["steps"]
        lines.append(
            f"- all {len(measured)} cells of greedy at z >= {min(noises):g} are at chance: with "
            f"batches of {batch} instead of 32 on a model of width {r.scale['width']} the "
            f"noise per coordinate is {32 // batch} times as large. These tables say nothing on "
            "the paper's privacy-utility trade-off; larger batches, below, do."
        )
    return ["Unlike the paper:\n", *lines, ""] if lines else []


def _reversed(r: Any, c: str, published: Mapping[str, Any]) -> list[str]:
    """Table 9: whether linkage rises with the server rate where the paper has it fall."""
    theirs = published["table 9"][PAPER_SET[c]]
    rates = sorted(theirs, key=float)
    low, high = (theirs[k]["greedy"][0] for k in (rates[0], rates[-1]))
    frozen = (r.of("base", c) or {}).get("clients")
    moving = r.of("rate", c, 1.0)
    if not frozen or not moving or "greedy" not in frozen or "greedy" not in moving:
        return []
    rise = moving["greedy"]["purity"][0] - frozen["greedy"]["purity"][0]
    if not (low > high and rise > 0):
        return []
    return [
        f"- Table 9 reverses on `{c}`: from the smallest server rate to the largest, greedy falls "
        f"from {low:.3f} to {high:.3f} in the paper, and rises from {purity(frozen, 'greedy')} to "
        f"{purity(moving, 'greedy')} here;"
    ]


def _worst(r: Any, c: str) -> list[str]:
    """Whether greedy, the paper's best method, is its worst here."""
    score = (r.of("base", c) or {}).get("clients")
    if not score or not all(m in score for m in PUBLISHED):
        return []
    if any(score[m]["purity"][0] <= score["greedy"]["purity"][0] for m in PUBLISHED[:2]):
        return []
    others = " and ".join(f"{m} {purity(score, m)}" for m in PUBLISHED[:2])
    return [
        f"- on `{c}` at K = {r.count(c)}, greedy has the lowest purity of the published methods "
        f"({purity(score, 'greedy')}; {others}), though their intervals may overlap;"
    ]


def _noise(r: Any, c: str, z: float, level: float) -> list[str]:
    """One line for a noise level: the best of all clipping bounds, for each method."""
    cells = [r.of("grid", c, f"{q:g} {z:g}") for q in r.scale["clips"]]
    cells = [s for s in cells if s]
    if not cells:
        return []
    words = []
    for method in ("greedy", "joint"):
        above = sum(reaches(s[method]["purity"], level) == "above chance" for s in cells)
        best = max(s[method]["purity"][0] for s in cells)
        words.append(f"{method} at most {best:.3f}, above chance in {above} of {len(cells)}")
    return [f"- noise z = {z:g}, over all bounds: {'; '.join(words)};"]


def _half(r: Any, c: str) -> list[str]:
    out = []
    for v in r.variants("half", c):
        score = r.of("half", c, v)
        words = ", ".join(f"{m} {purity(score, m)}" for m in ("greedy", "tracking", "joint"))
        out.append(f"- half take part, server rate {v}: {words};")
    return out


def _beyond(r: Any) -> list[str]:
    """Noise levels at which joint still links and greedy does not; momentum that is carried."""
    c = r.corpora[0]
    level = chance(r.count(c), r.scale["rounds"])["purity"]
    found = []
    for v in sorted(r.variants("fine", c), key=float):
        score = r.of("fine", c, v) or {}
        greedy, joint = (reaches(score[m]["purity"], level) for m in ("greedy", "joint"))
        found.append(
            f"- `{c}`, median clip, z = {v}: greedy {purity(score, 'greedy')} ({greedy}), "
            f"joint {purity(score, 'joint')} ({joint})"
        )
    noisy, plain = r.of("momentum", c, "carried, noise"), r.of("grid", c, "0.5 1")
    if noisy and plain:
        linked = reaches(noisy["greedy"]["purity"], level)
        found.append(
            f"- `{c}`, median clip, z = 1: greedy {purity(plain, 'greedy')}; with a buffer "
            f"of momentum that is carried from round to round {purity(noisy, 'greedy')} ({linked}) "
            "at the same epsilon, since carried noise is common to neighbouring uploads"
        )
    return ["Where noise is weaker, or shared between rounds:\n", *found, ""] if found else []
