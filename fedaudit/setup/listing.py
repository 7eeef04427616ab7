"""Everything a config can name, with its settings: what `fedaudit list` prints."""

from __future__ import annotations

import inspect

from fedaudit import settings
from fedaudit.audits import facts_of
from fedaudit.audits.facts import GREATER, LESS, UNKNOWN
from fedaudit.data import builtin, fetch, files, partition
from fedaudit.federation import topology
from fedaudit.federation.local.schedule import Training
from fedaudit.federation.rounds import Rounds
from fedaudit.setup.catalogue import AUDITS, PROTECTIONS, find
from fedaudit.setup.config import HoldOut, TraceSettings
from fedaudit.tasks.catalogue import CATALOGUE
from fedaudit.watermarks.marking import GreenMarking, Marking


def summary(cls: type) -> str:
    """The first line of a class's docstring."""
    return (inspect.getdoc(cls) or "").split("\n")[0]


def listing() -> dict[str, list[tuple[str, str, dict[str, tuple[str, str]]]]]:
    """Everything a config can name: section -> [(name, one line, setting -> (type, default))]."""
    datasets = [
        (b.name, b.summary, {s.name: (s.meaning, str(s.default)) for s in b.settings})
        for b in builtin.BUILTIN.values()
    ]
    fetched = {s.name: (s.meaning, str(s.default)) for s in builtin.FETCHED_SETTINGS}
    gettable = {n: f"{s.summary} (after `fedaudit data get {n}`)" for n, s in fetch.SOURCES.items()}
    models = [name for name, source in fetch.SOURCES.items() if source.kind == "model"]
    datasets += [(name, words, fetched) for name, words in gettable.items() if name not in models]
    own = {"path": ("text in quotes", settings.REQUIRED), **settings.describe_arguments(files.read)}
    del own["name"]  # data.name in a config names a built-in data set
    return {
        "datasets": datasets,
        "own data": [
            ("path", "CSV, TSV, NPZ, JSONL, IDX or a folder of images", own),
            ("held out", "settings of every data set", settings.describe(HoldOut)),
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
            ("trace", summary(TraceSettings), settings.describe(TraceSettings)),
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
        "measures": [
            (name, "what a policy may limit, as audit.measure", _measures(name)) for name in AUDITS
        ],
    }


WRITTEN = {
    "datasets": '[data] name = "NAME"',
    "own data": "[data]",
    "partitions": '[partition] kind = "NAME"',
    "tasks": '[task] kind = "NAME"',
    "models": '[task] model = "NAME"',
    "topologies": '[topology] kind = "NAME"',
    "federation": "[federation], [training], [trace], [marks]",
    "protections": "[protections.NAME]",
    "audits": "[audits.NAME]",
    "measures": '[[limit]] metric = "NAME.MEASURE", in a policy',
}
"""Section of the list -> where a config has it."""


def _measures(audit: str) -> dict[str, tuple[str, str]]:
    """Measure of an audit -> (its words, unit and direction, no default)."""
    worse = {GREATER: "more is worse", LESS: "less is worse", UNKNOWN: "neither way is worse"}
    return {
        m.name: (f"{m.words} ({m.unit}; {worse[m.worse]})", "") for m in facts_of(audit).measures
    }
