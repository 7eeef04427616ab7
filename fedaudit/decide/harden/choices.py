"""Candidate protections: a transport of the uploads, and a noise ladder on top.

A transport decides what the server learns ("shuffle": updates without senders; "secure sum": sums
alone). It does not change the model. A ladder adds noise by level: more noise means less risk and a
worse model. With a limit on epsilon, level 1 is the least noise that keeps it, computed by the
accountant before training. Without one, a level is a noise multiplier.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaudit.accounting import Exposure, smallest_multiplier
from fedaudit.decide.gate.policy import Limit, Policy
from fedaudit.decide.harden.limits import epsilon_limits
from fedaudit.errors import ConfigError, FedauditError, UsageError, nearest
from fedaudit.randomness import Seed
from fedaudit.setup.catalogue import PROTECTIONS, find
from fedaudit.setup.config import Config, check
from fedaudit.setup.prepare import assign_records, load_data
from fedaudit.setup.toml import overlaid

if TYPE_CHECKING:
    from fedaudit.federation.engine import Federation

Protections = dict[str, dict[str, Any]]

UNPROTECTED = "unprotected"
SHUFFLED = "shuffle"
SUMMED = "secure sum"
AS_CONFIGURED = "as configured"

DP_SGD, ALLOCATED, UPDATE_NOISE, CENTRAL, LOCAL = (
    "dp_sgd",
    "allocation",
    "update_noise",
    "central_dp",
    "local_dp",
)
NAMES = ("shuffle", "secure_sum", DP_SGD, ALLOCATED, UPDATE_NOISE, CENTRAL, LOCAL)
"""Values of `only`."""

OWN_CODE = ("the client's own code", "nobody but the client itself")
"""Trust in the client itself, not in another party."""

SPAN = 32.0
"""Ratio of the highest to the lowest level of a ladder with a limit on epsilon."""


@dataclass(frozen=True)
class Transport:
    """How uploads travel: a name and its protections."""

    name: str
    protections: Mapping[str, Mapping[str, Any]] = field(hash=False)


@dataclass(frozen=True)
class NoiseLadder:
    """One kind of noise, from level `low` to level `high`."""

    name: str
    label: str
    low: float
    high: float
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Choice:
    """A transport, and optionally one level of a noise ladder."""

    transport: Transport
    ladder: NoiseLadder | None = None
    level: float = 0.0

    @property
    def series(self) -> str:
        """Name of the curve on which the choice lies."""
        return (
            self.transport.name
            if self.ladder is None
            else f"{self.transport.name}, {self.ladder.label}"
        )


@dataclass
class PreparedFederation:
    """The federation of one seed, needed to turn levels into settings.

    `names`: the owners' names in the order of the clients; empty if clients are numbers.
    `base_noise`: ladder -> the setting of level 1, computed once.
    """

    federation: Federation
    names: tuple[str, ...] = ()
    base_noise: dict[str, Any] = field(default_factory=dict)

    @property
    def sizes(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Training examples of every client (n,)."""
        return np.asarray(self.federation.data.sizes, dtype=np.int64)

    def exposures(self, hook: Any) -> tuple[Exposure, ...]:
        return replace(self.federation, protections=(hook,)).exposures()


# -- candidates ----------------------------------------------------------------


def check_only(only: Sequence[str]) -> None:
    for name in only:
        if name not in NAMES:
            raise UsageError(
                f"{name!r} is not a protection that `harden` searches",
                expected="a protection of the search",
                got=repr(name),
                remedy=nearest(name, NAMES),
            )


def transports(config: Config, only: Sequence[str] = ()) -> list[Transport]:
    """The transports, least trust first; the first has no protection."""
    own: Mapping[str, Any] = config.raw["protections"]
    out = [Transport(UNPROTECTED, {})]
    if not only or "shuffle" in only:
        out.append(Transport(SHUFFLED, {"shuffle": own.get("shuffle", {})}))
    if not only or "secure_sum" in only:
        kind = "secure_aggregation" if "secure_aggregation" in own else "secure_sum"
        out.append(Transport(SUMMED, {kind: own.get(kind, {})}))
    if own and not only and all(dict(own) != dict(w.protections) for w in out):
        out.append(Transport(AS_CONFIGURED, own))
    return out


def has_persons(config: Config) -> bool:
    """Whether the data name persons and each person is with one client."""
    seed = Seed(config.seed)
    train, _ = load_data(config, seed)
    if train.person is None:
        return False
    parts = assign_records(config, train, seed).parts
    at = {(train.person[i], c) for c, own in enumerate(parts.clients) for i in own}
    return len(at) == len({person for person, _ in at})


def ladders(
    config: Config, policy: Policy, only: Sequence[str] = ()
) -> tuple[list[NoiseLadder], list[tuple[str, str]]]:
    """Noise ladders that fit task and limits, cheapest first; and (ladder, reason) of the others.

    The unit of DP-SGD comes from the config or a limit. Else it is the person if the data name
    persons, and the record otherwise.
    """
    own: Mapping[str, Any] = config.raw["protections"]
    spent = epsilon_limits(policy)
    units = {x.unit for x in spent if x.unit is not None}
    deltas = [x.delta_at_most for x in spent if x.delta_at_most is not None]
    out: list[NoiseLadder] = []
    left: list[tuple[str, str]] = []

    def settle(name: str, extra: Mapping[str, Any]) -> dict[str, Any]:
        kept = {k: v for k, v in own.get(name, {}).items() if k not in ("noise_multiplier",)}
        kept = {**extra, **kept}
        if name != LOCAL:
            kept.pop("epsilon", None)
            if deltas:
                kept["delta"] = min([*deltas, kept.get("delta", 1e-5)])
        return kept

    def add(name: str, words: str, low: float, high: float, per: str, **extra: Any) -> None:
        if units - {per}:
            asked = ", ".join(sorted(units - {per}))
            left.append((words, f"it promises per {per}, a limit requires epsilon per {asked}"))
            return
        low, high = (1.0, SPAN) if spent else (low, high)
        out.append(
            NoiseLadder(
                name, words, low, high, settle(DP_SGD if name == ALLOCATED else name, extra)
            )
        )

    wanted = [n for n in NAMES if n in only] if only else [DP_SGD, ALLOCATED, LOCAL]
    for name in (UPDATE_NOISE, CENTRAL):
        if not only and (name in own or "client" in units):
            wanted.append(name)
    own_unit = own.get(DP_SGD, {}).get("unit")
    asked_for = next((u for u in sorted(units) if u in ("person", "example", "record")), None)
    unit = own_unit or asked_for or ("person" if has_persons(config) else "record")
    if ALLOCATED in wanted:
        how = "equal epsilon for all clients" if spent else "noise by size of client"
        add(ALLOCATED, f"DP-SGD, {how}", 0.25, 8.0, unit, unit=unit)
    if DP_SGD in wanted:
        add(DP_SGD, "DP-SGD", 0.25, 8.0, unit, unit=unit)
    if UPDATE_NOISE in wanted:
        add(UPDATE_NOISE, "noise on updates", 0.01, 4.0, "client")
    if CENTRAL in wanted:
        if config.federation.weighting == "equal":
            add(CENTRAL, "noise on the sum", 0.01, 4.0, "client")
        else:
            left.append(("noise on the sum", 'it needs federation.weighting = "equal"'))
    if LOCAL in wanted:
        # a level is 1 / epsilon per feature
        mechanism = {} if LOCAL in own else {"mechanism": "grr", "outside": "clip"}
        add(LOCAL, "local DP", 1 / 8, 10.0, "record", **mechanism)
    return out, left


# -- from a choice to settings -------------------------------------------------------------------


def protections(choice: Choice, site: PreparedFederation, policy: Policy) -> Protections:
    """The protections of a choice for the federation of one seed."""
    made = {name: dict(given) for name, given in choice.transport.protections.items()}
    if choice.ladder is None:
        return made
    ladder, level = choice.ladder, choice.level
    floor = _base_noise(ladder, site, epsilon_limits(policy))
    settings = dict(ladder.settings)
    if ladder.name == LOCAL:
        settings["epsilon"] = _round_safely(1 / (level * float(floor)), up=False)
        return {LOCAL: settings, **made}
    name = DP_SGD if ladder.name == ALLOCATED else ladder.name
    if ladder.name == ALLOCATED and floor is None:
        noise: Any = _by_size(level, site)
    elif isinstance(floor, tuple):
        noise = [_round_safely(level * z) for z in floor]
    else:
        noise = _round_safely(level * float(1.0 if floor is None else floor))
    settings["noise_multiplier"] = noise
    # noise comes before the shuffle or the sum
    return {name: settings, **made}


def _round_safely(value: float, up: bool = True) -> float:
    """Round to four digits for a readable config: noise up, epsilon down."""
    digits = 10 ** (3 - math.floor(math.log10(value)))
    return (math.ceil if up else math.floor)(value * digits * (1 - 1e-12 if up else 1)) / digits


def _base_noise(ladder: NoiseLadder, site: PreparedFederation, limits: Sequence[Limit]) -> Any:
    """The setting of level 1 in this federation, computed once."""
    if ladder.name not in site.base_noise:
        target = min((x.at_most for x in limits if x.at_most is not None), default=None)
        site.base_noise[ladder.name] = _calibrate(ladder, site, target)
    return site.base_noise[ladder.name]


def _calibrate(ladder: NoiseLadder, site: PreparedFederation, target: float | None) -> Any:
    if target is None:
        return None if ladder.name == ALLOCATED else 1.0
    if not target > 0:
        raise ConfigError(
            "no noise reaches an epsilon of 0",
            expected="an epsilon above 0",
            got=f"{target:g}",
            remedy="use a limit above 0, for example epsilon <= 1",
        )
    from fedaudit.protections.dp_sgd import DPSGD
    from fedaudit.protections.local_dp.protection import LocalDP

    if ladder.name in (DP_SGD, ALLOCATED):
        hook = DPSGD(**ladder.settings)
        met = DPSGD.calibrated(
            target,
            site.exposures(hook),
            delta=hook.delta,
            accountant=hook.accountant,
            per_client=ladder.name == ALLOCATED,
        )
        return met.noise_multiplier
    if ladder.name == LOCAL:
        wide = math.prod(site.federation.data.x.shape[1:])

        def meets(level: float) -> bool:
            own = LocalDP(**{**ladder.settings, "epsilon": 1 / level})
            return own.of(wide).worst_case_epsilon() <= target

        return smallest_multiplier(meets)
    kind = find(PROTECTIONS, "protection", ladder.name)
    exposures = set(site.exposures(kind(**ladder.settings)))

    def keeps(noise: float) -> bool:
        hook = kind(**ladder.settings, noise_multiplier=noise)
        return all(hook.guarantee(0, e).epsilon <= target for e in exposures)

    return smallest_multiplier(keeps)


def _by_size(level: float, site: PreparedFederation) -> list[float]:
    """Noise per client with the total budget of a uniform `level`, more for larger clients.

    [TopologyAwareDP] Theorem V.3 with data-set size as leverage.
    """
    from fedaudit.protections.noise_allocation import allocate, leverage

    training = site.federation.training
    batch = int(training.batch_size or site.sizes.max())
    found = allocate(
        leverage.from_size(site.sizes),
        rounds=site.federation.rounds.rounds,
        batch_size=batch,
        budget=len(site.sizes) * (level / batch) ** 2,
    )
    return [_round_safely(z) for z in found.noise_multiplier.tolist()]


def why_unusable(ladder: NoiseLadder, site: PreparedFederation, policy: Policy) -> str:
    """Why a ladder does not work in this federation; else empty."""
    if ladder.name == LOCAL and not site.federation.data.x.is_floating_point():
        return "the task's examples have no numeric features to randomise"
    try:
        _base_noise(ladder, site, epsilon_limits(policy))
    except FedauditError as error:
        return error.what + (f" (got {error.got})" if error.got else "")
    return ""


# -- words ---------------------------------------------------------------------------------------


def noise_text(made: Mapping[str, Mapping[str, Any]]) -> str:
    """The noise settings in words."""
    out = []
    for name, given in made.items():
        z = given.get("noise_multiplier")
        # cost and promise depend on the unit
        unit = f" per {given['unit']}" if given.get("unit", "record") != "record" else ""
        if isinstance(z, list | tuple):
            out.append(f"z = {min(z):.3g} to {max(z):.3g}{unit}")
        elif z is not None:
            out.append(f"z = {z:.3g}{unit}")
        elif name == LOCAL:
            out.append(f"epsilon {given['epsilon']:.3g} per feature")
    return ", ".join(out)


def trusted_parties(made: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Parties that the protections trust, including the clients' own code."""
    found = [str(find(PROTECTIONS, "protection", name).trust) for name in made]
    return tuple(dict.fromkeys(found))


def count_others(trust: Sequence[str]) -> int:
    """Number of trusted parties other than the client itself."""
    return sum(t not in OWN_CODE for t in trust)


def client_names_section(made: Protections, names: Sequence[str]) -> dict[str, Any]:
    """Config section that names the clients, if each has its own noise."""
    if not names or not isinstance(made.get(DP_SGD, {}).get("noise_multiplier"), list):
        return {}
    return {"allocation": {"clients": list(names)}}


def build_config(
    config: Config,
    made: Protections,
    seed: int,
    audits: Sequence[str],
    names: Sequence[str] = (),
) -> Config:
    """The config with these protections, seed and audits.

    `names` of the clients are added if each client has its own noise.
    """
    raw = {**config.raw, **client_names_section(made, names)}
    have: Mapping[str, Any] = raw["audits"]
    raw["audits"] = {name: have.get(name, {}) for name in audits}
    raw["protections"] = {}
    return replace(check(overlaid(raw, {"protections": made, "seed": seed})), drawn=config.drawn)
