"""Local differential privacy: a client randomises its own records before anything is computed.

One file per mechanism, with its exact law: the epsilon it claims and the epsilon it spends.
`encoders` turn features into inputs of a mechanism; `protection` puts a mechanism at the `data`
hook of a federation; `check` compares a claim with the exact epsilon and with draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from fedaudit.errors import ConfigError
from fedaudit.protections.local_dp.additive import Gaussian, Laplace
from fedaudit.protections.local_dp.bitrand import BitRand
from fedaudit.protections.local_dp.dbitflip import DBitFlip
from fedaudit.protections.local_dp.grr import GRR
from fedaudit.protections.local_dp.mechanism import Discrete, Mechanism
from fedaudit.protections.local_dp.ome import OME
from fedaudit.protections.local_dp.rappor import RAPPOR

__all__ = [
    "MECHANISMS",
    "BitRand",
    "DBitFlip",
    "Discrete",
    "GRR",
    "Gaussian",
    "Laplace",
    "Mechanism",
    "OME",
    "RAPPOR",
    "make",
]

MECHANISMS: dict[str, type[Any]] = {
    c.name: c for c in (GRR, RAPPOR, DBitFlip, BitRand, OME, Laplace, Gaussian)
}


def make(name: str, settings: Mapping[str, Any]) -> Mechanism:
    """Build the mechanism `name` with `settings`; refuses settings that it does not have."""
    if name not in MECHANISMS:
        raise ConfigError.unknown(f"unknown mechanism {name!r}", name, MECHANISMS)
    known = {f.name: f for f in fields(MECHANISMS[name])}
    for key in settings:
        if key not in known:
            raise ConfigError.unknown(f"{name} has no setting {key!r}", key, known)
    missing = [k for k, f in known.items() if f.default is MISSING and k not in settings]
    if missing:
        raise ConfigError(
            f"{name} needs {' and '.join(missing)}",
            expected=f"values of {', '.join(missing)}",
            got=", ".join(f"{k} = {v}" for k, v in settings.items()) or "no settings",
            remedy=f"for example {missing[0]} = 4 in a config, --{missing[0]} 4 as an option",
        )
    built: Mechanism = MECHANISMS[name](**settings)
    return built
