"""Hold out a test part and standardise columns, after loading and before partitioning."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedaudit.data.dataset import STANDARDISED_OVER_ALL, Dataset
from fedaudit.errors import ConfigError, DataError
from fedaudit.randomness import Seed
from fedaudit.settings import Fraction, require

DEFAULT_TEST_FRACTION = 0.2


def split(dataset: Dataset, *, test_fraction: float | None, seed: Seed) -> tuple[Dataset, Dataset]:
    """Training part and held-out part.

    `test_fraction=None` takes the dataset's own held-out part, or 0.2 if it has none. A given
    fraction always splits the dataset's records and ignores its own held-out part.

    Every class, and within it every natural client, gives its share to the held-out part (to
    within one record); no class or client with two or more records vanishes from training. If every
    client has one record, whole clients are held out: `Dataset.dropped` names them. With a `person`
    column, whole persons are drawn: the fraction counts persons.
    """
    if test_fraction is None and dataset.test is not None:
        own = dataset.test
        if dataset.person is not None and own.person is not None:
            shared = sorted(set(dataset.person) & set(own.person))
            if shared:
                raise DataError(
                    f"dataset {dataset.name!r}: {len(shared)} persons are in both parts",
                    expected="a person in the training or the held-out part, never in both",
                    got=f"for example {shared[0]!r} in both",
                    remedy=f"split again with test_fraction = {DEFAULT_TEST_FRACTION}",
                )
        return replace(dataset, test=None), own
    fraction = DEFAULT_TEST_FRACTION if test_fraction is None else test_fraction
    remedy = f"test_fraction = {DEFAULT_TEST_FRACTION}"
    require(Fraction, ConfigError, test_fraction=fraction, remedy=remedy)
    unit = units(dataset)
    held = _systematic(dataset, unit, fraction, seed)[unit]
    whole = "persons" if dataset.person is not None else "records"
    if not held.any() or held.all():
        raise DataError(
            f"dataset {dataset.name!r} is too small to hold out {fraction:g} of it",
            expected=f"at least one of the {whole} in each part",
            got=f"{int(unit.max()) + 1} {whole}",
            remedy="change test_fraction or bring more data",
        )
    train, test = dataset.take(np.flatnonzero(~held)), dataset.take(np.flatnonzero(held))
    dropped = dict(dataset.dropped)
    counts = Counter(dataset.client or ())
    for client in sorted(counts.keys() - set(train.client or ())):
        read, _ = dropped.get(client, (counts[client], 0))
        dropped[client] = (read, read)
    return replace(train, dropped=dropped), test


def units(dataset: Dataset) -> npt.NDArray[np.int64]:
    """Indivisible unit of each record (n,): its person's number, or its own."""
    if dataset.person is None:
        return np.arange(len(dataset), dtype=np.int64)
    _, number = np.unique(np.asarray(dataset.person), return_inverse=True)
    return number.reshape(-1).astype(np.int64)


def unit_labels(
    labels: npt.NDArray[np.int64], unit: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The most frequent label of each unit (the smallest one in a tie), (units,)."""
    table = np.zeros((int(unit.max()) + 1, int(labels.max()) + 1), dtype=np.int64)
    np.add.at(table, (unit, labels), 1)
    return table.argmax(axis=1).astype(np.int64)


def _systematic(
    dataset: Dataset, unit: npt.NDArray[np.int64], fraction: float, seed: Seed
) -> npt.NDArray[np.bool_]:
    """Units to hold out by systematic sampling: evenly spaced in order (class, client, random)."""
    n = int(unit.max()) + 1
    label = unit_labels(dataset.y, unit)
    owner = np.zeros(n, dtype=np.int64)
    if dataset.client is not None:
        # a person with several clients counts for the first one
        _, number = np.unique(np.asarray(dataset.client), return_inverse=True)
        first = np.unique(unit, return_index=True)[1]
        owner = number.reshape(-1)[first].astype(np.int64)
    # Training needs the only unit of a class or client; the others make up for it.
    alone_in_class = np.bincount(label)[label] == 1
    alone = alone_in_class | (np.bincount(owner)[owner] == 1)
    groups = [label, owner]
    if alone.all() and len(np.unique(owner)) == n:
        # every client has one unit: hold out whole clients
        alone, groups = alone_in_class, [label]
    order = np.lexsort((seed.generator("split").random(n), owner, label))
    order = order[~alone[order]]
    held = np.zeros(n, dtype=bool)
    if len(order) == 0:
        return held
    share = min(np.floor(n * fraction + 0.5) / len(order), 1.0)
    held[order] = np.diff(np.floor(np.arange(len(order) + 1) * share + 0.5)) > 0
    for group in groups:
        for value in np.unique(group):
            members = np.flatnonzero(group == value)
            if len(members) and held[members].all():
                held[members[0]] = False
    return held


def is_table(dataset: Dataset) -> bool:
    """Whether standardising is on by default: features with named columns.

    Images are in [0, 1] already; scaling would destroy the known truth of synthetic sets.
    """
    return dataset.kind == "features" and bool(dataset.columns)


def standardise(train: Dataset, test: Dataset) -> tuple[Dataset, Dataset]:
    """Scale columns to mean 0 and standard deviation 1 over `train`, and `test` alike.

    A constant column becomes 0. A column of only 0 and 1 (a category, a flag) stays as it is:
    dividing a rare 1 by its small deviation would make it an outlier.
    """
    if train.kind == "text" or isinstance(train.x, tuple) or isinstance(test.x, tuple):
        raise DataError(
            f"dataset {train.name!r} cannot be standardised",
            expected="numbers",
            got="text",
            remedy="standardise = false",
        )
    if train.x.shape[1:] != test.x.shape[1:]:
        raise DataError(
            f"dataset {train.name!r}: training and held-out records differ in shape",
            expected=f"records of shape {train.x.shape[1:]}",
            got=f"records of shape {test.x.shape[1:]}",
            remedy="read both from files with the same columns",
        )
    x = train.x.astype(np.float64)
    mean, std = x.mean(axis=0), x.std(axis=0)
    # In a constant column, rounding leaves a deviation of about 1e-16 times the value.
    constant = std <= 1e-12 * np.maximum(1.0, np.abs(mean))
    yes_no = ((x == 0) | (x == 1)).all(axis=0)
    std = np.where(constant | yes_no, 1.0, std)
    mean = np.where(yes_no, 0.0, mean)

    def moved(part: Dataset) -> Dataset:
        assert isinstance(part.x, np.ndarray)
        return replace(part, x=((part.x.astype(np.float64) - mean) / std).astype(np.float32))

    counted = int((~(constant | yes_no)).sum())
    note = f"{STANDARDISED_OVER_ALL}: {counted} of {mean.size}"
    return replace(moved(train), notes=(*train.notes, note)), moved(test)
