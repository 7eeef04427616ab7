"""At the server: a trace in, guesses out. No truth is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedaudit import __version__
from fedaudit.audits.audit import Candidates, Knowledge
from fedaudit.audits.two_stage_membership.scores import statistics_of
from fedaudit.data.dataset import Dataset
from fedaudit.errors import NotApplicable, UsageError, count_of
from fedaudit.knowledge import check_model_fits, noise_of
from fedaudit.randomness import Seed
from fedaudit.settings import check
from fedaudit.setup.catalogue import AUDITS, find
from fedaudit.setup.config import plain
from fedaudit.sites.coins import guess_coins
from fedaudit.sites.files import (
    AT_SITES,
    COINS,
    GUESSES,
    LINKS,
    MEMBERS,
    VERSION,
    read_asked,
    sha256,
    write,
)
from fedaudit.sites.recordings import digest
from fedaudit.study.recording import examined
from fedaudit.tasks.catalogue import build_named
from fedaudit.trace import Trace
from fedaudit.trace.recorder import MODEL


def attack(
    trace: Trace,
    out: str | os.PathLike[str],
    audits: Sequence[str] | None = None,
    *,
    asked: Sequence[str | os.PathLike[str]] = (),
    model: str | None = None,
    canaries: Sequence[str | os.PathLike[str]] = (),
    opacus: Sequence[str | os.PathLike[str]] = (),
    delta: float = 1e-5,
    seed: int = 1,
) -> dict[str, Any]:
    """Write the guesses of `audits` to the file `out`, without any truth.

    For membership, `asked` are the sites' files of records and `model` the
    "package.module:function" that builds the torch module. For epsilon, `canaries` are the sites'
    public files (`SiteCanaries`) and `opacus` what their accountants recorded: one file per site,
    or one for all. By default: what `asked` and `canaries` are for, linkage without either.
    """
    by_default = [name for name, given in ((MEMBERS, asked), (COINS, canaries)) if given]
    health = examined(trace)
    found = {}
    for name in audits or by_default or [LINKS]:
        if name not in AT_SITES:
            raise UsageError(
                f"{name} cannot be scored at sites",
                expected=", ".join(AT_SITES),
                got=name,
                remedy="score it where its truth is: fedaudit audit",
            )
        audit = check(find(AUDITS, "audit", name), {}, f"audits.{name}")
        view = trace.seen_by(*audit.vantage.split("+"))
        rng = Seed(seed).generator("attack/" + name)
        if name == LINKS:
            guess = _linkage(audit, view, trace, rng)
        elif name == MEMBERS:
            guess = _membership(audit, view, trace, rng, asked, model)
        elif not canaries or not opacus:
            raise NotApplicable(
                "no canaries to guess, or nothing that declares an epsilon",
                code="no_canaries",
                expected="canaries.json of every site, and the state of an accountant",
                got=f"{len(canaries)} files of canaries, {len(opacus)} of accountants",
                remedy="`canaries` and `opacus`, one file each per site",
            )
        else:
            guess = guess_coins(audit, view, trace, rng, canaries, opacus, delta)
        about = {"question": audit.question, "source": audit.source, "vantage": view.vantage}
        found[name] = {"settings": plain(audit), **about, **guess}
    raw = {
        "format": GUESSES,
        "version": VERSION,
        "fedaudit": __version__,
        "trace_sha256": trace.sha256,
        "layout": trace.layout.to_dict(),
        "federation": count_of(len(trace.rounds), "round"),
        "arrived": health.arrived,
        "expected": health.expected,
        "audits": found,
    }
    write(out, raw)
    return raw


def _linkage(audit: Any, view: Any, trace: Trace, rng: np.random.Generator) -> dict[str, Any]:
    """Labels of all messages; digests identify the messages."""
    guess = audit.attack(view, Knowledge(), rng)
    if guess.named:
        raise NotApplicable(
            f"{view.vantage} knows the sender of each message: sites have nothing to count",
            code="senders_known",
            expected="anonymous uploads",
            got=f"{len(guess.named)} uploads with their senders' names",
            remedy="fedaudit audit TRACE reports this without an attack",
        )
    block = {number: trace.block(number) for number in guess.rounds}
    messages = {number: trace.messages(number) for number in guess.rounds}
    return {
        "settings": {**plain(audit), "clients": guess.clients},
        "rounds": list(guess.rounds),
        "messages": [
            [digest(block[n][messages[n][i].parts[MODEL]], trace.sha256) for i in own]
            for n, own in zip(guess.rounds, guess.messages, strict=True)
        ],
        "methods": list(guess.labels),
        "labels": {m: [list(own) for own in v] for m, v in guess.labels.items()},
    }


def _membership(
    audit: Any,
    view: Any,
    trace: Trace,
    rng: np.random.Generator,
    asked: Sequence[str | os.PathLike[str]],
    model: str | None,
) -> dict[str, Any]:
    """One score per record in `asked`: greater means that the site trained on it."""

    if not asked or model is None:
        raise NotApplicable(
            "no records to ask about",
            code="no_records",
            expected="files that sites wrote with `fedaudit ask`, and the model",
            got=f"{len(asked)} files, model {model!r}",
            remedy="`asked`, one file per site, and `model=package.module:function`",
        )
    pools: dict[str, Candidates] = {}
    files: dict[str, str] = {}
    classes: tuple[str, ...] = ()
    for file in asked:
        party, x, y, own = read_asked(file)
        classes = classes or own
        if own != classes:
            raise UsageError(
                "sites number their classes differently",
                expected=", ".join(classes),
                got=f"{', '.join(own)} ({file})",
                remedy="make sure that every site's table has a record of every class",
            )
        if party in pools:
            raise UsageError(
                f"{party} asks twice",
                expected="one file per site",
                got=str(file),
                remedy="leave one out",
            )
        pools[party] = Candidates(torch.from_numpy(x), torch.from_numpy(y))
        files[party] = sha256(file)
    together = Dataset(
        name="records that sites ask about",
        kind="image" if next(iter(pools.values())).x.ndim > 2 else "features",
        classes=classes,
        x=np.concatenate([p.x.numpy() for p in pools.values()]),
        y=np.concatenate([p.y.numpy() for p in pools.values()]),
    )
    task = build_named(model, together, layout=trace.layout)
    check_model_fits(task, trace)
    known = Knowledge(task=task, candidates=pools, noise=noise_of(trace))
    guess = audit.attack(view, known, rng)
    name, values = next(iter(statistics_of(guess).items()))
    scored = {}
    for at, party in enumerate(guess.parties):
        own = values[at][guess.present[at]]
        scored[files[party]] = [float(v) if np.isfinite(v) else None for v in own]
    return {"statistic": name, "scores": scored}
