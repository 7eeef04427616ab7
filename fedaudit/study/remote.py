"""Train one client of an experiment, in this process or in that of a node.

The experiment arrives as text (TOML, with its seed). A process builds it once and keeps it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedaudit.arrays import Rows
from fedaudit.files import parse_toml
from fedaudit.setup.config import load
from fedaudit.setup.prepare import build

if TYPE_CHECKING:
    from fedaudit.federation.engine import Federation


@lru_cache(maxsize=1)
def federation_of(experiment: str) -> Federation:
    """The federation of an experiment's text."""
    return build(load(parse_toml(experiment)))[0]


def train_one(experiment: str, model: Rows, client: int, number: int) -> Rows:
    """The update (d,) of one client in one round, from the model (d,) that it received."""

    federation = federation_of(experiment)
    sent = torch.from_numpy(np.array(model, dtype=np.float32))
    delta = federation.train(sent, np.array([client]), number)
    out: Rows = delta[0].numpy()
    return out
