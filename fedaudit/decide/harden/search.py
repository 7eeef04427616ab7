"""`harden`: search protections over one federation for the cheapest that keeps all limits.

    DIR/hardened.toml     config that keeps the limits (or DIR/nearest.toml: breaks them least)
    DIR/policy.toml       the limits, for `fedaudit gate`
    DIR/harden.md, harden.csv, harden.json, tradeoff*.svg
    DIR/cells/*/          the measured runs: ordinary run directories

The search is not a grid. Transports cost no accuracy and come first. If one of them keeps the
limits, noise is not tried. Otherwise the search measures each noise ladder at its lowest level
(with a limit on epsilon: the least noise that the accountant allows), then at its highest, and
bisects in log scale to the least noise that keeps the limits on risk. It assumes that risk and
accuracy fall with noise. It leaves a ladder that breaks a limit on utility before it keeps those on
risk, and one that costs more than a point already found.

The best of many candidates is partly luck. So the choice is measured again on fresh seeds, and the
report states those figures.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit.audits.epsilon import EpsilonAudit
from fedaudit.codec import to_json
from fedaudit.decide.gate.check import limit_text
from fedaudit.decide.gate.evidence import Evidence
from fedaudit.decide.gate.measures import LOSS, UTILITY
from fedaudit.decide.gate.policy import Policy, write_policy
from fedaudit.decide.harden import choices, limits, tradeoff
from fedaudit.decide.harden import page as words
from fedaudit.decide.harden.cells import CellRunner, OutOfTime, failures, parse_budget
from fedaudit.decide.harden.choices import (
    AS_CONFIGURED,
    Choice,
    NoiseLadder,
    PreparedFederation,
    Transport,
)
from fedaudit.decide.harden.outcome import Hardened, Point
from fedaudit.decide.harden.utility import loss_between
from fedaudit.errors import FedauditError
from fedaudit.files import read_text, write_atomically, writing
from fedaudit.progress import Progress, no_progress
from fedaudit.results import Estimate
from fedaudit.settings import Count, require
from fedaudit.setup.config import Config, check, load_variants
from fedaudit.setup.identity import check_and_store
from fedaudit.setup.prepare import OWNED, build
from fedaudit.setup.seeds import SEEDS, base_seed
from fedaudit.setup.toml import update_toml

if TYPE_CHECKING:
    from fedaudit.federation.engine import Federation

PRECISION = 1.3
"""Bisection ends at this ratio of two noise levels."""

ATTEMPTS = 3
"""Largest number of candidates measured on fresh seeds."""


Measured = dict[Choice, tuple[list[int], list[Evidence] | FedauditError]]


def harden(
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] = "fedaudit-harden",
    *,
    limits: Sequence[str] = (),
    policy: Policy | str | Path | Mapping[str, Any] | None = None,
    budget: str | float | None = None,
    seeds: int = 1,
    workers: int | None = None,
    only: Sequence[str] = (),
    curve: int = 3,
    overrides: Sequence[str] = (),
    progress: Progress = no_progress,
    fresh: bool = False,
) -> Hardened:
    """Find the protection that keeps all limits at the least cost in accuracy; write its config.

    Parameters
        config: a TOML file or a mapping; of several variants the base is used.
        out: the folder for the config that was found, the report and the measured runs.
        limits: lines such as "epsilon <= 8" or "fingerprint.linkage_accuracy <= 1.5 x chance".
        policy: limits as `fedaudit.gate` takes them: a TOML file or a mapping.
        budget: seconds, or text such as "10m". What was measured by then decides.
        seeds: runs per candidate, and fresh runs that confirm the choice.
        workers: processes; by default one per core.
        only: protections to search: shuffle, secure_sum, dp_sgd, allocation, update_noise,
            central_dp, local_dp, exposure_limit. By default those that fit the limits.
        curve: the least number of noise levels on the trade-off curve, measured last.
        overrides: single settings of the config, such as "federation.rounds=5".
        progress: called as progress(stage, done, total, note).
        fresh: delete earlier measurements. Otherwise they must have the same data and code.
    """
    require(Count, seeds=seeds, remedy="`seeds=3`")
    choices.check_only(only)
    asked = _limits(policy, limits)
    source = Path(config) if isinstance(config, os.PathLike) else config
    base, *others = load_variants(source, overrides=overrides).items()
    path = _make_folder(Path(out))
    if fresh:
        shutil.rmtree(path / "cells", ignore_errors=True)
    first = base[1]
    if first.drawn:
        first = first.with_seed(base_seed(path), drawn=True)
    check_and_store(path, [first], begun=any(path.glob("cells/*/run.json")), audits=True)
    time = parse_budget(budget) if isinstance(budget, str) else budget
    with CellRunner(
        path, workers=max(1, workers or os.cpu_count() or 1), budget=time, progress=progress
    ) as runner:
        found = Search(first, asked, runner, seeds, only)
        found.source = (
            "" if source is None or isinstance(source, Mapping) else read_text(Path(source))
        )
        if others:
            named = ", ".join(repr(name) for name, _ in others)
            why = f"harden uses the base variant {base[0]!r} only"
            found.left_out.append((f"[compare] {named}", why))
        outcome = found.run(curve)
    return _write_files(outcome, found)


def _make_folder(path: Path) -> Path:
    with writing(path):
        (path / "cells").mkdir(parents=True, exist_ok=True)
    return path


def _limits(policy: Policy | str | Path | Mapping[str, Any] | None, lines: Sequence[str]) -> Policy:
    """Limits of a policy and of lines together."""
    if isinstance(policy, Policy):
        added = limits.load_limits(None, lines).limits if lines else ()
        asked = replace(policy, limits=(*policy.limits, *added))
        limits.refuse_zero_epsilon(asked)
        return asked
    return limits.load_limits(policy, lines)


class Search:
    """One search: candidates, measurements and decision."""

    def __init__(
        self, config: Config, policy: Policy, runner: CellRunner, seeds: int, only: Sequence[str]
    ) -> None:
        self.config, self.policy, self.runner = config, policy, runner
        self.count = seeds
        self.source = ""  # the user's own file, whose comments the written config keeps
        self.seeds = self._seeds_of(0)
        self.transports = choices.transports(config, only)
        self.ladders, self.left_out = choices.ladders(runner.loaded.beside(config), policy, only)
        self.audits = limits.audits_for(policy, list(config.audits))
        self.measure_name = ""
        self.points: dict[Choice, Point] = {}
        self._first: dict[str, Choice] = {}  # settings -> the choice that stands for them
        self.runs: dict[Choice, list[Evidence]] = {}
        self.choice: Choice | None = None
        self._base = Choice(self.transports[0])
        self._prepared: dict[int, PreparedFederation] = {}

    def _seeds_of(self, attempt: int) -> list[int]:
        """Seeds of the search (attempt 0), or fresh seeds of an attempt to confirm."""
        first = self.config.seed + attempt * self.count
        return [(first + i) % SEEDS for i in range(self.count)]

    # -- order of the search -------------------------------------------------------------------

    def run(self, curve: int) -> Hardened:
        stopped = ""
        confirmed: Point | None = None
        rejected: list[Point] = []
        try:
            self._explore()
        except OutOfTime:
            stopped = self._budget_text()
        self.runner.reserve = 0.0
        searched = len(self.points)
        kept = self._candidates()
        chosen = kept[0] if kept else None
        try:
            chosen, confirmed = self._confirm(kept, chosen, rejected)
            self._fill_curve(curve)
            if not kept:
                kept = self._candidates()  # a point of the curve may keep all limits
                chosen, confirmed = self._confirm(kept, kept[0] if kept else None, rejected)
        except OutOfTime:
            stopped = stopped or self._budget_text()
        clash = conflicts(list(self.points.values())) if not kept else ()
        nearest = None if confirmed is not None else self._nearest(rejected)
        self.choice = chosen
        if nearest is not None:
            # a candidate that failed on fresh seeds has no noise in its label
            same = (c for c, p in self.points.items() if p.label == nearest.label)
            self.choice = next(same, chosen)
        return Hardened(
            path=str(self.runner.path),
            limits=tuple((x.name, limit_text(x)) for x in self.policy.limits),
            points=tuple(self.points.values()),
            measure=self.measure_name or "accuracy",
            chosen=None if chosen is None else self.points[chosen],
            confirmed=confirmed,
            rejected=tuple(rejected),
            nearest=nearest,
            conflicts=clash,
            instead=instead(list(self.points.values()), {x for names in clash for x in names}),
            left_out=tuple(self.left_out),
            stopped=stopped,
            seeds=self.count,
            searched=searched,
            reused=self.runner.reused,
        )

    def _confirm(
        self, kept: Sequence[Choice], chosen: Choice | None, rejected: list[Point]
    ) -> tuple[Choice | None, Point | None]:
        """The first candidate that also keeps every limit on fresh seeds."""
        for attempt, choice in enumerate(kept[:ATTEMPTS], start=1):
            fresh = self._run_choices([choice], self._seeds_of(attempt), rehearsed=True)
            point = self._point(choice, fresh)
            if point.met:
                return choice, point
            rejected.append(point)
        return chosen, None

    def _budget_text(self) -> str:
        cells = self.runner.ran + self.runner.reused
        return (
            f"The time budget ended after {cells} runs. The same command with a larger budget "
            "continues from there."
        )

    def _explore(self) -> None:
        self.try_out([Choice(transport) for transport in self.transports])
        transports = [transport for transport in self.transports if self._worth_noise(transport)]
        if any(self._is_free(c) for c in self._candidates()):
            if transports and self.ladders:
                names = ", ".join(transport.name for transport in transports)
                self.left_out.append((f"noise on {names}", "the limits are kept without noise"))
            return
        ladders = [x for x in self.ladders if self._climbable(x)] if transports else []
        for transport in transports:
            self.try_out([Choice(transport, x, x.low) for x in ladders])
            for ladder in ladders:
                self._climb(transport, ladder)
        if not self._candidates() and transports:
            near = self._nearest(())
            best = [
                c.transport
                for c, p in self.points.items()
                if p is near and c.transport in transports
            ]
            for ladder in ladders:
                if ladder.on_steps and not ladder.per_client:
                    self._retreat((best or transports)[0], ladder)

    def _worth_noise(self, transport: Transport) -> bool:
        """Whether noise on this transport may keep limits that are broken without it."""
        choice = Choice(transport)
        point = self.points[choice]
        if transport.name == AS_CONFIGURED or point.failed or point.met:
            return False
        why = limits.why_noise_cannot_help(point.checks, self.runs[choice])
        if not why and (broken := [c for c in point.broken if _is_utility(c.metric)]):
            why = f"{broken[0].title} is broken even without noise"
        if why:
            self.left_out.append((f"noise on {transport.name}", why))
        return not why

    def _climbable(self, ladder: NoiseLadder) -> bool:
        site = self.prepared(self.seeds[0])
        why = choices.why_unusable(ladder, site, self.policy)
        uniform = any(x.protection == ladder.protection for x in self.ladders if not x.per_client)
        if not why and uniform and choices.is_uniform(ladder, site, self.policy):
            why = "every client would get the same noise, as with DP-SGD"
        if why:
            self.left_out.append((ladder.label, why))
        return not why

    def _climb(self, transport: Transport, ladder: NoiseLadder) -> None:
        """Bisect to the least noise of a ladder that keeps the limits on risk."""
        lowest = Choice(transport, ladder, ladder.low)
        (low,) = self.try_out([lowest])
        if low.failed or _risk_kept(low) or not _utility_kept(low):
            return
        kept = self._candidates()
        if kept and self._cost(self._known(lowest)) >= self._cost(kept[0]):
            return
        (top,) = self.try_out([Choice(transport, ladder, ladder.high)])
        if top.failed or not _risk_kept(top):
            return
        below, above = ladder.low, ladder.high
        while above / below > PRECISION:
            middle = math.sqrt(below * above)
            (point,) = self.try_out([Choice(transport, ladder, middle)])
            if point.failed:
                return
            if _risk_kept(point):
                above = middle
            elif not _utility_kept(point):
                return  # risk needs more noise, utility needs less
            else:
                below = middle

    def _retreat(self, transport: Transport, ladder: NoiseLadder) -> None:
        """Limits conflict: bisect to the most noise that keeps the limits on utility."""
        lost = [
            c.level
            for c, p in self.points.items()
            if (c.transport, c.ladder) == (transport, ladder)
            and not p.failed
            and not _utility_kept(p)
        ]
        below = ladder.low
        if below in lost:
            # the least noise for this epsilon is too much: find the epsilon that utility allows
            below = ladder.low / choices.SPAN
        if not lost or not _utility_kept(self.try_out([Choice(transport, ladder, below)])[0]):
            return
        above = min(lost)
        while above / below > 2 * PRECISION:
            middle = math.sqrt(below * above)
            if _utility_kept(self.try_out([Choice(transport, ladder, middle)])[0]):
                below = middle
            else:
                above = middle

    def _fill_curve(self, curve: int) -> None:
        """Measure more noise levels for the trade-off curve if the search measured few."""
        drawn = {x.metric for x in limits.drawn_limits(self.policy)}
        ladder = next((x for x in self.ladders if x.on_steps and not x.per_client), None)
        if not curve or not drawn or ladder is None:
            return
        transport = next(
            (
                t
                for t in self.transports
                if t.name != AS_CONFIGURED
                and Choice(t) in self.points
                and drawn & set(self.points[Choice(t)].risks)
            ),
            None,
        )
        if transport is None or choices.why_unusable(
            ladder, self.prepared(self.seeds[0]), self.policy
        ):
            return
        there = [c for c in self.points if c.transport == transport and c.ladder == ladder]
        if len(there) >= curve:
            return
        step = (ladder.high / ladder.low) ** (1 / max(curve - 1, 1))
        for n in range(curve):
            self.try_out([Choice(transport, ladder, ladder.low * step**n)])

    # -- measuring -----------------------------------------------------------------------------

    def prepared(self, seed: int) -> PreparedFederation:
        """The federation of a seed, with DP-SGD if searched: its unit groups the records."""
        if seed not in self._prepared:
            private = [x for x in self.ladders if x.on_steps]
            made = {}
            if private:
                # the accountant needs no noise yet
                made = {private[0].protection: {**private[0].settings, "noise_multiplier": 0.0}}
            try:
                federation, facts = self._build(made, seed)
            except FedauditError:
                federation, facts = self._build({}, seed)
            owned = self.config.partition["kind"] == OWNED
            names = [about["name"] for about in facts["clients"].values()] if owned else []
            self._prepared[seed] = PreparedFederation(federation, tuple(names))
        return self._prepared[seed]

    def _build(
        self, protections: choices.Protections, seed: int
    ) -> tuple[Federation, dict[str, Any]]:
        config = choices.build_config(self.config, protections, seed, self.audits)
        return build(self.runner.loaded.beside(config))

    def protections_for(self, choice: Choice, seed: int) -> choices.Protections:
        if choice.ladder is None:
            return {name: dict(given) for name, given in choice.transport.protections.items()}
        return choices.protections(choice, self.prepared(seed), self.policy)

    def _config_for(self, choice: Choice, seed: int, *, rehearsed: bool = False) -> Config:
        """The config of a choice; `rehearsed`: its epsilon is measured too."""
        made = self.protections_for(choice, seed)
        own = () if choice.ladder is None else self.prepared(seed).names
        audits = [*self.audits, EpsilonAudit.name] if rehearsed else self.audits
        return choices.build_config(self.config, made, seed, list(dict.fromkeys(audits)), own)

    def try_out(self, wanted: Sequence[Choice]) -> list[Point]:
        """Measure choices on the seeds of the search, each once; equal settings are one choice."""
        wanted = [self._known(c) for c in wanted]
        new = [c for c in dict.fromkeys(wanted) if c not in self.points]
        if new:
            late = False
            try:
                found = self._run_choices(new, self.seeds)
            except OutOfTime:
                late = True
                found = self._measured_in_time(new)
            for choice in new:
                if choice in found:
                    self.points[choice] = self._point(choice, found)
            if late:
                raise OutOfTime
            if self._candidates():
                # reserve time to confirm the choice and its unprotected run
                self.runner.reserve = 1.5 * self.runner.expected(2 * self.count)
        return [self.points[c] for c in wanted]

    def _known(self, choice: Choice) -> Choice:
        """The first choice with these protections.

        Two levels can be one noise multiplier after rounding, and a ladder can reach what the
        config has already.
        """
        try:
            made = self._config_for(choice, self.seeds[0]).protections
        except FedauditError:
            return choice  # it fails when it is measured, with its reason
        return self._first.setdefault(repr(sorted(made.items(), key=lambda x: x[0])), choice)

    def _measured_in_time(self, wanted: Sequence[Choice]) -> Measured:
        """The choices whose runs were all finished when the budget ended."""
        configs = {
            c: [self._config_for(c, seed) for seed in self.seeds] for c in [self._base, *wanted]
        }
        done = [c for c, of in configs.items() if all(self.runner.is_measured(x) for x in of)]
        return self._run_choices(done, self.seeds) if self._base in done else {}

    def _run_choices(
        self, wanted: Sequence[Choice], seeds: Sequence[int], *, rehearsed: bool = False
    ) -> Measured:
        """Choice -> its seeds, and one run per seed or an error."""
        base = self._base
        out: Measured = {}
        configs: dict[Choice, list[Config]] = {}
        for choice in dict.fromkeys([base, *wanted]):
            try:
                own = rehearsed and choice != base
                configs[choice] = [self._config_for(choice, s, rehearsed=own) for s in seeds]
            except FedauditError as error:
                out[choice] = (list(seeds), error)
        self.runner.measure((c.series, x) for c, of in configs.items() for x in of)
        for choice, of in configs.items():
            found = [self.runner.result_of(x) for x in of]
            broken = failures(found)
            if broken and choice == base:
                raise broken[0]  # the federation itself does not run
            runs = [e for e in found if isinstance(e, Evidence)]
            out[choice] = (list(seeds), broken[0] if broken else runs)
        return out

    def _point(self, choice: Choice, measured: Measured) -> Point:
        seeds, runs = measured[choice]
        unprotected = measured[self._base][1]
        assert not isinstance(unprotected, FedauditError)
        if isinstance(runs, FedauditError):
            return Point(label=choice.series, series=choice.series, failed=str(runs))
        if seeds == self.seeds:
            self.runs[choice] = runs
        if not self.measure_name:
            known = [m for m in UTILITY if all(m in e.metrics for e in unprotected)]
            self.measure_name = known[0] if known else "accuracy"
        loss = self._cost_against(unprotected, runs, seeds, "accuracy")
        cost = loss
        if self.measure_name != "accuracy":
            cost = self._cost_against(unprotected, runs, seeds, self.measure_name)
        made = self.protections_for(choice, seeds[0])
        # labels use the first seed of the search, also on fresh seeds
        noise = choices.noise_text(self.protections_for(choice, self.seeds[0]))
        own = [e.utility(self.measure_name) for e in runs]
        known_utility = [e for e in own if e is not None]
        risks = {
            x.metric: limits.mean_over_seeds(found)
            for x in limits.drawn_limits(self.policy)
            if (found := limits.estimates(x, runs))
        }
        return Point(
            label=f"{choice.series} ({noise})" if noise else choice.series,
            series=choice.series,
            level=choice.level,
            noise=noise,
            trusted=choices.trusted_parties(made),
            outside_parties=choices.count_outside_parties(made),
            checks=limits.check_limits(self.policy, runs, loss),
            cost=cost if isinstance(cost, Estimate) else None,
            utility=limits.mean_over_seeds(known_utility)
            if len(known_utility) == len(runs)
            else None,
            risks=risks,
            epsilon=limits.largest_epsilon(runs),
            promise=limits.promise_text(runs),
            epsilon_measured=limits.measured_epsilon(runs),
            runs=len(runs),
            folders=tuple(e.path.name for e in runs),
        )

    def _cost_against(
        self,
        before: Sequence[Evidence],
        after: Sequence[Evidence],
        seeds: Sequence[int],
        metric: str,
    ) -> Estimate | str:
        """Loss against the unprotected runs of the same seeds."""
        each = []
        for base, own, seed in zip(before, after, seeds, strict=True):
            found = loss_between(base, own, self.prepared(seed).federation, metric)
            if isinstance(found, str):
                return found
            each.append(found)
        mean = limits.mean_over_seeds(each, share=False)
        if metric != "accuracy":
            return mean
        return replace(mean, low=max(mean.low, -1.0), high=min(mean.high, 1.0))

    # -- deciding ------------------------------------------------------------------------------

    def _cost(self, choice: Choice) -> float:
        """Cost rounded to 0.001: smaller differences do not outweigh trust. Unknown: infinite."""
        cost = self.points[choice].cost
        return math.inf if cost is None else round(cost.value, 3) + 0.0

    def _is_free(self, choice: Choice) -> bool:
        """Whether the cost is zero; a transport with unknown cost is free, it changes no model."""
        if choice.ladder is None and choice.transport.name != AS_CONFIGURED:
            return self._cost(choice) in (0.0, math.inf)
        return self._cost(choice) == 0.0

    def _candidates(self) -> list[Choice]:
        """Choices that keep all limits by cost, then trusted parties, then noise."""
        return sorted(
            (c for c, p in self.points.items() if p.met),
            key=lambda c: (
                self._cost(c),
                self.points[c].outside_parties,
                c.level,
            ),
        )

    def _nearest(self, rejected: Sequence[Point]) -> Point | None:
        """The point nearest to the limits (`Point.nearness`), the cheaper one of equals."""
        if rejected:
            return min(rejected, key=lambda p: p.nearness)
        possible = [(c, p) for c, p in self.points.items() if not p.failed and not p.met]
        if not possible or self._candidates():
            return None
        return min(
            possible,
            key=lambda pair: (*pair[1].nearness, self._cost(pair[0])),
        )[1]


def _is_utility(metric: str) -> bool:
    return metric == LOSS or metric in UTILITY


def _keeps_all(point: Point, of: Callable[[str], bool]) -> bool:
    return not any(of(c.metric) for c in point.broken)


def _risk_kept(point: Point) -> bool:
    return _keeps_all(point, lambda metric: not _is_utility(metric))


def _utility_kept(point: Point) -> bool:
    return _keeps_all(point, _is_utility)


def conflicts(points: Sequence[Point], largest: int = 3) -> tuple[tuple[str, ...], ...]:
    """The smallest sets of limits that no point keeps together."""
    run = [p for p in points if not p.failed]
    names = list(dict.fromkeys(c.limit for p in run for c in p.checks))
    kept = [{c.limit for c in p.checks if c not in p.broken} for p in run]
    out: list[tuple[str, ...]] = []
    for size in range(1, largest + 1):
        for chosen in itertools.combinations(names, size):
            if any(set(smaller) <= set(chosen) for smaller in out):
                continue
            if not any(set(chosen) <= one for one in kept):
                out.append(chosen)
    return tuple(out)


def instead(points: Sequence[Point], names: Collection[str]) -> dict[str, Point]:
    """Limit -> the point that breaks only this limit, and by the least."""
    out = {}
    for name in sorted(names):
        alone = [p for p in points if not p.failed and {c.limit for c in p.broken} == {name}]
        if alone:
            out[name] = min(alone, key=lambda p: (p.excess, p.outside_parties))
    return out


# -- files ---------------------------------------------------------------------------------------


def _write_files(found: Hardened, search: Search) -> Hardened:
    path = Path(found.path)
    point = found.confirmed or found.nearest or found.chosen
    name = "hardened.toml" if found.confirmed is not None else "nearest.toml"
    for old in ("hardened.toml", "nearest.toml", "policy.toml", *_figures(path)):
        (path / old).unlink(missing_ok=True)  # from an earlier search
    if point is not None and search.choice is not None:
        policy = _for_gate(search.policy)
        found = replace(found, config=str(path / name), policy=str(path / "policy.toml"))
        write_atomically(path / name, _config_text(found, search, point))
        write_atomically(path / "policy.toml", write_policy(policy))
    document = to_json(words.plain(found), ensure_ascii=False)
    write_atomically(path / "harden.json", document + "\n")
    write_atomically(path / "harden.csv", words.csv_text(found))
    write_atomically(path / "harden.md", words.markdown(found))
    for file, metric in tradeoff.figure_names(found).items():
        write_atomically(path / file, tradeoff.figure(found, metric))
    return found


def _figures(path: Path) -> list[str]:
    return [file.name for file in path.glob("tradeoff*.svg")]


def _for_gate(policy: Policy) -> Policy:
    """The limits for a gate on one run: `accuracy_loss` takes two runs and may be missing."""
    allowed = [x.name for x in policy.limits if x.metric == LOSS]
    return policy.allowing([n for n in allowed if n not in policy.allow_missing])


def _config_text(found: Hardened, search: Search, point: Point) -> str:
    """The config as TOML, with a comment that states its outcome and limits."""
    assert search.choice is not None
    raw = dict(search.config.raw)
    raw["audits"] = {**{name: {} for name in search.audits}, **raw["audits"]}
    raw["protections"] = search.protections_for(search.choice, search.config.seed)
    if search.choice.ladder is not None:
        raw |= choices.client_names_section(
            raw["protections"], search.prepared(search.config.seed).names
        )
    made = {k: v for k, v in check(raw).raw.items() if k != "seed"}
    if found.confirmed is not None:
        kept = "keeps every limit"
    elif point.met:
        kept = "kept every limit in the search, but is NOT confirmed on fresh seeds"
    else:
        kept = "does NOT keep every limit"
    lines = [
        f"Written by `fedaudit harden`: {point.label}.",
        f"It {kept}; it costs {words.cost_text(point, found.measure)}.",
        f"Trusts: {point.who}.",
        *words.epsilon_lines(point),
        *(f"{name}: {rule}" for name, rule in found.limits),
    ]
    if found.confirmed is not None:
        lines.append(f"Measured on {found.seeds} fresh seed(s) that the search did not use.")
    lines += [
        "This file omits the seed of the search: with it, anyone can redraw the noise. A run draws",
        "its own seed unless it is given one. The seed also draws the partition: noise computed",
        "for an epsilon, or per client, fits the partition of the search's seed only.",
    ]
    noted = "".join(f"# {' '.join(line.split())}\n" for line in lines)
    return noted + "\n" + update_toml(search.source, made).lstrip()
