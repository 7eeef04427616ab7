"""A trusted shuffler between clients and server: senders removed, rows permuted.

    S(<theta^k>) = <theta^{p(k)}>                                    [Fingerprint] Eq. (3)

Formal guarantees: none of its own. It hides the order and the names of the uploads of one round
from the server; it does not touch their content. Whether content re-links them is what the
fingerprint audit measures. The average is unchanged: [Fingerprint] Eq. (5).

Trust: the shuffler must not tell the permutation, and sees who sent how many bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedaudit.hooks import Hook, Leg, Uploads
from fedaudit.randomness import Seed
from fedaudit.rows import taken
from fedaudit.trace.schema import ANONYMOUS, SHUFFLER


@dataclass(frozen=True, kw_only=True)
class Shuffle(Hook):
    """Permute the rows of a round and hide their senders."""

    name: ClassVar[str] = "shuffle"
    covers: ClassVar[tuple[str, ...]] = ("sender",)
    trust: ClassVar[str] = "the shuffler"

    def upload(self, uploads: Uploads, *, round_number: int, seed: Seed) -> Uploads:
        # a hierarchy shuffles once per region: the first client tells the draws apart
        draw = seed.generator("shuffle", round_number, int(uploads.origin.min()))
        order = draw.permutation(len(uploads.senders))
        size = uploads.rows.shape[1] * uploads.rows.element_size()
        metadata = uploads.metadata
        return replace(
            uploads,
            rows=taken(uploads.rows, order),
            senders=(ANONYMOUS,) * len(order),
            weights=uploads.weights[order],
            origin=uploads.origin[order],
            metadata=tuple(metadata[i] for i in order) if metadata else (),
            legs=(*uploads.legs, *(Leg(s, SHUFFLER, size) for s in uploads.senders)),
        )
