"""The config of the federation that an allocation is for: clients, rounds, batches, local steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.allocate.clients import Clients
from fedaudit.errors import ConfigError
from fedaudit.files import read_text
from fedaudit.matching import match_clients
from fedaudit.setup.config import COMPARE, THOROUGH, Config, load
from fedaudit.setup.prepare import Prepared
from fedaudit.setup.toml import read

USUAL = Path("fedaudit.toml")
"""Where `fedaudit init` writes a config."""


@dataclass(frozen=True)
class Base:
    """A checked config and its `text`; `names` and `sizes` (n,): its clients and training records.

    `owned` (n,): all their records, including held-out and dropped ones.
    """

    path: Path
    text: str
    raw: Mapping[str, Any]
    config: Config
    names: tuple[str, ...]
    sizes: npt.NDArray[np.int64]
    owned: npt.NDArray[np.int64]

    @property
    def left_out(self) -> list[str]:
        """Sections that an allocation does not keep: other variants have other noise."""
        return [f"[{name}]" for name in (COMPARE, THOROUGH) if name in self.raw]

    def without_noise(self) -> dict[str, Any]:
        """The config as written, without the noise of DP-SGD and without other variants."""
        own = {k: v for k, v in self.raw.items() if k not in (COMPARE, THOROUGH)}
        protections = {k: dict(v) for k, v in own.get("protections", {}).items()}
        for key in ("noise_multiplier", "epsilon"):
            protections.get("dp_sgd", {}).pop(key, None)
        return {**own, "protections": protections}

    def agreed(self, what: str, asked: int | None, own: int | None) -> int | None:
        """A number from the command line or the config; if both give one, they must agree."""
        if asked is not None and own is not None and asked != own:
            raise ConfigError(
                f"the allocation and {self.path} differ in {what}",
                expected=f"{own}, from the config",
                got=str(asked),
                remedy=f"leave the option out, or change {what} in {self.path}",
            )
        return own if asked is None else asked

    def sized(self, who: Clients) -> npt.NDArray[np.int64]:
        """Training records of the table's clients, in its order; the names must be the same.

        Sizes in the table may include held-out records or not; any other size contradicts the data.
        """
        trained, owned = self._matched(who, self.sizes), self._matched(who, self.owned)
        if who.sizes is not None:
            # a seed that is yet to be drawn may hold out a few more records, or fewer
            least = np.floor(0.9 * trained) - 1
            off = np.flatnonzero((who.sizes < least) | (who.sizes > owned))
            if off.size:
                shown = off[:5].tolist()
                more = f" and {off.size - 5} more" if off.size > 5 else ""
                raise ConfigError(
                    f"the sizes in the table differ from the data in {self.path}",
                    expected=", ".join(
                        f"{who.names[i]}: {trained[i]}"
                        + (f" (with held-out records {owned[i]})" if owned[i] > trained[i] else "")
                        for i in shown
                    )
                    + more,
                    got=", ".join(f"{who.names[i]}: {who.sizes[i]}" for i in shown) + more,
                    remedy="correct the table, or leave `size_column` out to count the data",
                )
        return trained

    def _matched(self, who: Clients, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """`sizes` of the config's clients (n,), in the order of the table."""
        if who.numbered and self.config.partition["kind"] != "by_owner":
            names: tuple[str, ...] = self.names if len(self.names) == who.n else who.names
        else:
            names = who.names
        own = dict(zip(self.names, sizes.tolist(), strict=True))
        return np.array(
            match_clients(
                own, names, what="the table", values_in=str(self.path), clients_in="the table"
            ),
            dtype=np.int64,
        )

    def steps(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Local steps per round of clients with `sizes` (n,) records."""
        return self.config.training.steps_of(sizes)


def read_base(path: Path) -> Base:
    """A config (with `[compare]`, its first variant) and the clients of its data.

    The noise must fit the clients of the run that follows. Owners in a file keep their records
    under any seed. Every other partition depends on the seed, so the config must contain it.
    """
    config = load(path)
    kind = config.partition["kind"]
    if config.drawn and not (kind == "by_owner" and "path" in config.data):
        raise ConfigError(
            "the clients of the run are not known yet: their seed is yet to be drawn",
            expected=f"a seed in {path}, or records of your own with owners",
            got=f'no seed, partition.kind = "{kind}"',
            remedy=f"put this line first in {path}: seed = {config.seed} (or set partition.kind = "
            '"by_owner" for a file that names its owners)',
        )
    made = Prepared(config)
    train, test, parts = made.train, made.test, made.assignment.parts
    owned = parts.sizes
    if kind == "by_owner":
        count = Counter([*(train.client or ()), *(test.client or ())])
        count.update({name: lost for name, (_, lost) in train.dropped.items()})
        owned = np.maximum(owned, [count[name] for name in parts.names])
    return Base(path, read_text(path), read(path), config, parts.names, parts.sizes, owned)
