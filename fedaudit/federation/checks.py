"""Checks of a federation's settings, run before training.

Names, organisations and graph must fit the clients; a hierarchy or gossip must have what it needs
and no setting it cannot use; every client must have examples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedaudit.arrays import Indices
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
    """Raise if names, organisations, graph, rounds or hooks do not fit `count` clients."""
    lengths = (
        ("party", len(party), "names"),
        ("party", len(set(party) - RESERVED), "different names, none of them reserved"),
        ("region", count if region is None else len(region), "organisations"),
        ("topology", count if topology is None else topology.n, "nodes"),
    )
    for name, have, noun in lengths:
        if have != count:
            raise ConfigError(
                f"the federation's {name} does not fit its clients",
                expected=f"{count} {noun}, one per client",
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
    """Raise if gossip lacks edges, or if a hook or setting needs a server."""
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
            "gossip has no server to broadcast, shuffle or sum",
            expected="protections and probes that act at the clients",
            got=", ".join(h.name or type(h).__name__ for h in central),
            remedy='remove them, or use aggregation = "fedavg"',
        )
    if rounds.server_learning_rate != 1 or rounds.server_momentum:
        raise ConfigError(
            "gossip has no server to take an optimiser step",
            expected="server_learning_rate = 1 and server_momentum = 0",
            got=f"{rounds.server_learning_rate:g} and {rounds.server_momentum:g}",
            remedy='remove them, or use aggregation = "fedavg"',
        )


def check_examples(sizes: Indices) -> None:
    """Raise if a client has no examples, or there are no clients."""
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
