"""Write the rounds of a Flower run into a trace.

A round is written before the strategy sees its replies, so the trace has them even if aggregation
fails; only the last one waits for the model that is released. Names, shapes and layouts are those
of the first model. What cannot be recorded is refused before anything is sent; a fault after that
(a full disk) stops the recording, not the run.
"""

from __future__ import annotations

import logging
import os
import secrets
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fedaudit.errors import TraceError, UsageError
from fedaudit.files import write_atomically
from fedaudit.layout import Layout
from fedaudit.recorders.flower.arrays import Content, Named, misfit, weight_of
from fedaudit.stats.count_sketch import CountSketch
from fedaudit.trace import (
    AGGREGATOR,
    ANONYMOUS,
    NETWORK,
    PUBLIC,
    SERVER,
    SHUFFLER,
    WIRETAP,
    Recorder,
)
from fedaudit.trace.limits import FAULTS, RecordingLimits, log_stop
from fedaudit.trace.recorder import (
    INTEGERS,
    MODEL,
    RoundWriter,
    another_experiment,
    check_options,
    layouts_like,
    recorded_layouts,
)
from fedaudit.trace.schema import AGAIN, FAILED, JOINED, LATE, LEFT_OUT, REFUSED, STOPPED
from fedaudit.trace.store import read_manifest, sketch_seed_file

Sends = Literal["model", "delta", "gradient"]

WEIGHT = "num-examples"
"""The metric that Flower's strategies use as a reply's weight by default."""
SKETCH = "sketch"
RUN_ID = "{run_id}"
"""Replaced in a recording's path by Flower's number of the run."""
RESERVED = {SERVER, SHUFFLER, AGGREGATOR, ANONYMOUS, PUBLIC, NETWORK, WIRETAP, ""}

log = logging.getLogger("fedaudit.recorder")


def party(node: int | str) -> str:
    """A node's name in a trace: its identifier, which Flower draws at random."""
    return f"node-{node}"


@dataclass(frozen=True)
class Sent:
    """A model sent to a node; `message_id` is empty until its message has one."""

    node: int | str
    content: Content
    message: Any = None

    @property
    def message_id(self) -> str:
        return "" if self.message is None else str(self.message.metadata.message_id)


@dataclass(frozen=True)
class Reply:
    """A reply: its content, or None and the reason (`failed`). `answers`: id of the message;
    `site`: the name that the node gave itself."""

    node: int | str
    content: Content | None
    failed: str = ""
    answers: str = ""
    site: str | int | float | None = None


@dataclass(frozen=True, kw_only=True)
class TapeOptions:
    """Which parts of a run the trace keeps.

    `tensors`: name patterns, all by default. `dtype`: "float16" halves the space. `sketch`: the
    width of a random projection that is recorded **instead of** updates and models; it allows
    linking updates but not inverting them. Its signs come from the operating system and are not
    stored; only a tape with `resume=True` keeps their seed, in a private file beside the trace.
    `purpose` and `retention` go into the manifest. `limits`: rounds whose payloads are kept, and
    the size of the trace; an error stops the recording, not the run.
    """

    tensors: str | Sequence[str] = "*"
    dtype: str | None = None
    sketch: int | None = None
    purpose: str = ""
    retention: str = ""
    limits: RecordingLimits = field(default_factory=RecordingLimits)

    def __post_init__(self) -> None:
        check_options(self.dtype, self.purpose, self.retention, self.limits)
        if self.sketch is not None and (self.sketch < 2 or self.tensors != "*"):
            raise UsageError(
                "a sketch covers whole updates",
                expected="a width of at least 2, and no choice of tensors",
                got=f"sketch={self.sketch}, tensors={self.tensors!r}",
                remedy="sketch=8191, or tensors= alone",
            )


class Tape:
    """Writes the rounds of one strategy into the folder `path`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        keep: TapeOptions,
        *,
        about: Mapping[str, Any],
        declared: Sequence[Mapping[str, Any]] = (),
        task: Mapping[str, Any] | None = None,
        weight_key: str = WEIGHT,
        sends: Sends = "model",
        name_by: str | None = None,
        resume: bool | Literal["lengths"] = False,
    ) -> None:
        if sends not in get_args(Sends):
            raise UsageError.unknown("a reply cannot be of this kind", sends, get_args(Sends))
        self.path, self.keep, self.resume = Path(path), keep, resume
        if RUN_ID not in str(self.path):
            self._refuse_folder()
        self._about, self._declared, self._task = dict(about), declared, dict(task or {})
        self._weight_key, self._sends, self._name_by = weight_key, sends, name_by
        self._recorder: Recorder | None = None
        self._names: dict[int | str, str] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._beside: dict[str, dict[str, tuple[int, ...]]] = {}
        self._integers: set[str] = set()
        self._nodes: list[int | str] = []
        self._sent: list[Sent] = []
        self._earlier: dict[str, int | str] = {}  # message of an earlier round -> its node
        self._done = False  # whether the released model is on record
        self.stopped = ""
        self._first, self._next = 0, 1  # rounds before this start; the next round
        self._count_sketch: Any = None
        self._seed: int | None = None  # of the sketch's signs

    def _refuse_folder(self) -> None:
        """Refuse a folder that holds another trace."""
        if (self.path / "manifest.json").exists() and not self.resume:
            raise TraceError(
                f"{self.path} already holds a trace",
                expected="a new folder for every run",
                got="manifest.json",
                remedy="choose another folder, or pass resume=True to go on with this one",
            )
        if self.keep.sketch is not None:
            self._refuse_lost_signs()

    def locate(self, run_id: object) -> None:
        """Put the number of the run into the path, where it asks for one."""
        if RUN_ID in str(self.path):
            self.path = Path(str(self.path).replace(RUN_ID, str(run_id)))
            self._refuse_folder()

    @property
    def like(self) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes of the model."""
        return self._shapes

    @property
    def rounds_done(self) -> int:
        """Complete rounds since this start."""
        return self._next - 1

    def add_fact(self, key: str, value: Any) -> None:
        """Add a fact about the federation, before anything is written."""
        if self._recorder is None:
            self._about[key] = value

    # -- names -----------------------------------------------------------------------------------

    def name(self, node: int | str) -> str:
        """A node's name: the same in every round."""
        return self._names.setdefault(node, party(node))

    def _learn_names(self, replies: Iterable[Reply]) -> None:
        """Take names that nodes report, before these nodes are first recorded.

        A site that comes back under another identifier keeps its name: the earlier node of that
        name does not answer any more. Of two that do, the second keeps its identifier.
        """
        answered = {r.node: r for r in replies if r.content is not None}
        for reply in answered.values():
            if (own := self._site(reply)) is None or reply.node in self._names:
                continue
            name = own if isinstance(own, str) else f"client-{own}"
            if name in RESERVED or any(
                self._names.get(node) == name for node in answered if node != reply.node
            ):
                log.warning("node %s cannot be called %r, which is taken", reply.node, name)
                continue
            self._names[reply.node] = name

    def _site(self, reply: Reply) -> Any:
        """The name that a node reports: beside its metrics, or as the metric `name_by`."""
        if reply.site is not None or self._name_by is None or reply.content is None:
            return reply.site
        return reply.content.scalars.get(self._name_by)

    # -- rounds ----------------------------------------------------------------------------------

    def begin(
        self,
        number: int,
        sent: Sequence[Sent],
        nodes: Iterable[int | str] = (),
        model: Content | None = None,
    ) -> None:
        """Start a round with its models; `model` replaces them if no node was chosen.

        A strategy may number its rounds as it likes; round 1 begins a new start.
        """
        if number == 1 and self.resume and self._recorder is not None:
            self._first, self._next, self._done = self._recorder.rounds, 1, False
        elif self._sent:
            self.record_replies([])  # the strategy did not ask for the answers of its last round
        if number == 1 and self._next > 1:
            self._guarded(self._refuse_second_start)
        if self.stopped:
            self._sent = []
            return
        self._sent = list(sent)
        self._nodes = list(dict.fromkeys([*nodes, *(s.node for s in sent)]))
        first = sent[0].content if sent else model
        if not self._shapes and first is not None:
            self._shapes = {k: a.shape for k, a in first.model.items()}
            self._integers = {k for k, a in first.model.items() if a.dtype.kind != "f"}
            layouts_like(first.model)  # refuses a bad model before anything is sent
        if self._recorder is None:
            self._check_folder()

    def _refuse_second_start(self) -> None:
        raise TraceError(
            f"round 1 does not follow round {self._next - 1} of the trace",
            expected=f"round {self._next}",
            got="1",
            remedy="record every start of a strategy into a folder of its own, or pass resume=True",
        )

    def _check_folder(self) -> None:
        """Refuse a folder that cannot be written or continued, before anything is sent."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TraceError(
                f"cannot write a trace to {self.path}",
                expected="a folder that can be written",
                got=error.strerror or str(error),
                remedy="choose another folder",
            ) from None
        if not self._shapes:
            return
        self._seed = self._sign_seed()
        old = self.path / "manifest.json"
        if not old.exists() and self._integers != {
            *self._shapes
        }:  # else the replies say what floats
            recorded_layouts(self._zeros(), self.keep.tensors, self.keep.dtype)  # refuses patterns
        if self.resume and self.keep.sketch is None and old.exists():
            kept = read_manifest(old)[0].layouts
            if len(self._integers) == len(self._shapes):  # as `_record` decided
                self._integers &= {*kept[INTEGERS].names} if INTEGERS in kept else set()
            wanted = recorded_layouts(self._zeros(), self.keep.tensors, self.keep.dtype)
            if any(kept.get(name) != layout for name, layout in wanted.items()):
                raise another_experiment(self.path)

    def _zeros(self) -> Named:
        """Arrays of the model's names, shapes and kinds of numbers."""
        return {
            k: np.zeros(s, dtype=np.int64 if k in self._integers else np.float32)
            for k, s in self._shapes.items()
        }

    def record_replies(self, replies: Sequence[Reply], released: Named | None = None) -> None:
        """Write the round with its replies; `released`: the model that ends the run."""
        self._next += 1
        if self._shapes:  # else there is no model yet, and nothing to record
            self._guarded(self._record, replies, released)
        self._sent = []

    def _guarded(self, act: Callable[..., None], *args: Any) -> None:
        """Call `act`; a fault stops the recording, and the run goes on."""
        if self.stopped:
            return
        try:
            act(*args)
        except FAULTS as error:
            if self._recorder is None:
                self.stopped = log_stop(self.path, 0, error)
            else:
                self._recorder.stop(error)
        if self._recorder is not None:
            self.stopped = self._recorder.stopped

    def _record(self, given: Sequence[Reply], released: Named | None) -> None:
        asked = {s.message_id: s.node for s in self._sent if s.message_id}
        # Flower itself answers for a node that is gone: the sender is then the SuperLink, and only
        # the message that is answered tells the node
        of = {**self._earlier, **asked}
        replies = [replace(r, node=of.get(r.answers, r.node)) for r in given]
        self._learn_names(replies)
        if self._recorder is None and len(self._integers) == len(self._shapes):
            # a first model of zeros, written as whole numbers: what comes back says what it is
            for content in (r.content for r in replies if r.content is not None):
                self._integers -= {k for k, a in content.model.items() if a.dtype.kind == "f"}
        recorder = self._writer(replies)
        chosen = {s.node for s in self._sent}
        late = [
            r.node not in chosen or (r.answers in self._earlier and r.answers not in asked)
            for r in replies
        ]
        with recorder.round() as wire:
            # a late reply answers an earlier model: it comes before this round's model
            at = 1 if any(late) else 0
            for reply in (r for r, is_late in zip(replies, late, strict=True) if is_late):
                self._write_reply(wire, reply, 0, {LATE: True}, None)
            models = self._write_models(wire, at)
            seen: set[int | str] = set()
            for reply in (r for r, is_late in zip(replies, late, strict=True) if not is_late):
                # a node that replied twice: record both
                again: dict[str, Any] = {AGAIN: True} if reply.node in seen else {}
                seen.add(reply.node)
                self._write_reply(wire, reply, at + 1, again, models.get(reply.node))
            for silent in (s for s in self._sent if s.node not in seen):
                why = {FAILED: "no answer in time"}
                reply = Reply(silent.node, None)
                self._write_reply(wire, reply, at + 1, why, None)
            if released is not None:
                self._write_released(wire, released)
        self._earlier |= asked

    def _write_models(self, wire: RoundWriter, step: int) -> dict[int | str, Named]:
        """Write the model to every node; equal models are stored once."""
        written: dict[int, int] = {}
        for s in self._sent:
            known, who = written.get(id(s.content)), self.name(s.node)
            if known is not None:
                same = wire.messages[known]
                notes = {k: v for k, v in same.notes.items() if k != JOINED}
                notes |= self._newcomer(who)
                wire.messages.append(replace(same, receiver=who, notes=notes))
                continue
            wrong = self._misfit(s.content, f"the model for {who} is")
            payload, notes = ({}, {REFUSED: wrong}) if wrong else self._payload(s.content)
            hidden = bool(wrong) or self.keep.sketch is not None
            index = wire.send(
                "model",
                SERVER,
                who,
                None if hidden else payload,
                step=step,
                size=s.content.size,
                metadata=s.content.scalars,
                notes={**notes, **self._newcomer(who)},
            )
            if index >= 0:  # else the recording has stopped
                written[id(s.content)] = index
        return {
            s.node: s.content.model for s in self._sent if not misfit(s.content.model, self._shapes)
        }

    def _write_reply(
        self,
        wire: RoundWriter,
        reply: Reply,
        step: int,
        notes: Mapping[str, Any],
        model: Named | None,
    ) -> None:
        who, content = self.name(reply.node), reply.content
        notes = {**notes, **self._newcomer(who)}
        if content is None:
            notes = {FAILED: reply.failed, **notes}
            wire.send(self._sends, who, SERVER, None, step=step, notes=notes)
            return
        kind: str = self._sends
        payload: Named | None = None
        weight = 1.0
        wrong = self._misfit(content, f"the tensors of {who} are")
        if wrong:
            notes = {**notes, REFUSED: wrong}
        else:
            weight = weight_of(content.scalars, self._weight_key)
        if not wrong and self.keep.sketch is not None:
            row = self._sketched(content.model, model)
            if row is not None:
                kind, payload = "delta", {SKETCH: row}
        elif not wrong:
            payload, more = self._payload(content)
            notes = {**notes, **more}
        wire.send(
            kind,
            who,
            SERVER,
            payload,
            step=step,
            weight=weight,
            size=content.size,
            metadata=content.scalars,
            notes=notes,
        )

    def _newcomer(self, who: str) -> dict[str, Any]:
        """A note for a node that joined after the manifest was written."""
        about = {} if self._recorder is None else self._recorder.manifest.federation
        listed = about.get("clients") or about.get("parties")
        return {JOINED: True} if listed and who not in listed else {}

    def _misfit(self, content: Content, what: str) -> str:
        """How a message differs from the first model; if it does, only its size is recorded."""
        wrong = content.lacks or misfit(content.model, self._shapes)
        if wrong:
            warnings.warn(f"{what} not recorded: {wrong}", stacklevel=2)
        return wrong

    def _payload(self, content: Content) -> tuple[Named, dict[str, Any]]:
        """All arrays of a message by their names in the trace, and notes on what was left out."""
        payload, left = dict(content.model), []
        for key, arrays in content.beside.items():
            if key in self._beside and not misfit(arrays, self._beside[key]):
                payload |= {f"{key}/{name}": a for name, a in arrays.items()}
            else:
                left.append(f"{key} ({sum(a.nbytes for a in arrays.values())} bytes)")
        return payload, {LEFT_OUT: ", ".join(left)} if left else {}

    def _sketched(self, reply: Named, model: Named | None) -> npt.NDArray[np.float32] | None:
        """The random projection (m,) of an update; None if its model is not known."""
        if model is None and self._sends == "model":
            return None
        layout = layouts_like({k: a for k, a in reply.items() if k not in self._integers})[MODEL]
        row = layout.flatten({k: reply[k] for k in layout.names}).astype(np.float32)
        if self._sends == "model" and model is not None:
            row -= layout.flatten({k: model[k] for k in layout.names})
        elif self._sends == "gradient":
            row *= -1
        if self._count_sketch is None:
            width = min(int(self.keep.sketch or 0), layout.width)
            signs = np.random.default_rng(self._seed)
            self._count_sketch = CountSketch(layout.width, width, signs)
        out = np.zeros((1, self._count_sketch.width), dtype=np.float32)
        self._count_sketch.add(out, row[None], 0)
        return out[0]

    # -- the sketch's signs ----------------------------------------------------------------------

    def _refuse_lost_signs(self) -> None:
        """Refuse to continue a sketch with new signs: rounds before and after could not be linked,
        and an audit would take that for protection."""
        seed = sketch_seed_file(self.path)
        if (self.path / "manifest.json").exists() and not seed.exists():
            raise TraceError(
                f"the sketch in {self.path} cannot be continued: its random signs are gone",
                expected=f"their seed in {seed}, which a recording with resume=True writes",
                got="no such file",
                remedy="record into a new folder, with resume=True from the first start on",
            )

    def _sign_seed(self) -> int | None:
        """Seed of the signs; None, the operating system's entropy, if no start will follow."""
        if self.keep.sketch is None or not self.resume:
            return None
        file = sketch_seed_file(self.path)
        try:
            if not (self.path / "manifest.json").exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, f"{secrets.randbits(128):032x}\n", private=True)
            return int(file.read_text("ascii"), 16)
        except (OSError, ValueError) as error:
            raise TraceError(
                f"the seed of the sketch's signs cannot be kept in {file}",
                expected="a private file with a hexadecimal number",
                got=getattr(error, "strerror", None) or "other content",
                remedy="restore the file from a copy, or record into a new folder",
            ) from None

    # -- the file --------------------------------------------------------------------------------

    def _writer(self, replies: Sequence[Reply]) -> Recorder:
        if self._recorder is not None:
            return self._recorder
        contents = [*(s.content for s in self._sent), *(r.content for r in replies if r.content)]
        layouts = self._layouts(contents)
        # where nodes tell their names, one that was not asked yet has none
        naming = self._name_by is not None or any(r.site is not None for r in replies)
        everyone = [self.name(n) for n in self._nodes if n in self._names or not naming]
        about = {**self._about, "hubs": [SERVER]}
        if everyone and len(everyone) == len(self._nodes):
            about |= {"clients": sorted(everyone), "parties": [SERVER, *sorted(everyone)]}
        if self.keep.sketch is not None:
            about["recorded"] = "random projections of updates, no models"
        declared, task = tuple(self._declared), self._task
        old = self.path / "manifest.json"
        if self.resume and old.exists():
            # nodes get new ids when a run starts again: keep the first list
            manifest, _ = read_manifest(old)
            about = {k: v for k, v in manifest.federation.items() if k != STOPPED}
            declared = manifest.declared
            task = dict(manifest.task)
        self._recorder = Recorder(
            self.path,
            layouts=layouts,
            federation=about,
            declared=declared,
            task=task,
            tensors="*" if self.keep.sketch is not None else self.keep.tensors,
            dtype=self.keep.dtype,
            purpose=self.keep.purpose,
            retention=self.keep.retention,
            resume=self.resume,
            limits=replace(self.keep.limits, on_error="stop"),
        )
        self._first = self._recorder.rounds
        return self._recorder

    def _layouts(self, contents: Sequence[Content]) -> dict[str, Layout]:
        """Layouts of the model, of its integer tensors, and of further records in round 1."""
        if self.keep.sketch is not None:
            floats = sum(
                int(np.prod(s)) for k, s in self._shapes.items() if k not in self._integers
            )
            return {MODEL: Layout.of([(SKETCH, (min(self.keep.sketch, floats),))])}
        layouts = layouts_like(self._zeros())
        for content in contents:
            for key, arrays in content.beside.items():
                if key in self._beside or not arrays:
                    continue
                self._beside[key] = {k: a.shape for k, a in arrays.items()}
                own = layouts_like({f"{key}/{name}": a for name, a in arrays.items()})
                names = {MODEL: f"record-{key}", INTEGERS: f"record-{key}-{INTEGERS}"}
                layouts |= {names[k]: v for k, v in own.items()}
        return layouts

    def close(self, released: Named | None = None) -> None:
        """Mark the trace complete. `released`: the final model of the federation."""
        if self._recorder is not None and not self._recorder.manifest.complete:
            self._guarded(self._close, self._recorder, released)

    def _close(self, recorder: Recorder, released: Named | None) -> None:
        if released is not None and recorder.rounds > self._first and not self._done:
            with recorder.last_round() as wire:
                self._write_released(wire, released)
        recorder.close()

    def _write_released(self, wire: RoundWriter, released: Named) -> None:
        content = Content(released)
        wrong = self._misfit(content, "the released model is")
        payload, notes = ({}, {REFUSED: wrong}) if wrong else self._payload(content)
        wire.send(
            "model",
            SERVER,
            PUBLIC,
            None if wrong or self.keep.sketch is not None else payload,
            step=max((m.step for m in wire.messages), default=-1) + 1,
            size=content.size,
            notes=notes,
        )
        self._done = True
