"""What is refused before a federation starts."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from torch import Tensor

from fedaudit.errors import ConfigError
from fedaudit.federation import topology as topologies
from fedaudit.federation.checks import RESERVED, check_examples, check_parts
from fedaudit.federation.rounds import Rounds
from fedaudit.hooks import Hook
from fedaudit.protections.shuffle import Shuffle
from fedaudit.randomness import Seed

K = 6
RING = topologies.build("ring", K, Seed(3))


class Central(Hook):
    name: ClassVar[str] = "central"

    def aggregate(self, total: Tensor, *, round_number: int, seed: Seed) -> Tensor:
        return total


class Plant(Hook):
    name: ClassVar[str] = "plant"

    def broadcast(self, model: Tensor, *, receivers: Any, round_number: int, seed: Seed) -> Tensor:
        return model + 1.0


class Local(Hook):
    name: ClassVar[str] = "local"

    def gradient(self, each: Tensor) -> Tensor:
        return each


def check(**changed: Any) -> None:
    """Six clients in a star; keys of Rounds go to the rounds, the others to the parts."""
    of_rounds = {k: changed.pop(k) for k in list(changed) if k in Rounds.__dataclass_fields__}
    parts = {"party": tuple("abcdef"), "region": None, "topology": None, "hooks": ()}
    check_parts(K, rounds=Rounds(**of_rounds), **{**parts, **changed})


def refused(**changed: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check(**changed)
    error = caught.value
    assert error.expected
    assert error.got
    assert error.remedy
    return str(error)


def refusal(**changed: Any) -> str:
    """What is said against it; empty if nothing."""
    try:
        check(**changed)
    except ConfigError as error:
        return str(error)
    return ""


def test_what_fits_is_not_refused() -> None:
    everywhere = (Shuffle(), Central(), Plant(), Local())
    assert not refusal(hooks=everywhere, server_momentum=0.5)
    regions = np.zeros(K, dtype=int)
    assert not refusal(aggregation="hierarchical", region=regions, hooks=everywhere)
    assert not refusal(aggregation="gossip", topology=RING, hooks=(Local(),))


def test_what_does_not_fit_is_refused() -> None:
    star = topologies.build("star", K, Seed(3))
    assert "gossip needs a graph" in refused(aggregation="gossip", topology=star)
    assert "gossip needs a graph" in refused(aggregation="gossip", topology=None)
    assert "a hierarchy needs regions" in refused(aggregation="hierarchical", region=None)
    for hook in (Shuffle(), Central(), Plant()):
        text = refused(aggregation="gossip", topology=RING, hooks=(hook,))
        assert hook.name in text
    assert "optimiser step" in refused(aggregation="gossip", topology=RING, server_momentum=0.5)
    five = topologies.build("ring", 5, Seed(3))
    assert "6 nodes" in refused(aggregation="gossip", topology=five)
    assert "6 organisations" in refused(aggregation="hierarchical", region=np.zeros(4, dtype=int))
    assert "6 names" in refused(party=("a", "b"))
    assert "reserved" in refused(party=("a",) * 6)
    assert "participation" in refused(participation=0.0)
    assert "rounds" in refused(rounds=0)
    assert "server_momentum" in refused(server_momentum=1.0)


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_no_client_bears_a_name_of_the_wire(name: str) -> None:
    assert "reserved" in refused(party=("a", "b", "c", "d", "e", name))


def test_an_empty_client_is_refused() -> None:
    check_examples(np.array([3, 1]))
    with pytest.raises(ConfigError, match="2 empty, the first is client 1"):
        check_examples(np.array([3, 0, 0]))
    with pytest.raises(ConfigError, match="there are no clients"):
        check_examples(np.array([], dtype=np.int64))
