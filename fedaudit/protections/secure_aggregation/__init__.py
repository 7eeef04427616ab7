"""Secure aggregation: uploads are masked, and only sums can be opened.

The protocol of Bonawitz et al. (2017) for parties that follow it (semi-honest): X25519 key
agreement, HKDF, AES in counter mode as the generator of pairwise and self masks over integers
modulo 2^32 or 2^64, Shamir shares so that clients may drop out, and a threshold N_sa below which
nothing is opened. Every subset sum ([FedAttr] Eq. (2)) is a separate run, recorded in a ledger.

    shamir     shares of a secret; any `threshold` of them restore it
    ring       real numbers as integers modulo 2^b: quantised, masked, never wrapped by accident
    protocol   Client, Server and one run between them
    aggregator SecureAggregator: `query(round, clients) -> sum`, refusals, ledger, cost
    hook       SecureAggregation: the protection of a config

Formal guarantees: against a server that colludes with fewer than `threshold` clients of a run, the
masked uploads are indistinguishable from uniform given the sum (under X25519, HKDF-SHA256 and
AES-CTR). The sums themselves are not protected: the query-plan audit computes what several of them
reveal together, and `refuse_isolating` refuses such queries.

Trust: all parties follow the protocol; fewer than the threshold share what they know.
"""

from fedaudit.protections.secure_aggregation.aggregator import (
    Ledger,
    LedgerEntry,
    QueryRefused,
    SecureAggregator,
)
from fedaudit.protections.secure_aggregation.hook import SecureAggregation
from fedaudit.protections.secure_aggregation.protocol import Client, Server, TooFewLeft
from fedaudit.protections.secure_aggregation.ring import RingOverflow, RingQuantiser

__all__ = [
    "Client",
    "LedgerEntry",
    "Ledger",
    "RingQuantiser",
    "QueryRefused",
    "RingOverflow",
    "SecureAggregation",
    "SecureAggregator",
    "Server",
    "TooFewLeft",
]
