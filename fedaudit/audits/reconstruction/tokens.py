"""Tokens from the update of an embedding: a row of the table moves only if its token was read.

An embedding layer looks up one row per token. The gradient of every other row is exactly zero, so
an update names the set of tokens of all records behind it, whatever the batch, the learning rate
and the number of local steps (Melis et al. 2019, section 4.1). Order and repetition stay unknown,
unless a client read one text only and the model adds a trained vector per position: the row of
position l then moves as the token at l moves its own, and those of one token add up.
A record counts as found if the update names all of its tokens. Records that nobody trained on are
asked about in the same way: a client that reads much names the tokens of many other records too.

Shapes: K rows of a round, V tokens, W numbers per token, G rows over all rounds, n records of L
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Bools, Floats, Indices
from fedaudit.audits.reconstruction.layers import EmbeddingEnd, embedding_end
from fedaudit.audits.reconstruction.rows import SeenRows
from fedaudit.audits.records.seen import EVERYBODY
from fedaudit.errors import NotApplicable
from fedaudit.stats.bias_ratios import ROUNDING

if TYPE_CHECKING:
    from fedaudit.audits.reconstruction.prior import Prior
    from fedaudit.tasks.task import Task

ALL_MOVED = 0.99
"""Share of moved rows from which on something other than reading moves them: noise, weight decay,
or a table shared with the output layer."""
LEFT, WHOLE = 0.01, 0.2
"""Largest part of the moves of tokens that those of positions leave unexplained, and largest
distance of a coefficient from 0 or 1, for one text."""
DEVIATIONS = 6.0
"""Robust standard deviations above the usual row from which on a row counts as read, behind noise:
one false token in a billion for normal noise."""


@dataclass(frozen=True)
class TokenGuesses:
    """Tokens that updates name: `used` (G, V), with `sender` and `round` (G,) of each row, and the
    token at each position, `placed` (G, L), -1 where it is unknown.

    `last_is_read`: whether the last token of a record is an input, not only a target. `sizes`:
    party -> number of its examples. `noisy`: protections that add noise before this vantage.
    """

    used: Bools
    placed: Indices
    sender: tuple[str, ...]
    round: Indices
    sizes: dict[str, int]
    last_is_read: bool
    noisy: tuple[str, ...]
    notes: tuple[str, ...]
    vantage: str
    trace_sha256: str

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    def about(self, party: str) -> Bools:
        """Which rows (G,) may hold records of this client."""
        return np.array([s in (party, EVERYBODY) for s in self.sender], dtype=bool)


# -- attack ---------------------------------------------------------------------------------------


def named_tokens(rows: npt.NDArray[np.float32], smallest: float) -> Bools:
    """Tokens (K, V) that updates (K, V, W) of an embedding name.

    A change below `smallest` is rounding. Where all rows moved, a token counts only if its row
    moved far more than the usual row.
    """
    moved = np.abs(rows).max(axis=2) > smallest
    dense = moved.mean(axis=1) > ALL_MOVED
    for k in np.flatnonzero(dense):
        norms = np.linalg.norm(rows[k].astype(np.float64), axis=1)
        middle = np.median(norms)
        spread = 1.4826 * np.median(np.abs(norms - middle))
        moved[k] = norms > middle + DEVIATIONS * spread
    return np.asarray(moved)


def placed_tokens(
    table: npt.NDArray[np.float32], position: npt.NDArray[np.float32], named: Bools, length: int
) -> Indices:
    """The token at each position (L,) of the one text behind an update, -1 where it is unknown.

    `table` (V, W) and `position` (P, W) of the update, `named` (V,). The move of a token's row is
    the sum of those of its positions. Tokens that occur once are found by direction; the others
    by least squares, if fewer positions than W are left.
    """
    out = np.full(length, -1, dtype=np.int64)
    which = np.flatnonzero(named)
    at = np.flatnonzero(np.abs(position[:length]).max(axis=1) > 0)
    if not len(which) or not len(at):
        return out
    moves, own = position[at].astype(np.float64), table[which].astype(np.float64)
    unit = [v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-30) for v in (own, moves)]
    cosine = unit[0] @ unit[1].T
    best = cosine.argmax(axis=0)
    sure = cosine[best, np.arange(len(at))] > 1.0 - LEFT**2
    out[at[sure]] = which[best[sure]]
    rest = np.setdiff1d(np.arange(len(which)), best[sure])
    if not len(rest) or not 0 < (~sure).sum() < moves.shape[1]:
        return out
    part = np.linalg.lstsq(moves[~sure].T, own[rest].T, rcond=None)[0].T  # (tokens, positions)
    left = np.linalg.norm(part @ moves[~sure] - own[rest]) / np.linalg.norm(own[rest])
    whole = np.abs(part - np.round(part)).max() < WHOLE
    if left < LEFT and whole and (np.round(part).sum(axis=0) == 1).all():
        out[at[~sure]] = which[rest[part.argmax(axis=0)]]
    return out


def require_table(task: Task, prior: Prior) -> EmbeddingEnd:
    """The trained embedding that reads a record's tokens; raises if there is none."""
    import torch

    # a column of padding alone has no token of its own: any token of the vocabulary will do
    drawn = np.random.default_rng(0).integers(0, int(prior.high.max()) + 1, prior.shape)
    x = torch.from_numpy(drawn).unsqueeze(0)
    table = embedding_end(task, x, torch.zeros(1, dtype=torch.int64))
    if table is None:
        raise NotApplicable(
            "no trained layer looks up a record's tokens",
            code="no_trained_embedding",
            expected="an nn.Embedding among the trained tensors whose input is the record",
            got="none: adapters and frozen embeddings do not name tokens",
            remedy="ask two_stage_membership about texts",
        )
    return table


def guessed_tokens(
    seen: Sequence[SeenRows],
    task: Task,
    table: EmbeddingEnd,
    parties: Sequence[str],
    length: int,
) -> tuple[list[Bools], list[Indices], list[str], list[int]]:
    """Named tokens (V,), tokens by position (L,), sender and round of every row that was seen."""
    at = {e.name: e for e in task.layout.entries}
    entry, position = at[table.tensor], at.get(table.position)
    used: list[Bools] = []
    placed: list[Indices] = []
    sender: list[str] = []
    rounds: list[int] = []
    for one in seen:
        rows = one.rows[:, entry.offset : entry.offset + entry.size]
        start = one.start[entry.offset : entry.offset + entry.size]
        smallest = ROUNDING * float(np.finfo(np.float32).eps) * float(np.abs(start).max())
        moved = rows.reshape(len(rows), *entry.shape)
        named = named_tokens(moved, smallest)
        used += list(named)
        for k in range(len(rows)):
            if position is None:
                placed.append(np.full(length, -1, dtype=np.int64))
                continue
            part = one.rows[k, position.offset : position.offset + position.size]
            placed.append(placed_tokens(moved[k], part.reshape(position.shape), named[k], length))
        sender += [s if s in parties else EVERYBODY for s in one.senders]
        rounds += [one.number] * len(rows)
    return used, placed, sender, rounds


# -- score ----------------------------------------------------------------------------------------


def found_share(
    guess: TokenGuesses, parties: Sequence[str], x: Indices, owner: Indices
) -> tuple[Floats, Bools]:
    """Share (n,) of the distinct tokens of each record that its client's update names, mean over
    rounds, and whether one update names them all (n,).

    x (n, L), negative numbers are padding. `owner` (n,): number in `parties` of the client asked
    about. A row without a sender counts for every client: of several the best one counts.
    """
    tokens = np.sort(x if guess.last_is_read else x[:, :-1], axis=1)
    first = np.concatenate([np.ones((len(x), 1), bool), np.diff(tokens, axis=1) != 0], axis=1)
    first &= tokens >= 0
    inside = np.clip(tokens, 0, guess.used.shape[1] - 1)
    distinct = np.maximum(first.sum(axis=1), 1)
    about = np.stack([guess.about(p) for p in parties])  # (P, G)
    mean, whole = np.zeros(len(x)), np.zeros(len(x), bool)
    rounds = np.unique(guess.round)
    for t in rounds:
        best = np.zeros(len(x))
        for g in np.flatnonzero(guess.round == t):
            share = (guess.used[g][inside] & first).sum(axis=1) / distinct
            best = np.maximum(best, np.where(about[owner, g], share, 0.0))
        mean += best / len(rounds)
        whole |= best >= 1.0
    return mean, whole


def longest_run(guess: TokenGuesses, parties: Sequence[str], x: Indices, owner: Indices) -> Floats:
    """Longest run (n,) of consecutive tokens of each record that one of its client's updates names,
    as a share of the record; best round. Shapes as in `found_share`."""
    read = x if guess.last_is_read else x[:, :-1]
    length = np.maximum((read >= 0).sum(axis=1), 1)
    inside = np.clip(read, 0, guess.used.shape[1] - 1)
    about = np.stack([guess.about(p) for p in parties])  # (P, G)
    best = np.zeros(len(x))
    for g, used in enumerate(guess.used):
        named = used[inside] & (read >= 0)
        run = longest = np.zeros(len(x), dtype=np.int64)
        for column in named.T:
            run = np.where(column, run + 1, 0)
            longest = np.maximum(longest, run)
        best = np.maximum(best, np.where(about[owner, g], longest / length, 0.0))
    return best


def placed_share(guess: TokenGuesses, parties: Sequence[str], x: Indices, owner: Indices) -> Floats:
    """Share (n,) of the tokens of each record that one of its client's updates puts at their place,
    best round; NaN where no update of the client places any. Shapes as in `found_share`."""
    read = x if guess.last_is_read else x[:, :-1]
    length = np.maximum((read >= 0).sum(axis=1), 1)
    about = np.stack([guess.about(p) for p in parties])  # (P, G)
    best = np.full(len(x), np.nan)
    for g, placed in enumerate(guess.placed):
        if (placed < 0).all():
            continue
        share = ((placed[: read.shape[1]] == read) & (read >= 0)).sum(axis=1) / length
        best = np.where(about[owner, g], np.fmax(best, share), best)
    return best


def precision(guess: TokenGuesses, party: str, x: Indices) -> float | None:
    """Share of the tokens named for a client that its records x (n, L) hold, mean over its rows;
    None without rows of its own that name any token."""
    mine = np.array([s == party for s in guess.sender], dtype=bool) & guess.used.any(axis=1)
    if not mine.any():
        return None
    read = x if guess.last_is_read else x[:, :-1]
    held = np.zeros(guess.used.shape[1], bool)
    held[read[read >= 0]] = True
    used = guess.used[mine]
    return float(((used & held).sum(axis=1) / used.sum(axis=1)).mean())


def client_columns(guess: TokenGuesses, party: str, x: Indices) -> dict[str, Any]:
    """Columns of the client table that only texts have; x (n, L) are the client's asked records.

    Precision is known only if all of its records are asked about.
    """
    known = len(x) >= guess.sizes[party]
    return {
        "named": int(guess.used[guess.about(party)].any(axis=0).sum()),
        "precision": precision(guess, party, x) if known else None,
    }
