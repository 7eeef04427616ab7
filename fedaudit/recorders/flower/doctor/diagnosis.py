"""The doctor's diagnosis of an app, as data and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedaudit.accounting import Guarantee

KIND = {
    "message": "Message API",
    "legacy": "older API: NumPyClient, configure_fit",
    "loop": "own loop, no strategy",
}


@dataclass(frozen=True, kw_only=True)
class Protection:
    """A protection: what it covers, who must be honest, its guarantee. `at_best`: the guarantee
    needs equal weights, which the code does not show. `sure`: whether the code shows that it acts;
    else a branch decides."""

    name: str
    where: str
    covers: str
    trust: str
    guarantee: Guarantee | None = None
    note: str = ""
    at_best: bool = False
    sure: bool = True


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The facts that an app's code shows.

    `kind`: "message", "legacy" or "loop". `strategies`: outermost first; empty if a branch decides
    between `alternatives`. `fields`: metrics that
    travel with the model. `secure_aggregation`: whether the app uses Flower's or could. `sees`:
    observer -> what it sees. `audits`: name -> (whether it applies, how or why not). `problems`:
    protections that do not work as they seem to. `lines`: changes that record the app.
    """

    app: str
    kind: str
    strategies: tuple[str, ...] = ()
    alternatives: tuple[tuple[str, ...], ...] = ()
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

    def _strategies(self) -> str:
        if self.alternatives:
            ways = [" around ".join(stack) for stack in dict.fromkeys(self.alternatives)]
            return f"unsure, a run decides: {'; or '.join(ways)}"
        return " around ".join(self.strategies) or "none that can be read"

    def text(self) -> str:
        """The diagnosis for a terminal."""
        out = [
            f"app         {self.app} ({KIND.get(self.kind, self.kind)})",
            f"strategy    {self._strategies()}",
            f"mods        {', '.join(self.mods) or 'none'}",
            f"rounds      {self.rounds or 'unknown'}",
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
                g, word = p.guarantee, "at best " if p.at_best else "promises"
                out.append(
                    f"    {word}  epsilon {g.epsilon:.4g} per {g.unit} at delta {g.delta:g}, "
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
            out += ["", "Does not work as it seems to"]
            out += [f"  - {p}" for p in self.problems]
        if self.lines:
            out += ["", "To record it, change"]
            out += [f"  {line}" for line in self.lines]
        return "\n".join(out) + "\n"
