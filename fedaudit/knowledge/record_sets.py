"""Draw sets of a client's ordinary records, and sets of held-out ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedaudit.audits.attribution.template import FEWEST_UNUSED
from fedaudit.errors import NothingToSay
from fedaudit.knowledge.records import Records
from fedaudit.randomness import Seed
from fedaudit.tasks.gradients import MeanGradient
from fedaudit.watermarks.templates import Drawn, MarkTemplates

if TYPE_CHECKING:
    from fedaudit.tasks.task import Task


@dataclass(frozen=True, eq=False)
class DrawnSets:
    """`sets` of the largest of `sizes`, one per client, and held-out examples `others`.

    A smaller set is the beginning of a larger one. Controls share no record: they are as
    independent as the sets of clients.
    """

    task: Task
    sizes: tuple[int, ...]
    sets: Sequence[Drawn]
    others: Drawn
    most: int

    def templates(self, size: int) -> MarkTemplates:
        def control(number: int) -> Drawn:
            rows = slice(number * size, (number + 1) * size)
            return self.others[0][rows], self.others[1][rows]

        return MarkTemplates(
            gradient=MeanGradient(self.task),
            keys=tuple(range(len(self.sets))),
            own=lambda number: (self.sets[number][0][:size], self.sets[number][1][:size]),
            control=control,
            available=min(self.most, len(self.others[0]) // size),
        )


def draw_sets(
    records: Records, sizes: Sequence[int], clients: int, controls: int, seed: Seed
) -> tuple[DrawnSets, dict[str, npt.NDArray[np.bool_]], tuple[str, ...]]:
    """Sets in random order, whose they are, and notes. A party that has too few records, or trains
    on altered ones, is left out."""
    rng, task = seed.generator("record_sets"), records.task
    others = task.encode(records.others)
    order = rng.permutation(len(others)).tolist()
    fitting = tuple(s for s in sorted(set(sizes)) if len(others) // s >= FEWEST_UNUSED)
    if not fitting:
        raise NothingToSay(
            "there are too few held-out records for a null",
            code="too_few_records",
            expected=f"{FEWEST_UNUSED * min(sizes)} held-out records, {FEWEST_UNUSED} sets of "
            f"{min(sizes)}",
            got=str(len(others)),
            remedy="hold out more (data.test_fraction), or give more records in `data`",
        )
    drawn, owners = [], []
    for party, data in records.own.items():
        mine = task.encode(data)
        if len(mine) >= max(fitting) and party not in records.inverted:
            rows = rng.permutation(len(mine))[: max(fitting)].tolist()
            drawn.append((mine.x[rows], mine.y[rows]))
            owners.append(party)
    if not drawn:
        raise NothingToSay(
            "no client has enough records for a set",
            code="too_few_records",
            expected=f"{max(fitting)} records of a client",
            got="fewer",
            remedy="smaller audits.record_set_naming.sizes",
        )
    shuffled = rng.permutation(len(drawn))[:clients]
    members = {owners[i]: shuffled == i for i in shuffled}
    left = [s for s in sorted(set(sizes)) if s not in fitting]
    notes = (
        f"sets of {', '.join(map(str, left))} records are left out: {len(others)} held-out records "
        f"do not give {FEWEST_UNUSED} sets of controls",
    ) * bool(left)
    sets = DrawnSets(
        task=task,
        sizes=fitting,
        sets=[drawn[i] for i in shuffled],
        others=(others.x[order], others.y[order]),
        most=controls,
    )
    return sets, members, notes
