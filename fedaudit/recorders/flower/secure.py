"""Secure aggregation for Flower's Message API: a strategy wrapper and a mod.

    strategy = SecureSumStrategy(FedAvg(), keys="keys", path="trace")         # at the server
    app = ClientApp(mods=[secure_sum_mod(keys="/etc/fedaudit/keys")])         # at every client

The wrapper sends four short messages besides the one that trains: keys, shares, the list of
uploads, signatures. The mod answers them, and masks what the training function returns: the update
times its number of examples, and that number. Nothing else of a reply leaves the client. The inner
strategy gets one reply: the weighted mean of those who uploaded. Strategies that compare replies
(Krum, medians) cannot work on a mean.

`keys` is a folder: `public.json` (number -> public key in hex, the aggregator is -1), and this
party's own `NUMBER.key` (32 secret bytes in hex). A node's number is its `partition-id`. A client's
state between messages is in its `context.state`, its ledger of answered sums, over all of Flower's
runs, in the folder.

The trace holds what the server sees: models on their way down, the sizes of what every client sent,
the question, and the weighted sum of updates.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedaudit.errors import ConfigError, FedauditError, UsageError
from fedaudit.files import read_object, read_text
from fedaudit.protections.secure_aggregation import (
    Budget,
    Client,
    ClientLedger,
    ClientRules,
    Directory,
    Identity,
    RingQuantiser,
    RunPlan,
    RunRefused,
    Server,
    WeakTerms,
)
from fedaudit.protections.secure_aggregation.client import STEPS
from fedaudit.protections.secure_aggregation.identity import AGGREGATOR_NUMBER
from fedaudit.protections.secure_aggregation.wire import Record
from fedaudit.recorders.flower import require
from fedaudit.recorders.flower.arrays import Named, misfit, named
from fedaudit.recorders.flower.recording import ARRAYS
from fedaudit.recorders.flower.tape import WEIGHT
from fedaudit.trace import AGGREGATOR, SERVER, Recorder
from fedaudit.trace.ledger import QUERY, query_layout
from fedaudit.trace.recorder import layouts_like
from fedaudit.trace.schema import UNANSWERED

_log = logging.getLogger(__name__)
KEY = "fedaudit-secure-sum"
"""The record of a message that belongs to the protocol, and of a node's state."""
_REQUEST = {
    "step": str,
    "run": str,
    "round": int,
    "message": bytes,
    "most": int,
    "weight": str,
}


def read_keys(folder: str | os.PathLike[str], number: int) -> tuple[Identity, Directory]:
    """A party's identity, and the directory of all."""
    public = read_object(Path(folder) / "public.json")
    secret = read_text(Path(folder) / f"{number}.key").strip()
    try:
        known = {int(n): bytes.fromhex(key) for n, key in public.items()}
        return Identity(bytes.fromhex(secret)), Directory(known)
    except (ValueError, TypeError, UsageError) as error:
        raise ConfigError(
            f"the keys in {folder} cannot be read",
            expected="public.json with number: key in hex, and NUMBER.key in hex",
            got=str(error),
            remedy="make keys with Identity.new()",
        ) from None


def _flat(arrays: Named) -> npt.NDArray[np.float64]:
    return np.concatenate([np.asarray(a, dtype=np.float64).ravel() for a in arrays.values()])


# -- client ---------------------------------------------------------------------------------------


def secure_sum_mod(
    *,
    keys: str | os.PathLike[str],
    threshold: int = 5,
    bound: float = 16.0,
    most_examples: int = 100_000,
    weight: str = WEIGHT,
    budget: Budget | None = Budget(),  # noqa: B008 - frozen
    rules: ClientRules | None = None,
    only_final: bool = False,
) -> Mod:
    """Mask every reply to training; put it first in the list of mods.

    `threshold`: fewest clients in a sum. `bound`, `most_examples` and `weight` (the metric that
    weighs a reply) are those of the strategy: a server that could choose them would learn from
    refusals how large one client's update or data is. `rules` stands for threshold and bound.
    `budget`: what all rounds of all trainings
    may tell about a client; None: no limit. `only_final`: see `ClientLedger`. A message to train
    without the protocol is refused; one to evaluate is passed on.
    """
    about = _MaskedReplies(
        keys=keys,
        rules=rules or ClientRules(threshold=threshold, bound=bound),
        limits={"most": int(most_examples), "weight": weight},
        budget=budget,
        only_final=only_final,
    )

    def masked(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not message.metadata.message_type.startswith(MessageType.TRAIN):
            return call_next(message, context)
        record = message.content.config_records.get(KEY)
        try:
            if record is None:
                raise UsageError(
                    "a request to train outside of secure aggregation was refused",
                    expected="messages of SecureSumStrategy",
                    got="a plain one",
                    remedy="wrap the server's strategy",
                )
            return about.answer(message, _request(record), context, call_next)
        except FedauditError as error:
            _log.warning("fedaudit secure sum: %s", error)
            why = Error(ErrorCode.MOD_FAILED_PRECONDITION, f"{error.code}: {error.what}")
            return Message(why, reply_to=message)

    return masked


@dataclass(frozen=True, kw_only=True)
class _MaskedReplies:
    """What a client of `secure_sum_mod` was set up with: it answers the steps of the protocol."""

    keys: str | os.PathLike[str]
    rules: ClientRules
    limits: Mapping[str, Any]
    budget: Budget | None
    only_final: bool

    def answer(
        self,
        message: Message,
        record: Mapping[str, Any],
        context: Context,
        call_next: ClientAppCallable,
    ) -> Message:
        told = {name: record[name] for name in self.limits}
        if told != self.limits:
            raise WeakTerms(
                "the server states other limits of updates than this client",
                expected=str(self.limits),
                got=str(told),
                remedy="give strategy and mod the same most_examples and weight",
            )
        client, step = self._client(record, context), record["step"]
        if step != "advertise" or _has_begun(context, client.run):
            client.load(_kept(context, client.run))
        asks = {"share": client.share, "confirm": client.confirm, "reveal": client.reveal}
        if step == "upload":
            answer = _upload(client, message, record, context, call_next)
        elif step == "advertise":
            answer = client.advertise()
        else:
            answer = asks[step](record["message"])
        context.state[KEY] = ConfigRecord({"run": client.run, **client.dump()})
        content = RecordDict({KEY: ConfigRecord({"message": answer})})
        return Message(content, reply_to=message)

    def _client(self, record: Mapping[str, Any], context: Context) -> Client:
        number = context.node_config.get("partition-id")
        if type(number) is not int:
            raise ConfigError(
                "this node has no number",
                expected="its number in public.json",
                got=f"partition-id {number!r}",
                remedy='flower-supernode --node-config "partition-id=3"',
            )
        identity, directory = read_keys(self.keys, number)
        return Client(
            number,
            run=record["run"],
            round_number=record["round"],
            training=str(context.run_id),
            identity=identity,
            directory=directory,
            ledger=ClientLedger(
                number,
                threshold=self.rules.threshold,
                budget=self.budget,
                path=Path(self.keys) / f"{number}.ledger",
                only_final=self.only_final,
            ),
            rules=self.rules,
        )


def _request(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A step's request, or RunRefused: exactly these entries, of these types."""
    wrong = {n for n, kind in _REQUEST.items() if type(record.get(n)) is not kind}
    wrong |= set(record) - set(_REQUEST)
    if wrong or record["step"] not in STEPS:
        raise RunRefused(
            "a request of the protocol cannot be read",
            expected=f"{', '.join(_REQUEST)}; a step of {', '.join(STEPS)}",
            got=f"wrong: {', '.join(sorted(wrong)) or repr(record['step'])[:40]}",
            remedy="use the same version of fedaudit at server and clients",
        )
    return record


def _has_begun(context: Context, run: str) -> bool:
    state = context.state.config_records.get(KEY)
    return state is not None and state["run"] == run


def _kept(context: Context, run: str) -> dict[str, bytes]:
    state = context.state.config_records.get(KEY)
    if state is None or state["run"] != run:
        raise UsageError(
            "a step of a run that this node has not begun",
            expected="the run of its keys",
            got="another run",
            remedy="wait for the next round",
        )
    return {k: v for k, v in state.items() if isinstance(v, bytes)}


def about(message_type: str, content: RecordDict) -> str:
    """Digest (hex) of everything that a client is given to train with, but for the protocol."""
    found = hashlib.sha256(f"fedaudit training|{message_type}".encode())
    for name in sorted(set(content) - {KEY}):
        record = content[name]
        found.update(json.dumps([type(record).__name__, name, len(record)]).encode())
        for key, value in record.items():  # in order: a model's tensors are loaded by it
            raw = value.data if isinstance(value, Array) else repr(value).encode()
            kind = [value.dtype, value.shape, value.stype] if isinstance(value, Array) else []
            found.update(json.dumps([key, type(value).__name__, kind, len(raw)]).encode())
            found.update(raw)
    return found.hexdigest()


def _upload(
    client: Client,
    message: Message,
    record: Mapping[str, Any],
    context: Context,
    call_next: ClientAppCallable,
) -> bytes:
    """The masked update. Whatever goes wrong once training has begun looks the same outside."""
    digest = about(message.metadata.message_type, message.content)
    kept = client.before_training(record["message"], digest)
    if kept is not None:
        return kept
    try:
        vector = _vector(message, record, context, call_next, client.ring())
        return client.upload(record["message"], vector, digest)
    except Exception as error:  # its kind alone could tell how large an update is
        _log.warning("fedaudit secure sum: training failed: %s", error)
        raise UsageError("training failed", got="no update", expected="a reply") from None


def _vector(
    message: Message,
    record: Mapping[str, Any],
    context: Context,
    call_next: ClientAppCallable,
    ring: RingQuantiser,
) -> npt.NDArray[np.unsignedinteger[Any]]:
    """Train, and the quantised update times its weight, followed by the weight."""
    content = RecordDict({k: r for k, r in message.content.items() if k != KEY})
    before = named(next(iter(content.array_records.values())))
    message.content = content
    reply = call_next(message, context)
    if reply.has_error():
        raise UsageError("training failed", got=str(reply.error.reason), expected="a reply")
    after = named(next(iter(reply.content.array_records.values())))
    metrics = next(iter(reply.content.metric_records.values()), MetricRecord())
    weight, most = metrics.get(record["weight"]), record["most"]
    wrong = misfit(after, {k: a.shape for k, a in before.items()})
    whole = isinstance(weight, int) and 1 <= weight <= most
    if wrong or not whole:
        raise UsageError(
            "the reply cannot be summed",
            expected=f"the tensors received, and a whole weight from 1 to {most}",
            got=wrong or f"{record['weight']} = {weight!r}",
            remedy="raise most_examples of SecureSumStrategy",
        )
    assert isinstance(weight, int)
    update = _flat(after) - _flat({k: before[k] for k in after})
    return ring.encode(np.append(update * (weight / most), weight * ring.step))


# -- server ---------------------------------------------------------------------------------------


class SecureSumStrategy(Strategy):
    """Wraps a strategy: it receives one reply a round, the mean of those who uploaded.

    `keys`: folder with the aggregator's key and everybody's public keys. `threshold`: fewest
    clients in a sum. `bound`: largest number of any update; `most_examples`: largest weight.
    `modulus_bits`: 64, since updates times their weight over the largest allowed are small numbers;
    32 for half of the bytes, and up to `bound` x `most_examples` / 2^31 more of error per client.
    `path`: a new folder for the trace, if one is wanted. `timeout`: seconds per message.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        keys: str | os.PathLike[str],
        threshold: int = 5,
        bound: float = 16.0,
        most_examples: int = 100_000,
        modulus_bits: Literal[32, 64] = 64,
        path: str | os.PathLike[str] | None = None,
        timeout: float = 3600.0,
    ) -> None:
        self.strategy, self.threshold, self.bound = strategy, threshold, float(bound)
        self.most_examples, self.timeout = int(most_examples), timeout
        self._identity, self._directory = read_keys(keys, AGGREGATOR_NUMBER)
        self._weight = str(getattr(strategy, "weighted_by_key", WEIGHT))
        self._path = None if path is None else Path(path)
        self._recorder: Recorder | None = None
        self._grid: Grid | None = None
        self._server: Server | None = None
        self._ring = RingQuantiser(bound, 1, modulus_bits)
        self._number: dict[int, int] = {}
        self._sent: list[Message] = []
        self._sizes: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        if name == "strategy":
            raise AttributeError(name)
        return getattr(self.strategy, name)

    # -- Flower's interface ----------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        self._grid, self._number, self._sizes = grid, {}, {}
        size = len(_flat(named(arrays)))
        digests = {about(m.metadata.message_type, m.content) for m in messages}
        plan = RunPlan(
            round=server_round,
            length=size + 1,
            threshold=self.threshold,
            bits=self._ring.bits,
            bound=self.bound,
            final=True,  # one sum a round: clients allow no other
            about="".join(digests) if len(digests) == 1 else "",
        )
        server = Server(plan, identity=self._identity, directory=self._directory)
        self._server = server
        nodes = [m.metadata.dst_node_id for m in messages]
        try:
            if len(digests) > 1:
                raise UsageError(
                    "clients of one round would train with different models or settings",
                    expected="the same content for all: masks cancel for nobody else",
                    got=f"{len(digests)} contents",
                    remedy="wrap a strategy that sends the same to all",
                )
            for node, answer in self._ask("advertise", dict.fromkeys(nodes, b"")).items():
                self._take(node, self._enrol, node, answer)
            roster = server.roster_message()
            self._ring = replace(self._ring, clients=len(self._number))
            shared = self._ask("share", dict.fromkeys(self._number, roster))
            accepted = [
                node
                for node, answer in shared.items()
                if self._take(node, server.accept_shares, self._number[node], answer)
            ]
            inboxes = {n: server.inbox(self._number[n]) for n in accepted}
        except FedauditError as error:
            self._failed(server_round, named(arrays), error)
            return []
        self._sent = [m for m in messages if m.metadata.dst_node_id in inboxes]
        for m in self._sent:
            inbox = inboxes[m.metadata.dst_node_id]
            own = {KEY: self._request("upload", inbox)}
            m.content = RecordDict({**m.content, **own})  # strategies send one content to all
        return self._sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        server = self._server
        if server is None or not self._sent:
            return None, None
        record = next(iter(self._sent[0].content.array_records.items()))
        before = named(record[1])
        try:
            for reply in replies:
                node = reply.metadata.src_node_id
                answer = self._message(reply)
                if answer is not None:
                    n = self._number[node]
                    self._take(node, server.accept_upload, n, answer)
            inside = {n: i for n, i in self._number.items() if i in server.uploaded}
            uploads = server.uploads_message()
            for node, answer in self._ask("confirm", dict.fromkeys(inside, uploads)).items():
                n = inside[node]
                self._take(node, server.accept_view, n, answer)
            views = {n: server.views(i) for n, i in inside.items()}
            for node, answer in self._ask("reveal", views).items():
                n = inside[node]
                self._take(node, server.accept_reveal, n, answer)
            total = self._ring.decode(server.open())
            weight = self._total_weight(float(total[-1]), len(server.uploaded))
        except FedauditError as error:
            self._failed(server_round, before, error)
            return None, None
        summed = _shaped(total[:-1] * self.most_examples, before)
        self._record(before, summed, weight, "")
        mean = {k: before[k] + _like(summed[k] / weight, before[k]) for k in before}
        content = RecordDict(
            {
                record[0] or ARRAYS: ArrayRecord({k: Array(a) for k, a in mean.items()}),
                "metrics": MetricRecord({self._weight: weight}),
            }
        )
        alone = Message(content, reply_to=self._sent[0])
        return self.strategy.aggregate_train(server_round, [alone])

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.strategy.summary()

    def close(self) -> None:
        """Mark the trace complete, after the last round."""
        if self._recorder is not None:
            self._recorder.close()

    # -- messages --------------------------------------------------------------------------------

    def _enrol(self, node: int, answer: bytes) -> None:
        assert self._server is not None
        number = Record.from_bytes(answer).number
        if number in self._number.values():
            raise UsageError(f"two nodes say that they are client {number}")
        self._server.enrol(number, answer)
        self._number[node] = number

    def _total_weight(self, last: float, uploaded: int) -> int:
        """The sum of weights, or RunRefused: one client's lie must not move the model by a huge
        factor."""
        weight = last / self._ring.step
        if not uploaded <= weight <= uploaded * self.most_examples:
            raise RunRefused(
                "the sum of weights cannot be that of these clients: one of them lies",
                expected=f"from {uploaded} to {uploaded * self.most_examples}",
                got=f"{weight:g}",
                remedy="repeat the round with other clients",
            )
        return int(np.rint(weight))

    def _request(self, step: str, message: bytes) -> ConfigRecord:
        assert self._server is not None
        plan = self._server.plan
        return ConfigRecord(
            {
                "step": step,
                "run": plan.run,
                "round": plan.round,
                "message": message,
                "most": self.most_examples,
                "weight": self._weight,
            }
        )

    def _ask(self, step: str, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """One step with every node: its answer, where there is one."""
        assert self._grid is not None
        requests = [
            Message(
                RecordDict({KEY: self._request(step, m)}),
                dst_node_id=node,
                message_type=MessageType.TRAIN,
            )
            for node, m in messages.items()
        ]
        answers = self._grid.send_and_receive(requests, timeout=self.timeout)
        found = ((a.metadata.src_node_id, self._message(a)) for a in answers)
        return {node: a for node, a in found if a is not None}

    def _message(self, reply: Message) -> bytes | None:
        node = reply.metadata.src_node_id
        if reply.has_error() or KEY not in reply.content.config_records:
            why = reply.error.reason if reply.has_error() else "no part of the protocol"
            _log.warning("fedaudit secure sum: node %s: %s", node, why)
            return None
        message = reply.content.config_records[KEY].get("message")
        if not isinstance(message, bytes):
            return None
        self._sizes[node] = self._sizes.get(node, 0) + len(message)
        return message

    def _take(
        self, node: int, accept: Callable[[int, bytes], None], number: int, message: bytes
    ) -> bool:
        """Give a message to the server; a refused one leaves its node out."""
        try:
            accept(number, message)
        except FedauditError as error:
            _log.warning("fedaudit secure sum: node %s: %s", node, error)
            return False
        return True

    # -- the trace -------------------------------------------------------------------------------

    def _failed(self, server_round: int, before: Named, error: FedauditError) -> None:
        _log.warning("fedaudit secure sum: round %s has no sum: %s", server_round, error)
        self._sent = []
        self._record(before, None, 0, error.what)

    def _record(self, before: Named, summed: Named | None, weight: int, why: str) -> None:
        """One round: models down, sizes up, the question, the sum of weighted updates."""
        if self._path is None or self._server is None:
            return
        recorder = self._recorder or self._open(before)
        inside = self._server.uploaded if summed is not None else tuple(self._number.values())
        with recorder.round() as wire:
            for number in self._number.values():
                wire.send("model", SERVER, _name(number), before, step=0)
            for node, size in self._sizes.items():
                if node in self._number:
                    who = _name(self._number[node])
                    wire.send("masked", who, AGGREGATOR, None, step=1, size=size)
            asks: dict[str, Any] = {QUERY: 0} if summed is not None else {QUERY: 0, UNANSWERED: why}
            question = {c: np.uint8(c in {_name(n) for n in inside}) for c in self._clients()}
            wire.send("query", SERVER, AGGREGATOR, question, step=2, metadata=asks)
            if summed is not None:
                flat = _flat(summed) / self.most_examples
                error = self._ring.stored_error(flat, self.most_examples, len(inside))
                given = {QUERY: 0, "total weight": weight, "error": error}
                payload = {k: a.astype(np.float32) for k, a in summed.items()}
                wire.send("sum", AGGREGATOR, SERVER, payload, step=3, metadata=given)

    def _clients(self) -> list[str]:
        return [_name(n) for n in sorted(self._directory.numbers) if n != AGGREGATOR_NUMBER]

    def _open(self, before: Named) -> Recorder:
        layouts = {**layouts_like(before), QUERY: query_layout(self._clients())}
        assert self._path is not None
        assert self._server is not None
        self._recorder = Recorder(
            self._path,
            layouts=layouts,
            federation={
                "aggregation": type(self.strategy).__name__,
                "software": f"flwr {require()}",
                "hubs": [SERVER],
                "clients": self._clients(),
                "parties": [SERVER, AGGREGATOR, *self._clients()],
            },
            declared=[
                {
                    "name": "secure_aggregation",
                    "covers": ["parameter", "buffer", "integer", "weight", "metadata"],
                    "trust": "clients' identity keys; fewer than a third colluding, 5 % above 100",
                    "threshold": self.threshold,
                    "modulus": f"2^{self._ring.bits}",
                    "bound": self.bound,
                    "quorum": self._server.plan.quorum,
                }
            ],
        )
        return self._recorder


def _name(number: int) -> str:
    return f"client-{number}"


def _shaped(flat: npt.NDArray[np.float64], like: Named) -> Named:
    sizes = np.cumsum([a.size for a in like.values()])[:-1]
    parts = np.split(flat, sizes)
    return {k: p.reshape(a.shape) for (k, a), p in zip(like.items(), parts, strict=True)}


def _like(values: npt.NDArray[Any], like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """In the dtype of a tensor; counters are rounded."""
    return np.asarray(np.rint(values) if like.dtype.kind in "iu" else values).astype(like.dtype)
