"""What a user does with files: one target per kind, each reads a folder as a command would."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fedaudit.errors import FedauditError
from fuzz import mutate, reseal

Damage = Callable[[Path, Random], str]
Use = Callable[[Path], Any]


@dataclass(frozen=True)
class Target:
    """`folder` of the corpus, how it is damaged, and how it is used after.

    `uses` run one after another, whether or not one before was refused. `meaning` gives a digest of
    what was read: where it is accepted, it has to be the digest of the whole files.
    """

    folder: str
    damage: Damage
    uses: tuple[Use, ...]
    meaning: Use | None = None
    weight: int = 1


def any_of(*patterns: str) -> Damage:
    """Damage one of the files that match."""

    def damage(folder: Path, rng: Random) -> str:
        files = sorted(f for p in patterns for f in folder.glob(p) if f.is_file())
        file = rng.choice(files)
        how = mutate.mutate(file, [f for f in files if f != file], rng)
        return f"{file.relative_to(folder)}: {how}"

    return damage


def sealed(damage: Damage) -> Damage:
    """Damage, and then a new seal over the run: what reads the file has to notice by itself."""

    def then_seal(folder: Path, rng: Random) -> str:
        from fedaudit.study.seal import PARTS, seal

        said = damage(folder, rng)
        for part in PARTS:
            _or_refused(seal, folder, part)
        return f"{said}, sealed"

    return then_seal


def resealed(part: str, how: Callable[[Path, Random], str]) -> Damage:
    return lambda folder, rng: f"{part}: {how(folder / part, rng)}"


# -- traces ---------------------------------------------------------------------------------------


def read_trace(folder: Path) -> str:
    """Everything that a trace holds, as a digest."""
    from fedaudit.trace import Trace

    trace = Trace.open(folder)
    found = hashlib.sha256()
    for number in trace.rounds:
        for m in trace.messages(number):
            found.update(repr((m.step, m.kind, m.sender, m.receiver, m.weight, m.size)).encode())
            found.update(repr((sorted(m.parts.items()), sorted(m.metadata.items()))).encode())
        for layout in trace.manifest.layouts:
            found.update(trace.block(number, layout).tobytes())
    return found.hexdigest()


def view_trace(folder: Path) -> None:
    from fedaudit.trace import NETWORK, PUBLIC, SERVER, WIRETAP, Trace

    trace = Trace.open(folder)
    for party in (SERVER, PUBLIC, NETWORK, WIRETAP, *trace.parties()[:2]):
        view = _or_refused(trace.seen_by, party)
        if view is None:
            continue
        for number in view.rounds:
            for index, _ in view.indexed(number):
                _or_refused(view.payload, number, index)
            _or_refused(view.updates, number)
        _or_refused(view.released)


def _or_refused(call: Callable[..., Any], *given: Any) -> Any:
    try:
        return call(*given)
    except FedauditError:
        return None


def audit_trace(folder: Path) -> None:
    from fedaudit import study

    study.audit(folder / "trace", ["coverage", "fingerprint"], out=folder / "out")


def plan_of_trace(folder: Path) -> None:
    from fedaudit.decide import query_plans as plan

    plan.check(folder)


def retention(folder: Path) -> None:
    from fedaudit.trace import Trace

    str(Trace.open(folder).manifest.retention)


# -- runs -----------------------------------------------------------------------------------------


def report(folder: Path) -> None:
    from fedaudit.study import report

    report(folder)


def gate_run(folder: Path) -> None:
    from fedaudit.decide.gate import gate

    limits = [
        {"metric": "fingerprint.linkage_accuracy", "at_most": 1.0},
        {"metric": "epsilon", "at_most": 50.0},
        {"metric": "accuracy", "at_least": 0.0},
        {"metric": "verdict"},
    ]
    gate(folder, {"limit": limits})


def diff_run(folder: Path) -> None:
    from fedaudit.decide.diff.compare import diff

    diff(folder, folder)


def verify_run(folder: Path) -> None:
    from fedaudit.study.seal import examine, examine_contents, require_seal

    examine(folder)
    examine_contents(folder)
    require_seal(folder)


def audit_run(folder: Path) -> None:
    from fedaudit import study

    study.audit(folder, ["coverage"])


def resume(folder: Path) -> str:
    """Run the same config into the folder, as after a kill; the trace has to come out the same."""
    import tomllib

    from fedaudit import study
    from fedaudit.trace import Trace

    study.run(tomllib.loads((folder.parent / "config-of-run.toml").read_text()), folder)
    return Trace.open(folder).sha256


def read_truth(folder: Path) -> str:
    from fedaudit.trace import Truth

    truth = Truth.open(folder)
    found = [json.dumps(truth.facts, sort_keys=True)]
    found += [repr((sorted(truth.senders(n).items()), truth.metrics(n))) for n in (1, 2, 3)]
    return hashlib.sha256("".join(found).encode()).hexdigest()


def report_study(folder: Path) -> None:
    from fedaudit.study.study import report

    for error in report(folder).failed.values():
        raise error  # the other runs were reported; the command ends with this one's code


# -- files that a user writes ---------------------------------------------------------------------


def each(pattern: str, use: Callable[[Path], Any]) -> Use:
    """Use every file that matches; one that is refused does not stop the others."""

    def run(folder: Path) -> None:
        refused = None
        for file in sorted(folder.glob(pattern)):
            try:
                use(file)
            except FedauditError as error:
                refused = error
        if refused is not None:
            raise refused

    return run


def load_config(file: Path) -> None:
    from fedaudit.study.study import describe, estimate_costs, plan

    parts = plan([file])
    if all(_quick(p.config) for p in parts):
        describe(parts, estimate_costs(parts))


def _quick(config: Any) -> bool:
    """Whether looking ahead is quick: a language model may be trained for it."""
    numbers = (config.federation.rounds, config.federation.clients or 0)
    return config.task.kind == "mlp" and all(n < 1_000 for n in numbers)


def load_policy(file: Path) -> None:
    from fedaudit.decide.gate import load_policy
    from fedaudit.decide.harden.limits import load_limits

    load_policy(file)
    load_limits(file)


def check_plan(file: Path) -> None:
    from fedaudit.decide import query_plans as plan

    plan.check(file)


def allocate(folder: Path) -> None:
    from fedaudit.allocate.clients import read_clients

    read_clients(folder / "clients.csv", "size", "region", None, folder / "edges.txt")


def read_data(file: Path) -> None:
    from fedaudit.data.files import read

    named = {"label": "outcome", "client": "hospital"} if "own.csv" in file.name else {}
    named = {"label": "outcome"} if file.suffix == ".tsv" else named
    data = read(file, **named)
    assert len(data) == len(data.y) > 0
    if isinstance(data.x, np.ndarray):
        assert np.isfinite(data.x).all(), "a record that is no number"


# -- the rest -------------------------------------------------------------------------------------


def merge_sites(folder: Path) -> None:
    from fedaudit.sites import merge

    counts = [folder / "counts-a.json", folder / "counts-b.json"]
    merge(folder / "guesses.json", counts, folder / "out")


def score_site(folder: Path) -> None:
    from fedaudit.sites.files import GUESSES, KEY, read, read_asked
    from fedaudit.sites.score import _score_members

    read_asked(folder / "asked.npz")
    raw = read(folder / "guesses.json", GUESSES)
    known = read(folder / "key.json", KEY)
    if "two_stage_membership" in raw["audits"]:
        _score_members(raw["audits"]["two_stage_membership"], known)


def guard_model(folder: Path) -> None:
    from fedaudit.protections.guard import guard
    from fedaudit.protections.guard.calibration import Calibration
    from fedaudit.protections.guard.files import read_model

    for name in ("model.npz", "model.safetensors"):
        state = _or_refused(read_model, folder / name)
        if state is not None:
            _or_refused(guard, state)
    Calibration.read(folder / "calibration.json")


def opacus(folder: Path) -> None:
    from fedaudit.study.promised import read_opacus

    read_opacus(folder / "opacus.json", 1e-5, ["a", "b"])


def lock(folder: Path) -> None:
    from fedaudit.study.lock import alone_in

    with alone_in(folder):
        pass


def cell(folder: Path) -> None:
    from fedaudit.study.sweep import _stored

    _stored(folder, {"audits": {}})


def fetched(folder: Path) -> None:
    from fedaudit.data.fetch import load_fetched

    load_fetched("mnist", cache=folder)


def flower_app(folder: Path) -> None:
    from fedaudit.recorders.flower.project import read_project

    read_project(folder)


TRACE = ("trace/*",)
RUN = ("results/*", "*.json", "config.toml")
TARGETS: dict[str, Target] = {
    "trace": Target(
        "run", any_of(*TRACE), (read_trace, view_trace), read_trace, weight=6
    ),
    "trace, resealed": Target(
        "run",
        resealed("trace", reseal.trace),
        (read_trace, view_trace, retention),
        weight=7,
    ),
    "trace, resealed, audited": Target(
        "run", sealed(resealed("trace", reseal.trace)), (audit_trace,)
    ),
    "trace of sums, resealed": Target(
        "sums", resealed("trace", reseal.trace), (view_trace, plan_of_trace), weight=2
    ),
    "truth": Target(
        "run", any_of("truth/*.json", "truth/*.safetensors"), (read_truth,), read_truth, weight=3
    ),
    "truth, resealed": Target(
        "run", sealed(resealed("truth", reseal.truth)), (read_truth, gate_run, audit_run), weight=2
    ),
    "run": Target(
        "run", any_of(*RUN, "seal.json", "truth/seal.json"), (verify_run, gate_run), weight=2
    ),
    "run, resealed": Target("run", sealed(any_of(*RUN)), (gate_run, diff_run), weight=4),
    "run, reported": Target("run", sealed(any_of(*RUN, "truth/*")), (verify_run, report)),
    "half a run": Target(
        "half", any_of("checkpoint/*", "truth/*", "trace/*", "*.json"), (resume,), resume, weight=2
    ),
    "study": Target(
        "study", sealed(any_of("study.json", "*/*.json", "*/*.toml")), (verify_run, report_study)
    ),
    "config": Target("configs", any_of("*.toml"), (each("*.toml", load_config),), weight=5),
    "policy": Target("policies", any_of("*.toml"), (each("*.toml", load_policy),), weight=6),
    "plan": Target(
        "plans", any_of("*.csv", "*.txt"),
        (each("[pb]*.csv", check_plan), allocate), weight=6,
    ),
    "table": Target("data", any_of("own.csv", "own.tsv"), (each("own.?sv", read_data),), weight=5),
    "packed table": Target("data", any_of("*.csv.gz"), (each("*.csv.gz", read_data),), weight=3),
    "arrays": Target("data", any_of("*.npz"), (each("*.npz", read_data),), weight=6),
    "lines": Target("data", any_of("own.jsonl"), (each("*.jsonl", read_data),), weight=5),
    "idx": Target("data", any_of("idx/*"), (each("idx", read_data),), weight=4),
    "images": Target("data", any_of("images/*/*"), (each("images", read_data),), weight=4),
    "sites": Target("sites", any_of("*.json", "*.npz"), (score_site, merge_sites), weight=4),
    "models": Target("models", any_of("*"), (guard_model,), weight=3),
    "loose files": Target(
        "loose", any_of("*.json", "*.part", "*.toml", "*.npz"),
        (opacus, lock, cell, fetched, flower_app), weight=6,
    ),
}  # fmt: skip
