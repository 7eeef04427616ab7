"""The first lines of a report: data, federation, model, protections, utility."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

from fedaudit.data.builtin import BUILTIN
from fedaudit.data.dataset import FILLED_OVER_ALL, STANDARDISED_OVER_ALL
from fedaudit.data.fetch import SOURCES
from fedaudit.errors import count_of
from fedaudit.files import parse_toml
from fedaudit.results import Estimate, rests_on
from fedaudit.stats.intervals import wilson
from fedaudit.study.folders import NOT_RERUN
from fedaudit.trace import AGGREGATOR, ANONYMOUS, PUBLIC, SERVER, SHUFFLER, Trace, Truth
from fedaudit.trace.examination import examine

UNNAMED = (ANONYMOUS, AGGREGATOR)
"""Senders that do not identify a client."""


def summarise(
    trace: Trace,
    truth: Truth | None,
    guarantees: Mapping[str, Any] | None = None,
    config: str = "",
    members_given: bool = False,
) -> dict[str, str]:
    """The federation in a few lines; `guarantees` as in `Run`, by default those of the truth.

    `config`: the settings of the run as TOML, for the data and the label. `members_given`:
    membership was scored against records that the user handed over (--data).
    """
    about = trace.manifest.federation
    health = examine(trace, payloads=False)
    clients = clients_of(trace)
    how = " on a ".join(
        text
        for text in (
            str(about.get("aggregation", "")),
            f"{about['topology']} topology" if "topology" in about else "",
        )
        if text
    )
    about_data = _data(trace, truth, config)
    lines = {"data": about_data} if about_data else {}
    size = f"{count_of(len(clients), 'client')}, {count_of(len(trace.rounds), 'training round')}"
    lines |= {
        "federation": size,
        **({"aggregation": how} if how else {}),
        "arrived": ": ".join(
            filter(None, (rests_on(health.arrived, health.expected), health.round_by_round))
        ),
        "model": f"{_model(trace)}, {trace.layout.width:,} recorded numbers per message",
        "protected by": ", ".join(_named(d) for d in trace.manifest.declared)
        or "nothing that was declared",
    }
    if guarantees is None:
        guarantees = {} if truth is None else truth.facts.get("guarantees", {})
    said = [_promise(name, list(given.values())) for name, given in guarantees.items() if given]
    if said:
        lines["promised"] = "; ".join(said)
    if truth is not None and truth.facts.get("notes"):
        lines["noted"] = "; ".join(_noted(str(n)) for n in truth.facts["notes"])
    if truth is None:
        lines["truth"] = (
            "not given: membership is scored against the given records (`data`); other attacks "
            "run blind, their guesses are not scored"
            if members_given
            else "not given: attacks run blind, their guesses are not scored"
        )
    elif not_rerun(trace):
        lines["held out"] = (
            f"not known: the model was trained without {listed(not_rerun(trace))}, and training "
            "was not rerun"
        )
    elif len(trace.rounds):
        metrics = truth.metrics(trace.rounds[-1])
        if metrics:
            lines["held out"] = _held_out(
                metrics,
                int(truth.facts.get("held_out", 0)),
                truth.facts.get("guessing", {}),
                vocabulary_of(trace),
            )
    if not trace.manifest.complete:
        lines["state"] = "unfinished: only the rounds recorded so far"
    return lines


def not_rerun(trace: Trace) -> list[str]:
    """Protections that were applied to the stored trace and would have changed its model: the
    recorded metrics do not hold under them."""
    return [
        str(d.get("name", "?")) for d in trace.manifest.declared if d.get("applied") == NOT_RERUN
    ]


def _promise(name: str, given: Sequence[Mapping[str, Any]]) -> str:
    """The guarantee of a protection over the whole run, in words."""
    one = given[0]
    spent = [float(g["epsilon"]) for g in given]
    low, high = f"{min(spent):,.4g}", f"{max(spent):,.4g}"
    text = f"{name}: epsilon {low if low == high else f'{low} to {high}'} per {one['unit']}"
    if one.get("delta"):
        text += f" at delta {one['delta']:g}"
    covers = {str(g.get("covers", "")) for g in given}
    return text + (f" ({covers.pop()})" if len(covers) == 1 and covers != {""} else "")


def clients_of(trace: Trace) -> list[str]:
    """The clients of a trace: from the manifest, else from the messages."""
    return list(trace.manifest.federation.get("clients") or _speakers(trace))


def _speakers(trace: Trace) -> list[str]:
    """Parties in the messages that are not servers."""
    others = {*trace.manifest.federation.get("hubs", (SERVER,)), *UNNAMED, PUBLIC, SHUFFLER}
    return [party for party in trace.parties() if party not in others]


MODELS = {
    "mlp": "a fully connected network (mlp)",
    "cnn": "a convolutional network (cnn)",
    "vit": "a vision transformer (vit)",
    "vae": "a variational autoencoder (vae)",
    "gpt": "a small language model (gpt)",
    "lora": "low-rank adapters on a frozen language model (lora)",
    "module": "the user's own network (module)",
}


def _model(trace: Trace) -> str:
    kind = str(trace.manifest.task.get("kind", "a model of unknown kind"))
    return MODELS.get(kind, kind)


LEARNT = {
    "gpt": "continue its texts",
    "lora": "continue its texts",
    "vae": "draw records like it",
}
"""Kind of model -> what it learns from the data; any other learns a class or label."""


def _data(trace: Trace, truth: Truth | None, config: str) -> str:
    """Name and size of the data, and what the model learns from it; empty if not known."""
    given, kind = table_of(config, "data"), str(trace.manifest.task.get("kind", ""))
    if given.get("name"):
        name = str(given["name"])
        known = BUILTIN.get(name) or SOURCES.get(name)
        text = f"{known.summary} ({name})" if known is not None and known.summary else name
        text = f"demonstration data: {text}" if name in BUILTIN else text
    elif given.get("path"):
        text = Path(str(given["path"]).replace("\\", "/")).name
    else:
        return ""
    if truth is not None:
        own = [c.get("records", ()) for c in truth.facts.get("clients", {}).values()]
        text += f", {sum(map(len, own)):,} records with the clients"
        if truth.facts.get("held_out"):
            text += f" and {int(truth.facts['held_out']):,} held out"
    label = f"predict {given['label']}" if given.get("label") else "predict its class"
    return f"{text}; to {LEARNT.get(kind, label)}" if kind else text


POOLED = {
    FILLED_OVER_ALL: "filling",
    STANDARDISED_OVER_ALL: "standardising",
}
"""Note about a step that uses the records of all clients -> its short name."""


def _noted(note: str) -> str:
    """A note on the data; steps that use all clients' records say that no epsilon covers them."""
    for start, doing in POOLED.items():
        if note.startswith(start):
            return f"{note} ({doing} uses the records of all clients; no epsilon covers that)"
    return note


def vocabulary_of(trace: Trace) -> int | None:
    """Vocabulary size of a language model that fedaudit builds; None for any other model."""
    task = trace.manifest.task
    if task.get("kind") == "gpt":
        for entry in trace.layout.entries:
            if entry.name == "tokens.weight":
                return int(entry.shape[0])
    known = task.get("kind") == "gpt" or (task.get("kind") == "lora" and not task.get("model"))
    size = task.get("vocabulary_size")
    return size if known and isinstance(size, int) and size > 1 else None


def utility_of(trace: Trace, truth: Truth | None) -> dict[str, Estimate]:
    """Held-out metrics of the last model that have an interval; empty where none is known."""
    if truth is None or not_rerun(trace) or not len(trace.rounds):
        return {}
    return _utility(
        truth.metrics(trace.rounds[-1]),
        int(truth.facts.get("held_out", 0)),
        truth.facts.get("guessing", {}),
        vocabulary_of(trace),
    )


def _utility(
    metrics: Mapping[str, float],
    records: int,
    guessing: Mapping[str, float],
    vocabulary: int | None,
) -> dict[str, Estimate]:
    """Metrics with their intervals; the baseline is that of guessing by class frequencies, or
    uniformly over the tokens of a `vocabulary`."""
    out = {}
    for name, value in metrics.items():
        if name.endswith("_error"):
            continue
        base = guessing.get(name)
        if base is None and name == "loss" and vocabulary is not None:
            base = math.log(vocabulary)
        if name == "accuracy" and records:
            e = wilson(round(value * records), records)
            # the metric itself, not its nearest count
            out[name] = replace(e, value=value, baseline=base, method="Wilson")
        elif f"{name}_error" in metrics and math.isfinite(value):
            wide = NormalDist().inv_cdf(0.975) * metrics[f"{name}_error"]
            out[name] = Estimate(
                value=value,
                low=value - wide,
                high=value + wide,
                n=records,
                baseline=base,
                method="normal interval",
            )
    return out


def _held_out(
    metrics: Mapping[str, float],
    records: int,
    guessing: Mapping[str, float] | None = None,
    vocabulary: int | None = None,
) -> str:
    """Held-out metrics of the last model in words, with intervals and the value of guessing."""
    parts, known = [], _utility(metrics, records, guessing or {}, vocabulary)
    for name, value in metrics.items():
        if name.endswith("_error"):
            continue
        text = f"{name} {value:.3f}"
        if (e := known.get(name)) is not None:
            texts = name != "accuracy" and vocabulary is not None
            of = f"over the windows of {records} texts" if texts else f"n = {records}"
            how = f"{e.method}, {of}" if records else e.method
            text += f" [{e.low:.3f}, {e.high:.3f}] at 95 % ({how})"
        if guessing and name in guessing:
            text += f", by guessing {guessing[name]:.3f}"
        elif name == "loss" and vocabulary is not None:
            text += f", uniform over {vocabulary:,} tokens {math.log(vocabulary):.3f}"
        parts.append(text)
    return "; ".join(parts)


def _named(declared: Mapping[str, Any]) -> str:
    """A declared protection with its note, and how it was applied if the run did not use it."""
    name = str(declared.get("name", "?"))
    if isinstance(declared.get("note"), str):
        name += f" ({declared['note']})"
    applied = declared.get("applied")
    if applied == "exactly":
        return f"{name} (as if: applied to the stored trace)"
    return name if applied is None else f"{name} (as if: {applied})"


def table_of(config: str, name: str) -> dict[str, Any]:
    found = parse_toml(config).get(name, {})
    return found if isinstance(found, dict) else {}


def listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
