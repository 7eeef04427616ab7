"""What a strategy declares of its noise: read from its settings, without an accountant."""

from __future__ import annotations

from typing import Any

from fedaudit.errors import ConfigError
from fedaudit.multipliers import joint_multiplier

SERVER_SIDE = "the server, which sees every update before noise is added"
CENTRAL = "DifferentialPrivacy"
MEANS = ("FedAvg", "FedProx")
"""Strategies whose result is the weighted mean of the replies; a wrapper scales its noise for that.
Other strategies derive a step from the mean, with another sensitivity."""
DELTA = 1e-5


def declared_by(strategy: Any, delta: float = DELTA) -> list[dict[str, Any]]:
    """Protections that a strategy (and those it wraps) declares, outermost first.

    `noise_multiplier` holds for everything that a round releases. With an adaptive clipping norm,
    that is the mean and a count; `mean_multiplier` is that of the mean alone.
    """
    if not 0 < delta < 1:
        raise ConfigError(
            "delta is out of range",
            expected="a number above 0 and below 1",
            got=f"{delta}",
            remedy="delta = 1e-5",
        )
    out = []
    while strategy is not None:
        kind = type(strategy).__name__
        if kind.startswith(CENTRAL):
            z = float(getattr(strategy, "noise_multiplier", 0.0))
            own: dict[str, Any] = {
                "name": "central_dp",
                "flower": kind,
                "covers": [],
                "trust": SERVER_SIDE,
                "unit": "client",
                "noise_multiplier": z,
                "clip": float(getattr(strategy, "clipping_norm", 0.0)),
                "clients": int(getattr(strategy, "num_sampled_clients", 0)),
                "delta": delta,
            }
            if "Adaptive" in kind:
                # Flower stores the mean's part; the user's setting is for mean and count together
                count = float(getattr(strategy, "clipped_count_stddev", 0.0))
                own |= {
                    "noise_multiplier": joint_multiplier(z, count),
                    "mean_multiplier": z,
                    "count_stddev": count,
                    "clip_rate": float(getattr(strategy, "clip_norm_lr", 0.0)),
                    "clip_quantile": float(getattr(strategy, "target_clipped_quantile", 0.0)),
                }
            inner = type(_wrapped(strategy))
            own["around"] = inner.__name__
            if inner.__name__ not in MEANS or not inner.__module__.startswith("flwr."):
                own["note"] = (
                    f"epsilon unknown: the noise is scaled for a mean, and {inner.__name__} may "
                    "not compute one"
                )
            out.append(own)
        strategy = vars(strategy).get("strategy")
    return out


def _wrapped(strategy: Any) -> Any:
    """The strategy inside a wrapper, recorders left out."""
    inner = vars(strategy).get("strategy")
    while type(inner).__name__.startswith("Recording") and "strategy" in vars(inner):
        inner = vars(inner)["strategy"]
    return inner
