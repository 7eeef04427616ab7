"""The protections of a run, adapted to games of one round."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from fedaudit import settings
from fedaudit.audits.active_membership.audit import ActiveMembership
from fedaudit.errors import ConfigError
from fedaudit.hooks import Hook
from fedaudit.protections.local_dp.protection import CATEGORICAL, LocalDP
from fedaudit.protections.secure_aggregation import SecureAggregation
from fedaudit.setup.catalogue import PROTECTIONS, find

if TYPE_CHECKING:
    from fedaudit.setup.config import Config
    from fedaudit.trace import Trace


def protections_of(
    audit: ActiveMembership, config: Config | None, trace: Trace, *, words: int = 0
) -> tuple[LocalDP | None, tuple[Hook, ...], list[str]]:
    """The local mechanism of the games, all protections in force, and remarks.

    Token records are randomised token by token: their alphabet is all `words`.
    """
    remarks = []
    hooks = () if config is None else tuple(config.protections.values())
    declared = {d.get("name"): d for d in trace.manifest.declared}
    ready = []
    local: LocalDP | None = None
    for hook in hooks:
        if isinstance(hook, LocalDP):
            local = hook.as_declared(declared.get(hook.name, {}))
        elif getattr(hook, "epsilon", None) is not None or isinstance(
            getattr(hook, "noise_multiplier", None), tuple
        ):
            # use the noise that the trace declares: it was computed from a target for the whole
            # run, or put in the order of the trace's clients
            z = declared.get(hook.name, {}).get("noise_multiplier", 1.0)
            z = tuple(z) if isinstance(z, list) else z
            ready.append(replace(hook, noise_multiplier=z, epsilon=None))
        else:
            ready.append(hook)
    for d in trace.manifest.declared:
        if "applied" in d and d.get("name") in PROTECTIONS:
            # a replay applied this protection to the trace: games use it too
            cls = find(PROTECTIONS, "protection", str(d["name"]))
            ready.append(cls(**{f.name: d[f.name] for f in fields(cls) if f.init and f.name in d}))
            remarks.append(f"games use {d['name']}, as if the run had used it")
    for i, hook in enumerate(ready):
        if isinstance(hook, SecureAggregation):
            ready[i] = replace(hook, masks="skipped", plan="none", dropout=0.0)
            remarks.append("games compute secure aggregation's sums without masks")
        if getattr(hook, "unit", None) == "person":
            ready[i] = replace(hook, unit="record")
            remarks.append(f"in games {hook.name} clips per record: a target is one record")
    if audit.local_dp is not None:
        if local is not None:
            remarks.append("games use the audit's own local mechanism instead of the run's")
        own = audit.local_dp
        if words and own.get("mechanism", "grr") in CATEGORICAL:
            own = {"alphabet": words, "low": 0.0, "high": words - 1.0, **own}
        local = settings.check(LocalDP, own, "audits.active_membership.local_dp")
        if words and (
            (local.alphabet, local.low, local.high) != (words, 0.0, words - 1.0)
            or local.decoder == "unbiased"
        ):
            raise ConfigError(
                "audits.active_membership.local_dp does not fit tokens",
                expected="grr, rappor or dbitflip on the vocabulary, read back as a token",
                got=f"{local.mechanism}, alphabet {local.alphabet}, decoder {local.decoder}",
                remedy="leave out alphabet, low, high and decoder",
            )
    if local is None:
        return None, tuple(ready), remarks
    local = replace(local)  # a copy: what it learns about its data must not reach the run
    return local, (local, *ready), remarks


def for_clients(hook: Hook, count: int) -> Hook:
    """A protection whose settings per client are cut or repeated to `count` clients."""
    changed = {}
    for f in fields(hook):  # type: ignore[arg-type]
        value = getattr(hook, f.name)
        if f.init and isinstance(value, tuple) and len(value) > 1:
            changed[f.name] = tuple(value[i % len(value)] for i in range(count))
    return replace(hook, **changed)  # type: ignore[type-var]
