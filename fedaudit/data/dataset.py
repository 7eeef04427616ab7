"""A dataset: records, labels and owners, independent of federations and models.

Shapes: `x` is (n, ...) float32 for features and images (channels first, values in [0, 1] for
images), or a tuple of n strings for text; `y` is (n,) int64, all zero without labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedaudit.arrays import Indices
from fedaudit.errors import DataError
from fedaudit.files import is_text

Kind = Literal["features", "image", "text"]
Owners = tuple[str, ...]


FILLED_OVER_ALL = "missing values filled over all records"
STANDARDISED_OVER_ALL = "columns standardised over all training records"
"""Beginnings of notes about steps that use the records of all clients."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Records with labels; optional owners, one string per record.

    `client`: natural owner of a record; `organisation`: the owner's organisation (constant within a
    client); `person`: the subject of a record. A split never separates a person's records, and a
    person can be the unit of privacy. `test` is the dataset's own held-out part, if any.
    `dropped`: (records read, records lost) of clients that lost records after reading.
    """

    name: str
    kind: Kind
    x: npt.NDArray[np.float32] | tuple[str, ...]
    y: Indices
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    client: Owners | None = None
    organisation: Owners | None = None
    person: Owners | None = None
    licence: str = ""
    notes: tuple[str, ...] = field(default=())
    test: Dataset | None = None
    dropped: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.x)
        if n == 0:
            raise DataError(
                f"dataset {self.name!r} is empty",
                expected="at least one record",
                got="0 records",
                remedy="check the file and the column names",
            )
        for name in ("y", "client", "organisation", "person"):
            column = getattr(self, name)
            if column is not None and len(column) != n:
                raise DataError(
                    f"dataset {self.name!r}: column {name!r} does not fit",
                    expected=f"{n} values",
                    got=f"{len(column)} values",
                    remedy="give one value per record",
                )
        self._refuse_torn_text()
        if self.kind != "text":
            assert isinstance(self.x, np.ndarray)
            bad = ~np.isfinite(self.x.reshape(n, -1)).all(axis=1)
            if bad.any():
                count, first = int(bad.sum()), int(np.flatnonzero(bad)[0])
                raise DataError(
                    f"dataset {self.name!r} holds values that are not finite",
                    expected="finite numbers",
                    got=f"{count} records with NaN or infinity, the first is record {first}",
                    remedy='fill or drop them (for a table: missing = "mean" or "drop")',
                )
        if self.classes and n and (self.y.min() < 0 or self.y.max() >= len(self.classes)):
            raise DataError(
                f"dataset {self.name!r} has a label out of range",
                expected=f"labels 0 to {len(self.classes) - 1}",
                got=f"labels {int(self.y.min())} to {int(self.y.max())}",
                remedy="correct the labels or the list of classes",
            )

    def _refuse_torn_text(self) -> None:
        """Refuse text with lone surrogates: it cannot be written to a file."""
        texts = self.x if isinstance(self.x, tuple) else None
        columns = {"text": texts, **{k: getattr(self, k) for k in ("client", "organisation")}}
        columns |= {"person": self.person, "class": self.classes, "name of column": self.columns}
        for what, column in columns.items():
            if column is None or is_text("".join(column)):
                continue
            # joined surrogate halves are not valid text either
            at = next(i for i, text in enumerate(column) if not is_text(text))
            where = f"{what} {at}" if what in ("class", "name of column") else f"record {at}"
            if what == "class" and (self.y == at).any():
                where = f"record {int((self.y == at).argmax())}"
            raise DataError(
                f"dataset {self.name!r}, {where}: the {what} is not UTF-8 text",
                expected="text without lone surrogates",
                got=ascii(column[at])[:60],
                remedy="correct the record, or save the data as UTF-8 again",
            )

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: npt.ArrayLike) -> Dataset:
        """The records `rows` (record numbers, in that order); drops `test`."""
        index = np.asarray(rows, dtype=np.int64)

        def pick(owners: Owners | None) -> Owners | None:
            return None if owners is None else tuple(owners[i] for i in index)

        if isinstance(self.x, tuple):
            x: npt.NDArray[np.float32] | tuple[str, ...] = tuple(self.x[i] for i in index)
        else:
            x = self.x[index]
        return replace(
            self,
            x=x,
            y=self.y[index],
            client=pick(self.client),
            organisation=pick(self.organisation),
            person=pick(self.person),
            test=None,
        )
