"""Whole runs of secure aggregation, keys to sum: neighbours, all pairs, and Flower's SecAgg+.

    python benchmarks/secure_sum.py [--clients 10 100 1000] [--columns 10000 100000] [--json FILE]

Every client and the server are played in one process, on one thread, and timed apart by processor
time. Clients verify, derive and mask as they would on machines of their own. Peak memory is that of
the process so far, with all clients in it: give one K to learn its own.

- neighbours: SecAgg+ with k drawn by every client (only where it is cheaper than all pairs);
- all pairs: the complete graph, signatures included (`--pairs-up-to` clients at most);
- Flower: the functions of its client mod for SecAgg+ (no signatures, legacy API), clients only,
  called one after another without a network, over all pairs and over a ring in which everybody has
  as many holders, with as many shares to open, as in "neighbours". A client's work depends on its
  holders alone: beyond `--flower-up-to` clients a slice of the ring is run. Needs flwr:

      make .venv-flower/stamp && .venv-flower/bin/python benchmarks/secure_sum.py
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import math
import os
import resource
import time
from typing import Any

import numpy as np

from fedaudit.protections.secure_aggregation import (
    Client,
    ClientLedger,
    ClientRules,
    Directory,
    Identity,
    RingQuantiser,
    RunPlan,
    Server,
)
from fedaudit.protections.secure_aggregation.graph import COMPLETE_UP_TO, Graph
from fedaudit.protections.secure_aggregation.identity import AGGREGATOR_NUMBER, verify


class Watch:
    """Processor seconds by side, and bytes."""

    def __init__(self) -> None:
        self.seconds = {"clients": 0.0, "server": 0.0}
        self.bytes = 0

    def run(self, side: str, work: Any, *given: Any) -> Any:
        verify.cache_clear()  # nobody else has checked a signature for this party
        start = time.process_time()
        out = work(*given)
        self.seconds[side] += time.process_time() - start
        if side == "clients":
            self.bytes += len(out) + sum(len(g) for g in given if isinstance(g, bytes))
        return out


def whole_run(k: int, d: int, complete: bool) -> tuple[Watch, Graph]:
    """One run over k random updates of d numbers; checks the sum."""
    identities = {n: Identity(os.urandom(32)) for n in (AGGREGATOR_NUMBER, *range(k))}
    directory = Directory({n: i.public for n, i in identities.items()})
    threshold = max(2, k // 3)  # a sparse graph keeps no more than half
    plan = RunPlan(round=1, length=d, threshold=threshold, complete=complete)
    rules = ClientRules(threshold=threshold, all_pairs_up_to=0)
    server = Server(plan, identity=identities[AGGREGATOR_NUMBER], directory=directory)
    plan.graph_of(k)  # once per federation, not per run
    quantiser, total, watch = RingQuantiser(16.0, k), np.zeros(d), Watch()
    clients = {}
    for c in range(k):
        clients[c] = Client(
            c,
            run=plan.run,
            round_number=1,
            identity=identities[c],
            directory=directory,
            ledger=ClientLedger(c, threshold=threshold),
            rules=rules,
        )
        watch.run("server", server.enrol, c, watch.run("clients", clients[c].advertise))
    roster = watch.run("server", server.roster_message)
    for c, client in clients.items():
        watch.run("server", server.accept_shares, c, watch.run("clients", client.share, roster))
    for c, client in clients.items():
        update = np.random.default_rng(c).normal(size=d)
        total += update
        inbox = watch.run("server", server.inbox, c)
        masked = watch.run("clients", client.upload, inbox, quantiser.encode(update))
        watch.run("server", server.accept_upload, c, masked)
        client._done["upload"] = client._done["upload"][0], b""  # kept for retries; not k times
    uploads = watch.run("server", server.uploads_message)
    for c, client in clients.items():
        watch.run("server", server.accept_view, c, watch.run("clients", client.confirm, uploads))
        client.ledger.entries.clear()
    for c, client in clients.items():
        views = watch.run("server", server.views, c)
        watch.run("server", server.accept_reveal, c, watch.run("clients", client.reveal, views))
        clients[c] = None  # type: ignore[assignment]
    opened = quantiser.decode(watch.run("server", server.open))
    assert np.abs(opened - total).max() <= quantiser.error(k) + 1e-9
    assert server.graph is not None
    return watch, server.graph


def flower_run(k: int, d: int, holders: int, quorum: int) -> Watch:
    """The four stages of Flower's client mod for k clients, without the server's work.

    The graph is that of its SecAggPlusWorkflow: a ring, half of the holders on each side.
    """
    # the package has a function of the module's name
    mod: Any = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
    from flwr.common import ndarrays_to_parameters
    from flwr.common.secure_aggregation.secaggplus_constants import Key

    watch = Watch()

    def timed(work: Any, *given: Any) -> Any:
        start = time.process_time()
        out = work(*given)
        watch.seconds["clients"] += time.process_time() - start
        return out

    setup = {
        Key.SAMPLE_NUMBER: k,
        Key.SHARE_NUMBER: holders,
        Key.THRESHOLD: quorum,
        Key.CLIPPING_RANGE: 8.0,
        Key.TARGET_RANGE: 1 << 22,
        Key.MOD_RANGE: 1 << 32,
        Key.MAX_WEIGHT: 1.0,
    }
    states = {c: mod.SecAggPlusState() for c in range(k)}
    sides = range(-(holders // 2), holders - holders // 2)
    near = {c: sorted((c + side) % k for side in sides) for c in states}
    public = {}
    for c, state in states.items():
        state.nid = c
        own = timed(mod._setup, state, setup)
        public[str(c)] = [own[Key.PUBLIC_KEY_1], own[Key.PUBLIC_KEY_2]]
    inbox: dict[int, dict[str, list[Any]]] = {
        c: {Key.SOURCE_LIST: [], Key.CIPHERTEXT_LIST: []} for c in states
    }
    for c, state in states.items():
        out = timed(mod._share_keys, state, {str(n): public[str(n)] for n in near[c]})
        for to, text in zip(out[Key.DESTINATION_LIST], out[Key.CIPHERTEXT_LIST], strict=True):
            inbox[to][Key.SOURCE_LIST].append(c)
            inbox[to][Key.CIPHERTEXT_LIST].append(text)
    for c, state in states.items():
        update = np.random.default_rng(c).normal(size=d)
        timed(mod._collect_masked_vectors, state, inbox[c], 1, ndarrays_to_parameters([update]))
    for c, state in states.items():
        last = {Key.ACTIVE_NODE_ID_LIST: near[c], Key.DEAD_NODE_ID_LIST: []}
        timed(mod._unmask, state, last)
    return watch


def has_flower() -> bool:
    try:
        import flwr  # noqa: F401
    except ImportError:
        return False
    return True


def line(name: str, k: int, watch: Watch, neighbours: int) -> dict[str, Any]:
    each, server = watch.seconds["clients"] / k, watch.seconds["server"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # kB on Linux
    more = "clients alone, bytes not counted"
    if server:
        more = (
            f"server {server:8.2f} s  all {each * k + server:9.2f} s  "
            f"{watch.bytes / k / 1e3:9.1f} kB a client  peak {peak:6.2f} GB"
        )
    print(f"  {name:11} client {1e3 * each:9.1f} ms  {more}", flush=True)
    return {
        "neighbours": neighbours,
        "client": each,
        "server": server,
        "bytes": watch.bytes / k,
        "peak_gb": peak,
    }


def against_flower(
    found: dict[str, Any], name: str, k: int, d: int, graph: Graph, up_to: int
) -> None:
    """Time Flower's clients with as many holders and shares to open; print the ratio."""
    holders = min(k, (graph.neighbours + 1) | 1)  # a ring has an odd number
    played = min(k, max(up_to, 2 * holders))
    watch = flower_run(played, d, holders, graph.quorum)
    theirs = found[f"Flower, {name}"] = line(f"Flower's {played}", played, watch, holders - 1)
    ratio = theirs["client"] / found[name]["client"]
    print(
        f"    a client of Flower's, {holders} holders and {graph.quorum} shares to open, takes "
        f"{ratio:.1f}x as long as {name}"
    )


def growth(found: dict[str, Any], counts: list[int], d: int) -> None:
    """Exponents of all processor time in K, from one number of clients to another."""
    drawn = [(k, found[f"{k},{d}"].get("neighbours")) for k in counts]
    default = [
        (k, found[f"{k},{d}"].get("all pairs" if k <= COMPLETE_UP_TO else "neighbours"))
        for k in counts
    ]
    for name, runs in (("drawn neighbours", drawn), ("the default graph", default)):
        for (k, before), (more, after) in itertools.combinations([r for r in runs if r[1]], 2):
            work = [n * run["client"] + run["server"] for n, run in ((k, before), (more, after))]
            graph = [run["neighbours"] for run in (before, after)]
            seconds, alone = (
                math.log(b / a) / math.log(more / k)
                for a, b in (work, [k * graph[0], more * graph[1]])
            )
            print(
                f"{name} from K={k:,} to {more:,}: all processor time grows as K^{seconds:.2f}; "
                f"clients times neighbours ({graph[0]} to {graph[1]}) as K^{alone:.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--columns", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--pairs-up-to", type=int, default=200)
    parser.add_argument("--flower-up-to", type=int, default=100)
    parser.add_argument("--json")
    args = parser.parse_args()
    print(f"one thread, load {os.getloadavg()[0]:.1f}")
    flower, found, counts = has_flower(), {}, sorted(set(args.clients))
    for d in args.columns:
        for k in counts:
            print(f"K={k:,} d={d:,}")
            own: dict[str, Any] = {}
            if RunPlan(round=1, length=d, complete=False).graph_of(k).complete is False:
                watch, graph = whole_run(k, d, False)
                own["neighbours"] = line("neighbours", k, watch, graph.neighbours)
                print(f"    {graph}")
                if flower and args.flower_up_to and k <= 1000:
                    against_flower(own, "neighbours", k, d, graph, args.flower_up_to)
            if k <= args.pairs_up_to:
                watch, graph = whole_run(k, d, True)
                own["all pairs"] = line("all pairs", k, watch, k - 1)
                if flower and k <= args.flower_up_to:
                    against_flower(own, "all pairs", k, d, graph, k)
            found[f"{k},{d}"] = own
        growth(found, counts, d)
    print(f"load {os.getloadavg()[0]:.1f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
