"""Record apps of Flower's older API: NumPyClient, and strategies with configure_fit.

Arrays have no names there. Give `names`, the keys of the model's state dict, for audits that need
the model; otherwise arrays are named array-0, array-1 and so on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.common import (
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    Parameters,
    Scalar,
    parameters_to_ndarrays,
)
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from fedaudit.accounting import check_delta
from fedaudit.errors import UsageError
from fedaudit.recorders.flower import require
from fedaudit.recorders.flower.arrays import KINDS, Content, Named, single
from fedaudit.recorders.flower.protections import DELTA, declared_by
from fedaudit.recorders.flower.tape import WEIGHT, Reply, Sends, Sent, Tape, TapeOptions


class RecordingLegacyStrategy(Strategy):
    """As RecordingStrategy, for a strategy of `flwr.server.strategy`.

    Such a strategy does not learn when a run ends. With `rounds`, the trace is completed after that
    many rounds, including the final model; otherwise call `close()`.
    """

    def __init__(
        self,
        strategy: Strategy,
        path: str | os.PathLike[str],
        *,
        names: Sequence[str] | None = None,
        rounds: int | None = None,
        tensors: str | Sequence[str] = "*",
        dtype: str | None = None,
        sketch: int | None = None,
        purpose: str = "",
        retention: str = "",
        task: Mapping[str, Any] | None = None,
        sends: Sends = "model",
        name_by: str | None = None,
        delta: float = DELTA,
        resume: bool = False,
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise UsageError(
                "this is not a strategy of the older kind",
                expected="an object of flwr.server.strategy.Strategy",
                got=type(strategy).__name__,
                remedy="RecordingStrategy records those of flwr.serverapp.strategy",
            )
        self.strategy, self._names, self._rounds = strategy, names, rounds
        self._released: Named | None = None
        self._tape = Tape(
            path,
            TapeOptions(
                tensors=tensors, dtype=dtype, sketch=sketch, purpose=purpose, retention=retention
            ),
            about={"aggregation": type(strategy).__name__, "software": f"flwr {require()}"},
            declared=declared_by(strategy, check_delta(delta)),
            task=task,
            sends=sends,
            name_by=name_by,
            resume=resume,
        )

    @property
    def path(self) -> Path:
        return self._tape.path

    def __getattr__(self, name: str) -> Any:
        if name == "strategy":
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        return self.strategy.initialize_parameters(client_manager)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        instructions = self.strategy.configure_fit(server_round, parameters, client_manager)
        contents = instructed(instructions, self._names)
        sent = [Sent(client.cid, c) for (client, _), c in zip(instructions, contents, strict=True)]
        everyone = list(client_manager.all())
        self._tape.begin(server_round, sent, everyone, Content(self._named(parameters)))
        if not instructions:
            self._tape.record_replies([])  # no client was chosen: Flower skips the aggregation
        return instructions

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        if len(results) > 1 and len({id(reply.parameters) for _, reply in results}) == 1:
            raise UsageError(
                "all replies are the same mean: this app uses secure aggregation",
                expected="a reply per client",
                got=f"one mean for {len(results)} clients",
                remedy="fit_workflow=RecordingSecAggWorkflow(SecAggPlusWorkflow(...), path)",
            )
        replies = []
        for client, reply in results:
            metrics = {k: single(v) for k, v in reply.metrics.items()}
            metrics[WEIGHT] = reply.num_examples
            replies.append(
                Reply(client.cid, Content(self._named(reply.parameters), scalars=metrics))
            )
        for failure in failures:
            # an exception does not name its client, which then counts as silent
            if isinstance(failure, tuple):
                client, reply = failure
                replies.append(Reply(client.cid, None, str(single(reply.status.message))))
        self._tape.record_replies(replies)
        found = self.strategy.aggregate_fit(server_round, results, failures)
        if found[0] is not None:
            self._released = self._named(found[0])
        if server_round == self._rounds:
            self._tape.close(self._released)
        return found

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        return self.strategy.configure_evaluate(server_round, parameters, client_manager)

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        return self.strategy.aggregate_evaluate(server_round, results, failures)

    def evaluate(
        self, server_round: int, parameters: Parameters
    ) -> tuple[float, dict[str, Scalar]] | None:
        return self.strategy.evaluate(server_round, parameters)

    def close(self) -> None:
        """Mark the trace complete."""
        self._tape.close()

    def _named(self, parameters: Parameters) -> Named:
        return name_arrays(parameters, self._names)


def instructed(
    instructions: Sequence[tuple[ClientProxy, FitIns]], names: Sequence[str] | None
) -> list[Content]:
    """The content for each client. Many clients share one FitIns, which is read once."""
    read: dict[int, Content] = {}
    for _, ins in instructions:
        if id(ins) not in read:
            settings = {k: single(v) for k, v in ins.config.items()}
            read[id(ins)] = Content(name_arrays(ins.parameters, names), scalars=settings)
    return [read[id(ins)] for _, ins in instructions]


def name_arrays(parameters: Parameters, names: Sequence[str] | None) -> Named:
    """Arrays by the names of the model, or by their position."""
    arrays = parameters_to_ndarrays(parameters)
    names = names or [f"array-{i}" for i in range(len(arrays))]
    if len(names) != len(arrays):
        raise UsageError(
            "the names do not fit the arrays",
            expected=f"{len(arrays)} names, one per array",
            got=str(len(names)),
            remedy="names=list(model.state_dict())",
        )
    for name, array in zip(names, arrays, strict=True):
        if array.dtype.kind not in KINDS:
            raise UsageError(
                "an array cannot be recorded",
                expected="floating-point or whole numbers",
                got=f"{name} of {array.dtype}",
                remedy="send it as another dtype, or remove the recorder from this app",
            )
    return dict(zip(names, arrays, strict=True))
