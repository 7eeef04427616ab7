"""scikit-learn's linear models and networks as torch modules with the same arrays.

`coef_` (1 or C, d) and `intercept_` (1 or C,) of a linear classifier; `coefs_.i` (in, out) and
`intercepts_.i` (out,) of a network. With two classes both have a single output z, the log-odds of
the second class: logits are (0, z).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "logistic": torch.sigmoid,
    "identity": lambda z: z,
}


def _outputs(classes: int) -> int:
    return 1 if classes <= 2 else classes


def _logits(z: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(z), z], dim=-1) if z.shape[-1] == 1 else z


class LinearTwin(nn.Module):
    """LogisticRegression and SGDClassifier: zero at first, as scikit-learn begins."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.coef_ = nn.Parameter(torch.zeros(_outputs(classes), inputs))
        self.intercept_ = nn.Parameter(torch.zeros(_outputs(classes)))

    def forward(self, x: Tensor) -> Tensor:
        return _logits(x.flatten(1) @ self.coef_.T + self.intercept_)


class NetworkTwin(nn.Module):
    """MLPClassifier: uniform weights of scikit-learn's range (Glorot)."""

    def __init__(self, inputs: int, hidden: Sequence[int], classes: int, activation: str) -> None:
        super().__init__()
        self.activation = activation
        widths = [inputs, *hidden, _outputs(classes)]
        factor = 2.0 if activation == "logistic" else 6.0
        self.coefs_, self.intercepts_ = nn.ParameterList(), nn.ParameterList()
        for a, b in itertools.pairwise(widths):
            bound = (factor / (a + b)) ** 0.5
            self.coefs_.append(nn.Parameter(torch.empty(a, b).uniform_(-bound, bound)))
            self.intercepts_.append(nn.Parameter(torch.empty(b).uniform_(-bound, bound)))

    def forward(self, x: Tensor) -> Tensor:
        z = x.flatten(1)
        last = len(self.coefs_) - 1
        for i in range(last + 1):
            z = z @ self.coefs_[i] + self.intercepts_[i]
            if i < last:
                z = _FUNCTIONS[self.activation](z)
        return _logits(z)
