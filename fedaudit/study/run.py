"""One config in, a run directory out.

    DIR/config.toml     every setting, defaults included, without the seed
    DIR/run.json        hash of the config and version
    DIR/trace/          what crossed the wire
    DIR/truth/          what did not, and the whole config with the seed
    DIR/checkpoint/     what resuming needs; private
    DIR/results/*.json  one log per audit
    DIR/seal.json       digests of all these, by part
    DIR/findings.json, DIR/report.html

Each stage reads the files of the one before, so any stage can be repeated alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaudit import __version__, shapes
from fedaudit.codec import to_json
from fedaudit.errors import DataError, TraceError, UsageError
from fedaudit.federation.requests import run_rounds
from fedaudit.files import is_lost, make_folder, read_object, read_toml, write_atomically
from fedaudit.progress import Progress, no_progress
from fedaudit.setup import seeds
from fedaudit.setup.config import Config, load, load_variants, run_canaries
from fedaudit.setup.identity import FILE as IDENTITY
from fedaudit.setup.identity import FRESH, check_and_store
from fedaudit.setup.prepare import Prepared, build
from fedaudit.setup.toml import to_toml
from fedaudit.study.auditing import audit_run
from fedaudit.study.chapters import OpenedRun, Run
from fedaudit.study.folders import FRESH_MARK, claimed, clear, not_ours
from fedaudit.study.reuse import Explain, Reuse, no_explain
from fedaudit.study.seal import SEAL, check_seal, gone, seal
from fedaudit.trace import Recorder, Truth, TruthRecorder
from fedaudit.trace.store import read_manifest, round_name

if TYPE_CHECKING:
    from torch import Tensor

    from fedaudit.federation.requests import Request

Train = Callable[["Request"], "Tensor"]
Engine = Callable[[Prepared, Path, Progress], None]


def _claim(path: Path, config: Config) -> None:
    """Make the run directory, or check that it belongs to the same experiment."""
    stamp, private = path / "run.json", path / "truth" / "config.toml"
    try:
        if not is_lost(stamp) or not is_lost(private):
            _require_same_experiment(path, stamp, private, config)
        elif others := not_ours(path):
            raise TraceError(
                f"{path} is not empty and not a run",
                expected="a new or empty folder",
                got=f"{len(others)} other files or folders, such as {others[0].name}",
                remedy="choose another folder with `out`",
            )
        path.mkdir(parents=True, exist_ok=True)
        if is_lost(stamp):
            about = {"config_sha256": config.sha256, "fedaudit": __version__}
            write_atomically(stamp, to_json(about) + "\n")
        make_folder(private.parent, private=True)
        write_atomically(private, to_toml(config.raw), private=True)
        write_atomically(path / "config.toml", to_toml(config.public()).lstrip())
        claimed(path)
    except (OSError, ValueError) as error:
        raise TraceError(
            f"cannot use {path} for a run",
            expected="a folder that can be written",
            got=str(error),
            remedy="choose another folder with `out`",
        ) from None


def _require_same_experiment(path: Path, stamp: Path, private: Path, config: Config) -> None:
    """Refuse a folder with rounds or results of another experiment."""
    if not is_lost(private):
        before = read_toml(private)
    elif private.exists() and not is_lost(path / "truth" / "truth.json"):
        # a power cut emptied the file: the stamp has the settings' hash, the truth has the seed
        before = {**config.raw, "seed": Truth.open(path / "truth").facts.get("seed")}
    elif (path / "trace" / "manifest.json").exists():
        raise TraceError(
            f"{path} has a trace, and its truth is gone",
            expected=f"{private}",
            got="no such file",
            remedy=f"audit it blind with `fedaudit audit {path}`, or run into another folder",
        )
    else:
        before = dict(config.raw)
    differ = _differences(before, config.raw)
    if run_canaries(before) != run_canaries(config.raw):
        differ.append("audits.epsilon (canaries of the run itself)")
    # a power cut may have emptied the stamp: then compare with the private config, key by key
    same = not differ if is_lost(stamp) else _stamped(stamp) == config.sha256
    if not same or {"seed", "marks.keys", "allocation.clients"} & {*differ}:
        if not _has_rounds(path):
            # before the first round nothing is lost: a corrected config may reuse the folder
            stamp.unlink(missing_ok=True)
            return
        raise TraceError(
            f"{path} holds another experiment",
            expected="an empty folder, or the same config and seed",
            got="other values of " + (", ".join(differ[:6]) or "settings that are gone now"),
            remedy="choose another folder with `out`, or start anew with `fresh=True`",
        )


def _stamped(stamp: Path) -> str:
    return str(read_object(stamp, shapes.RUN)["config_sha256"])


def _has_rounds(path: Path) -> bool:
    """Whether anything was recorded that a new start would lose."""
    return any((path / "trace").glob("round-*")) or any((path / "results").glob("*"))


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], at: str = "") -> list[str]:
    """Names of the settings in which two configs differ. Audits and paths of data do not count."""
    out = []
    for key in dict.fromkeys([*before, *now]):
        a, b = before.get(key), now.get(key)
        if f"{at}{key}" in ("audits", "data.path") or a == b:
            continue
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            out += _differences(a, b, f"{at}{key}.")
        else:
            out.append(f"{at}{key}")
    return out


def run(
    config: Config | Prepared | str | Path | Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] = "fedaudit-run",
    *,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    progress: Progress = no_progress,
    engine: Engine | None = None,
    names: bool = False,
    explain: Explain = no_explain,
    fresh: bool = False,
) -> Run:
    """Run (or resume) one experiment: train, record, audit, report.

    A config that compares variants is refused: `fedaudit.run` runs all of them. `engine` trains and
    records in place of `simulate`, and leaves the same files. `names` writes clients' own names
    into the report. `explain` learns which work was reused, and why. `fresh` removes what an
    earlier run left in the folder; otherwise the folder must be about the same settings, data and
    code, and its files must be as they were sealed.
    """
    done, _ = run_opened(
        config,
        out,
        overrides=overrides,
        seed=seed,
        progress=progress,
        engine=engine,
        names=names,
        explain=explain,
        fresh=fresh,
    )
    return done


def run_opened(
    config: Config | Prepared | str | Path | Mapping[str, Any] | None,
    out: str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    progress: Progress = no_progress,
    engine: Engine | None = None,
    names: bool = False,
    explain: Explain = no_explain,
    fresh: bool = False,
) -> tuple[Run, OpenedRun]:
    """As `run`; with the trace and truth that it opened."""
    prepared = None
    if isinstance(config, Prepared):
        prepared, config = config, config.config
    if not isinstance(config, Config):
        variants = load_variants(config, overrides=overrides, seed=seed)
        if len(variants) > 1:
            raise UsageError(
                "this runs one variant, and the config compares several",
                expected="a config without [compare]",
                got=", ".join(map(repr, variants)),
                remedy="fedaudit.run(config, out) runs them all",
            )
        (config,) = variants.values()
    elif overrides or seed is not None:
        drawn = config.drawn and seed is None
        config = replace(load(config.raw, overrides=overrides, seed=seed), drawn=drawn)
    path = Path(out)
    if fresh or (path / FRESH_MARK).exists():
        clear(path)
    _refuse_purged(path)
    _check_seal(path)
    if config.drawn and (before := seeds.stored(path)) is not None:
        config = config.with_seed(before[0], drawn=before[1])
    _claim(path, config)
    if prepared is None or prepared.config != config:
        prepared = Prepared(config)
    prepared = prepared.current()
    begun = any((path / "trace").glob("round-*"))
    if begun and is_lost(path / "truth" / IDENTITY):
        _require_same_records(path, prepared)
        begun = False
    check_and_store(path, [config], begun=begun)
    explain(_reuse_plan(config, path))
    prepared = prepared.current()  # the identity just stored is that of the files now
    (engine or simulate)(prepared, path, progress)
    _check_seal(path)  # files that were made again must equal the sealed ones
    seal(path, "config", "trace", "truth", "checkpoint")
    return audit_run(prepared, path, progress, names=names, explain=explain)


REWRITTEN = ("config.toml", "run.json", "audit.json", "truth/config.toml")
"""Files that a run writes again from its config, after comparing their contents."""


def _check_seal(path: Path) -> None:
    """Refuse a run whose files were altered. Files that a power cut emptied are made again."""
    if not is_lost(path / SEAL):
        check_seal(path, but=("results",), rewritten=REWRITTEN, redoes=True)


def _refuse_purged(path: Path) -> None:
    """Refuse to record into a folder that holds results of a purged recording."""
    buried = gone(path)
    if "trace" in buried:
        raise TraceError(
            f"the recording of {path} was purged on {buried['trace'].get('on', 'some day')}",
            expected="a new folder, or a run whose recording is there",
            got="results of a recording that is gone",
            remedy=f"`fedaudit.report({str(path)!r})` shows them; run into another folder with "
            "`out`, or start anew with `fresh=True`, which removes them",
        )


def _require_same_records(path: Path, prepared: Prepared) -> None:
    """Compare the records with the digest in the truth, where the identity of the run was lost."""
    before = Truth.open(path / "truth").facts.get("data_sha256")
    if before != prepared.data_sha256:
        raise DataError(
            f"{path} was made of something else",
            expected="the data that it began with",
            got="other records, labels or owners",
            remedy=FRESH,
        )


def _reuse_plan(config: Config, path: Path) -> Reuse:
    """Whether recorded rounds can be reused, and why."""
    recorded, complete = _recorded(path)
    total = config.federation.rounds
    if not recorded:
        return Reuse("train", False, "nothing is recorded yet")
    key = f"same settings and protections ({config.sha256[:12]}), seed, data and code"
    if complete and recorded == total:
        return Reuse("train", True, f"all {total} rounds are recorded, {key}")
    return Reuse("train", True, f"{recorded} of {total} rounds are recorded, {key}")


def simulate(
    given: Config | Prepared,
    path: Path,
    progress: Progress = no_progress,
    train: Train | None = None,
) -> None:
    """Train and record. Recorded rounds are not run again.

    `train` answers the federation's requests in place of the local trainer.
    """
    prepared = Prepared.of(given)
    config = prepared.config
    total = config.federation.rounds
    recorded, complete = _recorded(path)
    if complete and recorded == total:
        progress("train", total, total, "already recorded")
        return
    progress("train", recorded, total, "loading")

    federation, facts = build(prepared)
    recorder = Recorder(
        path / "trace",
        **federation.about(),
        tensors="*" if config.trace.tensors == ("*",) else config.trace.tensors,
        dtype=config.trace.dtype,
        purpose=config.trace.purpose,
        retention=config.trace.retention,
        resume=True,
    )
    truth = TruthRecorder(path / "truth", facts)
    progress("train", recorder.rounds, total, "training")

    def after_round(number: int, metrics: dict[str, float]) -> None:
        note = ", ".join(f"{k} {v:.3f}" for k, v in metrics.items() if not k.endswith("_error"))
        progress("train", number, total, note)

    rounds = federation.round_loop(
        recorder,
        truth,
        checkpoint=path / "checkpoint",
        keep_raw=config.trace.raw_updates,
        progress=after_round,
    )
    run_rounds(rounds, train or (lambda r: federation.train(r.sent, r.clients, r.number)))


def _recorded(path: Path) -> tuple[int, bool]:
    """The number of recorded rounds, and whether the trace is complete and no file was lost."""
    if is_lost(path / "trace" / "manifest.json"):
        return 0, False
    manifest, _ = read_manifest(path / "trace" / "manifest.json")
    rounds = manifest.rounds
    files = [
        *(path / "trace" / r.file for r in rounds),
        *(path / "truth" / round_name(n) for n in range(1, len(rounds) + 1)),
        path / "truth" / "index.json",
        path / "truth" / "truth.json",
    ]
    return len(rounds), manifest.complete and not any(map(is_lost, files))
