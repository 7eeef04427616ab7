"""All files of an app together: its API, strategies, mods and rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedaudit.recorders.flower.doctor.source import Call, SourceFile
from fedaudit.recorders.flower.protections import CENTRAL

STRATEGIES = {"flwr.serverapp.strategy": "message", "flwr.server.strategy": "legacy"}
OURS = ("RecordingStrategy", "RecordingLegacyStrategy", "RecordingSecAggWorkflow", "record_mod")
OWN = "fedaudit.flower."
WITHOUT_MEAN = {
    "FedXgbBagging": "trees, not tensors of one shape",
    "FedXgbCyclic": "trees, not tensors of one shape",
}


class App:
    """The facts that all files of an app show.

    `stacks`: strategies with those that they wrap, outermost first; several if a branch decides or
    the code has several. `strategies`: the only stack, else empty; `wrappers`: those that add
    noise; `own_strategies`: classes that the app derives; `mods`: (full name, the call that makes
    it, line); `app_mods`: those that act on evaluation too.
    """

    def __init__(self, sources: Sequence[SourceFile], config: Mapping[str, Any]) -> None:
        calls = [c for s in sources for c in s.calls()]
        self.recorded = any(c.short in OURS and c.name.startswith("fedaudit") for c in calls)
        found = [c for c in calls if family(c.name)]
        self.wrappers = [c for c in found if c.short.startswith(CENTRAL)]
        self.stacks = [stack for s in sources for stack in stacks_of(s)]
        self.strategies = self.stacks[0] if len(self.stacks) == 1 else []
        classes = {k: v for s in sources for k, v in s.classes.items()}
        self.own_strategies = [k for k, v in classes.items() if any(family(b) for b in v)]
        self.mods = [m for s in sources for m in s.mods()]
        self.app_mods = [m for s in sources for m in s.mods(everywhere=True)]
        self.kind = self._kind(calls, classes)
        self.secagg = [c for c in calls if c.short in ("SecAggPlusWorkflow", "SecAggWorkflow")]
        self.opacus = [c for c in calls if c.short in ("make_private", "make_private_with_epsilon")]
        self.rounds = _rounds(calls, config)
        self.trees = [c.short for c in found if c.short in WITHOUT_MEAN]
        self.config = config
        self.records = [c for c in calls if c.name.startswith(OWN) and c.short == "protect_data"]
        self.fields = tuple(dict.fromkeys(k for s in sources for k in s.metric_keys()))

    @property
    def summed(self) -> bool:
        """Whether the server opens only sums: SecAgg+ with the older API."""
        return bool(self.secagg) and self.kind == "legacy"

    @property
    def local_noise(self) -> list[tuple[Call, int]]:
        """Every LocalDpMod of the clients, and its line."""
        return [
            (call, line)
            for name, call, line in self.mods
            if name.endswith(".LocalDpMod") and call is not None
        ]

    @property
    def mod_names(self) -> set[str]:
        """Last parts of the mods' names; empty for a mod that cannot be read."""
        return {m.rsplit(".", 1)[-1] for m, _, _ in self.mods}

    def _kind(self, calls: Sequence[Call], classes: Mapping[str, Sequence[str]]) -> str:
        bases = [b for v in classes.values() for b in v]
        families = {family(c.name) for stack in self.stacks for c in stack} | {
            family(b) for b in bases
        }
        if "message" in families:
            return "message"
        numpy_clients = any(b.rsplit(".", 1)[-1] in ("NumPyClient", "Client") for b in bases)
        by_function = any(c.short == "ServerApp" and "server_fn" in c.arguments for c in calls)
        return "legacy" if "legacy" in families or numpy_clients or by_function else "loop"


def stacks_of(source: SourceFile) -> list[list[Call]]:
    """Every way in which a file wraps its strategies: one list per strategy that none wraps."""
    found = {id(c.node): c for c in source.calls() if family(c.name)}
    inside = {
        at: [found[id(n)] for n in source.argument_calls(c) if id(n) in found and id(n) != at]
        for at, c in found.items()
    }

    def below(call: Call, seen: tuple[int, ...]) -> list[list[Call]]:
        wrapped = [c for c in inside[id(call.node)] if id(c.node) not in seen]
        direct = [c for c in wrapped if not any(c in inside[id(w.node)] for w in wrapped)]
        seen = (*seen, id(call.node))
        return [[call, *rest] for c in direct for rest in below(c, seen)] or [[call]]

    held = {id(c.node) for several in inside.values() for c in several}
    out = [stack for at, c in found.items() if at not in held for stack in below(c, ())]
    # a wrapper in a branch: without it, what it wraps runs alone
    out += [stack[1:] for stack in out if len(stack) > 1 and _optional(stack)]
    return out


def _optional(stack: Sequence[Call]) -> bool:
    """Whether a branch alone adds the outermost strategy: what it wraps stands outside of it."""
    return bool(stack[0].branches - stack[1].branches)


def family(name: str) -> str:
    """The API that a strategy's full name belongs to; empty if it is not a strategy."""
    return next((v for k, v in STRATEGIES.items() if name.startswith(k + ".")), "")


def _rounds(calls: Sequence[Call], config: Mapping[str, Any]) -> int | None:
    for call in calls:
        value = call.arguments.get("num_rounds")
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    value = config.get("num-server-rounds")
    return value if isinstance(value, int) else None
