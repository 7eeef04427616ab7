"""What an observer of the whole wire can compute of every client: numbers per round, and its place.

Signals are numbers per client and round, computed from updates u (what a client sent minus what it
had received) and models theta (what it holds after training). Round by round, tensors in pieces:
nothing holds all updates of a large model. A federation of n clients over T rounds becomes (T, n,
S); a client that did not take part in a round has NaN there.

    published   |theta|, |theta| of every tensor, cosine of u to the neighbours' u
                [TopologyAwareDP] Section IV
    ours        |u|, |u| of every tensor, cosine of u to the mean of all u, and for every class the
                mean and norm of its row in the last layer of u, and its bias

Summaries over rounds are mean, standard deviation, trend (slope per round) and last value of every
signal, and the whole sequence of the four that concern the model as a whole.

The cosine to neighbours takes the graph to compute, and its spread over rounds falls with the
number of neighbours: under noise it reads a client's degree. The paper's list has it among the
parameters, which lets structure into A1. Here only adversaries that know the graph have it, unless
the published list is asked for.

The last layer is where classes show: the step of a class's bias is, up to the rate, its share in
the batches minus its predicted share. The published list has no such entry, which is a reason why
its parameter channel reads nothing under noise.

place.py      where clients stand: graph, organisations, root
names.py      which signals there are
rows.py       whose rows a round shows, and the models they began from
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
