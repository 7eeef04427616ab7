"""Features of every client that an observer of the whole wire can compute, and the client's place.

Signals are numbers per client and round, computed from updates u (what a client sent minus what it
had received) and models theta (what it holds after training). They are computed round by round and
some tensors at a time: all updates of a large model are never in memory together. A federation of n
clients over T rounds gives (T, n, S); NaN marks a round without the client.

    published   |theta|, |theta| of every tensor, cosine of u to the neighbours' u
                [TopologyAwareDP] Section IV
    ours        |u|, |u| of every tensor, cosine of u to the mean of all u, and for every class the
                mean and norm of its row in the last layer of u, and its bias

Summaries over rounds are mean, standard deviation, trend (slope per round) and last value of every
signal, and the whole sequence of the four signals of the whole model.

The cosine to neighbours needs the graph. Its spread over rounds falls with the number of
neighbours, so under noise it reveals a client's degree. The paper lists it among the parameters,
which lets structure into A1. Here only adversaries that know the graph have it, unless
`features = "published"`.

The last layer shows classes: the step of a class's bias is, up to the rate, its share in the
batches minus its predicted share. The published list has no such signal, one reason why its
parameter channel finds nothing under noise.

place.py      places of clients: graph, organisations, root
names.py      names of the signals
rows.py       rows of a round: their clients, and the models they started from
signals.py    the signals of every client and round
summaries.py  features over rounds
"""

from fedaudit.audits.topology_inference.features.names import (
    NORM,
    TO_NEIGHBOURS,
    UPDATE_NORM,
    signal_names,
)
from fedaudit.audits.topology_inference.features.place import Place
from fedaudit.audits.topology_inference.features.signals import Observed, observe
from fedaudit.audits.topology_inference.features.summaries import Which, noise_column, summarise

__all__ = [
    "NORM",
    "TO_NEIGHBOURS",
    "UPDATE_NORM",
    "Observed",
    "Place",
    "Which",
    "noise_column",
    "observe",
    "signal_names",
    "summarise",
]
