"""Match per-client values with clients by name, never by position.

Noise, edges and accountant states come from one file, the clients from another. Every name must
appear on both sides; otherwise a value would reach the wrong client or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from fedaudit.errors import ConfigError, FedauditError, nearest

T = TypeVar("T")

MOST = 12  # names per side that an error lists


def match_clients(
    values: Mapping[str, T],
    clients: Sequence[str],
    *,
    what: str,
    values_in: str,
    clients_in: str,
    error: type[FedauditError] = ConfigError,
) -> tuple[T, ...]:
    """The values in the order of `clients`; refuses a name that is missing on either side.

    Messages use `what` (the values) and the sources of both lists, `values_in` and `clients_in`.
    """
    without_client = [name for name in values if name not in set(clients)]
    without_value = [name for name in clients if name not in values]
    if not without_client and not without_value:
        return tuple(values[name] for name in clients)
    got = [
        f"only in {where}: {listed(names)}"
        for where, names in ((values_in, without_client), (clients_in, without_value))
        if names
    ]
    meant = nearest(without_client[0], clients) if without_client else None
    raise error(
        f"{what} and the clients do not have the same names",
        expected=f"every client of {clients_in} in {values_in}, and no other name",
        got="; ".join(got),
        remedy=f"write the names alike in {values_in}" + (f": {meant}" if meant else ""),
    )


def listed(names: Sequence[str], most: int = MOST) -> str:
    """Names in quotes: the first `most`, and the number of others."""
    rest = len(names) - most
    return ", ".join(map(repr, names[:most])) + (f" and {rest} more" if rest > 0 else "")
