"""Run cases in worker processes with an alarm and a limit on memory; count what happens."""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from random import Random
from typing import Any

SECONDS = 30.0
"""A case that takes longer hangs; a worker that is silent for twice as long is killed."""
MEMORY = 8 << 30
"""Address space of a worker; libraries take some of it without using it."""
HARMLESS = ("refused", "accepted")


class Hang(BaseException):
    """The alarm went off. No `except Exception` may swallow it."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case: `refused` and `accepted` are fine, all else is a failure."""

    case: int
    target: str
    damage: str
    result: str
    detail: str = ""


def prepared(root: Path) -> None:
    """The corpus, and the config that a killed run would be resumed with."""
    from fedaudit.setup.toml import to_toml
    from fuzz import corpus

    corpus.build(root)
    text = to_toml(corpus.config(root / "hospitals.csv"))
    (root / "config-of-run.toml").write_text(text)
    use_whole(root)


def use_whole(root: Path) -> None:
    """Whole files are accepted, or a refusal would say nothing."""
    from fuzz.targets import TARGETS

    for name, target in TARGETS.items():
        with _copy(root, name) as folder:
            for use in target.uses:
                use(folder)


@contextmanager
def _copy(root: Path, name: str) -> Iterator[Path]:
    """A target's folder to do with as one likes."""
    from fuzz.targets import TARGETS

    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=root.parent) as scratch:
        folder = Path(scratch) / "copy"
        shutil.copytree(root / TARGETS[name].folder, folder, symlinks=True)
        shutil.copy(root / "config-of-run.toml", scratch)
        yield folder


def target_of(case: int, names: Iterable[str] | None = None) -> str:
    """Targets take turns by weight; any prefix of the cases holds all of them."""
    from fuzz.targets import TARGETS

    chosen = [n for n in TARGETS if names is None or n in names]
    turns = [n for n in chosen for _ in range(TARGETS[n].weight)]
    # a stride that shares no factor with the number of turns mixes them
    stride = next(s for s in (17, 19, 23, 29, 31) if len(turns) % s)
    return turns[case * stride % len(turns)]


def run_case(root: Path, seed: int, case: int, name: str, whole: dict[str, str]) -> Outcome:
    """Damage a copy and use it."""
    from fedaudit.errors import FedauditError
    from fuzz.targets import TARGETS

    target, rng = TARGETS[name], Random(f"{seed}/{case}")
    with _copy(root, name) as folder:
        damage = target.damage(folder, rng)
        result, detail = "accepted", ""
        for use in target.uses:
            try:
                found = use(folder)
                if use is target.meaning and found != whole[name]:
                    return Outcome(case, name, damage, "changed content accepted", use.__name__)
            except FedauditError as error:
                result = "refused"
                if not (error.what and error.expected and error.got and error.remedy):
                    detail = f"incomplete message: {error}"
            except Hang:
                return Outcome(case, name, damage, "hang", _where())
            except Exception as error:
                said = f"{type(error).__name__}: {str(error)[:200]}"
                return Outcome(case, name, damage, "uncaught", f"{said}\n{_where()}")
    return Outcome(case, name, damage, result, detail)


def _where() -> str:
    """The innermost frames, those of fedaudit first."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    own = [f for f in frames if "/fedaudit/" in f.filename][-1:]
    return "\n".join(f"{f.filename}:{f.lineno} {f.name}" for f in [*own, *frames[-1:]])


def _alarm(*_: Any) -> None:
    raise Hang


def _work(pipe: Any, root: Path, seed: int, whole: dict[str, str]) -> None:
    """A worker: takes (case, target), gives outcomes."""
    faulthandler.enable()
    signal.signal(signal.SIGALRM, _alarm)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    use_whole(root)  # an alarm in the middle of an import would spoil every case after it
    pipe.send("ready")
    while (asked := pipe.recv()) is not None:
        case, name = asked
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            found = run_case(root, seed, case, name, whole)
        except Hang:
            found = Outcome(case, name, "?", "hang", "while cleaning up")
        except Exception as error:  # of the fuzzer itself: say so rather than lose the case
            found = Outcome(case, name, "?", "fuzzer", f"{type(error).__name__}: {error}")
        signal.setitimer(signal.ITIMER_REAL, 0)
        pipe.send(found)


class Worker:
    """One process; started anew where a case killed it."""

    def __init__(self, root: Path, seed: int, whole: dict[str, str]) -> None:
        self.given = (root, seed, whole)
        self.busy: tuple[int, str] | None = None
        self.since = 0.0
        self.start()

    def start(self) -> None:
        context = get_context("spawn")  # threads of a library do not survive a fork
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, *self.given), daemon=True)
        self.process.start()
        theirs.close()
        self.pipe.recv()  # ready

    def ask(self, case: int, name: str) -> None:
        self.busy, self.since = (case, name), time.monotonic()
        self.pipe.send(self.busy)

    def lost(self) -> Outcome | None:
        """The outcome of a case that ended or silenced the process; a new one is started."""
        late = time.monotonic() - self.since > 2 * SECONDS
        if self.busy is None or (self.process.is_alive() and not late):
            return None
        case, name = self.busy
        code = self.process.exitcode
        self.process.kill()
        self.process.join()
        self.start()
        self.busy = None
        what = "hang" if late else "crash"
        return Outcome(case, name, "?", what, f"the process ended with {code}")


def meanings(root: Path) -> dict[str, str]:
    """What the whole files of a target mean."""
    from fuzz.targets import TARGETS

    found = {}
    for name, target in TARGETS.items():
        if target.meaning is not None:
            with _copy(root, name) as folder:
                found[name] = target.meaning(folder)
    return found


def outcomes(
    root: Path, seed: int, cases: Iterable[int], workers: int, names: Iterable[str] | None = None
) -> Iterator[Outcome]:
    """Outcomes of cases, in the order in which they end."""
    whole = meanings(root)
    pool = [Worker(root, seed, whole) for _ in range(workers)]
    todo = iter([(case, target_of(case, names)) for case in cases])
    for worker in pool:
        if (asked := next(todo, None)) is not None:
            worker.ask(*asked)
    while any(w.busy for w in pool):
        wait([w.pipe for w in pool if w.busy], timeout=0.5)
        for worker in pool:
            found = None
            try:
                if worker.busy and worker.pipe.poll():
                    found, worker.busy = worker.pipe.recv(), None
            except (EOFError, OSError):
                pass
            found = found or worker.lost()
            if found is not None:
                yield found
                if (asked := next(todo, None)) is not None:
                    worker.ask(*asked)
    for worker in pool:
        worker.pipe.send(None)
        worker.process.join(5)


def table(found: Iterable[Outcome]) -> str:
    """Counts by target and result."""
    counts = Counter((o.target, o.result) for o in found)
    results = sorted({r for _, r in counts}, key=lambda r: (r not in HARMLESS, r))
    names = sorted({t for t, _ in counts})
    wide = max(map(len, names), default=6)
    lines = [f"{'target':<{wide}}" + "".join(f"{r:>26}" for r in results)]
    for name in [*names, "all"]:
        cells = [
            sum(c for (t, r), c in counts.items() if r == result and name in (t, "all"))
            for result in results
        ]
        lines.append(f"{name:<{wide}}" + "".join(f"{c:>26}" for c in cells))
    return "\n".join(lines)


class State:
    """What was done so far, in a file: a campaign that was stopped goes on."""

    def __init__(self, file: Path, seed: int, code: str) -> None:
        self.file, self.about = file, {"seed": seed, "code": code}
        self.found: list[Outcome] = []
        try:
            lines = file.read_text().splitlines()
            if json.loads(lines[0]) == self.about:
                self.found = [Outcome(**json.loads(line)) for line in lines[1:]]
        except (OSError, ValueError, IndexError, TypeError):
            pass
        if not self.found:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(self.about) + "\n")

    def add(self, outcome: Outcome) -> None:
        self.found.append(outcome)
        with self.file.open("a") as stream:
            stream.write(json.dumps(asdict(outcome)) + "\n")
