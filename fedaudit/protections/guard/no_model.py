"""Refuse what is not a model: messages, truth, checkpoints, optimiser states, records, updates.

A file of numbers has rows whatever they mean, and a check that reads messages or records as weights
finds nothing and says so. What fedaudit wrote says what it is in its header. Other content is known
by its names, its types and its shapes; an update has the names and shapes of a model, and is known
by its size alone, so that one of large steps, or of a single layer, cannot be told from a model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.errors import DataError
from fedaudit.protections.guard.tensors import Floats, kind_of, lengths

EXPECTED = "the named weights of one model, as a client received it"
SAVE = "save the model alone: safetensors.torch.save_file(model.state_dict(), FILE)"
OWN_FILES = {
    "messages": "the messages of a recorded round",
    "truth": "the truth of a recorded round, which no client is sent",
    "state": "a checkpoint: all models of a federation, laid end to end",
}
"""What fedaudit writes as safetensors, by the entry of the header that says so."""
ROWS = re.compile(r"(models?|integers|raw|velocity|messages?|payloads?|rows)")
OPTIMISER = re.compile(
    r"(^|[._/])(exp_avg\w*|max_exp_avg\w*|exp_inf|momentum_buffer|square_avg|grad_avg|acc_delta"
    r"|param_groups|optimi[sz]er\w*)([._/]|$)"
)
CHANGE = re.compile(r"(^|[._/])(deltas?|updates?|grad(ient)?s?)([._/]|$)")
RECORDS = re.compile(r"(x|features|data|images|inputs|records|samples)(_?(train|test|val))?")
GAIN = re.compile(r"(^|[._/])(weight|gamma|scale)$")
SMALL_GAIN, SHORT, SHORTER = 0.2, 0.3, 0.1
"""Gains of normalisations begin at 1, and a round moves them by 0.04 at most in honest runs; rows
of weights have a length of 0.4 or more, and a round moves them by 0.24 at most. Without gains to go
by only updates that are smaller still are refused: some models begin with short rows."""


def refuse_own_file(file: Path, metadata: Mapping[str, str], trace: Path | None) -> None:
    """Refuse a file of a run by the metadata of its header; `trace` is where its models are."""
    for entry, kind in OWN_FILES.items():
        if entry in metadata:
            where = "TRACE, the folder of the recording" if trace is None else f"{trace}"
            raise DataError(
                f"{file} is not a model",
                expected=EXPECTED,
                got=kind,
                remedy=f"look at every model that clients received: fedaudit guard {where}",
            )


def refuse_names(state: Mapping[Any, Any], what: str) -> None:
    """Refuse nested dicts, as training scripts save them."""
    inner = [str(k) for k, v in state.items() if isinstance(v, Mapping)]
    if not inner:
        return
    models = [k for k in inner if "model" in k or k == "state_dict"]
    raise DataError(
        f"{what} is not a state dict",
        expected=EXPECTED,
        got="the state of an optimiser"
        if "param_groups" in state
        else f"dicts called {', '.join(inner[:3])}",
        remedy=f'hand over the model inside: state["{models[0]}"]' if models else SAVE,
    )


def refuse_arrays(arrays: Mapping[str, npt.NDArray[Any]], what: str) -> None:
    """Refuse arrays that by their names, types and shapes are something else than weights."""
    wide = {n: a for n, a in arrays.items() if a.ndim >= 2}
    vectors = {n: a for n, a in arrays.items() if a.ndim == 1}
    if not wide:
        return
    lengths = {len(a) for a in arrays.values() if a.ndim}
    got, remedy = "", SAVE
    if found := [n for n in arrays if OPTIMISER.search(n)]:
        got = f"the state of an optimiser: {found[0]}"
    elif found := [n for n, a in arrays.items() if a.dtype.kind in "USO"]:
        got = f"text or objects: {found[0]}"
    elif all(ROWS.fullmatch(n) for n in wide):
        got = f"a table of rows: {_shapes(wide)}"
        remedy = "for messages that were recorded: fedaudit guard TRACE; of rows of your own, cut "
        remedy += "one into the named tensors of the model"
    elif all(RECORDS.fullmatch(n.lower()) for n in wide):
        got = f"records: {_shapes(arrays)}"
        remedy = "own records go beside the model: fedaudit guard MODEL --data FILE --model M"
    elif len(lengths) == 1 and any(a.dtype.kind in "iub" for a in vectors.values()):
        got = f"records, with a whole number for each: {_shapes(arrays)}"
        remedy = "own records go beside the model: fedaudit guard MODEL --data FILE --model M"
    elif len(lengths) == 1 and any(n.split(".")[-1] == "bias" for n in wide):
        got = f"{lengths.pop()} models or updates in one: {_shapes(wide)}"
        remedy = "hand over one of them: {name: stacked[0] for name, stacked in tensors.items()}"
    elif all(CHANGE.search(n) for n in wide):
        got = f"updates: {', '.join(list(wide)[:3])}"
        remedy = "hand over the model that was received, before or after the update"
    elif not any(a.dtype.kind == "f" for a in [*wide.values(), *vectors.values()]):
        got = f"whole numbers alone: {_shapes(wide)}"
        remedy = "quantised weights need the scale of each beside them, as NAME.scale"
    if got:
        raise DataError(f"{what} is not a model", expected=EXPECTED, got=got, remedy=remedy)


def refuse_update(tensors: Mapping[str, Floats], tables: frozenset[str]) -> None:
    """Refuse a change of a model, where its size tells. Not asked where there is a previous model:
    `rewritten` sees rows that have nothing to do with what they were."""
    got = _change(tensors, tables)
    if got:
        raise DataError(
            "this is an update, not a model, by the size of its numbers",
            expected=EXPECTED,
            got=got,
            remedy="hand over the model, before or after the update; if this is the model, give "
            "the one before it too (--previous), which shows it",
        )


def _change(tensors: Mapping[str, Floats], tables: frozenset[str]) -> str:
    """Words for what shows that these tensors are a change of a model; empty without any."""
    for name, t in tensors.items():
        if name.endswith("running_var") and (t < 0).any():
            return f"a variance below 0 in {name}"
    sizes = []
    for name, t in tensors.items():
        if t.ndim < 2 or name in tables or kind_of(name, t.shape) == "adapter":
            continue
        rows = lengths(t.reshape(len(t), -1)) if t.size else np.zeros(0)
        if (rows > 0).any():
            sizes.append(float(np.median(rows[rows > 0])))
    gains = [
        float(np.abs(t).mean())
        for name, t in tensors.items()
        if t.ndim == 1 and t.size and GAIN.search(name)
    ]
    if gains and sizes and max(gains) < SMALL_GAIN and max(sizes) < SHORT:
        return f"gains of {max(gains):.2g} at most, which begin at 1"
    if not gains and len(sizes) > 1 and max(sizes) < SHORTER:
        return f"rows of weights no longer than {max(sizes):.2g} in any layer"
    return ""


def _shapes(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    some = [f"{n} {a.shape}" for n, a in list(arrays.items())[:3]]
    return ", ".join(some) + (f" and {len(arrays) - 3} more" if len(arrays) > 3 else "")
