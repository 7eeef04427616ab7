"""The models that a dishonest server sends: ordinary classifiers, trained by cross-entropy.

The server chooses the architecture. Its last layer has one extra output that no label uses. Only
this output sees the planted activations. Cross-entropy pushes it down for every example with a
positive activation, whatever its label: the derivative by an activation lies between
gain / (C + 1) and gain. So the gradients of several examples, or of several clients, never cancel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedaudit.audits.active_membership.patterns import Embedding


def fully_connected(features: int, detectors: int, classes: int) -> nn.Module:
    """2 r distances to the target, one neuron per detector, one extra output."""
    return nn.Sequential(
        nn.Linear(features, 2 * features),
        nn.ReLU(),
        nn.Linear(2 * features, detectors),
        nn.ReLU(),
        nn.Linear(detectors, classes + 1),
    )


class Memory(nn.Module):
    """Four attention heads and an output layer of 2 d units on patterns (n, N, d), then a head.

    [ActiveMembership] Appendix C.2: attention dimension d - 1, hidden dimension d.
    """

    def __init__(self, embedding: Embedding, classes: int) -> None:
        super().__init__()
        d = embedding.dimension
        self.query = nn.Parameter(torch.zeros(4, d - 1, d))
        self.key = nn.Parameter(torch.zeros(4, d - 1, d))
        self.value = nn.Parameter(torch.zeros(4, d, d))
        self.out_weight = nn.Parameter(torch.zeros(2 * d, 4 * d))
        self.out_bias = nn.Parameter(torch.zeros(2 * d))
        self.head = nn.Linear(1, classes + 1)
        # the embedding is fixed and public: it is not sent
        shift = embedding.phase if embedding.position is None else embedding.position
        self._cut = torch.from_numpy(embedding.cut)
        self._map = torch.from_numpy(embedding.map).float()
        self._shift = torch.zeros(d) if shift is None else torch.from_numpy(shift).float()
        self._cosine = embedding.phase is not None
        table = embedding.table
        self._table = None if table is None else torch.tensor(table, dtype=torch.float32)

    def patterns(self, x: Tensor) -> Tensor:
        """Records (n, ...) to patterns (n, N, d)."""
        if self._table is not None:
            token = x.flatten(1)[:, self._cut[:, 0]].round().long()
            return self._table[torch.arange(len(self._cut)), token]
        out = x.flatten(1)[:, self._cut] @ self._map + self._shift
        return out.cos() * math.sqrt(2.0 / out.shape[-1]) if self._cosine else out

    def forward(self, x: Tensor) -> Tensor:
        patterns = self.patterns(x)
        q = torch.einsum("had,nid->hnia", self.query, patterns)
        k = torch.einsum("had,nid->hnia", self.key, patterns)
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1)
        heads = weights @ torch.einsum("hed,nid->hnie", self.value, patterns)
        joined = heads.permute(1, 2, 0, 3).flatten(2)  # (n, N, 4 d)
        y = torch.relu(joined @ self.out_weight.T + self.out_bias)
        logits: Tensor = self.head(y.sum(dim=(1, 2)).unsqueeze(-1))
        return logits
