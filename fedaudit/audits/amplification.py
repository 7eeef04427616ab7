"""Privacy amplification by shuffling, beside the audits that may void it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fedaudit.accounting import Shuffled, shuffled

Found = Literal["", "linked", "named"]
"""What an audit found out about shuffled updates: nothing, their links, or their senders."""


def notes_on_promises(
    guarantees: Mapping[str, Mapping[str, Any]],
    declared: Sequence[Mapping[str, Any]],
    sizes: Sequence[int],
    found: Found,
) -> list[str]:
    """What each protection spends, and whether shuffling amplifies it.

    `guarantees`: protection -> client -> guarantee. `sizes`: anonymous rows of every round. `found`
    says what the audit found out about them.
    """
    notes = []
    for name, given in guarantees.items():
        values = [float(g["epsilon"]) for g in given.values()]
        one = next(iter(given.values()))
        notes.append(
            f"{name} spends epsilon {min(values):.3g} to {max(values):.3g} per {one['unit']} "
            f"at delta {one['delta']:g} over the whole run"
        )
        own = next((d for d in declared if d.get("name") == name), {})
        notes.append(amplification(one["unit"], found, shuffled_reports(sizes, own, one)))
    return notes


def shuffled_reports(
    sizes: Sequence[int], declared: Mapping[str, Any], given: Mapping[str, Any]
) -> Shuffled | None:
    """Privacy amplification by shuffling, if every upload is a locally private report.

    None unless the noise is known and the guarantee covers replacing a client's **whole** data. A
    guarantee per record covers neighbours that differ in one record, but clients differ in more.
    """
    if given["unit"] != "client" or given.get("relation") != "replace":
        return None
    multiplier = declared.get("noise_multiplier", 0.0)
    if not isinstance(multiplier, int | float) or multiplier == 0:
        return None  # the theorem needs equal noise for all reports
    # replacing the data moves a clipped update by at most twice its bound
    return shuffled(multiplier / 2, len(sizes), min(sizes), float(given["delta"]))


def amplification(unit: str, found: Found, reports: Shuffled | None = None) -> str:
    """A note on epsilon with amplification by shuffling, or why it does not apply."""
    text = "these epsilons are without amplification by shuffling"
    source = "Feldman, McMillan and Talwar 2021, Theorem 3.8"
    figure = ""
    if reports is not None and reports.epsilon is not None:
        figure = f", which would make it {reports.epsilon:.3g} ({source}, for reference)"
        if not reports.gains:
            figure = f", which gains nothing here ({source})"
    if found == "named":
        return text + ", which is not claimed: it is void, since senders of updates were named"
    if found == "linked":
        return text + figure + ": it is void, since updates were linked across rounds"
    if unit != "client":
        return text + f": it needs a guarantee for a client's whole input, not for a {unit}"
    if reports is not None and reports.epsilon is None:
        return (
            f"{text}: it does not apply, since one report costs {reports.local_epsilon:.3g} and "
            f"{reports.clients} reports amplify up to {reports.largest:.3g} ({source})"
        )
    return text + figure + ": it holds only while updates can be neither linked nor named"
