"""Refuse input that is not a model: messages, truth, checkpoints, optimisers, records, updates.

Checks run on any array of numbers: on messages or records they would report "no evidence". Files
written by fedaudit name their content in the header. Other content is recognised by names, types
and shapes. An update has a model's names and shapes and is recognised by its magnitude only; an
update with large steps, or of a single layer, looks like a model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.errors import DataError
from fedaudit.protections.guard.tensors import WeightArray, kind_of, lengths

EXPECTED = "the named weights of one received model"
SAVE = "save the model alone: safetensors.torch.save_file(model.state_dict(), FILE)"
OWN_FILES = {
    "messages": "the messages of a recorded round",
    "truth": "the truth of a recorded round, which clients never receive",
    "state": "a checkpoint: the models of a federation",
}
"""Header entry of a fedaudit safetensors file -> its content."""
ROWS = re.compile(r"(models?|integers|raw|velocity|messages?|payloads?|rows)")
OPTIMISER = re.compile(
    r"(^|[._/])(exp_avg\w*|max_exp_avg\w*|exp_inf|momentum_buffer|square_avg|grad_avg|acc_delta"
    r"|param_groups|optimi[sz]er\w*)([._/]|$)"
)
CHANGE = re.compile(r"(^|[._/])(deltas?|updates?|grad(ient)?s?)([._/]|$)")
RECORDS = re.compile(r"(x|features|data|images|inputs|records|samples)(_?(train|test|val))?")
GAIN = re.compile(r"(^|[._/])(weight|gamma|scale)$")
SMALL_GAIN, SHORT, SHORTER = 0.2, 0.3, 0.1
"""Normalisation gains start at 1, and a round of an honest run moves them by at most 0.04. Weight
rows have length 0.4 or more, and a round moves them by at most 0.24. Without gains, only smaller
updates are refused: some models start with short rows."""


def refuse_own_file(file: Path, metadata: Mapping[str, str], trace: Path | None) -> None:
    """Refuse a fedaudit run file by its header metadata; `trace` is the folder with its models."""
    for entry, kind in OWN_FILES.items():
        if entry in metadata:
            where = "TRACE, the folder of the recording" if trace is None else f"{trace}"
            raise DataError(
                f"{file} is not a model",
                expected=EXPECTED,
                got=kind,
                remedy=f"check every model that clients received: fedaudit guard {where}",
            )


def refuse_names(state: Mapping[Any, Any], what: str) -> None:
    """Refuse nested dicts, as saved by training scripts."""
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
        remedy=f'pass the model inside: state["{models[0]}"]' if models else SAVE,
    )


def refuse_arrays(arrays: Mapping[str, npt.NDArray[Any]], what: str) -> None:
    """Refuse arrays whose names, types and shapes show that they are not weights."""
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
        remedy = "for recorded messages: fedaudit guard TRACE; for your own rows, split one "
        remedy += "into the named tensors of the model"
    elif all(RECORDS.fullmatch(n.lower()) for n in wide):
        got = f"records: {_shapes(arrays)}"
        remedy = "own records go beside the model: `fedaudit.guard(MODEL, data=FILE, module=M)`"
    elif len(lengths) == 1 and any(a.dtype.kind in "iub" for a in vectors.values()):
        got = f"records, with a whole number for each: {_shapes(arrays)}"
        remedy = "own records go beside the model: `fedaudit.guard(MODEL, data=FILE, module=M)`"
    elif len(lengths) == 1 and any(n.split(".")[-1] == "bias" for n in wide):
        got = f"{lengths.pop()} models or updates in one: {_shapes(wide)}"
        remedy = "pass one of them: {name: stacked[0] for name, stacked in tensors.items()}"
    elif all(CHANGE.search(n) for n in wide):
        got = f"updates: {', '.join(list(wide)[:3])}"
        remedy = "pass the received model, before or after the update"
    elif not any(a.dtype.kind == "f" for a in [*wide.values(), *vectors.values()]):
        got = f"whole numbers only: {_shapes(wide)}"
        remedy = "for quantised weights, add the scale of each as NAME.scale"
    if got:
        raise DataError(f"{what} is not a model", expected=EXPECTED, got=got, remedy=remedy)


def refuse_update(tensors: Mapping[str, WeightArray], tables: frozenset[str]) -> None:
    """Refuse an update, recognised by its magnitude. Not used with a previous model: there
    `rewritten` sees rows that do not resemble their predecessors."""
    got = _change(tensors, tables)
    if got:
        raise DataError(
            "the numbers are so small that this looks like an update, not a model",
            expected=EXPECTED,
            got=got,
            remedy="pass the model, before or after the update; if this is the model, also pass "
            "the one before it (`previous`)",
        )


def _change(tensors: Mapping[str, WeightArray], tables: frozenset[str]) -> str:
    """Describe the evidence that these tensors are an update; empty if there is none."""
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
        return f"gains of {max(gains):.2g} at most, which start at 1 in a model"
    if not gains and len(sizes) > 1 and max(sizes) < SHORTER:
        return f"rows of weights no longer than {max(sizes):.2g} in any layer"
    return ""


def _shapes(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    some = [f"{n} {a.shape}" for n, a in list(arrays.items())[:3]]
    return ", ".join(some) + (f" and {len(arrays) - 3} more" if len(arrays) > 3 else "")
