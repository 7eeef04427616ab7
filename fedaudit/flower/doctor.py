"""Looks at a Flower app without running it: what is protected, who sees what, what can be audited.

The app's pyproject.toml says where server and client are; their code is parsed, never imported.
What cannot be read off the code (a strategy chosen at run time, a value that is computed) is said
to be unknown, never guessed. Flower itself need not be installed.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedaudit.accounting import Guarantee
from fedaudit.errors import ConfigError
from fedaudit.flower.project import read_project
from fedaudit.flower.protections import (
    CENTRAL,
    CLIENT_SIDE,
    MASK_BITS,
    MASKED_BY,
    MULTIPLIER,
    central,
    local,
    update_noise,
)

STRATEGIES = {"flwr.serverapp.strategy": "message", "flwr.server.strategy": "legacy"}
MODS = ("flwr.clientapp.mod.", "flwr.client.mod.", "flwr.compat.client.mod.")
OURS = ("RecordingStrategy", "RecordingLegacyStrategy", "RecordingSecAggWorkflow", "record_mod")
OUR_MODS = ("record_mod", "guard_mod", "update_noise_mod", "allocated_noise_mod")
OWN = "fedaudit.flower."
PER_RECORD = ("bitrand", "ome")
"""Mechanisms of local DP whose epsilon is that of a record; for the others, of one feature."""
WITHOUT_MEAN = {
    "FedXgbBagging": "trees, not tensors of one shape",
    "FedXgbCyclic": "trees, not tensors of one shape",
}
DELTA = 1e-5


# -- reading code ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A call of something of Flower's: `name` in full, arguments as far as they can be read."""

    name: str
    file: str
    line: int
    arguments: Mapping[str, Any]
    node: ast.Call

    @property
    def short(self) -> str:
        return self.name.rsplit(".", 1)[-1]


class Unknown:
    """A value that only a run would tell."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = Unknown()


class Source:
    """One file: what its names mean, and what it calls."""

    def __init__(self, file: Path, root: Path, config: Mapping[str, Any]) -> None:
        self.file = file.relative_to(root).as_posix()
        try:
            self.tree = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError) as error:
            raise ConfigError(
                f"{file} could not be read",
                expected="Python",
                got=f"{type(error).__name__}: {error}",
                remedy="see that the app runs",
            ) from None
        self.config = config
        self.names: dict[str, str] = {}
        self.values: dict[str, ast.expr | None] = {}
        self.classes: dict[str, list[str]] = {}
        for node in ast.walk(self.tree):
            self._note(node)

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for a in node.names:
                self.names[a.asname or a.name.split(".")[0]] = (
                    a.name if a.asname else a.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for a in node.names:
                self.names[a.asname or a.name] = f"{node.module}.{a.name}"
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            self._assigned(node.targets[0], node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assigned(node.target, node.value)
        elif isinstance(node, ast.ClassDef):
            self.classes[node.name] = [self.full(base) for base in node.bases]

    def _assigned(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            # assigned twice: which one counts is not known from here
            known = target.id in self.values
            self.values[target.id] = None if known else value

    def full(self, node: ast.expr) -> str:
        """The dotted name behind an expression, through the file's imports."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return f"{self.full(node.value)}.{node.attr}"
        return ""

    def value(self, node: ast.expr | None, depth: int = 0) -> Any:
        """A literal, or a key of the run config; UNKNOWN otherwise."""
        if node is None or depth > 8:
            return UNKNOWN
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
        if isinstance(node, ast.Name):
            return self.value(self.values.get(node.id), depth + 1)
        if isinstance(node, ast.Call) and self.full(node.func) in ("int", "float", "str"):
            return self.value(node.args[0], depth + 1) if node.args else UNKNOWN
        key = None
        if isinstance(node, ast.Subscript):
            key = self.value(node.slice, depth + 1)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_get = node.func.attr == "get" and node.args
            key = self.value(node.args[0], depth + 1) if is_get else None
        if isinstance(key, str):
            return self.config.get(key, UNKNOWN)
        return UNKNOWN

    def calls(self) -> Iterator[Call]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                name = self.full(node.func)
                given: dict[str, Any] = {str(i): self.value(a) for i, a in enumerate(node.args)}
                given |= {k.arg: self.value(k.value) for k in node.keywords if k.arg}
                yield Call(name, self.file, node.lineno, given, node)

    def mods(self) -> Iterator[tuple[str, Call | None, int]]:
        """(name in full, the call that makes it, line) of every mod given to a ClientApp."""
        for call in self.calls():
            if call.short not in ("ClientApp", "train", "evaluate", "query"):
                continue
            for keyword in call.node.keywords:
                if keyword.arg != "mods":
                    continue
                listed: ast.expr | None = keyword.value
                if isinstance(listed, ast.Name):
                    listed = self.values.get(listed.id)
                if not isinstance(listed, ast.List | ast.Tuple):
                    yield "", None, keyword.value.lineno
                    continue
                for item in listed.elts:
                    yield self._mod(item)

    def _mod(self, item: ast.expr) -> tuple[str, Call | None, int]:
        node: ast.expr | None = item
        if isinstance(item, ast.Name) and item.id not in self.names:
            node = self.values.get(item.id)
        if isinstance(node, ast.Call):
            found = next(c for c in self.calls() if c.node is node)
            return found.name, found, item.lineno
        return ("" if node is None else self.full(node)), None, item.lineno

    def told(self) -> Iterator[str]:
        """Keys of metrics that are written down in this file."""
        for call in self.calls():
            if call.short == "MetricRecord" and call.node.args:
                given = call.node.args[0]
                if isinstance(given, ast.Name):
                    given = self.values.get(given.id) or given
                if isinstance(given, ast.Dict):
                    for key in given.keys:
                        if isinstance(key, ast.Constant) and isinstance(key.value, str):
                            yield key.value


# -- what is said ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Protection:
    """Something that protects: what it covers, who must be honest, what it promises."""

    name: str
    where: str
    covers: str
    trust: str
    guarantee: Guarantee | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What the code of an app says.

    `kind` "message" or "legacy"; `strategies` outermost first; `fields` what travels beside the
    model; `secure_aggregation` whether Flower's is in use or could be; `sees` observer -> what;
    `audits` name -> (whether it will apply, why or how); `problems` what does not do what it seems
    to; `lines` what to change to record the app.
    """

    app: str
    kind: str
    strategies: tuple[str, ...] = ()
    mods: tuple[str, ...] = ()
    rounds: int | None = None
    recorded: bool = False
    fields: tuple[str, ...] = ()
    protections: tuple[Protection, ...] = ()
    secure_aggregation: str = ""
    sees: Mapping[str, str] = field(default_factory=dict)
    audits: Mapping[str, tuple[bool, str]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        raw = asdict(self)
        for own, p in zip(raw["protections"], self.protections, strict=True):
            own["guarantee"] = None if p.guarantee is None else p.guarantee.to_dict()
        return raw

    def text(self) -> str:
        """For a terminal."""
        out = [
            f"app         {self.app} ({KIND.get(self.kind, self.kind)})",
            f"strategy    {' around '.join(self.strategies) or 'none that can be read'}",
            f"mods        {', '.join(self.mods) or 'none'}",
            f"rounds      {self.rounds or 'not written down'}",
            f"recorded    {'yes' if self.recorded else 'no'}",
            "",
            "Protected by",
        ]
        for p in self.protections:
            out += [
                f"  {p.name} ({p.where})",
                f"    covers    {p.covers}",
                f"    trusts    {p.trust}",
            ]
            if p.guarantee is not None:
                g = p.guarantee
                out.append(
                    f"    promises  epsilon {g.epsilon:.4g} per {g.unit} at delta {g.delta:g}, "
                    f"{g.relation.replace('_', ' ')} ({g.covers})"
                )
            if p.note:
                out.append(f"    note      {p.note}")
        out += ["  nothing"] if not self.protections else []
        out += ["", f"Secure aggregation: {self.secure_aggregation}"]
        out += ["", "Who would see what"]
        out += [f"  {who:<10} {what}" for who, what in self.sees.items()]
        out += ["", "Audits of a recording"]
        for name, (applies, why) in self.audits.items():
            out.append(f"  {'yes' if applies else 'no ':<4} {name}: {why}")
        if self.problems:
            out += ["", "Does not do what it seems to"]
            out += [f"  - {p}" for p in self.problems]
        if self.lines:
            out += ["", "To record it, change"]
            out += [f"  {line}" for line in self.lines]
        return "\n".join(out) + "\n"


KIND = {
    "message": "Message API",
    "legacy": "older API: NumPyClient, configure_fit",
    "loop": "a loop of its own, no strategy",
}


def examine(folder: str | os.PathLike[str], *, delta: float = DELTA) -> Diagnosis:
    """Read an app and say what it protects."""
    root = Path(folder)
    project = read_project(root)
    config = project.config
    sources = [
        Source(file, root, config)
        for file in sorted(root.rglob("*.py"))
        if not any(part.startswith(".") or part == "__pycache__" for part in file.parts)
    ]
    found = _Findings(sources, config, delta)
    return Diagnosis(
        app=project.name,
        kind=found.kind,
        strategies=tuple(c.short for c in found.strategies) or tuple(found.own_strategies),
        mods=tuple(m.rsplit(".", 1)[-1] or "unknown" for m, _, _ in found.mods),
        rounds=found.rounds,
        recorded=found.recorded,
        fields=tuple(dict.fromkeys(k for s in sources for k in s.told())),
        protections=tuple(found.protections),
        secure_aggregation=found.secure_aggregation(),
        sees=found.sees(),
        audits=found.audits(),
        problems=tuple(found.problems),
        lines=() if found.recorded else found.lines(),
    )


class _Findings:
    """What all files together say."""

    def __init__(self, sources: Sequence[Source], config: Mapping[str, Any], delta: float) -> None:
        self.delta = delta
        self.problems: list[str] = []
        calls = [c for s in sources for c in s.calls()]
        self.recorded = any(c.short in OURS and c.name.startswith("fedaudit") for c in calls)
        found = [c for c in calls if self._family(c.name)]
        wrappers = [c for c in found if c.short.startswith(CENTRAL)]
        self.strategies = wrappers + [c for c in found if c not in wrappers]
        classes = {k: v for s in sources for k, v in s.classes.items()}
        self.own_strategies = [k for k, v in classes.items() if any(self._family(b) for b in v)]
        self.mods = [m for s in sources for m in s.mods()]
        self.kind = self._kind(calls, classes)
        self.secagg = [c for c in calls if c.short in ("SecAggPlusWorkflow", "SecAggWorkflow")]
        self.opacus = [c for c in calls if c.short in ("make_private", "make_private_with_epsilon")]
        self.rounds = self._rounds(calls, config)
        self.trees = [c.short for c in found if c.short in WITHOUT_MEAN]
        self.config = config
        self.records = [c for c in calls if c.name.startswith(OWN) and c.short == "protect_data"]
        self.protections = [
            *self._central(wrappers),
            *self._local(),
            *self._ours(),
            *self._others(),
        ]
        self._check(wrappers)
        self._check_secure_aggregation()
        self._check_ours()

    @staticmethod
    def _family(name: str) -> str:
        """Which kind of strategy a full name belongs to; empty if to none."""
        return next((v for k, v in STRATEGIES.items() if name.startswith(k + ".")), "")

    def _kind(self, calls: Sequence[Call], classes: Mapping[str, Sequence[str]]) -> str:
        bases = [b for v in classes.values() for b in v]
        families = {self._family(c.name) for c in self.strategies} | {
            self._family(b) for b in bases
        }
        if "message" in families:
            return "message"
        numpy_clients = any(b.rsplit(".", 1)[-1] in ("NumPyClient", "Client") for b in bases)
        by_function = any(c.short == "ServerApp" and "server_fn" in c.arguments for c in calls)
        return "legacy" if "legacy" in families or numpy_clients or by_function else "loop"

    @staticmethod
    def _rounds(calls: Sequence[Call], config: Mapping[str, Any]) -> int | None:
        for call in calls:
            value = call.arguments.get("num_rounds")
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        value = config.get("num-server-rounds")
        return value if isinstance(value, int) else None

    # -- protections -----------------------------------------------------------------------------

    def _central(self, wrappers: Sequence[Call]) -> Iterator[Protection]:
        for call in wrappers:
            z = _number(call.arguments, "noise_multiplier", 1)
            promise, note = None, "the mean must weigh all clients alike: FedAvg goes by examples"
            if z is None:
                note = "the noise multiplier is not written down: no epsilon can be told"
            elif self.rounds is None:
                note = "the number of rounds is not written down: no epsilon can be told"
            else:
                promise = central(z, self.rounds, self.delta)
            yield Protection(
                name=call.short,
                where=f"{call.file}:{call.line}",
                covers="the model that is sent on and released, for a client's whole data",
                trust="the server, which sees every update before noise is added",
                guarantee=promise,
                note=note,
            )

    def _local(self) -> Iterator[Protection]:
        for name, call, line in self.mods:
            if not name.endswith(".LocalDpMod") or call is None:
                continue
            keys = ("clipping_norm", "sensitivity", "epsilon", "delta")
            values = [_number(call.arguments, k, i) for i, k in enumerate(keys)]
            promise, note = None, ""
            known = [v for v in values if v is not None]
            if len(known) < 4:
                note = "its settings are not written down: no epsilon can be told"
            elif self.rounds is None:
                note = "the number of rounds is not written down: no epsilon can be told"
            else:
                clip, sensitivity, each, tiny = known
                promise = local(clip, sensitivity, each, tiny, self.rounds)
                note = f"set to epsilon {known[2]:g} per message; a client sends {self.rounds}"
                if known[1] < 2 * known[0]:
                    self.problems.append(
                        f"LocalDpMod: sensitivity {known[1]:g} is below twice the clipping norm "
                        f"{known[0]:g}, by which replacing a client's data can move its update: "
                        f"epsilon {known[2]:g} per message does not hold"
                    )
                if known[2] > 1:
                    self.problems.append(
                        f"LocalDpMod: its formula for the noise is proven for epsilon up to 1, "
                        f"not for {known[2]:g}"
                    )
            yield Protection(
                name="LocalDpMod",
                where=f"{call.file}:{line}",
                covers="every tensor of an update; not the metrics, not the number of examples",
                trust="the client's own code",
                guarantee=promise,
                note=note,
            )

    def _others(self) -> Iterator[Protection]:
        for call in self.secagg[:1]:
            if self.kind == "legacy":
                yield Protection(
                    name="SecAgg+",
                    where=f"{call.file}:{call.line}",
                    covers="the tensors of single updates: the server opens sums; not the metrics, "
                    "not the number of examples",
                    trust=MASKED_BY,
                    note=f"pairwise masks have seeds of at most {MASK_BITS} bits in Flower 1.41: "
                    "who keeps masked vectors can search for them; what sums give away together "
                    "is a question of its own: query_plan",
                )
        for call in self.opacus[:1]:
            yield Protection(
                name="Opacus DP-SGD",
                where=f"{call.file}:{call.line}",
                covers="single records within a client's update",
                trust="the client's own code",
                note="hand its accountant over: fedaudit audit TRACE --opacus FILE",
            )

    def _ours(self) -> Iterator[Protection]:
        """The protections of fedaudit.flower."""
        for name, call, _ in self.mods:
            if call is None or not name.startswith(OWN):
                continue
            if call.short == "guard_mod":
                yield self._guard(call)
            elif call.short == "update_noise_mod":
                yield self._update_noise(call)
        for call in self.records[:1]:
            yield self._local_dp(call)

    def _guard(self, call: Call) -> Protection:
        action = call.arguments.get("action", "refuse")
        acts = {
            "refuse": "such a model is not trained on, and the server is not told why",
            "warn": "it only warns: such a model is trained on all the same",
        }
        return Protection(
            name="guard_mod",
            where=f"{call.file}:{call.line}",
            covers="a client against a server that plants a model to read records out of its "
            "update; an honest model's update is not changed",
            trust=f"{CLIENT_SIDE}, not the server",
            note=acts.get(str(action), "what it does with such a model is not written down"),
        )

    def _update_noise(self, call: Call) -> Protection:
        z = _number({**call.arguments, "": 0}, "noise_multiplier", -1)
        if z is None and "noise_multiplier" not in call.arguments:
            z = _number(self.config, MULTIPLIER, -1)
        promise, note = None, "its noise multiplier is not written down: no epsilon can be told"
        if z is not None and self.rounds is None:
            note = "the number of rounds is not written down: no epsilon can be told"
        elif z is not None and self.rounds is not None:
            promise, note = update_noise(z, self.rounds, self.delta), ""
        return Protection(
            name="update_noise_mod",
            where=f"{call.file}:{call.line}",
            covers="every tensor of an update; not the metrics, not the number of examples",
            trust=CLIENT_SIDE,
            guarantee=promise,
            note=note,
        )

    def _local_dp(self, call: Call) -> Protection:
        mechanism = call.arguments.get("mechanism", "grr")
        each = _number({"epsilon": 1.0, **call.arguments}, "epsilon", -1)
        if each is None or not isinstance(mechanism, str):
            note = "its mechanism or epsilon is not written down"
        elif mechanism in PER_RECORD:
            note = f"{mechanism} with epsilon {each:g} a record, as it claims"
        else:
            note = f"{mechanism} with epsilon {each:g} a feature: r features claim r times as much"
        return Protection(
            name="protect_data",
            where=f"{call.file}:{call.line}",
            covers="the features of every record, from everybody who sees anything trained on "
            "them; not the labels, not the number of records",
            trust=CLIENT_SIDE,
            note=f"{note}; fedaudit.flower.data.local_guarantee says what holds",
        )

    def _check_ours(self) -> None:
        """Our own mods, as they are meant."""
        own = [
            (name.rsplit(".", 1)[-1], call) for name, call, _ in self.mods if name.startswith(OWN)
        ]
        for name, call in own:
            if call is None and name in OUR_MODS:
                self.problems.append(f"{name} is not called: mods=[{name}(...)]")
        order = [name for name, _ in own]
        if {"guard_mod", "record_mod"} <= set(order) and order.index("guard_mod") < order.index(
            "record_mod"
        ):
            self.problems.append(
                "guard_mod before record_mod: rounds that it refuses are not on record"
            )

    def _check_secure_aggregation(self) -> None:
        """SecAgg+ has two halves, and a place where it works."""
        names = {m.rsplit(".", 1)[-1] for m, _, _ in self.mods}
        mods = names & {"secaggplus_mod", "secagg_mod"}
        if mods and not self.secagg:
            self.problems.append(f"{min(mods)} without SecAggPlusWorkflow at the server")
        if self.secagg and not mods and "" not in names:
            self.problems.append(
                f"{self.secagg[0].short} without secaggplus_mod at the clients: they cannot "
                "answer, and no round is aggregated"
            )
        if self.kind != "legacy" and (self.secagg or mods):
            self.problems.append(
                "SecAgg+ works with the older API alone: it does nothing for this app's strategy"
            )

    def secure_aggregation(self) -> str:
        """Whether Flower's own is in use, or could be."""
        if self.summed:
            return f"in use ({self.secagg[0].short}); RecordingSecAggWorkflow records it"
        if self.kind == "legacy":
            return (
                "available, not in use: DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(...)) at "
                "the server, secaggplus_mod at the clients"
            )
        return (
            "not available to this app: Flower has SecAgg+ for the older API alone "
            "(NumPyClient and a strategy of flwr.server.strategy)"
        )

    def _check(self, wrappers: Sequence[Call]) -> None:
        """Protections that do not work together, or not at all."""
        names = {m.rsplit(".", 1)[-1] for m, _, _ in self.mods}
        for side, mod in (("Fixed", "fixedclipping_mod"), ("Adaptive", "adaptiveclipping_mod")):
            wrapper = f"{CENTRAL}ClientSide{side}Clipping"
            used = any(c.short == wrapper for c in wrappers)
            if used and mod not in names and "" not in names:
                self.problems.append(
                    f"{wrapper} without {mod} at the clients: nobody clips, nothing is promised"
                )
            if mod in names and not used:
                self.problems.append(
                    f"{mod} without {wrapper} at the server: every message is answered by an error"
                )
        for call in wrappers:
            if _number(call.arguments, "noise_multiplier", 1) == 0:
                self.problems.append(f"{call.short} with a noise multiplier of 0 promises nothing")
        if self.kind == "loop":
            self.problems.append(
                "no strategy was found: an app that talks to the grid by itself is recorded at "
                "its clients, by record_mod"
            )

    # -- who sees what, and what can be asked ----------------------------------------------------

    @property
    def summed(self) -> bool:
        return bool(self.secagg) and self.kind == "legacy"

    @property
    def noised(self) -> bool:
        return any(p.name in ("LocalDpMod", "update_noise_mod") for p in self.protections)

    def sees(self) -> dict[str, str]:
        noisy = any(p.name.startswith(CENTRAL) for p in self.protections)
        single = (
            "every client's model by node, clipped and with noise"
            if self.noised
            else ("every client's model by node, in the clear")
        )
        if self.records:
            single += ", trained on randomised features"
        server = "sums of models, and masked ones by node" if self.summed else single
        released = "with noise" if noisy else "as it was averaged"
        return {
            "server": f"{server}; metrics and numbers of examples by node",
            "client": f"its own messages, and the model of every round ({released})",
            "public": f"the last model ({released})",
            "network": "who talks when, and how much; without TLS, all that the server sees",
        }

    def audits(self) -> dict[str, tuple[bool, str]]:
        """Audit -> whether its needs would be met by a recording, and how."""
        trees = f"the app sends {WITHOUT_MEAN[self.trees[0]]}" if self.trees else ""
        named = "names senders: ask what a shuffler would change, --as shuffle"
        return {
            "coverage": (True, "what left a client outside of every declared protection"),
            "fingerprint": (False, trees or "the server sees sums only")
            if trees or self.summed
            else (True, f"the trace {named}"),
            "two_stage_membership": (False, trees)
            if trees
            else (True, "with --model package.module:function and --data FILE"),
            "query_plan": (True, "on the sums that were asked for")
            if self.summed
            else (False, "nothing is summed by secure aggregation"),
        }

    def lines(self) -> tuple[str, ...]:
        if self.kind == "loop":
            return (
                "from fedaudit.flower import record_mod",
                'app = ClientApp(mods=[record_mod("traces")])',
            )
        if self.summed:
            return (
                "from fedaudit.flower import RecordingSecAggWorkflow",
                f'fit_workflow=RecordingSecAggWorkflow({self.secagg[0].short}(...), "trace")',
            )
        name = "RecordingStrategy" if self.kind == "message" else "RecordingLegacyStrategy"
        return (
            f"from fedaudit.flower import {name}",
            f'strategy = {name}(strategy, "trace")',
        )


def _number(arguments: Mapping[str, Any], name: str, position: int) -> float | None:
    value = arguments.get(name, arguments.get(str(position), UNKNOWN))
    fine = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if fine else None
