"""Who does work that can be split: processes of this machine, or Ray's workers.

Jobs are functions of their arguments, one thread each, so that no result depends on who did them
or on how many there were. `using` says for a whole command who they are (`--workers`): what a run
needs them for lies several rooms below, and no number depends on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from multiprocessing.context import SpawnContext
from typing import Any

from fedaudit import foreign
from fedaudit.errors import FedauditError, UsageError

Workers = int | str | None
"""A number of processes, "ray", "ray://HOST:PORT", or nobody but this process."""

_CHOSEN: ContextVar[Workers] = ContextVar("workers", default=None)


def parse_workers(text: str | None) -> Workers:
    """Processes (a number), or Ray: "ray" starts it here, "ray://HOST:PORT" joins a cluster."""
    if text is None or text == "ray":
        return text
    if text.isdigit() and int(text) >= 1:
        return int(text)
    host, colon, port = text.removeprefix("ray://").rpartition(":")
    if text.startswith("ray://") and host and colon and port.isdigit():
        return text
    raise UsageError(
        "--workers says who does the work",
        expected="a number of processes, ray, or ray://HOST:PORT",
        got=repr(text),
        remedy="--workers 4",
    )


@contextmanager
def use_workers(workers: Workers) -> Iterator[None]:
    """Let `workers` do what can be split while this lasts."""
    before = _CHOSEN.set(workers)
    try:
        yield
    finally:
        _CHOSEN.reset(before)


def current_workers() -> Workers:
    """Whom the command named; None: this process does it all."""
    return _CHOSEN.get()


@dataclass(frozen=True)
class JobFailed:
    """A job that raised, in words: errors of workers do not travel as objects."""

    why: str


def fan_out(
    function: Callable[..., Any], jobs: Mapping[Any, tuple[Any, ...]], workers: int | str
) -> Generator[tuple[Any, Any], None, None]:
    """(name, result or `JobFailed`) of every job, as they end; a job that fails stops no other."""
    if isinstance(workers, str):
        return _on_ray(function, jobs, workers)
    return _on_processes(function, jobs, max(1, min(workers, len(jobs))))


def spawn_context() -> SpawnContext:
    """How processes are made. Spawned, since torch's threads do not survive a fork; and without
    the working folder first on their path: a file `multiprocessing.py` in it would be run."""
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    return get_context("spawn")


def prepare_worker(code: Collection[str] | None = None) -> None:
    """One thread per process, however many there are: sums then round the same way.

    `code` names what may be loaded: `foreign.allowed` of the parent. Ctrl-C ends a worker at once
    and without a word; the parent says what is kept.
    """
    import signal

    import torch

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    foreign.allow(code)
    torch.set_num_threads(1)


def _on_processes(
    function: Callable[..., Any], jobs: Mapping[Any, tuple[Any, ...]], workers: int
) -> Generator[tuple[Any, Any], None, None]:
    pool = ProcessPoolExecutor(
        workers,
        mp_context=spawn_context(),
        initializer=prepare_worker,
        initargs=(foreign.allowed(),),
    )
    try:
        running = {pool.submit(function, *job): name for name, job in jobs.items()}
        for job in as_completed(running):
            name = running.pop(job)
            try:
                found = job.result()
            except Exception as error:  # one broken job must not stop the others
                found = JobFailed(_why(error))
            yield name, found
    except KeyboardInterrupt:
        # what was kept is kept: nothing is gained by waiting for the jobs under way
        for worker in active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _why(error: Exception) -> str:
    own = isinstance(error, FedauditError)
    return str(error) if own else f"{type(error).__name__}: {error}"


def _there(
    function: Callable[..., Any],
    job: tuple[Any, ...],
    here: str,
    code: Collection[str] | None,
) -> Any:
    """A job in a worker of Ray; errors travel as words, not as objects."""
    import torch

    torch.set_num_threads(1)
    if os.path.isdir(here):
        os.chdir(here)  # paths of a config are relative to where the command was given
    try:
        with foreign.only(code):
            return function(*job)
    except Exception as error:
        return JobFailed(_why(error))


@contextmanager
def _ray(address: str) -> Iterator[Any]:
    """Ray, started here for this work or joined at an address; left as it was found."""
    # before the import: nothing is reported home, and no advice is given
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise UsageError(
            "Ray is not installed",
            expected="the package ray, which Flower's extra brings",
            got="no such package",
            remedy='pip install "fedaudit[flower]", or --workers N for processes',
        ) from None
    if ray.is_initialized():  # the caller's own
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "ray":
        options |= {"address": "local", "include_dashboard": False}
    else:
        options["address"] = address
    try:
        try:
            ray.init(**options)
        except Exception as error:  # whatever its client makes of an address where nobody is
            raise UsageError(
                f"Ray could not be reached as {address}",
                expected="a running cluster of the same versions of Python and Ray",
                got=(str(error).strip() or type(error).__name__).splitlines()[0],
                remedy="--workers ray starts one here",
            ) from None
        yield ray
    finally:
        ray.shutdown()


def _on_ray(
    function: Callable[..., Any], jobs: Mapping[Any, tuple[Any, ...]], address: str
) -> Generator[tuple[Any, Any], None, None]:
    with _ray(address) as ray:
        # a node may be lost with all that ran on it: once more, elsewhere
        remote = ray.remote(num_cpus=1, max_retries=1)(_there)
        how = (os.getcwd(), foreign.allowed())
        running = {remote.remote(function, job, *how): name for name, job in jobs.items()}
        try:
            while running:
                (ready, *_), _ = ray.wait(list(running), num_returns=1)
                name = running.pop(ready)
                try:
                    found = ray.get(ready)
                except Exception as error:
                    found = JobFailed(_why(error))
                yield name, found
        finally:
            for left in running:
                ray.cancel(left, force=True)
