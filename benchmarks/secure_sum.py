"""Masks of secure aggregation: AES streams in place against a generator loop, and subset sums.

    python benchmarks/secure_sum.py [--clients 10] [--columns 1000000] [--json FILE]

Every client masks a vector of d numbers with one mask of its own and one for each other client
(K (K - 1) pairwise masks in all: both ends of a pair make it, as they must in reality).

- fedaudit: `Client.upload`, key agreement and key derivation included.
- peer: what Flower's SecAgg+ client does with the shared keys at hand, without key agreement: one
  `RandomState(seed).randint` of int64 per mask, added to a list of arrays, reduced at the end.
- naive: the same AES stream, drawn in one piece per mask and added in new arrays.

Then one whole run of the protocol, and a subset sum where the quantised rows are at hand.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from timing import interleaved, ratio

from fedaudit.protections.secure_aggregation import Client, RingQuantiser, SecureAggregator, Server
from fedaudit.protections.secure_aggregation.ring import subset_sum


def ready_clients(count: int, threshold: int, size: int) -> list[Client]:
    """Clients who have exchanged keys and shares, each ready for one upload after another."""
    run = b"benchmark"
    clients = {c: Client(c, threshold=threshold, run=run) for c in range(count)}
    server = Server(threshold=threshold, run=run, size=size)
    for c, client in clients.items():
        server.enrol(c, client.advertise())
    sealed = {c: client.share(server.roster) for c, client in clients.items()}
    for c, theirs in server.pass_on(sealed).items():
        clients[c].receive(theirs)
    return list(clients.values())


def upload_all(clients: list[Client], rows: list[np.ndarray]) -> None:
    for client, row in zip(clients, rows, strict=True):
        client.upload(row)


def generator_loop(vectors: np.ndarray, seeds: np.ndarray) -> None:
    """The peer: seeds (K, K), the own mask's on the diagonal."""
    modulus = 2**32
    for u, vector in enumerate(vectors):
        masked = [vector.astype(np.int64)]
        own = np.random.RandomState(seeds[u, u]).randint(0, modulus - 1, len(vector), np.int64)
        masked = [a + b for a, b in zip(masked, [own], strict=True)]
        for v in range(len(vectors)):
            if v == u:
                continue
            state = np.random.RandomState(seeds[min(u, v), max(u, v)])
            mask = [state.randint(0, modulus - 1, len(vector), np.int64)]
            if u > v:
                masked = [a + b for a, b in zip(masked, mask, strict=True)]
            else:
                masked = [a - b for a, b in zip(masked, mask, strict=True)]
        masked = [a & (modulus - 1) for a in masked]


def naive_streams(vectors: np.ndarray, keys: list[list[bytes]]) -> None:
    """The same masks without buffers: a fresh array per mask."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    for u, vector in enumerate(vectors):
        masked = vector
        for v, key in enumerate(keys[u]):
            stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
            mask = np.frombuffer(stream.update(bytes(vector.nbytes)), dtype=vector.dtype)
            masked = masked - mask if v < u else masked + mask


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--columns", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    k, d = args.clients, args.columns
    print(f"one thread, load {os.getloadavg()[0]:.1f}")
    rng = np.random.default_rng(0)
    updates = rng.normal(size=(k, d)).astype(np.float32)
    ring = np.stack([RingQuantiser(16.0, k).encode(u) for u in updates])
    clients = ready_clients(k, max(2, k // 2), d)
    seeds = rng.integers(0, 2**32, size=(k, k))
    keys = [[rng.bytes(16) for _ in range(k)] for _ in range(k)]
    rows, room = list(ring), np.zeros_like(ring[0])

    aggregator = SecureAggregator(threshold=max(2, k // 2), refuse_isolating=False)
    aggregator.begin(1, dict(enumerate(updates)))
    work: dict[str, Callable[[], Any]] = {
        "fedaudit": lambda: upload_all(clients, rows),
        "peer": lambda: generator_loop(ring, seeds),
        "naive": lambda: naive_streams(ring, keys),
        "whole run": lambda: aggregator.query(1, range(k)),
        "subset": lambda: subset_sum(rows[: k // 2], room),
        "subset 1e5": lambda: subset_sum([r[:100_000] for r in rows[: k // 2]], room[:100_000]),
    }
    taken = interleaved(work, args.repeats)
    middle = {name: statistics.median(t) for name, t in taken.items()}
    ratios = {name: ratio(taken[name], taken["fedaudit"]) for name in ("peer", "naive")}
    print(f"masks of K={k} clients, d={d:,} ({k * k} masks):")
    print(f"  fedaudit          {1e3 * middle['fedaudit']:8.1f} ms")
    print(f"  generator loop    {1e3 * middle['peer']:8.1f} ms  {ratios['peer']:.1f}x")
    print(f"  AES without reuse {1e3 * middle['naive']:8.1f} ms  {ratios['naive']:.1f}x")
    print(f"whole run, keys to sum {1e3 * middle['whole run']:.1f} ms")
    print(
        f"subset step, {k // 2} rows at hand: {1e3 * middle['subset']:.2f} ms at d={d:,}, "
        f"{1e3 * middle['subset 1e5']:.2f} ms at d=100,000"
    )
    print(f"load {os.getloadavg()[0]:.1f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"seconds": middle, "ratios": ratios}, file, indent=1)


if __name__ == "__main__":
    main()
