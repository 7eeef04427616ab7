"""Settings of marks, apart from the rest, so that checking a config does not load torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from fedaudit.errors import ConfigError
from fedaudit.randomness import Seed
from fedaudit.settings import (
    Count,
    EachOnce,
    Fraction,
    Positive,
    SeedNumber,
    Whole,
    checked,
)

_CLASSIFIER, _TEXT = ("canary",), ("fictitious", "kgw")
FITTING: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("mlp", "cnn", "vit", "module", "sklearn"), _CLASSIFIER),
    **dict.fromkeys(("lora", "gpt"), _TEXT),
}
"""Kind of task -> kinds of marks that fit it, the default first."""


@dataclass(frozen=True, kw_only=True)
@checked("marks")
class Marking:
    """Which clients train on marked records, and on how many.

    `kind`: "canary" for classifiers; "fictitious" (facts about made-up entities) or "kgw" (green
    lists) for language models. `clients`: number of marked clients, drawn by the run's seed, each
    with its own key. `share`: marked share of a marked client's examples, on average over clients;
    all sets have the same size. `spare`: owner's keys that no client got; they are tested like the
    others and should point at no client. `keys`: whole numbers, those of marked clients first
    (default: drawn by the seed).
    """

    kind: Literal["canary", "kgw", "fictitious"] = "canary"
    clients: Whole = 3
    share: Fraction = 0.2
    spare: Whole = 0
    keys: Annotated[
        tuple[SeedNumber, ...], EachOnce(), "a key of two clients points at neither"
    ] = ()

    def __post_init__(self) -> None:
        if self.keys and len(self.keys) != self.clients + self.spare:
            raise ConfigError(
                "the keys do not fit the marked clients",
                expected=f"{self.clients} keys and {self.spare} spare ones, or none",
                got=f"{len(self.keys)} keys",
                remedy="give one key per marked client, or leave keys out",
            )

    def owner_keys(self, seed: Seed) -> tuple[int, ...]:
        """The owner's keys (clients + spare,), as given or drawn."""
        if self.keys:
            return self.keys
        count = self.clients + self.spare
        return tuple(int(k) for k in seed.bits("marks/keys", np.arange(count)))

    def marked(self, count: int, seed: Seed) -> dict[int, int]:
        """Client number -> its key."""
        if self.clients >= count:
            raise ConfigError(
                "all clients would be marked",
                expected=f"marks.clients below the {count} clients",
                got=str(self.clients),
                remedy="leave some clients unmarked: they give the rate of false alarms",
            )
        chosen = np.sort(seed.generator("marks/clients").permutation(count)[: self.clients])
        used = self.owner_keys(seed)[: self.clients]
        return {int(c): k for c, k in zip(chosen, used, strict=True)}

    def set_size(self, examples: int, clients: int) -> int:
        """Records in a set: `share` of a marked client of average size, at least one."""
        return max(1, round(self.share / (1.0 - self.share) * examples / clients))


Scheme = Literal[
    "hashed",
    "transformers lefthash",
    "transformers selfhash",
    "lm-watermarking simple_1",
    "lm-watermarking selfhash",
]


@dataclass(frozen=True, kw_only=True)
@checked("marks")
class GreenMarking(Marking):
    """Marked clients hold text generated with green lists (KGW).

    A key and the last `context` tokens select a share `gamma` of the vocabulary as green; `delta`
    is added to green logits during generation. `scheme`: how lists are drawn, fedaudit's own
    ("hashed") or as in transformers' `WatermarkingConfig` and in lm-watermarking, where `keys` are
    their hashing keys; `context` is then that of "transformers selfhash" alone, the scored token
    counted.
    """

    kind: Literal["kgw"] = "kgw"
    gamma: Fraction = 0.25
    delta: Positive = 3.0
    context: Count = 1
    scheme: Scheme = "hashed"
