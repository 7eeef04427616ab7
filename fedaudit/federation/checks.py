"""What a federation refuses before anything is trained or written.

Names, organisations and a graph that do not fit the clients; a hierarchy or gossip that lacks what
it needs, or is given what it has no place for; clients without examples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedaudit.errors import ConfigError
from fedaudit.federation.rounds import Rounds
from fedaudit.federation.topology import Topology
from fedaudit.hooks import Hook
from fedaudit.trace.schema import (
    AGGREGATOR,
    ANONYMOUS,
    NETWORK,
    PUBLIC,
    SERVER,
    SHUFFLER,
    WIRETAP,
)

Indices = npt.NDArray[np.int64]

RESERVED = frozenset({AGGREGATOR, ANONYMOUS, NETWORK, PUBLIC, SERVER, SHUFFLER, WIRETAP})


def check_parts(
    count: int,
    *,
    party: Sequence[str],
    region: Indices | None,
    topology: Topology | None,
    rounds: Rounds,
    hooks: Sequence[Hook],
) -> None:
    """Refuse names, organisations, a graph, rounds and hooks that do not fit `count` clients."""
    lengths = (
        ("party", len(party), "names"),
        ("party", len(set(party) - RESERVED), "different names, none of them reserved"),
        ("region", count if region is None else len(region), "organisations"),
        ("topology", count if topology is None else topology.n, "nodes"),
    )
    for name, have, what in lengths:
        if have != count:
            raise ConfigError(
                f"the federation's {name} does not fit its clients",
                expected=f"{count} {what}, one per client",
                got=str(have),
                remedy="give one for every client, in the order of the data",
            )
    if rounds.aggregation == "hierarchical" and region is None:
        raise ConfigError(
            "a hierarchy needs regions",
            expected="an organisation for every client",
            got="none",
            remedy='set topology.kind = "hierarchical", or give an organisation column',
        )
    if rounds.aggregation == "gossip":
        _check_gossip(topology, rounds, hooks)


def _check_gossip(topology: Topology | None, rounds: Rounds, hooks: Sequence[Hook]) -> None:
    """Gossip needs edges, and has no server."""
    if topology is None or not topology.edges:
        raise ConfigError(
            "gossip needs a graph",
            expected="a topology with edges between clients",
            got="star" if topology is None else topology.kind,
            remedy='set topology.kind = "ring" or another graph',
        )
    central = [h for h in hooks if any(map(h.acts_at, ("broadcast", "upload", "aggregate")))]
    if central:
        raise ConfigError(
            "gossip has no server that could send, shuffle or sum",
            expected="protections and probes that act at the clients",
            got=", ".join(h.name or type(h).__name__ for h in central),
            remedy='remove them, or use aggregation = "fedavg"',
        )
    if rounds.server_learning_rate != 1 or rounds.server_momentum:
        raise ConfigError(
            "gossip has no server that could take a step",
            expected="server_learning_rate = 1 and server_momentum = 0",
            got=f"{rounds.server_learning_rate:g} and {rounds.server_momentum:g}",
            remedy='remove them, or use aggregation = "fedavg"',
        )


def check_examples(sizes: Indices) -> None:
    """Refuse clients (K,) of which one has no examples, and K = 0."""
    count = len(sizes)
    empty = np.flatnonzero(sizes == 0)
    if len(empty) or not count:
        raise ConfigError(
            "a client has no examples" if count else "there are no clients",
            expected="at least one example per client",
            got=f"{len(empty)} empty, the first is client {int(empty[0])}"
            if count
            else "0 clients",
            remedy="use fewer clients or another partition",
        )
