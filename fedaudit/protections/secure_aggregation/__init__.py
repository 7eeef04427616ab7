"""Secure aggregation: uploads are masked, and only sums can be opened.

The protocol of Bonawitz et al. (2017) with what holds off a lying server (section 7 there): signed
keys, a signed list of uploads before any share is revealed, more than two thirds of the shares to
restore a secret. X25519 key agreement, HKDF, AES in counter mode as the generator of masks over
integers modulo 2^32 or 2^64, Shamir shares so that clients may drop out. Beyond 100 clients each
has a few dozen neighbours that it draws itself (SecAgg+, Bell et al., 2020). Every subset sum
([FedAttr] Eq. (2)) is a separate run, recorded in a ledger.

    refusals   what is refused, by name
    identity   Ed25519 identities, and who knows whose
    shamir     shares of a secret; any `quorum` of them restore it
    ring       real numbers as integers modulo 2^b: quantised, masked, never wrapped by accident
    graph      neighbours and shares from stated failure probabilities
    wire, keys the bytes of every message; keys bound to what a client was shown
    client, server   the two sides of one run, as state machines
    ledger     a client's memory: refuses what reveals too much together with earlier sums
    aggregator SecureAggregator: `query(round, clients) -> sum`, refusals, ledger, cost
    hook       SecureAggregation: the protection of a config

Formal guarantees: against a server that lies, and colludes with at most 2t - n - 1 of n clients
(t shares restore a secret), the masked uploads are indistinguishable from uniform given one sum
over at least t - c honest clients (under X25519, HKDF-SHA256, AES-CTR and Ed25519); `client` has
the argument. The sums themselves are not protected: the query-plan audit computes what several of
them reveal together, and `ClientLedger` refuses such queries.

Trust: the directory of public keys. A client's own input is not checked.
"""

from fedaudit.protections.secure_aggregation.aggregator import (
    Ledger,
    LedgerEntry,
    SecureAggregator,
)
from fedaudit.protections.secure_aggregation.client import Client, ClientRules
from fedaudit.protections.secure_aggregation.graph import Neighbours
from fedaudit.protections.secure_aggregation.hook import SecureAggregation
from fedaudit.protections.secure_aggregation.identity import Directory, Identity, TrustOnFirstUse
from fedaudit.protections.secure_aggregation.ledger import Budget, ClientLedger
from fedaudit.protections.secure_aggregation.refusals import (
    Forged,
    LedgerUnwritten,
    Malformed,
    OtherRing,
    OutOfOrder,
    QueryRefused,
    RunRefused,
    SplitView,
    TooFewLeft,
    WeakTerms,
    WrongShares,
)
from fedaudit.protections.secure_aggregation.ring import RingOverflow, RingQuantiser
from fedaudit.protections.secure_aggregation.server import RunPlan, Server

__all__ = [
    "Budget",
    "Client",
    "ClientLedger",
    "ClientRules",
    "Directory",
    "Forged",
    "Identity",
    "Ledger",
    "LedgerEntry",
    "LedgerUnwritten",
    "Malformed",
    "Neighbours",
    "OtherRing",
    "OutOfOrder",
    "QueryRefused",
    "RingOverflow",
    "RingQuantiser",
    "RunPlan",
    "RunRefused",
    "SecureAggregation",
    "SecureAggregator",
    "Server",
    "SplitView",
    "TooFewLeft",
    "TrustOnFirstUse",
    "WeakTerms",
    "WrongShares",
]
