"""A trusted shuffler between clients and server removes senders and permutes rows.

    S(<theta^k>) = <theta^{p(k)}>                                    [Fingerprint] Eq. (3)

Formal guarantees: none of its own. It hides the order and the senders of one round's uploads from
the server, not their content. The fingerprint audit measures whether content re-links them. The
average is unchanged: [Fingerprint] Eq. (5).

Trust: the shuffler must keep the permutation secret; it sees who sent how many bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedaudit.hooks import Hook, Leg, Uploads
from fedaudit.randomness import Seed
from fedaudit.rows import take_rows
from fedaudit.trace.schema import ANONYMOUS, SHUFFLER


@dataclass(frozen=True, kw_only=True)
class Shuffle(Hook):
    """Permute the rows of a round and hide their senders."""

    name: ClassVar[str] = "shuffle"
    covers: ClassVar[tuple[str, ...]] = ("sender",)
    trust: ClassVar[str] = "the shuffler"
    hides_senders: ClassVar[bool] = True
    between: ClassVar[str] = SHUFFLER
    transport: ClassVar[str] = "shuffle"
    outside_parties: ClassVar[tuple[str, ...]] = (SHUFFLER,)
    exact_afterwards: ClassVar[bool] = True
    keeps_rows: ClassVar[bool] = True
    takes_models: ClassVar[bool] = True

    def upload(self, uploads: Uploads, *, round_number: int, seed: Seed) -> Uploads:
        # a hierarchy shuffles once per region: the first client's number gives each its own draw
        draw = seed.generator("shuffle", round_number, int(uploads.origin.min()))
        order = draw.permutation(len(uploads.senders))
        size = uploads.rows.shape[1] * uploads.rows.element_size()
        metadata = uploads.metadata
        return replace(
            uploads,
            rows=take_rows(uploads.rows, order),
            senders=(ANONYMOUS,) * len(order),
            weights=uploads.weights[order],
            origin=uploads.origin[order],
            metadata=tuple(metadata[i] for i in order) if metadata else (),
            legs=(*uploads.legs, *(Leg(s, SHUFFLER, size) for s in uploads.senders)),
        )
