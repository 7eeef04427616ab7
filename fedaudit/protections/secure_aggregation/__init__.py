"""Secure aggregation: masked uploads, of which only sums can be opened.

The protocol of Bonawitz et al. (2017) for parties that follow it (semi-honest): X25519 key
agreement, HKDF, AES in counter mode as the generator of pairwise and self masks over integers
modulo 2^32 or 2^64, Shamir shares so that clients may drop out, a threshold N_sa below which
nothing is opened. Subset sums ([FedAttr] Eq. (2)) are runs of their own, each written to a ledger.

    shamir     a secret in shares, any `threshold` of which restore it
    ring       real numbers as integers modulo 2^b: quantised, masked, never wrapped by accident
    protocol   Client, Server and one run between them
    aggregator SecureAggregator: `query(round, clients) -> sum`, refusals, ledger, cost
    hook       SecureAggregation: the protection of a config

Formal guarantees: against a server that colludes with fewer than `threshold` clients of a run, the
masked uploads are indistinguishable from uniform given the sum (under X25519, HKDF-SHA256 and
AES-CTR). Nothing is promised about the sums themselves: what several of them give away together is
what the query-plan audit computes, and `refuse_isolating` stops at the source.

Trust: all parties follow the protocol; fewer than the threshold share what they know.
"""

from fedaudit.protections.secure_aggregation.aggregator import (
    Entry,
    Ledger,
    QueryRefused,
    SecureAggregator,
)
from fedaudit.protections.secure_aggregation.hook import SecureAggregation
from fedaudit.protections.secure_aggregation.protocol import Client, Server, TooFewLeft
from fedaudit.protections.secure_aggregation.ring import Quantiser, RingOverflow

__all__ = [
    "Client",
    "Entry",
    "Ledger",
    "Quantiser",
    "QueryRefused",
    "RingOverflow",
    "SecureAggregation",
    "SecureAggregator",
    "Server",
    "TooFewLeft",
]
