"""At a site that trains with DP-SGD: canaries among its gradients. The coins stay here.

    canaries = SiteCanaries("audit/canaries", site="client-0")
    canaries.insert(optimizer, model, sampling_rate=loader.sample_rate)    # Opacus
    canaries.declare(engine.accountant)                                    # after training
    each = canaries.among(each, clip=C, sampling_rate=q, rate=lr / batch)   # any other loop

Two files: `canaries.json` says which vectors the canaries are and goes to the auditor; `key.json`
says which were inserted and stays. Canaries join the gradients of single records before these are
clipped, as often as a record is drawn. The records and what is accounted for them stay the same.

Every inserted canary of norm N is clipped as a record is. Working clipping leaves at most one clip
of it; a broken one lets it move the model by N clips. Choose `norms=(1,)` for a model that counts.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedaudit.accounting import history_of, opacus_history
from fedaudit.arrays import Bools
from fedaudit.audits.epsilon.canaries import CanaryVectors, place_canaries
from fedaudit.errors import UsageError
from fedaudit.files import read_object
from fedaudit.layout import Layout
from fedaudit.randomness import Seed
from fedaudit.settings import AtLeastTwo, Positive, require
from fedaudit.sites.files import CANARIES, KEY, VERSION, read, sha256, write

if TYPE_CHECKING:
    from torch import Tensor

PUBLIC_FILE, KEY_FILE, ACCOUNTANT_FILE = "canaries.json", "key.json", "accountant.json"


class SiteCanaries:
    """Canaries of one site. The first use draws the coins; later rounds go on with the same ones.

    `folder`: where the two files are kept. `site`: the name under which the server records this
    site. `count`: coins. `norms`: norms of the canaries over the clip, in turn. `seed`: for tests;
    by default coins and draws come from the operating system.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        site: str,
        count: int = 200,
        norms: Sequence[float] = (1.0, 1000.0),
        seed: int | None = None,
    ) -> None:
        require(AtLeastTwo, canaries=count, remedy="count=200")
        for norm in norms or (0.0,):
            require(Positive, norm=norm, remedy="norms=(1.0, 1000.0)")
        self.folder, self.site = Path(folder), site
        self._count, self._norms = count, tuple(float(n) for n in norms)
        self._rng = np.random.default_rng(secrets.randbits(128) if seed is None else seed)
        self._planted: tuple[Layout, CanaryVectors, Bools] | None = None
        self._rate: float | None = None

    def insert(self, optimizer: Any, model: Any, *, sampling_rate: float) -> None:
        """Add canaries to every step of an optimiser of Opacus, before it clips."""
        clip_and_accumulate = getattr(optimizer, "clip_and_accumulate", None)
        # ghost clipping never holds the gradients of single records
        if clip_and_accumulate is None or hasattr(type(optimizer), "accumulate"):
            raise UsageError(
                "this optimiser does not hold the gradients of single records",
                expected='the optimiser of make_private, without grad_sample_mode="ghost"',
                got=type(optimizer).__name__,
                remedy="insert canaries after make_private, or use canaries.among(gradients)",
            )
        named = {
            name.removeprefix("_module."): p for name, p in model.named_parameters() if _trained(p)
        }
        rate = _plain_rate(optimizer)
        shapes = {name: tuple(p.shape) for name, p in named.items()}
        clip = float(optimizer.max_grad_norm)
        self._prepare(shapes, clip=clip, sampling_rate=sampling_rate, rate=rate)

        def with_canaries() -> None:
            self._keep_rate(_plain_rate(optimizer))
            # a batch may come in parts that fit in memory: canaries are drawn once for all of them
            if not getattr(optimizer, "_is_last_step_skipped", False):
                add()
            clip_and_accumulate()

        def add() -> None:
            for name, rows in self._rows(clip, sampling_rate).items():
                _append(named[name], rows)

        optimizer.clip_and_accumulate = with_canaries

    def among(
        self,
        gradients: Mapping[str, Tensor],
        *,
        clip: float,
        sampling_rate: float,
        rate: float | None = None,
    ) -> dict[str, Tensor]:
        """Gradients of single records, tensor -> (B, ...), and of the canaries drawn in this step.

        `rate`: learning rate over the divisor of the noisy sum; None if steps are not plain SGD.
        """

        shapes = {name: tuple(g.shape[1:]) for name, g in gradients.items()}
        self._prepare(shapes, clip=clip, sampling_rate=sampling_rate, rate=rate)
        self._keep_rate(rate)
        rows = self._rows(clip, sampling_rate)
        return {name: torch.cat([g, rows[name].to(g)]) for name, g in gradients.items()}

    def declare(self, accountant: Any) -> Path:
        """Add the steps of an accountant to `accountant.json`, which goes to the auditor.

        Of Opacus, or of dp-accounting (an accountant or its event).
        Call it after every round with that round's accountant, or once with one of all rounds.
        """
        file = self.folder / ACCOUNTANT_FILE
        history = history_of(accountant)
        if file.exists():
            history = opacus_history(read_object(file)) + history
        write(file, {"history": [list(step) for step in history]})
        return file

    # -- files -------------------------------------------------------------------------------------

    def _prepare(self, shapes: Mapping[str, tuple[int, ...]], **declared: float | None) -> None:
        """Read the two files, or draw the coins and write them."""
        if self._planted is not None:
            return
        public, key = self._files
        raw: dict[str, Any] = {
            "format": CANARIES,
            "version": VERSION,
            "site": self.site,
            "count": self._count,
            "norms": list(self._norms),
            "tensors": [[name, list(shape)] for name, shape in shapes.items()],
            **declared,
        }
        if public.exists() or key.exists():
            before = read(public, CANARIES)
            changed = [k for k, v in raw.items() if before[k] != v and k != "rate"]
            if changed:
                raise UsageError(
                    f"{public} holds canaries of another training",
                    expected=f"the same {', '.join(changed)}",
                    got=", ".join(f"{k} = {str(raw[k])[:60]}" for k in changed),
                    remedy="give another folder, or delete both files to draw new coins",
                )
            seed, coins = before["seed"], self._coins(public, key)
            self._rate = before["rate"]
        else:
            seed = int(self._rng.integers(2**53))
            coins = self._rng.random(len(vectors_of({**raw, "seed": seed})[1])) < 0.5
            write(public, {**raw, "seed": seed})
            _write_key(public, key, coins)
            self._rate = raw["rate"]
        self._planted = *vectors_of({**raw, "seed": seed}), coins

    @property
    def _files(self) -> tuple[Path, Path]:
        return self.folder / PUBLIC_FILE, self.folder / KEY_FILE

    def _keep_rate(self, rate: float | None) -> None:
        """Declare no rate once it changes: the size of the noise in an upload is then unknown."""
        if self._rate is None or rate == self._rate:
            return
        public, key = self._files
        coins = self._coins(public, key)
        write(public, {**read(public, CANARIES), "rate": None})
        _write_key(public, key, coins)
        self._rate = None

    def _coins(self, public: Path, key: Path) -> Bools:
        known = read(key, KEY)
        if known["asked_sha256"] != sha256(public):
            raise UsageError(
                f"{key} does not belong to {public}",
                expected="the two files as they were written together",
                got="another hash of the canaries",
                remedy="restore them, or delete both to draw new coins",
            )
        return np.array(known["member"], dtype=bool)

    def _rows(self, clip: float, sampling_rate: float) -> dict[str, Tensor]:
        """Gradients of the inserted canaries drawn in one step: tensor -> (k, ...)."""

        assert self._planted is not None
        layout, canaries, coins = self._planted
        drawn = np.flatnonzero(coins & (self._rng.random(len(coins)) < sampling_rate))
        rows = np.zeros((len(drawn), layout.width), dtype=np.float32)
        sizes = (canaries.norm[drawn] * clip)[:, None] * canaries.unit[drawn]
        np.add.at(rows, (np.arange(len(drawn))[:, None], canaries.columns[drawn]), sizes)
        return {
            e.name: torch.from_numpy(rows[:, e.columns].reshape(len(drawn), *e.shape))
            for e in layout.entries
        }


def vectors_of(raw: Mapping[str, Any]) -> tuple[Layout, CanaryVectors]:
    """The canaries that a public file describes, on the columns of its own tensors."""
    layout = Layout.of([(name, tuple(shape)) for name, shape in raw["tensors"]])
    canaries = place_canaries(
        layout,
        kinds=("dense",),
        norms=raw["norms"],
        count=raw["count"],
        clients=1,
        trained=layout.width,
        rng=Seed(raw["seed"]).generator("canaries"),
    )
    return layout, canaries


def _write_key(public: Path, key: Path, coins: Bools) -> None:
    answers = {"asked_sha256": sha256(public), "member": [bool(c) for c in coins]}
    write(key, {"format": KEY, "version": VERSION, **answers})
    key.chmod(0o600)


def _trained(parameter: Any) -> bool:
    return bool(parameter.requires_grad)


def _plain_rate(optimizer: Any) -> float | None:
    """Learning rate over the divisor of the noisy sum; None if steps are not plain SGD."""

    inner = getattr(optimizer, "original_optimizer", optimizer)
    groups = inner.param_groups
    plain = isinstance(inner, torch.optim.SGD) and not any(
        g.get("momentum") or g.get("weight_decay") for g in groups
    )
    if not plain or len({g["lr"] for g in groups}) != 1:
        return None
    mean = optimizer.loss_reduction == "mean"
    if mean and not optimizer.expected_batch_size:
        return None
    return float(groups[0]["lr"]) / (float(optimizer.expected_batch_size) if mean else 1.0)


def _append(parameter: Any, rows: Tensor) -> None:
    """Put rows behind a parameter's gradients of single records."""

    each = parameter.grad_sample
    if isinstance(each, list):  # several backward passes before one step
        each[-1] = torch.cat([each[-1], rows.to(each[-1])])
    elif each is None:
        parameter.grad_sample = rows.to(parameter.dtype)
    else:
        parameter.grad_sample = torch.cat([each, rows.to(each)])
