"""Candidate protections: a transport of the uploads, and a noise ladder on top.

A transport decides what the server learns ("shuffle": updates without senders; "secure sum": sums
alone). It does not change the model. A ladder adds noise by level: more noise means less risk and a
worse model. With a limit on epsilon, level 1 is the least noise that keeps it, computed by the
accountant before training. Without one, a level is a noise multiplier.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaudit.accounting import Exposure, smallest_multiplier
from fedaudit.audits import facts_of
from fedaudit.audits.facts import Advice
from fedaudit.decide.gate.policy import Limit, Policy
from fedaudit.decide.harden.limits import epsilon_limits
from fedaudit.errors import ConfigError, FedauditError, UsageError
from fedaudit.hooks import Hook
from fedaudit.protections.declared import in_force
from fedaudit.protections.dp_sgd import DPSGD
from fedaudit.protections.local_dp.protection import LocalDP
from fedaudit.protections.noise_allocation import allocate, leverage
from fedaudit.setup.catalogue import PROTECTIONS, find
from fedaudit.setup.config import Config, check
from fedaudit.setup.prepare import Prepared
from fedaudit.setup.toml import overlaid

if TYPE_CHECKING:
    from fedaudit.federation.engine import Federation

Protections = dict[str, dict[str, Any]]

UNPROTECTED = "unprotected"
AS_CONFIGURED = "as configured"

ALLOCATED = "allocation"
"""Value of `only` for noise per client, of a protection that takes one multiplier for each."""

SPAN = 32.0
"""Ratio of the highest to the lowest level of a ladder with a limit on epsilon."""


@dataclass(frozen=True)
class Transport:
    """How uploads travel: a name and its protections."""

    name: str
    protections: Mapping[str, Mapping[str, Any]] = field(hash=False)


@dataclass(frozen=True)
class NoiseLadder:
    """One kind of noise, from level `low` to level `high`.

    `name`: the protection that adds the noise, or `ALLOCATED`. `per_client`: each client has its
    own.
    """

    name: str
    label: str
    low: float
    high: float
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    protection: str = ""
    per_client: bool = False

    @property
    def kind(self) -> type[Hook]:
        return _kind(self.protection)

    @property
    def on_steps(self) -> bool:
        """Whether the noise is added to every local step."""
        added = self.kind.noise({}, clients=1)
        return added is not None and added.place == "step"

    @property
    def on_records(self) -> bool:
        """Whether records are randomised: a level is then 1 / epsilon per feature."""
        return self.kind.randomises_records


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


def _kind(name: str) -> type[Hook]:
    found: type[Hook] = find(PROTECTIONS, "protection", name)
    return found


def searchable() -> tuple[list[str], list[str]]:
    """Names of the protections that change how uploads travel, and of those whose noise is
    searched, the cheapest first."""
    ways = [name for name in PROTECTIONS if _kind(name).transport]
    ranks = {name: found.rank for name in PROTECTIONS if (found := _kind(name).search)}
    return ways, sorted(ranks, key=ranks.__getitem__)


def check_only(only: Sequence[str]) -> None:
    ways, noisy = searchable()
    names = [*ways, *noisy, ALLOCATED]
    for name in only:
        if name not in names:
            raise UsageError.unknown(
                f"{name!r} is not a protection that `harden` searches", name, names
            )


def transports(config: Config, only: Sequence[str] = ()) -> list[Transport]:
    """The transports, least trust first; the first has no protection.

    Of the protections with which uploads travel in one way, the config's own one is tried; else the
    ideal one, or the one that covers most.
    """
    own: Mapping[str, Any] = config.raw["protections"]
    ways: dict[str, list[str]] = {}
    for name in searchable()[0]:
        ways.setdefault(_kind(name).transport, []).append(name)
    out = [Transport(UNPROTECTED, {})]
    for way in sorted(ways, key=lambda w: max(_kind(n).only_sums for n in ways[w])):
        kind = max(ways[way], key=lambda n: (n in own, n in only, *_reach(_kind(n))))
        if not only or {*ways[way]} & {*only}:
            out.append(Transport(way, {kind: own.get(kind, {})}))
    if own and not only and all(dict(own) != dict(w.protections) for w in out):
        out.append(Transport(AS_CONFIGURED, own))
    return out


def _reach(kind: type[Hook]) -> tuple[bool, int]:
    """Whether it needs no messages of its own, and how many parts of an upload it covers."""
    return kind.exact_afterwards, len(kind.covers)


def has_persons(prepared: Prepared) -> bool:
    """Whether the data name persons and each person is with one client."""
    train = prepared.train
    if train.person is None:
        return False
    parts = prepared.assignment.parts
    at = {(train.person[i], c) for c, own in enumerate(parts.clients) for i in own}
    return len(at) == len({person for person, _ in at})


def ladders(
    given: Config | Prepared, policy: Policy, only: Sequence[str] = ()
) -> tuple[list[NoiseLadder], list[tuple[str, str]]]:
    """Noise ladders that fit task and limits, cheapest first; and (label, reason) of the others."""
    prepared = Prepared.of(given)
    own: Mapping[str, Any] = prepared.config.raw["protections"]
    units = {x.unit for x in epsilon_limits(policy) if x.unit is not None}
    out: list[NoiseLadder] = []
    left: list[tuple[str, str]] = []
    for name in searchable()[1]:
        found = _kind(name).search
        assert found is not None
        unit = found.unit or _unit_of(own.get(name, {}), units, prepared)
        for per_client in (True, False) if found.per_client else (False,):
            wanted = (ALLOCATED if per_client else name) in only
            if not wanted and (only or not _is_tried(name, own, policy)):
                continue
            ladder = _ladder(name, own, policy, unit, per_client)
            if _kind(name).randomises_records and name not in own and prepared.train.columns:
                # without bounds a table's columns would all be cut to 0..1
                ladder = replace(ladder, settings={**ladder.settings, "bounds": "table"})
            why = ""
            if units - {unit}:
                asked = ", ".join(sorted(units - {unit}))
                why = f"it promises per {unit}, a limit requires epsilon per {asked}"
            elif _kind(name).equal_weights and prepared.config.federation.weighting != "equal":
                why = 'it needs federation.weighting = "equal"'
            if why:
                left.append((ladder.label, why))
            else:
                out.append(ladder)
    return out, left


def _is_tried(name: str, own: Mapping[str, Any], policy: Policy) -> bool:
    """Whether the search tries a protection by itself (`NoiseSearch.tried`)."""
    found = _kind(name).search
    assert found is not None
    if name in own or found.tried == "always":
        return True
    if found.tried == "promised":
        return found.unit in {x.unit for x in epsilon_limits(policy)}
    advised = {
        fact for x in policy.limits if x.audit for a in _advice_of(x.audit) for fact in a.unless
    }
    return bool(advised & in_force([{"name": name}]))


def _advice_of(audit: str) -> list[Advice]:
    facts = facts_of(audit)
    return [a for words in (facts.words, *facts.words_by_headline.values()) for a in words.advice]


def _unit_of(own: Mapping[str, Any], units: Collection[str], prepared: Prepared) -> str:
    """Unit of a protection that has it as a setting: from the config, else from a limit, else the
    person if the data name persons, and the record otherwise."""
    asked_for = next((u for u in sorted(units) if u in ("person", "example", "record")), None)
    own_unit = own.get("unit") or asked_for
    return own_unit or ("person" if has_persons(prepared) else "record")


def _ladder(
    name: str, own: Mapping[str, Any], policy: Policy, unit: str, per_client: bool
) -> NoiseLadder:
    """The ladder of one protection, with the config's own settings where it has some."""
    found = _kind(name).search
    assert found is not None
    spent = epsilon_limits(policy)
    has = {k: v for k, v in own.get(name, {}).items() if k != "noise_multiplier"}
    kept = {**({} if name in own else found.settings), **has}
    if not found.unit:
        kept = {"unit": unit, **kept}
    if not _kind(name).randomises_records:  # there, epsilon is the level
        kept.pop("epsilon", None)
        deltas = [x.delta_at_most for x in spent if x.delta_at_most is not None]
        if deltas:
            kept["delta"] = min([*deltas, kept.get("delta", 1e-5)])
    how = "equal epsilon for all clients" if spent else "noise by size of client"
    low, high = (1.0, SPAN) if spent else (found.low, found.high)
    return NoiseLadder(
        name=ALLOCATED if per_client else name,
        label=f"{found.label}, {how}" if per_client else found.label,
        low=low,
        high=high,
        settings=kept,
        protection=name,
        per_client=per_client,
    )


# -- from a choice to settings -------------------------------------------------------------------


def protections(choice: Choice, site: PreparedFederation, policy: Policy) -> Protections:
    """The protections of a choice for the federation of one seed."""
    made = {name: dict(given) for name, given in choice.transport.protections.items()}
    if choice.ladder is None:
        return made
    ladder, level = choice.ladder, choice.level
    floor = _base_noise(ladder, site, epsilon_limits(policy))
    settings = dict(ladder.settings)
    if ladder.on_records:
        settings["epsilon"] = _round_safely(1 / (level * float(floor)), up=False)
        return {ladder.protection: settings, **made}
    if ladder.per_client and floor is None:
        noise: Any = _by_size(level, site)
    elif isinstance(floor, tuple):
        noise = [_round_safely(level * z) for z in floor]
    else:
        noise = _round_safely(level * float(1.0 if floor is None else floor))
    settings["noise_multiplier"] = noise
    # noise comes before the shuffle or the sum
    return {ladder.protection: settings, **made}


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
        return None if ladder.per_client else 1.0
    if not target > 0:
        raise ConfigError(
            "no noise reaches an epsilon of 0",
            expected="an epsilon above 0",
            got=f"{target:g}",
            remedy="use a limit above 0, for example epsilon <= 1",
        )
    if ladder.on_steps:
        hook = DPSGD(**ladder.settings)
        met = DPSGD.calibrated(
            target,
            site.exposures(hook),
            delta=hook.delta,
            accountant=hook.accountant,
            per_client=ladder.per_client,
        )
        return met.noise_multiplier
    if ladder.on_records:
        wide = math.prod(site.federation.data.x.shape[1:])

        def meets(level: float) -> bool:
            own = LocalDP(**{**ladder.settings, "epsilon": 1 / level})
            return own.of(wide).worst_case_epsilon() <= target

        return smallest_multiplier(meets)
    kind: Any = ladder.kind
    exposures = set(site.exposures(kind(**ladder.settings)))

    def keeps(noise: float) -> bool:
        hook = kind(**ladder.settings, noise_multiplier=noise)
        return all(hook.guarantee(0, e).epsilon <= target for e in exposures)

    return smallest_multiplier(keeps)


def _by_size(level: float, site: PreparedFederation) -> list[float]:
    """Noise per client with the total budget of a uniform `level`, more for larger clients.

    [TopologyAwareDP] Theorem V.3 with data-set size as leverage.
    """
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
    if ladder.on_records and not site.federation.data.x.is_floating_point():
        return "the task's examples have no numeric features to randomise"
    try:
        _base_noise(ladder, site, epsilon_limits(policy))
    except FedauditError as error:
        return error.what + (f" (got {error.got})" if error.got else "")
    return ""


def is_uniform(ladder: NoiseLadder, site: PreparedFederation, policy: Policy) -> bool:
    """Whether a ladder with noise per client gives all clients of this federation about the same:
    within 10 %, below the steps of the search."""
    if not ladder.per_client:
        return False
    for level in (ladder.low, ladder.high):
        made = protections(Choice(Transport("", {}), ladder, level), site, policy)
        noise = made[ladder.protection]["noise_multiplier"]
        if max(noise) > 1.1 * min(noise):
            return False
    return True


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
        elif _kind(name).randomises_records:
            out.append(f"epsilon {given['epsilon']:.3g} per feature")
    return ", ".join(out)


def trusted_parties(made: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Parties that the protections trust, including the clients' own code."""
    found = [str(_kind(name).trust) for name in made]
    return tuple(dict.fromkeys(found))


def count_outside_parties(made: Mapping[str, Mapping[str, Any]]) -> int:
    """Number of trusted parties other than the client itself."""
    kinds = [_kind(name) for name in made]
    return len({party for kind in kinds for party in kind.outside_parties})


def client_names_section(made: Protections, names: Sequence[str]) -> dict[str, Any]:
    """Config section that names the clients, if each has its own noise."""
    own = any(isinstance(given.get("noise_multiplier"), list) for given in made.values())
    if not names or not own:
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
