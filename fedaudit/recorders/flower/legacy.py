"""Record apps of Flower's older API: NumPyClient, and strategies with configure_fit.

Arrays have no names there. Give `names`, the keys of the model's state dict, for audits that need
the model; otherwise arrays are named array-0, array-1 and so on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
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

from fedaudit.errors import FedauditError, LimitBroken, UsageError
from fedaudit.recorders.flower import require
from fedaudit.recorders.flower.arrays import Content, Named, single
from fedaudit.recorders.flower.declared import DELTA, declared_by
from fedaudit.recorders.flower.tape import RUN_ID, WEIGHT, Reply, Sends, Sent, Tape, TapeOptions
from fedaudit.recorders.watching import RoundWatch
from fedaudit.trace.limits import FAULTS, RecordingLimits, reason_of
from fedaudit.trace.numbers import as_numbers


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
        limits: RecordingLimits | None = None,
        policy: Any = None,
        stop: bool = False,
    ) -> None:
        if RUN_ID in str(path):
            raise UsageError(
                "a strategy of the older kind does not learn its run's number",
                expected=f"a path without {RUN_ID}",
                got=str(path),
                remedy='f"trace-{context.run_id}" in server_fn(context)',
            )
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
                tensors=tensors,
                dtype=dtype,
                sketch=sketch,
                purpose=purpose,
                retention=retention,
                limits=limits or RecordingLimits(),
            ),
            about={"aggregation": type(strategy).__name__, "software": f"flwr {require()}"},
            declared=declared_by(strategy, delta),
            task=task,
            sends=sends,
            name_by=name_by,
            resume=resume,
        )
        self._name_by = name_by
        self._watch = None if policy is None else RoundWatch(policy, stop=stop)

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
        first = not self._tape.like  # refused; what does not fit later on is noted
        contents = instructed(instructions, self._names, strict=first)
        sent = [Sent(client.cid, c) for (client, _), c in zip(instructions, contents, strict=True)]
        everyone = list(client_manager.all())
        model = content_from(parameters, self._names, strict=first)
        self._tape.begin(server_round, sent, everyone, model)
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
            # the name is no metric: nothing averages it
            site = reply.metrics.pop(self._name_by, None) if self._name_by else None
            metrics = {k: single(v) for k, v in reply.metrics.items()}
            metrics[WEIGHT] = reply.num_examples
            content = content_from(reply.parameters, self._names, metrics)
            named = site if isinstance(site, str | int | float) else None
            replies.append(Reply(client.cid, content, site=named))
        for failure in failures:
            # an exception does not name its client, which then counts as silent
            if isinstance(failure, tuple):
                client, reply = failure
                replies.append(Reply(client.cid, None, str(single(reply.status.message))))
        if server_round != self._rounds:
            self._tape.record_replies(replies)
            self._check()
            found = self.strategy.aggregate_fit(server_round, results, failures)
            self._release(found[0])
        else:
            # the last round waits for the model that is released: it is written once
            try:
                found = self.strategy.aggregate_fit(server_round, results, failures)
                self._release(found[0])
            finally:
                self._tape.record_replies(replies, self._released)
            self._check()
            self._tape.close(self._released)
        return found

    def _check(self) -> None:
        """Hold what is recorded against the policy."""
        if self._watch is None or self._tape.stopped:
            return
        try:
            self._watch.after_round(self.path)
        except LimitBroken:
            self._tape.close()
            raise

    def _release(self, parameters: Parameters | None) -> None:
        if parameters is not None:
            self._released = content_from(parameters, self._names).model or None

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


def instructed(
    instructions: Sequence[tuple[ClientProxy, FitIns]],
    names: Sequence[str] | None,
    *,
    strict: bool,
) -> list[Content]:
    """The content for each client. Many clients share one FitIns, which is read once."""
    read: dict[int, Content] = {}
    for _, ins in instructions:
        if id(ins) not in read:
            settings = {k: single(v) for k, v in ins.config.items()}
            read[id(ins)] = content_from(ins.parameters, names, settings, strict=strict)
    return [read[id(ins)] for _, ins in instructions]


def content_from(
    parameters: Parameters,
    names: Sequence[str] | None,
    scalars: Mapping[str, Any] = MappingProxyType({}),
    *,
    strict: bool = False,
) -> Content:
    """Parameters by name. What cannot be recorded is raised if `strict`, else reported."""
    try:
        return Content(name_arrays(parameters, names), scalars=dict(scalars))
    except FAULTS as error:
        if strict:
            raise
        why = f"{error.what}: {error.got}" if isinstance(error, FedauditError) else reason_of(error)
        size = sum(map(len, parameters.tensors))
        return Content({}, scalars=dict(scalars), lacks=why, bytes=size)


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
    return {n: as_numbers(n, a) for n, a in zip(names, arrays, strict=True)}
