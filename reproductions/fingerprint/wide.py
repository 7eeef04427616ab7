"""The privacy-utility table where its shape can show: wide enough, large batches, many clients.

At batches of 2 all published noise levels are at chance (`page`). Noise is divided by the batch, so
here a batch has 128 windows of a model of width 64, and the modules of Python's standard library
are the clients: as many as are wanted, on any machine. Results stand in `wide.json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedaudit.accounting import Exposure, epsilon
from reproductions.fingerprint import linking
from reproductions.fingerprint.experiments import Piece, Result
from reproductions.fingerprint.setting import Scale

WIDE = Scale(
    corpora=("stdlib",),
    clients=(20, 70),
    seeds=(1, 2, 3, 4, 5),
    rounds=4,
    train=256,
    steps=2,
    length=20,
    width=64,
    depth=1,
    clips=(0.5,),
    noises=(0.0, 0.25, 0.5, 1.0),
)
QUICK = replace(
    WIDE,
    clients=(3, 5),
    seeds=(1,),
    rounds=2,
    train=8,
    words=100,
    width=8,
    heads=2,
    pretraining_steps=10,
    noises=(0.0, 1.0),
)
SHOWN = ("kmeans", "spectral", "greedy", "tracking", "joint")


def pieces(scale: Scale) -> list[Piece]:
    """All cells of one seed before the next seed: an interrupted run has whole tables."""
    corpus = scale.corpora[0]
    cells = [
        cell
        for k in scale.clients
        for cell in (
            ("clients", str(k)),
            *(("trade_off", f"{k} {z:g}") for z in scale.noises),
            ("moving", str(k)),
        )
    ]
    return [
        Piece(experiment=name, corpus=corpus, variant=variant, seed=seed)
        for seed in scale.seeds
        for name, variant in cells
    ]


def spent(scale: Scale, noise: float) -> float:
    """Epsilon of all rounds, by privacy loss distributions."""
    exposure = Exposure(sampling_rate=1 / scale.steps, steps=scale.steps, rounds=scale.rounds)
    return epsilon(exposure, noise, scale.delta) if noise else math.inf


def section(r: Any, scale: Scale) -> str:
    """The table, and what it shows; empty where nothing was measured.

    `r`: `page.Results` of `wide.json`.
    """
    if not r.corpora:
        return ""
    name = r.corpora[0]
    own: Mapping[str, Any] = r.start[name]
    before, after = own["pretraining"]
    head = (
        "## Larger batches, a wider model, up to 70 clients\n\n"
        f"GPT of {scale.depth} block, width {scale.width}, {scale.length} tokens; batches of "
        f"{scale.batch} windows, {scale.steps} steps a round, {scale.rounds} rounds, nearly frozen "
        f"server; {r.seeds('clients', 'trade_off')}. Clients are modules of Python's standard "
        f"library ({own['owners']} hold enough text), each with {scale.train} windows; "
        f"{own['numbers']:,} parameters, pretrained on windows that no client holds (loss "
        f"{before:.2f} to {after:.2f}). The clip is the median of gradient norms, "
        f"{own['norms']['0.5']:.2f}. Epsilon is that of all rounds, delta {scale.delta:g}. "
        "`--wide` measures this part.\n"
    )
    parts = [head]
    lacking = [p for p in pieces(scale) if p.key not in r.raw["measured"]]
    if lacking:
        parts.append(
            f"**Not complete:** {len(lacking)} of {len(pieces(scale))} measurements are missing; "
            "tables show what there is.\n"
        )
    for clients in scale.clients:
        if any(score for _, score in _rows(r, scale, name, clients).values()):
            parts += [_table(r, scale, name, clients), _shown(r, scale, name, clients)]
        else:
            parts.append(f"K = {clients}: not measured yet.\n")
    return "\n".join(parts)


def _cell(score: Result | None, method: str) -> str:
    if not score or method not in score:
        return "–"
    value, half = score[method]["purity"]
    return f"{value:.3f} ± {half:.3f}"


def _rows(r: Any, scale: Scale, name: str, clients: int) -> dict[str, tuple[str, Any]]:
    """Row name -> epsilon and the merged result."""
    rows = {"no DP": ("∞", r.of("clients", name, clients))}
    for z in scale.noises:
        label = "clipping only" if not z else f"z = {z:g}"
        spends = "∞" if not z else f"{spent(scale, z):.2f}"
        rows[label] = (spends, r.of("trade_off", name, f"{clients} {z:g}"))
    rows["no DP, ordinary server step"] = ("∞", r.of("moving", name, clients))
    return rows


def _table(r: Any, scale: Scale, name: str, clients: int) -> str:
    chance = linking.chance(clients, scale.rounds)["purity"]
    lines = [
        f"Purity, K = {clients} (chance {chance:.3f}):\n",
        f"| | epsilon | {' | '.join(SHOWN)} | loss after a round |",
        "|" + "---|" * (len(SHOWN) + 3),
    ]
    for label, (spends, score) in _rows(r, scale, name, clients).items():
        if not score:
            continue
        loss = (score.get("loss") or {}).get("1")
        shown = "" if loss is None else f"{loss[0]:.3f}"
        cells = " | ".join(_cell(score, m) for m in SHOWN)
        lines.append(f"| {label} | {spends} | {cells} | {shown} |")
    return "\n".join(lines) + "\n"


def _shown(r: Any, scale: Scale, name: str, clients: int) -> str:
    """Which cells lie between chance and one, and whether Table 9 and greedy's rank hold here."""
    chance = linking.chance(clients, scale.rounds)["purity"]
    between = [
        f"{label} ({_cell(score, 'greedy')})"
        for label, (_, score) in _rows(r, scale, name, clients).items()
        if score
        and score["greedy"]["purity"][0] - score["greedy"]["purity"][1] > chance
        and score["greedy"]["purity"][0] + score["greedy"]["purity"][1] < 1
    ]
    said = [
        f"K = {clients}: greedy lies above chance and below one, by its interval, at "
        + (", ".join(between) if between else "none of these")
        + "."
    ]
    frozen, moving = r.of("clients", name, clients), r.of("moving", name, clients)
    if frozen and moving:
        said.append(
            f"From the nearly frozen server to the ordinary step greedy goes from "
            f"{_cell(frozen, 'greedy')} to {_cell(moving, 'greedy')} (the paper: it falls)."
        )
    return " ".join(said) + "\n"
