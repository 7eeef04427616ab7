"""Which client holds which record.

Each kind is a frozen dataclass of its settings with one method
`partition(dataset, clients, seed, position=None) -> Partition`. Every record goes to exactly one
client, no client is empty, and the same seed gives the same partition. (With fewer clients than
owners, `ByOwner` leaves out the records of the other owners and notes it.)

A dataset with a `person` column is divided by person: all records of a person go to one client, a
person counts as its most frequent label, and sizes are balanced as far as persons allow. The
exception is `ByOwner`, where the data state the owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Indices
from fedaudit.data.dataset import Dataset
from fedaudit.data.prepare import unit_labels, units
from fedaudit.errors import ConfigError, DataError
from fedaudit.randomness import Seed
from fedaudit.settings import Count, PositiveFinite, Share, Whole, checked, require

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Position = npt.ArrayLike | None
Notes = tuple[str, ...]

_REDRAWS = 50  # of a Dirichlet partition, before single records are moved


@dataclass(frozen=True, kw_only=True)
class Partition:
    """Record numbers of each client, ascending; `inverted` clients see 1 - x.

    `organisations` has one name per client; `settings` are those of the partition kind.
    """

    clients: tuple[Indices, ...]
    names: tuple[str, ...]
    organisations: tuple[str, ...] | None = None
    inverted: tuple[bool, ...] = ()
    kind: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.inverted:
            object.__setattr__(self, "inverted", (False,) * len(self.clients))
        for column in ("names", "organisations", "inverted"):
            values = getattr(self, column)
            if values is not None and len(values) != len(self.clients):
                raise DataError(
                    f"a partition's {column} do not fit its clients",
                    expected=f"{len(self.clients)} values",
                    got=f"{len(values)} values",
                    remedy="give one value per client",
                )
        for rows in self.clients:
            rows.setflags(write=False)

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def sizes(self) -> Indices:
        """Records of each client, (K,)."""
        return np.array([len(rows) for rows in self.clients], dtype=np.int64)

    def class_histograms(self, y: Indices, classes: int) -> Indices:
        """Records of each client and class, (K, classes)."""
        return np.stack([np.bincount(y[rows], minlength=classes) for rows in self.clients]).astype(
            np.int64
        )

    def client_data(self, dataset: Dataset, client: int) -> Dataset:
        """Training records of client number `client`."""
        own = dataset.take(self.clients[client])
        if not self.inverted[client]:
            return own
        assert isinstance(own.x, np.ndarray)
        return replace(own, x=1.0 - own.x)


def from_settings(kind: str, settings: Mapping[str, Any] | None = None) -> Kind:
    """The partition kind of that name with its settings; refuses unknown names."""
    if kind not in KINDS:
        raise ConfigError.unknown(f"there is no partition called {kind!r}", kind, KINDS)
    given = dict(settings or {})
    known = [f.name for f in fields(KINDS[kind])]
    for name in given:
        if name not in known:
            raise ConfigError.unknown(f"partition {kind!r} has no setting {name!r}", name, known)
    return KINDS[kind](**given)


# ---------------------------------------------------------------- shared by all kinds


def _checked_units(dataset: Dataset, clients: int | None, kind: str) -> tuple[int, Indices]:
    """Number of clients and unit number per record; refuses more clients than units."""
    if clients is None:
        raise ConfigError(
            f"partition {kind!r} needs the number of clients",
            expected="clients = a whole number",
            got="none",
            remedy="set clients, or use the partition 'by_owner' with a client column",
        )
    require(Count, ConfigError, clients=clients, remedy="clients = 10")
    unit = units(dataset)
    have = int(unit.max()) + 1
    if clients > have:
        what = "records" if dataset.person is None else "persons"
        raise DataError(
            f"dataset {dataset.name!r} cannot be divided among {clients} clients",
            expected=f"at most {have} clients, one for each of the {what}",
            got=f"{clients} clients",
            remedy="lower the number of clients or bring more data",
        )
    return clients, unit


def _organisations(kind: str, position: Position, clients: int) -> tuple[str, ...] | None:
    if position is None:
        return None
    return tuple(f"organisation-{g}" for g in _groups(kind, position, clients))


def _groups(kind: str, position: npt.ArrayLike, clients: int) -> Indices:
    groups = np.asarray(position)
    if groups.shape != (clients,) or not np.issubdtype(groups.dtype, np.integer):
        raise DataError(
            f"partition {kind!r}: the organisation numbers do not fit the clients",
            expected=f"{clients} whole numbers",
            got=f"an array of shape {groups.shape} and type {groups.dtype}",
            remedy="give one organisation number per client",
        )
    return groups.astype(np.int64)


def _contiguous(sizes: Indices, clients: int) -> Indices:
    """Cut a row of units into `clients` runs of near equal total size, none empty.

    Returns the run of each unit, (units,), ascending.
    """
    n, total = len(sizes), int(sizes.sum())
    out = np.empty(n, dtype=np.int64)
    start, before = 0, 0
    for k in range(clients):
        stop = start
        latest = n - (clients - k - 1)  # leave a unit for each later run
        goal = total * (k + 1) / clients
        while stop < latest and (stop == start or before + sizes[stop] / 2 <= goal):
            before += int(sizes[stop])
            stop += 1
        if k == clients - 1:
            stop = n
        out[start:stop] = k
        start = stop
    return out


def _evenly(unit_sizes: Indices, clients: int, rng: np.random.Generator) -> Indices:
    """Random client of each unit (units,); client totals as equal as units allow."""
    order = rng.permutation(len(unit_sizes))
    out = np.empty(len(unit_sizes), dtype=np.int64)
    if (unit_sizes == 1).all():
        out[order] = np.arange(len(order)) % clients
        return out
    held = np.zeros(clients, dtype=np.int64)
    for u in order:
        k = int(held.argmin())  # empty clients come first, so none stays empty
        out[u] = k
        held[k] += unit_sizes[u]
    return out


# ---------------------------------------------------------------- the kinds


class _Divided:
    """A kind that divides the records of a dataset among any number of clients."""

    kind: ClassVar[str]

    def partition(
        self,
        dataset: Dataset,
        clients: int | None,
        seed: Seed,
        position: Position = None,
    ) -> Partition:
        count, unit = _checked_units(dataset, clients, self.kind)
        owner_of_unit, notes = self._owners(dataset, unit, count, seed, position)
        owner = owner_of_unit[unit]
        order = np.argsort(owner, kind="stable")
        borders = np.searchsorted(owner[order], np.arange(1, count))
        width = max(2, len(str(count - 1)))
        return Partition(
            clients=tuple(part.astype(np.int64) for part in np.split(order, borders)),
            names=tuple(f"client-{k:0{width}d}" for k in range(count)),
            organisations=_organisations(self.kind, position, count),
            inverted=self.inverted(count),
            kind=self.kind,
            settings=asdict(cast("DataclassInstance", self)),
            notes=notes,
        )

    def _owners(
        self, dataset: Dataset, unit: Indices, count: int, seed: Seed, position: Position
    ) -> tuple[Indices, Notes]:
        """The client of every unit, and notes; `unit`: the unit of every record."""
        raise NotImplementedError

    def inverted(self, count: int) -> tuple[bool, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class Iid(_Divided):
    """Random records, sizes equal to within one."""

    kind: ClassVar[str] = "iid"

    def _owners(
        self, dataset: Dataset, unit: Indices, count: int, seed: Seed, position: Position
    ) -> tuple[Indices, Notes]:
        return _evenly(np.bincount(unit), count, seed.generator("partition/iid")), ()


@dataclass(frozen=True, kw_only=True)
@checked("partition")
class Dirichlet(_Divided):
    """Divide each class by shares from Dirichlet(alpha): a small alpha skews clients.

    Redraws until every client has `minimum` records; after 50 draws it moves random records of the
    last draw from the largest clients to the smallest. The notes say which happened.
    """

    alpha: PositiveFinite = 0.5
    minimum: Count = 1

    kind: ClassVar[str] = "dirichlet"

    def _owners(
        self, dataset: Dataset, unit: Indices, count: int, seed: Seed, position: Position
    ) -> tuple[Indices, Notes]:
        if count * self.minimum > len(dataset):
            raise DataError(
                f"dataset {dataset.name!r} is too small for this partition",
                expected=f"{count} clients x {self.minimum} records at least",
                got=f"{len(dataset)} records",
                remedy="lower minimum or the number of clients",
            )
        label, sizes = unit_labels(dataset.y, unit), np.bincount(unit)
        notes: tuple[str, ...] = ()
        for attempt in range(_REDRAWS):
            rng = seed.generator("partition/dirichlet", attempt)
            owner = self._draw(label, sizes, count, rng)
            held = np.bincount(owner, weights=sizes, minlength=count)
            if held.min() >= self.minimum:
                if attempt:
                    notes = (f"redrawn {attempt} times until no client was too small",)
                break
        else:
            moved = self._repair(owner, sizes, count, rng, dataset.name)
            what = "records" if dataset.person is None else "persons"
            notes = (
                f"after {_REDRAWS} draws some clients were still below minimum = {self.minimum}: "
                f"{moved} {what} were moved from the largest clients",
            )
        return owner, notes

    def _draw(
        self, label: Indices, sizes: Indices, count: int, rng: np.random.Generator
    ) -> Indices:
        owner = np.empty(len(label), dtype=np.int64)
        for c in np.unique(label):
            members = rng.permutation(np.flatnonzero(label == c))
            # A very small alpha can underflow to zeros or NaN: its limit is one client.
            share = rng.dirichlet(np.full(count, self.alpha))
            if not np.isfinite(share).all() or share.sum() <= 0:
                share = np.zeros(count)
                share[rng.integers(count)] = 1.0
            ends = np.cumsum(sizes[members])
            middle = (ends - sizes[members] / 2) / ends[-1]
            cuts = np.cumsum(share) / share.sum()
            owner[members] = np.minimum(np.searchsorted(cuts, middle, side="left"), count - 1)
        return owner

    def _repair(
        self, owner: Indices, sizes: Indices, count: int, rng: np.random.Generator, name: str
    ) -> int:
        """Move random units, one by one, from the largest client to the smallest; in place."""
        held = np.bincount(owner, weights=sizes, minlength=count).astype(np.int64)
        moved = 0
        while held.min() < self.minimum:
            poor = int(held.argmin())
            for rich in np.argsort(-held, kind="stable"):
                own = np.flatnonzero(owner == rich)
                # the donor must stay above the minimum, or two clients would trade for ever
                own = own[held[rich] - sizes[own] >= max(self.minimum, 1)]
                if rich != poor and len(own):
                    unit = int(rng.choice(own))
                    owner[unit] = poor
                    held[rich] -= sizes[unit]
                    held[poor] += sizes[unit]
                    moved += 1
                    break
            else:
                raise DataError(
                    f"dataset {name!r}: not every client can have {self.minimum} records",
                    expected=f"{count} clients x {self.minimum} records, no person divided",
                    got=f"a client with {int(held.min())} records",
                    remedy="lower minimum or the number of clients",
                )
        return moved


@dataclass(frozen=True, kw_only=True)
class ByLabel(_Divided):
    """Records sorted by label and cut into runs of equal size: each client sees few classes."""

    kind: ClassVar[str] = "by_label"

    def _owners(
        self, dataset: Dataset, unit: Indices, count: int, seed: Seed, position: Position
    ) -> tuple[Indices, Notes]:
        label, sizes = unit_labels(dataset.y, unit), np.bincount(unit)
        order = np.lexsort((seed.generator("partition/by_label").random(len(label)), label))
        owner = np.empty(len(label), dtype=np.int64)
        owner[order] = _contiguous(sizes[order], count)
        return owner, ()


@dataclass(frozen=True, kw_only=True)
class ByOwner:
    """The data's own `client` column, clients in order of their names.

    With fewer clients than owners, the largest owners take part; the notes count the others.
    """

    kind: ClassVar[str] = "by_owner"

    def partition(
        self,
        dataset: Dataset,
        clients: int | None,
        seed: Seed,
        position: Position = None,
    ) -> Partition:
        if dataset.client is None:
            raise DataError(
                f"dataset {dataset.name!r} has no owners",
                expected="a client column",
                got="none",
                remedy='name the column (client = "..."), or use another partition, such as "iid"',
            )
        names, number = np.unique(np.asarray(dataset.client), return_inverse=True)
        number = number.reshape(-1)
        sizes = np.bincount(number)
        notes: list[str] = []
        if clients is None:
            clients = len(names)
        require(Count, ConfigError, clients=clients, remedy=f"clients = {len(names)}")
        if clients > len(names):
            raise DataError(
                f"dataset {dataset.name!r} has too few owners",
                expected=f"at most {len(names)} clients, one per owner",
                got=f"{clients} clients",
                remedy=f'clients = {len(names)}, or another partition, such as "iid"',
            )
        kept = np.sort(np.argsort(-sizes, kind="stable")[:clients])
        if clients < len(names):
            left = np.setdiff1d(np.arange(len(names)), kept)
            notes.append(
                f"the {clients} largest of {len(names)} owners take part; {len(left)} owners with "
                f"{int(sizes[left].sum())} of {len(dataset)} records are left out"
            )
        rows = tuple(np.flatnonzero(number == k).astype(np.int64) for k in kept)
        if dataset.person is not None:
            homes: dict[str, set[int]] = {}
            for k, own in enumerate(rows):
                for i in own:
                    homes.setdefault(dataset.person[i], set()).add(k)
            several = sum(len(where) > 1 for where in homes.values())
            if several:
                notes.append(f"{several} persons have records with more than one client")
        organisations = _organisations(self.kind, position, clients)
        if dataset.organisation is not None:
            organisations = tuple(dataset.organisation[int(own[0])] for own in rows)
        return Partition(
            clients=rows,
            names=tuple(str(names[k]) for k in kept),
            organisations=organisations,
            kind=self.kind,
            settings=asdict(self),
            notes=tuple(notes),
        )


@dataclass(frozen=True, kw_only=True)
@checked("partition")
class Inverted(_Divided):
    """Random records; every client but the target sees 1 - x: [TwoStage] Section 6.4.1."""

    target: Whole = 0

    kind: ClassVar[str] = "inverted"

    def _owners(
        self, dataset: Dataset, unit: Indices, count: int, seed: Seed, position: Position
    ) -> tuple[Indices, Notes]:
        if self.target >= count:
            raise ConfigError(
                f"partition 'inverted': there is no client {self.target}",
                expected=f"target from 0 to {count - 1}",
                got=f"target = {self.target}",
                remedy="target = 0",
            )
        if isinstance(dataset.x, tuple):
            raise DataError(
                f"dataset {dataset.name!r} cannot be inverted",
                expected="numbers in [0, 1]",
                got="text",
                remedy="use an image data set, or another partition",
            )
        low, high = float(dataset.x.min()), float(dataset.x.max())
        if low < 0.0 or high > 1.0:
            raise DataError(
                f"dataset {dataset.name!r} cannot be inverted",
                expected="numbers in [0, 1], so that 1 - x is of the same kind",
                got=f"numbers from {low:g} to {high:g}",
                remedy="switch standardising off, scale the features to [0, 1], or use images",
            )
        owner = _evenly(np.bincount(unit), count, seed.generator("partition/inverted"))
        return owner, ()

    def inverted(self, count: int) -> tuple[bool, ...]:
        return tuple(k != self.target for k in range(count))


@dataclass(frozen=True, kw_only=True)
@checked("partition")
class Coupled(_Divided):
    """Class mix tied to a client's position: [TopologyAwareDP] Section VI-A, Setting C.

    Client i's target is Delta_i = (1 - eta) Dirichlet(alpha) + eta e_c with c = phi(i) mod C, where
    phi is the client's index, or its region (the organisation number given as `position`).
    Sizes are equal to within one. Records are drawn without replacement, so the targets together
    may exceed a class: then its records are divided in proportion, and clients are filled up at
    random from the remaining records.
    """

    eta: Share = 0.5
    alpha: PositiveFinite = 0.5
    position: Literal["index", "region"] = "index"

    kind: ClassVar[str] = "coupled"

    def targets(
        self, classes: int, clients: int, seed: Seed, position: Position = None
    ) -> npt.NDArray[np.float64]:
        """Target class mix of every client (clients, classes); rows sum to 1."""
        phi: Indices = np.arange(clients, dtype=np.int64)
        if self.position == "region":
            if position is None:
                raise DataError(
                    "partition 'coupled' by region needs the region of every client",
                    expected=f"{clients} region numbers",
                    got="none",
                    remedy='use a topology with organisations, or position = "index"',
                )
            phi = _groups(self.kind, position, clients)
        rng = seed.generator("partition/coupled/mix")
        mix = rng.dirichlet(np.full(classes, self.alpha), size=clients)
        mix = np.where(np.isfinite(mix).all(axis=1, keepdims=True), mix, 1.0 / classes)
        out = (1.0 - self.eta) * mix
        out[np.arange(clients), phi % classes] += self.eta
        return out / out.sum(axis=1, keepdims=True)

    def _owners(
        self, dataset: Dataset, unit: Indices, count: int, seed: Seed, position: Position
    ) -> tuple[Indices, Notes]:
        label = unit_labels(dataset.y, unit)
        classes = max(len(dataset.classes), int(label.max()) + 1)
        targets = self.targets(classes, count, seed, position)
        rng = seed.generator("partition/coupled/records")

        n = len(label)
        room = np.full(count, n // count, dtype=np.int64)  # units each client still takes
        room[: n % count] += 1
        left = np.bincount(label, minlength=classes).astype(np.int64)  # units left of each class
        aim = targets * room[:, None]
        asked = aim.sum(axis=0)
        aim *= np.minimum(1.0, np.divide(left, asked, out=np.ones(classes), where=asked > left))
        take = np.floor(aim + 1e-9).astype(np.int64)
        room -= take.sum(axis=1)
        left -= take.sum(axis=0)
        # round up where the fraction is largest, as long as client and class allow
        rest = aim - take
        for cell in np.argsort(-rest, axis=None, kind="stable"):
            i, c = divmod(int(cell), classes)
            if rest[i, c] <= 1e-9:
                break
            if room[i] > 0 and left[c] > 0:
                take[i, c] += 1
                room[i] -= 1
                left[c] -= 1

        owner = np.full(n, -1, dtype=np.int64)
        for c in range(classes):
            members = rng.permutation(np.flatnonzero(label == c))
            owner[members[: take[:, c].sum()]] = np.repeat(np.arange(count), take[:, c])
        spare = rng.permutation(np.flatnonzero(owner < 0))
        owner[spare] = np.repeat(np.arange(count), room)
        notes: tuple[str, ...] = ()
        if len(spare):
            notes = (f"{len(spare)} of {n} were dealt at random: their class was not asked for",)
        return owner, notes


Kind = Iid | Dirichlet | ByLabel | ByOwner | Inverted | Coupled

KINDS: Mapping[str, type[Kind]] = MappingProxyType(
    {kind.kind: kind for kind in (Iid, Dirichlet, ByLabel, ByOwner, Inverted, Coupled)}
)
