"""Per-client noise for `dp_sgd` under one budget.

    leverage.py     proxies for the information that other clients' data carry about a client
    solver.py       the budget equation, to full precision, for up to 10^7 clients
    bounds.py       the published bound, the sound one, epsilons; windows of rounds
    allocation.py   `allocate`, `budget_for`, `Allocation`

Paper: [TopologyAwareDP] Sections V-C and V-D (the allocation is called Fulcrum there).
"""

from fedaudit.protections.noise_allocation.allocation import (
    LOW_MULTIPLIER,
    SCALES,
    Allocation,
    Objective,
    allocate,
    as_settings,
    budget_for,
    shares,
)
from fedaudit.protections.noise_allocation.bounds import (
    Bounds,
    Windowed,
    bounds,
    record_epsilons,
    windowed,
)

__all__ = [
    "LOW_MULTIPLIER",
    "SCALES",
    "Allocation",
    "Bounds",
    "Objective",
    "Windowed",
    "allocate",
    "as_settings",
    "bounds",
    "budget_for",
    "record_epsilons",
    "shares",
    "windowed",
]
