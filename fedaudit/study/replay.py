"""Apply upload-side protections to a stored trace: what would the server have seen?

This is exact for protections that change neither the sum nor the training (shuffle, secure sum).
Clipping and noise would have changed the model and hence later rounds: the manifest then says that
training was not rerun.

Anonymous uploads (behind a shuffler) can be summed, clipped and noised too: each message has its
weight, and none of these protections needs the sender.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedaudit.errors import NotApplicable, TraceError, UsageError, count_of
from fedaudit.federation.wire import send_uploads
from fedaudit.hooks import Hook, SumQuery, Uploads, declaration_of
from fedaudit.randomness import Seed
from fedaudit.study.folders import NOT_RERUN
from fedaudit.trace import ANONYMOUS, WIRETAP, Message, Recorder, Trace, Truth, TruthRecorder
from fedaudit.trace.examination import examine
from fedaudit.trace.ledger import QUERY, model_receivers, query_layout
from fedaudit.trace.recorder import MODEL, RoundWriter


def check_hooks(hooks: Sequence[Hook]) -> None:
    """Refuse protections that do not act on uploads: only those can be applied afterwards."""
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
    """Refuse a torn recording if a protection would hide the tear: a sum does not show that one of
    its members never received a model."""
    health = examine(trace)
    names = " and ".join(h.name for h in hooks)
    health.refuse("rows", None, f"{names} cannot be applied to this trace")
    if any(h.only_sums for h in hooks):
        health.refuse("members", None, f"{names} cannot be applied to this trace")


def check_anonymous(hooks: Sequence[Hook]) -> None:
    """For anonymous uploads, refuse protections that need or hide the senders.

    Sums remain possible: every message of a trace has its weight.
    """
    for hook in hooks:
        if hook.hides_senders:
            raise NotApplicable(
                "the uploads of this trace are anonymous already",
                code="already_anonymous",
                expected="uploads with their senders' names, which a shuffler removes",
                got="anonymous uploads: the run used a shuffler",
                remedy=f"leave {hook.name} out of `as_if`: an audit of this trace already sees "
                "shuffled uploads",
            )
        if hook.asks:
            raise NotApplicable(
                f"{hook.name} asks clients by name, and the uploads of this trace are anonymous",
                code="already_anonymous",
                expected="uploads with their senders' names: sums over some of the clients need "
                "to know who is in them",
                got="anonymous uploads: the run used a shuffler",
                remedy='`as_if=["secure_sum"]` for one sum over all, or record the federation '
                f"without a shuffler and audit that trace as if with {hook.name}",
            )


def replay(
    trace: Trace, hooks: Sequence[Hook], out: Path, seed: Seed, truth: Truth | None = None
) -> tuple[Trace, Truth]:
    """Write the trace that `hooks` would have left, and its truth, below `out`.

    A stored replay of the same trace and hooks is used again.
    """
    check_hooks(hooks)
    check_recording(trace, hooks)
    asked = {
        "replayed_from": trace.sha256,
        "hooks": [json.loads(json.dumps(declaration_of(h))) for h in hooks],
    }
    if (out / "trace" / "manifest.json").exists():
        old_trace, old_truth = Trace.open(out / "trace"), Truth.open(out / "truth")
        if old_trace.manifest.complete and old_truth.facts.get("replay") == asked:
            return old_trace, old_truth
        raise TraceError(
            f"{out} holds another replay",
            expected="an empty folder, or a replay of the same trace and protections",
            got="a different or unfinished replay",
            remedy="remove it, or choose another folder with `out`",
        )
    hubs = tuple(trace.manifest.federation.get("hubs", ("server",)))
    names = _client_names(trace, hooks, hubs)
    recorder = _new_recorder(trace, hooks, out, names, hubs)
    facts = {} if truth is None else {k: v for k, v in truth.facts.items() if k != "seed"}
    facts = {**facts, "replay": asked, "seed_of_replay": seed.root}
    known = TruthRecorder(out / "truth", facts)
    exact = all(h.exact_afterwards for h in hooks)
    memory: dict[str, Any] = {}
    try:
        for number in trace.rounds:
            # metrics of a model trained without these protections do not hold with them
            metrics = truth.metrics(number) if truth is not None and exact else {}
            with recorder.round() as wire:
                true_senders = {} if truth is None else truth.senders(number)
                messages = trace.messages(number)
                old = _OldRound(trace, number, hubs, messages, true_senders, memory)
                senders = _replay_round(old, hooks, names, seed, wire)
                known.round(number, senders, metrics=metrics)
    except BaseException:
        # half a replay is useless, and would block the next one
        for part in ("trace", "truth"):
            shutil.rmtree(out / part, ignore_errors=True)
        raise
    recorder.close()
    return Trace.open(out / "trace"), Truth.open(out / "truth")


def _client_names(trace: Trace, hooks: Sequence[Hook], hubs: Sequence[str]) -> list[str]:
    """Names of the clients that upload; refuse a trace whose uploads `hooks` cannot protect."""
    names = sorted(
        {m.sender for number in trace.rounds for m in trace.messages(number) if _is_upload(m, hubs)}
    )
    if not names:
        raise NotApplicable(
            "this trace holds no uploads of single clients",
            code="no_single_updates",
            expected="messages of kind delta, gradient or model from clients",
            got="none",
            remedy="audit the trace without `as_if`: there are no uploads to protect",
        )
    if ANONYMOUS in names:
        check_anonymous(hooks)
        # the manifest may list the clients, but not who sent what
        names = sorted({*names, *trace.manifest.federation.get("clients", ())} - {ANONYMOUS})
    return names


def _new_recorder(
    trace: Trace, hooks: Sequence[Hook], out: Path, names: Sequence[str], hubs: Sequence[str]
) -> Recorder:
    """The recorder of a replay, with the parties and protections that `hooks` add."""
    about = dict(trace.manifest.federation)
    if names:
        about.setdefault("clients", names)
    added = [h.between for h in hooks if h.between]
    about["parties"] = list(dict.fromkeys([*about.get("parties", [*hubs, *names]), *added]))
    declared = [dict(d) for d in trace.manifest.declared]
    declared += [
        {**declaration_of(h), "applied": "exactly" if h.exact_afterwards else NOT_RERUN}
        for h in hooks
    ]
    layouts = dict(trace.manifest.layouts)
    if any(hook.asks for hook in hooks) or _lists_members(trace, hooks, hubs):
        layouts[QUERY] = query_layout(names)
    return Recorder(
        out / "trace",
        layouts=layouts,
        federation=about,
        declared=declared,
        task=trace.manifest.task,
        purpose=trace.manifest.purpose,
        retention=trace.manifest.retention,
    )


def _is_upload(m: Message, hubs: Sequence[str]) -> bool:
    return m.kind in ("delta", "gradient", "model") and m.sender not in hubs and m.receiver in hubs


@dataclass(frozen=True)
class _OldRound:
    """A recorded round to replay; `senders`: message -> true sender, for anonymous messages."""

    trace: Trace
    number: int
    hubs: Sequence[str]
    messages: Sequence[Message]
    senders: Mapping[int, str]
    memory: dict[str, Any]


def _replay_round(
    old: _OldRound, hooks: Sequence[Hook], names: Sequence[str], seed: Seed, wire: RoundWriter
) -> dict[int, str]:
    """Write one round, and return the true senders of the written messages."""
    messages = old.messages
    at = [i for i, m in enumerate(messages) if _is_upload(m, old.hubs) and m.parts]
    groups = _batches([messages[i] for i in at])
    place = {id(messages[i]): i for i in at}
    after = _copy_models(old, at, wire)
    senders: dict[int, str] = {}
    for (receiver, step, kind), own in groups.items():
        senders |= _replay_batch(
            old, own, [place[id(m)] for m in own], (receiver, step, kind), hooks, names, seed, wire
        )
    for m in after:
        _copy(old.trace, old.number, m, wire)
    return senders


def _copy_models(old: _OldRound, uploads: Sequence[int], wire: RoundWriter) -> list[Message]:
    """Copy the messages that precede the uploads; return those that follow them."""
    messages = old.messages
    end = len(messages)
    first, last = (uploads[0], uploads[-1]) if uploads else (end, end)
    uploaded, after = {*uploads}, []
    for i, m in enumerate(messages):
        if i in uploaded:
            continue
        # software that serves one client after the other sends some models late; replayed uploads
        # leave together, so every model comes before them
        down = m.sender in old.hubs and m.receiver not in old.hubs
        if i < first or (down and i < last):
            _copy(old.trace, old.number, m, wire)
        else:
            after.append(m)
    return after


def _replay_batch(
    old: _OldRound,
    own: Sequence[Message],
    places: Sequence[int],
    key: tuple[str, int, str],
    hooks: Sequence[Hook],
    names: Sequence[str],
    seed: Seed,
    wire: RoundWriter,
) -> dict[int, str]:
    """Protect and write the uploads `own`, which are the messages `places` of the old round.

    `key` is their (receiver, step, kind). Returns the true senders of the written messages.
    """

    receiver, step, kind = key
    summed = _sums_unasked(hooks)
    members = _members(old.messages, own, receiver, step) if summed else []
    rows = old.trace.block(old.number)[[m.parts[MODEL] for m in own]].astype(np.float32)
    if kind == "model" and not all(hook.takes_models for hook in hooks):
        # clipping, noise and sums act on updates: the sent model minus the received one
        seen = old.trace.seen_by(WIRETAP).updates(old.number)
        where = {int(i): at for at, i in enumerate(seen.messages)}
        index = [where[i] for i in places]
        rows, kind = np.array(seen.rows[index], dtype=np.float32), "delta"
    who = [
        old.senders.get(i, ANONYMOUS) if m.sender == ANONYMOUS else m.sender
        for i, m in zip(places, own, strict=True)
    ]
    # a client's number addresses its random draws; an unknown sender's position does
    origin = [names.index(w) if w in names else len(names) + j for j, w in enumerate(who)]
    uploads = Uploads(
        rows=torch.from_numpy(rows),
        senders=tuple(m.sender for m in own),
        weights=np.array([m.weight for m in own]),
        origin=np.array(origin, dtype=np.int64),
        total_weight=float(sum(m.weight for m in own)),
        kind=kind,
        metadata=tuple(dict(m.metadata) for m in own) if own[0].metadata else (),
        memory=old.memory,
    )
    for hook in hooks:
        uploads = hook.upload(uploads, round_number=old.number, seed=seed)
    if members and uploads.kind == "sum" and not uploads.queries:
        inside = np.array([names.index(name) for name in members], dtype=np.int64)
        uploads = replace(uploads, queries=(SumQuery(inside, None),), metadata=({QUERY: 0},))
    first = send_uploads(wire, uploads, receiver, len(names), legs=kind, step=step, after=step)
    _carry_along(old, own, origin, uploads, wire, first)
    named = dict(zip(origin, who, strict=True))
    return {
        first + i: named[int(c)]
        for i, c in enumerate(uploads.origin)
        if c >= 0 and named[int(c)] != ANONYMOUS
    }


def _members(
    messages: Sequence[Message], own: Sequence[Message], receiver: str, step: int
) -> list[str]:
    """Members of a sum of `own`, if some clients that received a model are not in it; else empty.

    A sum without a query counts as one over all of them, but some may have failed to answer.
    """
    senders, sent = {m.sender for m in own}, set(model_receivers(messages, receiver, step))
    if ANONYMOUS not in senders:
        return sorted(senders) if senders != sent else []
    if len(own) == len(sent) or not sent:
        return []
    raise NotApplicable(
        "the members of a sum over this trace are not known",
        code="unknown_members",
        expected=f"anonymous answers from all {len(sent)} clients that were sent a model",
        got=count_of(len(own), "answer"),
        remedy="audit the trace as it is: fedaudit audit TRACE",
    )


def _sums_unasked(hooks: Sequence[Hook]) -> bool:
    """Whether a sum leaves without a query that lists its members."""
    return any(h.only_sums and not h.asks for h in hooks)


def _lists_members(trace: Trace, hooks: Sequence[Hook], hubs: Sequence[str]) -> bool:
    """Whether a replayed sum of any round has to list its members."""
    if not _sums_unasked(hooks):
        return False
    for number in trace.rounds:
        messages = trace.messages(number)
        uploads = [m for m in messages if _is_upload(m, hubs) and m.parts]
        for (receiver, step, _), own in _batches(uploads).items():
            if _members(messages, own, receiver, step):
                return True
    return False


def _batches(uploads: Sequence[Message]) -> dict[tuple[str, int, str], list[Message]]:
    """(receiver, step, kind) -> the uploads that a protection processes together.

    If every sender has one upload in a round, these are all uploads to a party: software that
    serves clients one after the other gives each its own step. Otherwise, those of each step.
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
    old: _OldRound,
    own: Sequence[Message],
    origin: Sequence[int],
    uploads: Uploads,
    wire: RoundWriter,
    first: int,
) -> None:
    """Copy a message's other parts (integer buffers) and notes to its row; a sum has none."""
    beside = dict(zip(origin, own, strict=True))
    for i, client in enumerate(uploads.origin):
        source = beside.get(int(client))
        if source is None:
            continue
        m = wire.messages[first + i]
        parts = dict(m.parts)
        for layout, row in source.parts.items():
            if layout != MODEL:
                block = old.trace.block(old.number, layout)
                parts[layout] = wire.put_once(layout, block[row : row + 1])
        # notes under a name would reveal the sender of a row that is anonymous now
        notes = source.notes if m.sender == source.sender else {}
        wire.messages[first + i] = replace(m, parts=parts, notes=notes)


def _copy(trace: Trace, number: int, m: Message, wire: RoundWriter) -> None:
    """Copy a message with its payload."""
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
