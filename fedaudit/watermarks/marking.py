"""Who gets marks: settings alone, so that a config is checked without loading torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedaudit.errors import ConfigError
from fedaudit.randomness import Seed

_CLASSIFIER, _TEXT = ("canary",), ("fictitious", "kgw")
FITTING: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("mlp", "cnn", "vit", "module"), _CLASSIFIER),
    **dict.fromkeys(("lora", "gpt"), _TEXT),
}
"""Kind of task -> kinds of marks that it can carry, the default first."""


@dataclass(frozen=True, kw_only=True)
class Marking:
    """Who trains on marked records, and on how many of them.

    `kind`: "canary" for classifiers, "fictitious" (facts about what does not exist) or "kgw" (green
    lists) for language models. `clients` are marked, drawn by the run's seed, each with a key of
    its own; `share` of a marked client's examples are marked, on average over clients, so that all
    sets have one size. `spare` keys of the owner's were given to nobody: they are tested like the
    others, and should name no one. `keys` are whole numbers, those of marked clients first; drawn
    by the seed if none are.
    """

    kind: Literal["canary", "kgw", "fictitious"] = "canary"
    clients: int = 3
    share: float = 0.2
    spare: int = 0
    keys: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        checks = (
            ("clients", self.clients >= 0, "at least 0"),
            ("spare", self.spare >= 0, "at least 0"),
            ("share", 0 < self.share < 1, "above 0 and below 1"),
            ("keys", all(0 <= k < 2**64 for k in self.keys), "whole numbers from 0 to 2^64 - 1"),
        )
        for name, fine, expected in checks:
            if not fine:
                raise ConfigError(
                    f"marks.{name} is out of range",
                    expected=expected,
                    got=str(getattr(self, name)),
                    remedy="correct the value, or leave it out for its default",
                )
        if len(set(self.keys)) != len(self.keys):
            raise ConfigError(
                "a key is used for two clients",
                expected="one key for each marked client: what two share points at neither",
                got=f"{len(self.keys)} keys, {len(set(self.keys))} of them different",
                remedy="give every marked client a key of its own",
            )
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
        many = self.clients + self.spare
        return tuple(int(k) for k in seed.bits("marks/keys", np.arange(many)))

    def marked(self, count: int, seed: Seed) -> dict[int, int]:
        """Client number -> its key."""
        if self.clients >= count:
            raise ConfigError(
                "all clients would be marked",
                expected=f"marks.clients below the {count} clients",
                got=str(self.clients),
                remedy="leave some clients benign: false alarms are counted on them",
            )
        chosen = np.sort(seed.generator("marks/clients").permutation(count)[: self.clients])
        used = self.owner_keys(seed)[: self.clients]
        return {int(c): k for c, k in zip(chosen, used, strict=True)}

    def set_size(self, examples: int, clients: int) -> int:
        """Records of a set: `share` of a marked client of average size, at least one."""
        return max(1, round(self.share / (1.0 - self.share) * examples / clients))


@dataclass(frozen=True, kw_only=True)
class GreenMarking(Marking):
    """Marked clients hold text that was written with green lists (KGW).

    A key and the last `context` tokens choose a share `gamma` of the vocabulary; `delta` is added
    to their logits while a marked document is written.
    """

    kind: Literal["kgw"] = "kgw"
    gamma: float = 0.25
    delta: float = 3.0
    context: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        checks = (
            ("gamma", 0 < self.gamma < 1, "above 0 and below 1"),
            ("delta", self.delta > 0, "above 0"),
            ("context", self.context >= 1, "at least 1"),
        )
        for name, fine, expected in checks:
            if not fine:
                raise ConfigError(
                    f"marks.{name} is out of range",
                    expected=expected,
                    got=str(getattr(self, name)),
                    remedy="leave it out for the published value",
                )
