"""`harden`: search protections over one federation for the cheapest that keeps all limits.

    DIR/hardened.toml     the config that keeps the limits (or DIR/nearest.toml: breaks them least)
    DIR/policy.toml       the limits, for `fedaudit gate`
    DIR/harden.md, harden.csv, harden.json, tradeoff*.svg
    DIR/cells/*/          every run that was measured: ordinary run directories

Not a grid. Ways for uploads cost no accuracy, so they come first, all of them. Where one of them
keeps the limits, noise would only cost. Elsewhere each ladder of noise is entered at its foot
(where there are limits on epsilon: at the least noise that the accountant allows), then at its top,
and is then halved in log scale to the least noise that keeps the limits on risk. This takes risk to
fall and accuracy to fall with noise; a ladder is given up once its accuracy is gone while its risk
is not, or once it costs more than what was found.

Whoever picks the best of many picks luck too: the choice is measured again, on seeds that the
search had not seen, and those figures are the ones that are reported.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedaudit.decide.gate.check import rule_of
from fedaudit.decide.gate.evidence import Evidence
from fedaudit.decide.gate.measures import LOSS, UTILITY
from fedaudit.decide.gate.policy import Policy, load_policy, write_policy
from fedaudit.decide.harden import choices, limits, tradeoff
from fedaudit.decide.harden import page as words
from fedaudit.decide.harden.bench import Bench, OutOfTime, failures, seconds
from fedaudit.decide.harden.choices import AS_CONFIGURED, Choice, Ladder, Site, Way
from fedaudit.decide.harden.outcome import Hardened, Point
from fedaudit.decide.harden.utility import loss_between
from fedaudit.errors import FedauditError, TraceError, UsageError
from fedaudit.files import write_atomically
from fedaudit.progress import Progress, no_progress
from fedaudit.results import Estimate
from fedaudit.setup.config import Config, check, load_variants
from fedaudit.setup.identity import check_and_store
from fedaudit.setup.prepare import OWNED, build
from fedaudit.setup.seeds import SEEDS, base_seed
from fedaudit.setup.toml import to_toml

PRECISION = 1.3
"""Ratio of two levels of noise between which nothing is looked for."""

ATTEMPTS = 3
"""Candidates that are measured on fresh seeds before the search admits defeat."""


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

    `limits` are lines such as "epsilon <= 8"; `policy` holds limits as `fedaudit.gate` takes them.
    `budget`: seconds, or "10m"; the search then decides on what it has measured. `seeds`: runs per
    candidate, and as many fresh runs of the choice. `only` names what may be chosen
    (`choices.NAMES`). `curve`: least number of noise levels on the trade-off curve, measured last.
    `fresh` removes earlier measurements; otherwise they must be of the same data and code.
    """
    if seeds < 1:
        raise UsageError(
            "a search needs seeds", expected="at least 1", got=str(seeds), remedy="--seeds 3"
        )
    choices.check_only(only)
    asked = _limits(policy, limits)
    source = Path(config) if isinstance(config, os.PathLike) else config
    base, *others = load_variants(source, overrides=overrides).items()
    path = Path(out)
    try:
        (path / "cells").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TraceError(
            f"cannot write to {path}",
            expected="a folder that can be written",
            got=error.strerror or str(error),
            remedy="choose another folder with --out",
        ) from None
    if fresh:
        shutil.rmtree(path / "cells", ignore_errors=True)
    first = base[1]
    if first.drawn:
        first = first.with_seed(base_seed(path), drawn=True)
    check_and_store(path, [first], begun=any(path.glob("cells/*/run.json")), audits=True)
    time = seconds(budget) if isinstance(budget, str) else budget
    with Bench(
        path, workers=max(1, workers or os.cpu_count() or 1), budget=time, progress=progress
    ) as bench:
        found = Search(first, asked, bench, seeds, only)
        if others:
            named = ", ".join(repr(name) for name, _ in others)
            why = f"only the base variant {base[0]!r} is hardened"
            found.left_out.append((f"[compare] {named}", why))
        outcome = found.go(curve)
    return _write(outcome, found)


def _limits(policy: Policy | str | Path | Mapping[str, Any] | None, lines: Sequence[str]) -> Policy:
    if isinstance(policy, Policy):
        asked = policy
    elif isinstance(policy, Mapping):
        asked = load_policy(policy)
    else:
        asked = limits.load_limits(policy, lines)
    limits.refuse_zero(asked)
    return asked


class Search:
    """One search: what was tried, and what came of it."""

    def __init__(
        self, config: Config, policy: Policy, bench: Bench, seeds: int, only: Sequence[str]
    ) -> None:
        self.config, self.policy, self.bench = config, policy, bench
        self.count = seeds
        self.seeds = self._seeds(0)
        self.ways = choices.ways(config, only)
        self.ladders, self.left_out = choices.ladders(config, policy, only)
        self.audits = limits.audits_for(policy, list(config.audits))
        self.measure_name = ""
        self.points: dict[Choice, Point] = {}
        self.runs: dict[Choice, list[Evidence]] = {}
        self.choice: Choice | None = None
        self._base = Choice(self.ways[0])
        self._sites: dict[int, Site] = {}

    def _seeds(self, attempt: int) -> list[int]:
        """The search's own seeds, then fresh ones for every attempt."""
        first = self.config.seed + attempt * self.count
        return [(first + i) % SEEDS for i in range(self.count)]

    # -- the course of it ----------------------------------------------------------------------

    def go(self, curve: int) -> Hardened:
        stopped = ""
        confirmed: Point | None = None
        rejected: list[Point] = []
        try:
            self._explore()
        except OutOfTime:
            stopped = self._spent()
        self.bench.reserve = 0.0
        searched = len(self.points)
        kept = self._kept()
        chosen = kept[0] if kept else None
        try:
            chosen, confirmed = self._confirmed(kept, chosen, rejected)
            self._draw(curve)
            if not kept and (kept := self._kept()):  # a point that was drawn for the curve alone
                chosen, confirmed = self._confirmed(kept, kept[0], rejected)
        except OutOfTime:
            stopped = stopped or self._spent()
        clash = conflicts(list(self.points.values())) if not kept else ()
        nearest = None if confirmed is not None else self._nearest(rejected)
        self.choice = chosen
        if nearest is not None:
            self.choice = next(c for c, p in self.points.items() if p.label == nearest.label)
        return Hardened(
            path=str(self.bench.path),
            limits=tuple((x.name, rule_of(x)) for x in self.policy.limits),
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
            reused=self.bench.reused,
        )

    def _confirmed(
        self, kept: Sequence[Choice], chosen: Choice | None, rejected: list[Point]
    ) -> tuple[Choice | None, Point | None]:
        """The first of the candidates that keeps every limit on fresh seeds too."""
        for attempt, choice in enumerate(kept[:ATTEMPTS], start=1):
            point = self._point(choice, self._measured([choice], self._seeds(attempt)))
            if point.met:
                return choice, point
            rejected.append(point)
        return chosen, None

    def _spent(self) -> str:
        cells = self.bench.ran + self.bench.reused
        return (
            f"The time budget was spent after {cells} runs; the same command with a larger one "
            "goes on from there."
        )

    def _explore(self) -> None:
        self.try_out([Choice(way) for way in self.ways])
        ways = [way for way in self.ways if self._worth_noise(way)]
        if any(self._is_free(c) for c in self._kept()):
            if ways and self.ladders:
                names = ", ".join(way.name for way in ways)
                self.left_out.append(
                    (f"noise on {names}", "the limits are kept without, and noise would only cost")
                )
            return
        ladders = [x for x in self.ladders if self._climbable(x)] if ways else []
        for way in ways:
            self.try_out([Choice(way, x, x.low) for x in ladders])
            for ladder in ladders:
                self._climb(way, ladder)
        if not self._kept() and ways:
            near = self._nearest(())
            best = [c.way for c, p in self.points.items() if p is near and c.way in ways]
            for ladder in ladders:
                if ladder.name == choices.DP_SGD:
                    self._retreat((best or ways)[0], ladder)

    def _worth_noise(self, way: Way) -> bool:
        """Whether noise on this way could keep limits that are broken without."""
        choice = Choice(way)
        point = self.points[choice]
        if way.name == AS_CONFIGURED or point.failed or point.met:
            return False
        why = limits.beyond_noise(point.checks, self.runs[choice])
        if not why and (broken := [c for c in point.broken if _is_utility(c.metric)]):
            why = f"{broken[0].title} is broken without any already"
        if why:
            self.left_out.append((f"noise on {way.name}", why))
        return not why

    def _climbable(self, ladder: Ladder) -> bool:
        why = choices.why_not(ladder, self.site(self.seeds[0]), self.policy)
        if why:
            self.left_out.append((ladder.words, why))
        return not why

    def _climb(self, way: Way, ladder: Ladder) -> None:
        """The least noise of a ladder that keeps the limits on risk."""
        low = self.points[Choice(way, ladder, ladder.low)]
        if low.failed or _risk_kept(low) or not _utility_kept(low):
            return
        kept = self._kept()
        if kept and self._cost(Choice(way, ladder, ladder.low)) >= self._cost(kept[0]):
            return
        (top,) = self.try_out([Choice(way, ladder, ladder.high)])
        if top.failed or not _risk_kept(top):
            return
        below, above = ladder.low, ladder.high
        while above / below > PRECISION:
            middle = math.sqrt(below * above)
            (point,) = self.try_out([Choice(way, ladder, middle)])
            if point.failed:
                return
            if _risk_kept(point):
                above = middle
            elif not _utility_kept(point):
                return  # more noise is needed, and the accuracy is gone already
            else:
                below = middle

    def _retreat(self, way: Way, ladder: Ladder) -> None:
        """Limits conflict: the most noise that the limits on utility leave room for."""
        lost = [
            c.level
            for c, p in self.points.items()
            if (c.way, c.ladder) == (way, ladder) and not p.failed and not _utility_kept(p)
        ]
        below = ladder.low
        if below in lost:
            # not even the least noise that an epsilon asks for: which epsilon would be possible?
            below = ladder.low / choices.SPAN
        if not lost or not _utility_kept(self.try_out([Choice(way, ladder, below)])[0]):
            return
        above = min(lost)
        while above / below > 2 * PRECISION:
            middle = math.sqrt(below * above)
            if _utility_kept(self.try_out([Choice(way, ladder, middle)])[0]):
                below = middle
            else:
                above = middle

    def _draw(self, curve: int) -> None:
        """Levels for the trade-off curve where the search itself needed few."""
        drawn = {x.metric for x in limits.curves(self.policy)}
        ladder = next((x for x in self.ladders if x.name == choices.DP_SGD), None)
        if not curve or not drawn or ladder is None:
            return
        way = next(
            (
                w
                for w in self.ways
                if w.name != AS_CONFIGURED
                and Choice(w) in self.points
                and drawn & set(self.points[Choice(w)].risks)
            ),
            None,
        )
        if way is None or choices.why_not(ladder, self.site(self.seeds[0]), self.policy):
            return
        there = [c for c in self.points if c.way == way and c.ladder == ladder]
        if len(there) >= curve:
            return
        step = (ladder.high / ladder.low) ** (1 / max(curve - 1, 1))
        for n in range(curve):
            self.try_out([Choice(way, ladder, ladder.low * step**n)])

    # -- measuring -----------------------------------------------------------------------------

    def site(self, seed: int) -> Site:
        """The federation of a seed; with DP-SGD in it, whose units decide how data are grouped."""
        if seed not in self._sites:
            private = [x for x in self.ladders if x.name in (choices.DP_SGD, choices.ALLOCATED)]
            made = {}
            if private:
                # without noise there is nothing to account for yet
                made = {choices.DP_SGD: {**private[0].settings, "noise_multiplier": 0.0}}
            try:
                federation, facts = build(choices.configured(self.config, made, seed, self.audits))
            except FedauditError:
                federation, facts = build(choices.configured(self.config, {}, seed, self.audits))
            owned = self.config.partition["kind"] == OWNED
            names = [about["name"] for about in facts["clients"].values()] if owned else []
            self._sites[seed] = Site(federation, tuple(names))
        return self._sites[seed]

    def made(self, choice: Choice, seed: int) -> choices.Protections:
        if choice.ladder is None:
            return {name: dict(given) for name, given in choice.way.protections.items()}
        return choices.protections(choice, self.site(seed), self.policy)

    def _of(self, choice: Choice, seed: int) -> Config:
        made = self.made(choice, seed)
        own = () if choice.ladder is None else self.site(seed).names
        return choices.configured(self.config, made, seed, self.audits, own)

    def try_out(self, wanted: Sequence[Choice]) -> list[Point]:
        """Measure choices that were not yet, on the seeds of the search."""
        new = [c for c in wanted if c not in self.points]
        if new:
            late = False
            try:
                found = self._measured(new, self.seeds)
            except OutOfTime:
                late = True
                found = self._finished(new)
            for choice in new:
                if choice in found:
                    self.points[choice] = self._point(choice, found)
            if late:
                raise OutOfTime
            if self._kept():
                # keep back what it takes to measure the choice again, and its unprotected twin
                self.bench.reserve = 1.5 * self.bench.expected(2 * self.count)
        return [self.points[c] for c in wanted]

    def _finished(self, wanted: Sequence[Choice]) -> Measured:
        """Of choices that were cut off, those whose runs are complete all the same."""
        configs = {c: [self._of(c, seed) for seed in self.seeds] for c in [self._base, *wanted]}
        done = [c for c, of in configs.items() if all(self.bench.has(x) for x in of)]
        return self._measured(done, self.seeds) if self._base in done else {}

    def _measured(self, wanted: Sequence[Choice], seeds: Sequence[int]) -> Measured:
        """Choice -> its seeds and its runs, one per seed; or why it cannot be run."""
        base = self._base
        out: Measured = {}
        configs: dict[Choice, list[Config]] = {}
        for choice in dict.fromkeys([base, *wanted]):
            try:
                configs[choice] = [self._of(choice, seed) for seed in seeds]
            except FedauditError as error:
                out[choice] = (list(seeds), error)
        self.bench.measure((c.series, x) for c, of in configs.items() for x in of)
        for choice, of in configs.items():
            found = [self.bench.of(x) for x in of]
            broken = failures(found)
            if broken and choice == base:
                raise broken[0]  # the federation itself cannot be run
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
        loss = self._lost(unprotected, runs, seeds, "accuracy")
        cost = loss
        if self.measure_name != "accuracy":
            cost = self._lost(unprotected, runs, seeds, self.measure_name)
        made = self.made(choice, seeds[0])
        # named by the search's own seed, also where fresh ones are measured
        noise = choices.noise_words(self.made(choice, self.seeds[0]))
        own = [e.utility(self.measure_name) for e in runs]
        known_utility = [e for e in own if e is not None]
        risks = {
            x.metric: limits.mean_of(found)
            for x in limits.curves(self.policy)
            if (found := limits.estimates(x, runs))
        }
        return Point(
            label=f"{choice.series} ({noise})" if noise else choice.series,
            series=choice.series,
            level=choice.level,
            noise=noise,
            trusted=choices.trusted(made),
            checks=limits.hold(self.policy, runs, loss),
            cost=cost if isinstance(cost, Estimate) else None,
            utility=limits.mean_of(known_utility) if len(known_utility) == len(runs) else None,
            risks=risks,
            epsilon=limits.largest_epsilon(runs),
            promise=limits.promise_words(runs),
            runs=len(runs),
            folders=tuple(e.path.name for e in runs),
        )

    def _lost(
        self,
        before: Sequence[Evidence],
        after: Sequence[Evidence],
        seeds: Sequence[int],
        metric: str,
    ) -> Estimate | str:
        """What was lost against the unprotected runs of the same seeds."""
        each = []
        for base, own, seed in zip(before, after, seeds, strict=True):
            found = loss_between(base, own, self.site(seed).federation, metric)
            if isinstance(found, str):
                return found
            each.append(found)
        mean = limits.mean_of(each, share=False)
        if metric != "accuracy":
            return mean
        return replace(mean, low=max(mean.low, -1.0), high=min(mean.high, 1.0))

    # -- deciding ------------------------------------------------------------------------------

    def _cost(self, choice: Choice) -> float:
        """Points of a tenth of a hundredth: closer costs are no reason to trust somebody more.

        What is not known is not cheap: it comes last.
        """
        cost = self.points[choice].cost
        return math.inf if cost is None else round(cost.value, 3) + 0.0

    def _is_free(self, choice: Choice) -> bool:
        """Whether it costs nothing: as measured, or as a way that changes no model."""
        if choice.ladder is None and choice.way.name != AS_CONFIGURED:
            return self._cost(choice) in (0.0, math.inf)
        return self._cost(choice) == 0.0

    def _kept(self) -> list[Choice]:
        """Choices that keep all limits, cheapest first; then the fewest to trust, least noise."""
        return sorted(
            (c for c, p in self.points.items() if p.met),
            key=lambda c: (
                self._cost(c),
                choices.others_trusted(self.points[c].trusted),
                c.level,
            ),
        )

    def _nearest(self, rejected: Sequence[Point]) -> Point | None:
        """What breaks the fewest limits, by the least."""
        if rejected:
            return min(rejected, key=lambda p: (len(p.broken), p.excess))
        possible = [(c, p) for c, p in self.points.items() if not p.failed and not p.met]
        if not possible or self._kept():
            return None
        return min(
            possible,
            key=lambda pair: (
                math.isinf(pair[1].excess),
                len(pair[1].broken),
                pair[1].excess,
                self._cost(pair[0]),
            ),
        )[1]


def _is_utility(metric: str) -> bool:
    return metric == LOSS or metric in UTILITY


def _all(point: Point, of: Callable[[str], bool]) -> bool:
    return not any(of(c.metric) for c in point.broken)


def _risk_kept(point: Point) -> bool:
    return _all(point, lambda metric: not _is_utility(metric))


def _utility_kept(point: Point) -> bool:
    return _all(point, _is_utility)


def conflicts(points: Sequence[Point], largest: int = 3) -> tuple[tuple[str, ...], ...]:
    """The smallest sets of limits that no point keeps all of."""
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
    """For each limit, what keeps all others and breaks this one by the least."""
    out = {}
    for name in sorted(names):
        alone = [p for p in points if not p.failed and {c.limit for c in p.broken} == {name}]
        if alone:
            out[name] = min(alone, key=lambda p: (p.excess, choices.others_trusted(p.trusted)))
    return out


# -- files ---------------------------------------------------------------------------------------


def _write(found: Hardened, search: Search) -> Hardened:
    path = Path(found.path)
    point = found.confirmed or found.nearest or found.chosen
    name = "hardened.toml" if found.confirmed is not None else "nearest.toml"
    for old in ("hardened.toml", "nearest.toml", "policy.toml", *_figures(path)):
        (path / old).unlink(missing_ok=True)  # of another outcome
    if point is not None and search.choice is not None:
        policy = _for_gate(search.policy)
        found = replace(found, config=str(path / name), policy=str(path / "policy.toml"))
        write_atomically(path / name, _config_text(found, search, point))
        write_atomically(path / "policy.toml", write_policy(policy))
    document = json.dumps(words.plain(found), indent=1, allow_nan=False, ensure_ascii=False)
    write_atomically(path / "harden.json", document + "\n")
    write_atomically(path / "harden.csv", words.csv_text(found))
    write_atomically(path / "harden.md", words.markdown(found))
    for file, metric in tradeoff.figure_names(found).items():
        write_atomically(path / file, tradeoff.figure(found, metric))
    return found


def _figures(path: Path) -> list[str]:
    return [file.name for file in path.glob("tradeoff*.svg")]


def _for_gate(policy: Policy) -> Policy:
    """The limits as a gate on one run can check them: what takes two runs is allowed to be missing
    by name. Nothing else is: what a protection leaves nothing of, the gate sees by itself."""
    allowed = [x.name for x in policy.limits if x.metric == LOSS]
    return policy.allowing([n for n in allowed if n not in policy.allow_missing])


def _config_text(found: Hardened, search: Search, point: Point) -> str:
    """The whole config with a comment that says what it is and on what grounds."""
    assert search.choice is not None
    raw = dict(search.config.raw)
    raw["audits"] = {**{name: {} for name in search.audits}, **raw["audits"]}
    raw["protections"] = search.made(search.choice, search.config.seed)
    if search.choice.ladder is not None:
        raw |= choices.whose_noise(raw["protections"], search.site(search.config.seed).names)
    made = {k: v for k, v in check(raw).raw.items() if k != "seed"}
    if found.confirmed is not None:
        kept = "keeps every limit"
    elif point.met:
        kept = "kept every limit in the search and is NOT confirmed on fresh seeds"
    else:
        kept = "does NOT keep every limit"
    lines = [
        f"Written by `fedaudit harden`: {point.label}.",
        f"It {kept}; it costs {words.cost_text(point, found.measure)}.",
        f"Trusts: {point.who}.",
        *(f"{name}: {rule}" for name, rule in found.limits),
    ]
    if found.confirmed is not None:
        lines.append(f"Measured on {found.seeds} fresh seed(s) that the search had not seen.")
    lines += [
        "The seed of the search is not in here: whoever has it can redraw the noise. A run draws",
        "one of its own unless --seed gives one. The seed also draws the partition: noise that was",
        "worked out for an epsilon, or per client, fits that of the search's own seed.",
    ]
    noted = "".join(f"# {' '.join(line.split())}\n" for line in lines)
    return noted + "\n" + to_toml(made).lstrip()
