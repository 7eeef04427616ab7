"""What a config can name, and where it lives. Modules are imported when they are used."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from fedaudit import settings
from fedaudit.errors import ConfigError, nearest

AUDITS = {
    "active_membership": "fedaudit.audits.active_membership:ActiveMembership",
    "attribution": "fedaudit.audits.attribution:Attribution",
    "coverage": "fedaudit.audits.coverage:Coverage",
    "fingerprint": "fedaudit.audits.fingerprint:Fingerprint",
    "query_plan": "fedaudit.audits.query_plan:QueryPlan",
    "topology_inference": "fedaudit.audits.topology_inference:TopologyInference",
    "two_stage_membership": "fedaudit.audits.two_stage_membership:TwoStageMembership",
}
PROTECTIONS = {
    "central_dp": "fedaudit.protections.central_dp:CentralDP",
    "clip": "fedaudit.protections.clip:Clip",
    "dp_sgd": "fedaudit.protections.dp_sgd:DPSGD",
    "local_dp": "fedaudit.protections.local_dp.protection:LocalDP",
    "secure_aggregation": "fedaudit.protections.secure_aggregation:SecureAggregation",
    "secure_sum": "fedaudit.protections.secure_sum:SecureSum",
    "shuffle": "fedaudit.protections.shuffle:Shuffle",
    "update_noise": "fedaudit.protections.update_noise:UpdateNoise",
}


def find(table: dict[str, str], kind: str, name: str) -> Any:
    """The class behind a name; an unknown name is refused with the nearest."""
    if name not in table:
        raise ConfigError(
            f"unknown {kind} {name!r}",
            expected=f"the name of {'an' if kind[0] in 'aeiou' else 'a'} {kind}",
            got=repr(name),
            remedy=nearest(name, table),
        )
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def summary(cls: type) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(cls) or "").split("\n")[0]


def listing() -> dict[str, list[tuple[str, str, dict[str, tuple[str, str]]]]]:
    """Everything a config can name: section -> [(name, one line, setting -> (type, default))]."""
    from fedaudit.data import builtin, fetch, files, partition
    from fedaudit.experiment.config import Held, Recording
    from fedaudit.federation import topology
    from fedaudit.federation.local.schedule import Training
    from fedaudit.federation.rounds import Rounds
    from fedaudit.tasks.catalogue import CATALOGUE
    from fedaudit.watermarks.marking import GreenMarking, Marking

    datasets = [
        (b.name, b.summary, {s.name: (s.meaning, str(s.default)) for s in b.settings})
        for b in builtin.BUILTIN.values()
    ]
    fetched = {s.name: (s.meaning, str(s.default)) for s in builtin.FETCHED_SETTINGS}
    gettable = {n: f"{s.summary} (after `fedaudit data get {n}`)" for n, s in fetch.SOURCES.items()}
    models = [name for name, source in fetch.SOURCES.items() if source.kind == "model"]
    datasets += [(name, words, fetched) for name, words in gettable.items() if name not in models]
    own = {"path": ("text in quotes", settings.REQUIRED), **settings.describe_arguments(files.read)}
    del own["name"]  # in a config this word names a data set
    return {
        "datasets": datasets,
        "own data": [
            ("path", "CSV, TSV, NPZ, JSONL, IDX or a folder of images", own),
            ("held out", "what holds for every data set", settings.describe(Held)),
        ],
        "partitions": [
            (name, summary(cls), settings.describe(cls)) for name, cls in partition.KINDS.items()
        ],
        "tasks": [(name, summary(c), settings.describe(c)) for name, c in CATALOGUE.items()],
        "models": [(name, gettable[name], {}) for name in models],
        "topologies": [
            (name, kind.summary, {k: (v, "") for k, v in kind.settings.items()})
            for name, kind in topology.KINDS.items()
        ],
        "federation": [
            ("federation", summary(Rounds), settings.describe(Rounds)),
            ("training", summary(Training), settings.describe(Training)),
            ("trace", summary(Recording), settings.describe(Recording)),
            ("marks", summary(Marking), settings.describe(Marking)),
            ("marks, kgw", summary(GreenMarking), settings.describe(GreenMarking)),
        ],
        "protections": [
            (name, summary(cls), settings.describe(cls))
            for name in PROTECTIONS
            for cls in [find(PROTECTIONS, "protection", name)]
        ],
        "audits": [
            (name, summary(cls), settings.describe(cls))
            for name in AUDITS
            for cls in [find(AUDITS, "audit", name)]
        ],
    }
