"""What a federation can be protected with: the way an upload travels, and a ladder of noise on it.

A way says who is told what ("shuffle": the server does not learn who sent an update; "secure sum":
it learns sums alone). It changes no model. A ladder adds noise by level: more of it means less risk
and a worse model. Where limits on epsilon exist, level 1 is the least noise that keeps them, by the
accountant and without training; where none do, a level is a noise multiplier.
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
from fedaudit.setup.prepare import deal, load_data
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
"""What `only` can name."""

OWN_CODE = ("the client's own code", "nobody but the client itself")
"""Trust that asks nothing of anybody else."""

SPAN = 32.0
"""From the least noise that an epsilon asks for to the top of its ladder."""


@dataclass(frozen=True)
class Way:
    """How uploads travel: a name and the protections that make it."""

    name: str
    protections: Mapping[str, Mapping[str, Any]] = field(hash=False)


@dataclass(frozen=True)
class Ladder:
    """Noise of one kind, from level `low` to level `high`."""

    name: str
    words: str
    low: float
    high: float
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Choice:
    """One way, and perhaps one level of one ladder."""

    way: Way
    ladder: Ladder | None = None
    level: float = 0.0

    @property
    def series(self) -> str:
        """What lies on one curve."""
        return self.way.name if self.ladder is None else f"{self.way.name}, {self.ladder.words}"


@dataclass
class Site:
    """The federation of one seed: what levels are turned into settings with.

    `names` are the owners', in the order of the clients; none where clients are numbers.
    """

    federation: Federation
    names: tuple[str, ...] = ()
    floors: dict[str, Any] = field(default_factory=dict)

    @property
    def sizes(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Training examples of every client (n,)."""
        return np.asarray(self.federation.data.sizes, dtype=np.int64)

    def exposures(self, hook: Any) -> tuple[Exposure, ...]:
        return replace(self.federation, protections=(hook,)).exposures()


# -- what there is to choose from ----------------------------------------------------------------


def check_only(only: Sequence[str]) -> None:
    for name in only:
        if name not in NAMES:
            raise UsageError(
                f"there is no protection {name!r} to choose",
                expected="one of those that are searched",
                got=repr(name),
                remedy=nearest(name, NAMES),
            )


def ways(config: Config, only: Sequence[str] = ()) -> list[Way]:
    """Ways for uploads, least trust first. The first one is without any protection."""
    own: Mapping[str, Any] = config.raw["protections"]
    out = [Way(UNPROTECTED, {})]
    if not only or "shuffle" in only:
        out.append(Way(SHUFFLED, {"shuffle": own.get("shuffle", {})}))
    if not only or "secure_sum" in only:
        kind = "secure_aggregation" if "secure_aggregation" in own else "secure_sum"
        out.append(Way(SUMMED, {kind: own.get(kind, {})}))
    if own and not only and all(dict(own) != dict(w.protections) for w in out):
        out.append(Way(AS_CONFIGURED, own))
    return out


def has_persons(config: Config) -> bool:
    """Whether the data name persons, each with one client, so that noise can cover the person."""
    seed = Seed(config.seed)
    train, _ = load_data(config, seed)
    if train.person is None:
        return False
    parts = deal(config, train, seed).parts
    at = {(train.person[i], c) for c, own in enumerate(parts.clients) for i in own}
    return len(at) == len({person for person, _ in at})


def ladders(
    config: Config, policy: Policy, only: Sequence[str] = ()
) -> tuple[list[Ladder], list[tuple[str, str]]]:
    """Ladders that fit the task and the limits, cheapest first; and those left out, with why.

    DP-SGD's unit is what the config's own protections or a limit say; else a person where the data
    name persons, so that nobody is promised less than the data allow.
    """
    own: Mapping[str, Any] = config.raw["protections"]
    spent = epsilon_limits(policy)
    units = {x.unit for x in spent if x.unit is not None}
    deltas = [x.delta_at_most for x in spent if x.delta_at_most is not None]
    out: list[Ladder] = []
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
            left.append((words, f"it promises per {per}, a limit asks for epsilon per {asked}"))
            return
        low, high = (1.0, SPAN) if spent else (low, high)
        out.append(
            Ladder(name, words, low, high, settle(DP_SGD if name == ALLOCATED else name, extra))
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
        # per feature: levels are 1 / epsilon
        mechanism = {} if LOCAL in own else {"mechanism": "grr", "outside": "clip"}
        add(LOCAL, "local DP", 1 / 8, 10.0, "record", **mechanism)
    return out, left


# -- from a choice to settings -------------------------------------------------------------------


def protections(choice: Choice, site: Site, policy: Policy) -> Protections:
    """The protections of a choice for the federation of one seed."""
    made = {name: dict(given) for name, given in choice.way.protections.items()}
    if choice.ladder is None:
        return made
    ladder, level = choice.ladder, choice.level
    floor = _floor(ladder, site, epsilon_limits(policy))
    settings = dict(ladder.settings)
    if ladder.name == LOCAL:
        settings["epsilon"] = _short(1 / (level * float(floor)), up=False)
        return {LOCAL: settings, **made}
    name = DP_SGD if ladder.name == ALLOCATED else ladder.name
    if ladder.name == ALLOCATED and floor is None:
        noise: Any = _by_size(level, site)
    elif isinstance(floor, tuple):
        noise = [_short(level * z) for z in floor]
    else:
        noise = _short(level * float(1.0 if floor is None else floor))
    settings["noise_multiplier"] = noise
    # noise belongs on an update before it is shuffled or summed
    return {name: settings, **made}


def _short(value: float, up: bool = True) -> float:
    """Four digits, rounded to the careful side: a config is to be read."""
    digits = 10 ** (3 - math.floor(math.log10(value)))
    return (math.ceil if up else math.floor)(value * digits * (1 - 1e-12 if up else 1)) / digits


def _floor(ladder: Ladder, site: Site, limits: Sequence[Limit]) -> Any:
    """What level 1 stands for in this federation: computed once."""
    if ladder.name not in site.floors:
        target = min((x.at_most for x in limits if x.at_most is not None), default=None)
        site.floors[ladder.name] = _calibrated(ladder, site, target)
    return site.floors[ladder.name]


def _calibrated(ladder: Ladder, site: Site, target: float | None) -> Any:
    if target is None:
        return None if ladder.name == ALLOCATED else 1.0
    if not target > 0:
        raise ConfigError(
            "no noise reaches an epsilon of 0",
            expected="an epsilon above 0",
            got=f"{target:g}",
            remedy="epsilon <= 1 is a strict limit",
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


def _by_size(level: float, site: Site) -> list[float]:
    """As much noise in all as `level` for everybody, more of it for larger clients.

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
    return [_short(z) for z in found.noise_multiplier.tolist()]


def why_not(ladder: Ladder, site: Site, policy: Policy) -> str:
    """Why a ladder cannot be climbed in this federation at all, or nothing."""
    if ladder.name == LOCAL and not site.federation.data.x.is_floating_point():
        return "the task's examples are no features that could be randomised"
    try:
        _floor(ladder, site, epsilon_limits(policy))
    except FedauditError as error:
        return error.what + (f" (got {error.got})" if error.got else "")
    return ""


# -- words ---------------------------------------------------------------------------------------


def noise_words(made: Mapping[str, Mapping[str, Any]]) -> str:
    """The noise of a choice as its settings say it."""
    out = []
    for name, given in made.items():
        z = given.get("noise_multiplier")
        # whom the noise is for: what it costs and what it promises go by that
        unit = f" per {given['unit']}" if given.get("unit", "record") != "record" else ""
        if isinstance(z, list | tuple):
            out.append(f"z = {min(z):.3g} to {max(z):.3g}{unit}")
        elif z is not None:
            out.append(f"z = {z:.3g}{unit}")
        elif name == LOCAL:
            out.append(f"epsilon {given['epsilon']:.3g} per feature")
    return ", ".join(out)


def trusted(made: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Who must be honest for it all to hold: others, and the code that clients run themselves."""
    found = [str(find(PROTECTIONS, "protection", name).trust) for name in made]
    return tuple(dict.fromkeys(found))


def others_trusted(trust: Sequence[str]) -> int:
    """How many of those are not the client itself."""
    return sum(t not in OWN_CODE for t in trust)


def whose_noise(made: Protections, names: Sequence[str]) -> dict[str, Any]:
    """The section that names the clients, where each has noise of its own."""
    if not names or not isinstance(made.get(DP_SGD, {}).get("noise_multiplier"), list):
        return {}
    return {"allocation": {"clients": list(names)}}


def configured(
    config: Config,
    made: Protections,
    seed: int,
    audits: Sequence[str],
    names: Sequence[str] = (),
) -> Config:
    """The same federation with these protections, one seed, and the audits that are asked.

    `names` of the clients go with noise for each of them.
    """
    raw = {**config.raw, **whose_noise(made, names)}
    have: Mapping[str, Any] = raw["audits"]
    raw["audits"] = {name: have.get(name, {}) for name in audits}
    raw["protections"] = {}
    return replace(check(overlaid(raw, {"protections": made, "seed": seed})), drawn=config.drawn)
