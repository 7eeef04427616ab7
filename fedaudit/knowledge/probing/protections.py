"""What games are played behind: the protections of a run, fit for a game of one round."""

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
    """The local mechanism of the games, all protections they are played behind, and remarks.

    Records that are tokens are randomised token by token: their alphabet is all `words`.
    """
    remarks = []
    hooks = () if config is None else tuple(config.protections.values())
    declared = {d.get("name"): d for d in trace.manifest.declared}
    ready = []
    local: LocalDP | None = None
    for hook in hooks:
        if isinstance(hook, LocalDP):
            local = hook
        elif getattr(hook, "epsilon", None) is not None or isinstance(
            getattr(hook, "noise_multiplier", None), tuple
        ):
            # a target was turned into noise for the whole run, and noise by client was put in the
            # order of the trace's clients: take what the trace announces
            z = declared.get(hook.name, {}).get("noise_multiplier", 1.0)
            z = tuple(z) if isinstance(z, list) else z
            ready.append(replace(hook, noise_multiplier=z, epsilon=None))
        else:
            ready.append(hook)
    for d in trace.manifest.declared:
        if "applied" in d and d.get("name") in PROTECTIONS:
            # what if it had stood before the server: games are played behind it too
            cls = find(PROTECTIONS, "protection", str(d["name"]))
            ready.append(cls(**{f.name: d[f.name] for f in fields(cls) if f.init and f.name in d}))
            remarks.append(f"games are played behind {d['name']}, as if it had been there")
    for i, hook in enumerate(ready):
        if isinstance(hook, SecureAggregation):
            ready[i] = replace(hook, masks="skipped", plan="none", dropout=0.0)
            remarks.append("in games secure aggregation gives its sums without drawing masks")
        if getattr(hook, "unit", None) == "person":
            ready[i] = replace(hook, unit="record")
            remarks.append(f"in games {hook.name} clips records: a target is one record")
    if audit.local_dp is not None:
        if local is not None:
            remarks.append("games use the audit's own local mechanism in place of the run's")
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
    local = replace(local)  # what it learns of its data belongs to the run, not to games
    return local, (local, *ready), remarks


def for_clients(hook: Hook, count: int) -> Hook:
    """A protection with settings for every client, cut or repeated to `count` of them."""
    changed = {}
    for f in fields(hook):  # type: ignore[arg-type]
        value = getattr(hook, f.name)
        if f.init and isinstance(value, tuple) and len(value) > 1:
            changed[f.name] = tuple(value[i % len(value)] for i in range(count))
    return replace(hook, **changed)  # type: ignore[type-var]
