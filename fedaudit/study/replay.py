"""What would the server have seen? Upload-side protections applied to a stored trace.

Exact for protections that change neither the sum nor the training (shuffle, secure sum). Where a
protection would have changed the model (clipping, noise), later rounds would have differed: the
manifest says that training was not rerun.

Uploads that are anonymous already (a shuffler stood before the server) can be summed, bounded and
noised as well: each message bears its weight, and none of these asks whose it is.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedaudit import settings
from fedaudit.errors import NotApplicable, TraceError, UsageError
from fedaudit.files import parse_toml
from fedaudit.hooks import Hook, SumQuery, Uploads
from fedaudit.randomness import Seed
from fedaudit.setup.catalogue import PROTECTIONS, find
from fedaudit.study.folders import NOT_RERUN
from fedaudit.trace import ANONYMOUS, WIRETAP, Message, Recorder, Trace, Truth, TruthRecorder
from fedaudit.trace.health import examine
from fedaudit.trace.ledger import QUERY, model_receivers, query_layout
from fedaudit.trace.recorder import MODEL, RoundWriter

EXACT = ("shuffle", "secure_sum")
SUMS = ("secure_sum", "secure_aggregation")


def parse_hook(text: str) -> Hook:
    """A protection from `name` or `name:key=value,key=value`."""
    name, _, rest = text.partition(":")
    try:
        given = parse_toml(rest.replace(",", "\n")) if rest else {}
    except ValueError:
        raise UsageError(
            "--as could not be read",
            expected="NAME or NAME:key=value,key=value",
            got=repr(text),
            remedy="for example --as shuffle, or --as clip:bound=1.0",
        ) from None
    cls = find(PROTECTIONS, "protection", name)
    hook: Hook = settings.check(cls, given, f"protections.{name}")
    return hook


def check_hooks(hooks: Sequence[Hook]) -> None:
    """Only what acts on uploads can be applied afterwards."""
    for hook in hooks:
        inside = [p for p in ("data", "gradient", "step", "aggregate") if hook.acts_at(p)]
        if inside or hook.clip_norm is not None or not hook.acts_at("upload"):
            raise UsageError(
                f"{hook.name} cannot be applied to a stored trace",
                expected="a protection of uploads: shuffle, secure_sum, clip or update_noise",
                got=f"{hook.name}, which acts inside training",
                remedy=f"run the federation again with [protections.{hook.name}]",
            )


def check_recording(trace: Trace, hooks: Sequence[Hook]) -> None:
    """Refuse a torn recording where a protection would hide the tear: a sum does not show that one
    of its members was never sent a model."""
    health = examine(trace)
    names = " and ".join(h.name for h in hooks)
    health.refuse("rows", None, f"{names} cannot be applied to this trace")
    if any(h.name in SUMS for h in hooks):
        health.refuse("members", None, f"{names} cannot be applied to this trace")


def check_anonymous(hooks: Sequence[Hook]) -> None:
    """Of uploads that are anonymous already: refuse what needs to know, or to hide, who sent them.

    Weights are no obstacle to a sum: every message of a trace has its own.
    """
    for hook in hooks:
        if hook.name == "shuffle":
            raise NotApplicable(
                "the uploads of this trace are anonymous already",
                code="already_anonymous",
                expected="uploads that bear their senders' names, for a shuffler to take away",
                got="anonymous uploads: a shuffler stood before the server",
                remedy="leave --as shuffle out: fedaudit audit TRACE is what a shuffler leaves",
            )
        if hook.asks:
            raise NotApplicable(
                f"{hook.name} asks clients by name, and the uploads of this trace are anonymous",
                code="already_anonymous",
                expected="uploads that bear their senders' names: sums over parts of the clients "
                "need to know whose updates are in them",
                got="anonymous uploads: a shuffler stood before the server",
                remedy="--as secure_sum for one sum over all, or record the federation without a "
                f"shuffler and audit that trace --as {hook.name}",
            )


def replay(
    trace: Trace, hooks: Sequence[Hook], out: Path, seed: Seed, truth: Truth | None = None
) -> tuple[Trace, Truth]:
    """Write the trace that `hooks` would have left, and its truth, below `out`.

    A replay that stands there already is used again if it is of the same trace and hooks.
    """
    check_hooks(hooks)
    check_recording(trace, hooks)
    asked = {
        "replayed_from": trace.sha256,
        "hooks": [json.loads(json.dumps(h.declare())) for h in hooks],
    }
    if (out / "trace" / "manifest.json").exists():
        old_trace, old_truth = Trace.open(out / "trace"), Truth.open(out / "truth")
        if old_trace.manifest.complete and old_truth.facts.get("replay") == asked:
            return old_trace, old_truth
        raise TraceError(
            f"{out} holds another replay",
            expected="an empty folder, or a replay of the same trace and protections",
            got="another one, or an unfinished one",
            remedy="remove it, or choose another folder with --out",
        )
    about = dict(trace.manifest.federation)
    hubs = tuple(about.get("hubs", ("server",)))
    names = sorted(
        {m.sender for number in trace.rounds for m in trace.messages(number) if _is_upload(m, hubs)}
    )
    if not names:
        raise NotApplicable(
            "this trace holds no single uploads",
            code="no_single_updates",
            expected="messages of kind delta, gradient or model from clients",
            got="none",
            remedy="nothing is left to protect on the way up",
        )
    if ANONYMOUS in names:
        check_anonymous(hooks)
        # the manifest may say who takes part; who sent what it does not
        names = sorted({*names, *about.get("clients", ())} - {ANONYMOUS})
    if names:
        about.setdefault("clients", names)
    extra = {
        "shuffle": "shuffler",
        "secure_sum": "aggregator",
        "secure_aggregation": "aggregator",
    }
    added = [extra[h.name] for h in hooks if h.name in extra]
    about["parties"] = list(dict.fromkeys([*about.get("parties", [*hubs, *names]), *added]))
    declared = [dict(d) for d in trace.manifest.declared]
    declared += [
        {**h.declare(), "applied": "exactly" if h.name in EXACT else NOT_RERUN} for h in hooks
    ]
    layouts = dict(trace.manifest.layouts)
    if any(hook.asks for hook in hooks) or _says_who(trace, hooks, hubs):
        layouts[QUERY] = query_layout(names)
    recorder = Recorder(
        out / "trace",
        layouts=layouts,
        federation=about,
        declared=declared,
        task=trace.manifest.task,
        purpose=trace.manifest.purpose,
        retention=trace.manifest.retention,
    )
    facts = {} if truth is None else {k: v for k, v in truth.facts.items() if k != "seed"}
    facts = {**facts, "replay": asked, "seed_of_replay": seed.root}
    known = TruthRecorder(out / "truth", facts)
    exact = all(h.name in EXACT for h in hooks)
    try:
        for number in trace.rounds:
            # what a model is worth that was trained without them says nothing of one with them
            metrics = truth.metrics(number) if truth is not None and exact else {}
            with recorder.round() as wire:
                said = {} if truth is None else truth.senders(number)
                senders = _one_round(trace, number, hooks, names, hubs, seed, wire, said)
                known.round(number, senders, metrics=metrics)
    except BaseException:
        # half a replay is of no use, and would be in the way of the next
        for part in ("trace", "truth"):
            shutil.rmtree(out / part, ignore_errors=True)
        raise
    recorder.close()
    return Trace.open(out / "trace"), Truth.open(out / "truth")


def _is_upload(m: Message, hubs: Sequence[str]) -> bool:
    return m.kind in ("delta", "gradient", "model") and m.sender not in hubs and m.receiver in hubs


def _one_round(
    trace: Trace,
    number: int,
    hooks: Sequence[Hook],
    names: Sequence[str],
    hubs: Sequence[str],
    seed: Seed,
    wire: RoundWriter,
    said: Mapping[int, str],
) -> dict[int, str]:
    """Write one round; `said` is the truth about its senders, for rows without a name.

    Back comes the same about the rows that were written.
    """
    import torch

    from fedaudit.federation.wire import send_uploads

    messages = trace.messages(number)
    senders: dict[int, str] = {}
    at = [i for i, m in enumerate(messages) if _is_upload(m, hubs) and m.parts]
    groups = _batches([messages[i] for i in at])
    place = {id(messages[i]): i for i in at}
    first_one, last_one = (at[0], at[-1]) if at else (len(messages), len(messages))
    uploaded, after = {*at}, []
    for i, m in enumerate(messages):
        if i in uploaded:
            continue
        # software that serves one client after the other sends its model late; it still came
        # before the uploads, which leave together
        down = m.sender in hubs and m.receiver not in hubs
        if i < first_one or (down and i < last_one):
            _copy(trace, number, m, wire)
        else:
            after.append(m)
    summed = any(h.name == "secure_sum" for h in hooks)
    for (receiver, step, kind), own in groups.items():
        members = _members(messages, own, receiver, step) if summed else []
        rows = trace.block(number)[[m.parts[MODEL] for m in own]].astype(np.float32)
        if kind == "model" and any(hook.name != "shuffle" for hook in hooks):
            # bounds, noise and sums are about updates: what was sent minus what was received
            seen = trace.seen_by(WIRETAP).updates(number)
            where = {int(i): at for at, i in enumerate(seen.messages)}
            index = [where[place[id(m)]] for m in own]
            rows, kind = np.array(seen.rows[index], dtype=np.float32), "delta"
        who = [
            said.get(place[id(m)], ANONYMOUS) if m.sender == ANONYMOUS else m.sender for m in own
        ]
        # a client draws by its number, rows of nobody known by their place
        origin = [names.index(w) if w in names else len(names) + j for j, w in enumerate(who)]
        uploads = Uploads(
            rows=torch.from_numpy(rows),
            senders=tuple(m.sender for m in own),
            weights=np.array([m.weight for m in own]),
            origin=np.array(origin, dtype=np.int64),
            total_weight=float(sum(m.weight for m in own)),
            kind=kind,
            metadata=tuple(dict(m.metadata) for m in own) if own[0].metadata else (),
        )
        for hook in hooks:
            uploads = hook.upload(uploads, round_number=number, seed=seed)
        if members and uploads.kind == "sum" and not uploads.queries:
            inside = np.array([names.index(name) for name in members], dtype=np.int64)
            uploads = replace(uploads, queries=(SumQuery(inside, None),), metadata=({QUERY: 0},))
        first = send_uploads(wire, uploads, receiver, len(names), legs=kind, step=step, after=step)
        named = dict(zip(origin, who, strict=True))
        senders |= {
            first + i: named[int(c)]
            for i, c in enumerate(uploads.origin)
            if c >= 0 and named[int(c)] != ANONYMOUS
        }
        _carry_along(trace, number, own, origin, uploads, wire, first)
    for m in after:
        _copy(trace, number, m, wire)
    return senders


def _members(
    messages: Sequence[Message], own: Sequence[Message], receiver: str, step: int
) -> list[str]:
    """Who is in a sum of `own`, where that is not everybody who was sent a model; else empty.

    A sum without a question is read as one over all of them. Some may have failed to answer.
    """
    senders, sent = {m.sender for m in own}, set(model_receivers(messages, receiver, step))
    if ANONYMOUS not in senders:
        return sorted(senders) if senders != sent else []
    if len(own) == len(sent) or not sent:
        return []
    raise NotApplicable(
        "nobody knows whose updates are in a sum of this trace",
        code="unknown_members",
        expected=f"anonymous answers from all {len(sent)} clients that were sent a model",
        got=f"{len(own)} answers",
        remedy="audit the trace as it is: fedaudit audit TRACE",
    )


def _says_who(trace: Trace, hooks: Sequence[Hook], hubs: Sequence[str]) -> bool:
    """Whether a replayed sum has to say whose updates are in it, in any round."""
    if not any(h.name == "secure_sum" for h in hooks):
        return False
    for number in trace.rounds:
        messages = trace.messages(number)
        uploads = [m for m in messages if _is_upload(m, hubs) and m.parts]
        for (receiver, step, _), own in _batches(uploads).items():
            if _members(messages, own, receiver, step):
                return True
    return False


def _batches(uploads: Sequence[Message]) -> dict[tuple[str, int, str], list[Message]]:
    """(receiver, step, kind) -> the uploads that a protection takes together.

    All of a round that reach one party, where every sender has one: software that serves one client
    after the other gives each a step of its own. Where a sender has several, those of each step.
    """
    whole: dict[tuple[str, str], list[Message]] = {}
    for m in uploads:
        whole.setdefault((m.receiver, m.kind), []).append(m)
    out: dict[tuple[str, int, str], list[Message]] = {}
    for (receiver, kind), own in whole.items():
        if len({m.sender for m in own}) == len(own):
            out[receiver, max(m.step for m in own), kind] = own
            continue
        for m in own:
            out.setdefault((receiver, m.step, kind), []).append(m)
    return out


def _carry_along(
    trace: Trace,
    number: int,
    own: Sequence[Message],
    origin: Sequence[int],
    uploads: Uploads,
    wire: RoundWriter,
    first: int,
) -> None:
    """What else a message carried (integer buffers), and what was noted of it, stays with its row;
    a sum carries nothing."""
    beside = dict(zip(origin, own, strict=True))
    for i, client in enumerate(uploads.origin):
        old = beside.get(int(client))
        if old is None:
            continue
        m = wire.messages[first + i]
        parts = dict(m.parts)
        for layout, row in old.parts.items():
            if layout != MODEL:
                parts[layout] = wire.put_once(layout, trace.block(number, layout)[row : row + 1])
        # what was noted under a name would give away the row that has none now
        notes = old.notes if m.sender == old.sender else {}
        wire.messages[first + i] = replace(m, parts=parts, notes=notes)


def _copy(trace: Trace, number: int, m: Message, wire: RoundWriter) -> None:
    """A message as it was, its payload with it."""
    parts: dict[str, Any] = {}
    for layout, row in m.parts.items():
        named = trace.manifest.layouts[layout].unflatten(trace.block(number, layout)[row])
        parts |= named
    wire.send(
        m.kind,
        m.sender,
        m.receiver,
        parts or None,
        step=m.step,
        weight=m.weight,
        size=m.size,
        metadata=m.metadata,
        notes=m.notes,
    )
