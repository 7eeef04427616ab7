"""Run independent jobs on processes of this machine or on Ray workers.

A job depends on its arguments only and uses one thread, so results depend neither on the kind nor
on the number of workers. `use_workers` sets the workers for a whole command (`--workers`), because
the code that needs them lies several modules below the command line.
"""

from __future__ import annotations

import os
import signal
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
"""A number of processes, "ray", "ray://HOST:PORT", or None for this process alone."""

_CHOSEN: ContextVar[Workers] = ContextVar("workers", default=None)


def parse_workers(text: str | None) -> Workers:
    """Parse `--workers`: a number of processes, "ray" (started here), or a cluster's address."""
    if text is None or text == "ray":
        return text
    if text.isdigit() and int(text) >= 1:
        return int(text)
    host, colon, port = text.removeprefix("ray://").rpartition(":")
    if text.startswith("ray://") and host and colon and port.isdigit():
        return text
    raise UsageError(
        "`workers` cannot be read",
        expected="a number of processes, ray, or ray://HOST:PORT",
        got=repr(text),
        remedy="`workers=4`",
    )


@contextmanager
def use_workers(workers: Workers) -> Iterator[None]:
    """Run jobs on `workers` within the block."""
    before = _CHOSEN.set(workers)
    try:
        yield
    finally:
        _CHOSEN.reset(before)


def current_workers() -> Workers:
    """The workers of this command; None: this process alone."""
    return _CHOSEN.get()


@dataclass(frozen=True)
class JobFailed:
    """A job that raised; `why` is the error as text."""

    why: str


def fan_out(
    function: Callable[..., Any], jobs: Mapping[Any, tuple[Any, ...]], workers: int | str
) -> Generator[tuple[Any, Any], None, None]:
    """Yield (name, result or `JobFailed`) as jobs end; a failed job does not stop the others."""
    if isinstance(workers, str):
        return _on_ray(function, jobs, workers)
    return _on_processes(function, jobs, max(1, min(workers, len(jobs))))


def spawn_context() -> SpawnContext:
    """Context for new processes: spawned, since torch's threads do not survive a fork.

    Keeps the working folder off the front of their path: its `multiprocessing.py` would run.
    """
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    return get_context("spawn")


def prepare_worker(code: Collection[str] | None = None) -> None:
    """Set up a worker: one thread, so that sums round alike for any number of workers.

    `code` lists the user code it may load: `foreign.allowed` of the parent. Ctrl-C ends a worker
    silently; the parent reports what is kept.
    """
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
                found = JobFailed(_error_text(error))
            yield name, found
    except KeyboardInterrupt:
        # finished results are stored: do not wait for the running jobs
        for worker in active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _error_text(error: Exception) -> str:
    own = isinstance(error, FedauditError)
    return str(error) if own else f"{type(error).__name__}: {error}"


def _run_on_ray(
    function: Callable[..., Any],
    job: tuple[Any, ...],
    here: str,
    code: Collection[str] | None,
) -> Any:
    """Run one job in a Ray worker; an error returns as `JobFailed`."""
    import torch

    torch.set_num_threads(1)
    if os.path.isdir(here):
        os.chdir(here)  # paths in a config are relative to the command's working folder
    try:
        with foreign.only(code):
            return function(*job)
    except Exception as error:
        return JobFailed(_error_text(error))


@contextmanager
def _ray(address: str) -> Iterator[Any]:
    """Ray, started here or joined at an address; shut down afterwards unless already running."""
    # before the import: no usage statistics, no advice
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise UsageError(
            "Ray is not installed",
            expected="the package ray, which Flower's extra brings",
            got="no such package",
            remedy='pip install "fedaudit[flower]", or `workers=N` for processes',
        ) from None
    if ray.is_initialized():  # started by the caller
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
        except Exception as error:  # Ray raises many types for a wrong address
            raise UsageError(
                f"Ray could not be reached as {address}",
                expected="a running cluster of the same versions of Python and Ray",
                got=(str(error).strip() or type(error).__name__).splitlines()[0],
                remedy="`workers=ray` starts one here",
            ) from None
        yield ray
    finally:
        ray.shutdown()


def _on_ray(
    function: Callable[..., Any], jobs: Mapping[Any, tuple[Any, ...]], address: str
) -> Generator[tuple[Any, Any], None, None]:
    with _ray(address) as ray:
        # retry once: a node may be lost with its jobs
        remote = ray.remote(num_cpus=1, max_retries=1)(_run_on_ray)
        how = (os.getcwd(), foreign.allowed())
        running = {remote.remote(function, job, *how): name for name, job in jobs.items()}
        try:
            while running:
                (ready, *_), _ = ray.wait(list(running), num_returns=1)
                name = running.pop(ready)
                try:
                    found = ray.get(ready)
                except Exception as error:
                    found = JobFailed(_error_text(error))
                yield name, found
        finally:
            for left in running:
                ray.cancel(left, force=True)
