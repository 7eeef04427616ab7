"""What a party of the protocol refuses, by name. Programs compare `code`; every refusal ends a step
and changes nothing: the right message is still accepted afterwards.
"""

from __future__ import annotations

from fedaudit.errors import FedauditError, UsageError


class TooFewLeft(FedauditError):
    """Fewer clients than the threshold are left: the run ends without a sum."""

    code = "too_few_left"


class RunRefused(UsageError):
    """A message that a party of the protocol does not act on."""

    code = "run_refused"


class Malformed(RunRefused):
    """Wrong length, type or range, an unknown client, a client twice."""

    code = "malformed"


class OutOfOrder(RunRefused):
    """A step before its turn, or again with other content."""

    code = "out_of_order"


class Forged(RunRefused):
    """A signature or key that does not belong to the identity it claims."""

    code = "forged"


class SplitView(RunRefused):
    """Too few others signed the list of uploads that this client was shown."""

    code = "split_view"


class WeakTerms(RunRefused):
    """Terms of a run that protect less than this client asks for."""

    code = "weak_terms"


class OtherRing(RunRefused):
    """Numbers quantised in another unit than this client's."""

    code = "other_ring"


class WrongShares(RunRefused):
    """Shares that do not restore what their owner committed to."""

    code = "wrong_shares"


class LedgerUnwritten(FedauditError):
    """A client's ledger could not be written, so its step did not happen."""

    code = "ledger_unwritten"


class QueryRefused(UsageError):
    """A refused query: it would reveal too much. It is in the ledger without an answer."""

    code = "query_refused"


def too_few(left: int, threshold: int, when: str) -> TooFewLeft:
    return TooFewLeft(
        f"the run failed: too few clients were left {when}",
        expected=f"at least {threshold}",
        got=str(left),
        remedy="repeat in the next round, or use a lower threshold",
    )


def malformed(what: str, expected: str, got: object) -> Malformed:
    return Malformed(what, expected=expected, got=str(got), remedy="start a new run")
