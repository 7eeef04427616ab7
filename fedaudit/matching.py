"""Match values that belong to clients with the clients themselves: by name, never by position.

Noise, edges and accountant states come from one file, the clients from another. Each name needs
its partner on the other side, or a value would go to the wrong client, or to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from fedaudit.errors import ConfigError, FedauditError, nearest

T = TypeVar("T")

MOST = 12  # names that an error lists of each side


def match_clients(
    values: Mapping[str, T],
    clients: Sequence[str],
    *,
    what: str,
    values_in: str,
    clients_in: str,
    error: type[FedauditError] = ConfigError,
) -> tuple[T, ...]:
    """The values in the order of `clients`; refuses a name without a partner on either side.

    `what` the values are, `values_in` and `clients_in` where the two lists of names come from.
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
    """Names in quotes; of many the first `most`, and how many more there are."""
    rest = len(names) - most
    return ", ".join(map(repr, names[:most])) + (f" and {rest} more" if rest > 0 else "")
