"""Seal of a run: digests of its files by part, so that a later reader notices changes.

    DIR/seal.json         digests of config, trace and results; a commitment to the private seal
    DIR/truth/seal.json   digests of truth and checkpoint: private, since they confirm guesses
    DIR/signature.json    an Ed25519 signature of the seal (`fedaudit seal`)

A stage seals the files that it wrote and leaves the seals of other parts alone. The report is not
sealed: it can be written again from the results. A purged part leaves a tombstone. Digests reveal
accidents and careless edits; the signature protects against forgers.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from fedaudit import shapes
from fedaudit.codec import to_json
from fedaudit.errors import FedauditError, IntegrityError, TraceError
from fedaudit.federation.resume import check_states
from fedaudit.files import (
    FREE_SPACE,
    Unreadable,
    is_lost,
    read_object,
    read_text,
    sha256_of,
    write_atomically,
    writing,
)
from fedaudit.study.folders import AUDITED, STUDY, entries, is_study, places
from fedaudit.study.reuse import KEY, truth_digest
from fedaudit.trace import Trace, Truth
from fedaudit.trace.purge import NOTE
from fedaudit.trace.store import read_manifest

Part = Literal["config", "trace", "truth", "checkpoint", "results"]
PARTS: tuple[Part, ...] = get_args(Part)
PRIVATE: tuple[Part, ...] = ("truth", "checkpoint")
State = Literal["whole", "changed", "missing", "purged", "held back", "unfinished"]

SEAL = "seal.json"
FORMAT, VERSION = "fedaudit-seal", 1
_CONFIG = ("config.toml", "run.json", AUDITED, STUDY)
REMAINS = "purged.json"
"""The report's facts about a recording, stored when the recording is purged."""
_RESULTS = ("allocation.json", "promised.json", "cell.json", REMAINS)
#: files of the truth that can be made again; the truth's own index covers its rounds
_LISTED_ELSEWHERE = ("seal.json", "cache-key", "allocation.json.key")


@dataclass(frozen=True)
class PartCheck:
    """The check of one part of a run: its state, and the files that differ from the seal."""

    part: str
    state: State
    files: tuple[str, ...] = ()
    note: str = ""

    @property
    def fine(self) -> bool:
        return self.state in ("whole", "purged", "held back", "unfinished")


# -- digests ---------------------------------------------------------------------------------------


def _files(folder: Path, part: Part) -> list[Path]:
    """The existing files of a part that a seal lists."""
    if part == "config":
        found: Iterable[Path] = (folder / name for name in _CONFIG)
    elif part == "trace":
        found = [] if is_study(folder) else [places(folder)[0] / "manifest.json"]
    elif part == "results":
        # the remains of a purge count once the recording is gone
        own = [n for n in _RESULTS if n != REMAINS or not (folder / "trace").exists()]
        found = [*sorted((folder / "results").glob("*.json")), *(folder / n for n in own)]
    elif part == "checkpoint":
        found = [folder / "checkpoint" / "checkpoint.json"]
    else:
        found = [
            f
            for f in sorted((folder / "truth").glob("*"))
            if f.name not in _LISTED_ELSEWHERE
            and not f.name.startswith("round-")
            and f.suffix != ".part"
        ]
    return [f for f in found if f.is_file()]


def _digests(folder: Path, part: Part) -> dict[str, str]:
    return {os.path.relpath(f, folder): sha256_of(f) for f in _files(folder, part)}


def _read(file: Path) -> dict[str, Any]:
    raw = read_object(file, shapes.SEAL)
    if raw["version"] != VERSION:
        raise IntegrityError(
            f"{file} is of another version",
            expected=f"a {FORMAT} of version {VERSION}",
            got=f"version {raw['version']}",
            remedy="restore it from a copy, or run again with `fresh=True`",
        )
    return raw


# -- writing ---------------------------------------------------------------------------------------


def seal(folder: Path, *parts: Part) -> None:
    """Seal parts as they are now; other parts keep their seals."""
    private = [p for p in parts if p in PRIVATE]
    if private and (folder / "truth").is_dir():
        own = _existing(folder / "truth" / SEAL) or {"salt": secrets.token_hex(16), "parts": {}}
        own["parts"] |= {p: _digests(folder, p) for p in private}
        _announce(folder, own)
        _write(folder / "truth" / SEAL, own, private=True)
    public = _existing(folder / SEAL) or {"parts": {}, "gone": {}}
    public.pop("truth_next", None)
    if "truth" in parts:
        public["truth_elsewhere"] = _elsewhere(folder)
    public["parts"] |= {p: _digests(folder, p) for p in parts if p not in PRIVATE}
    public["gone"] = {p: why for p, why in public.get("gone", {}).items() if p not in parts}
    if (folder / "truth" / SEAL).is_file():
        # the private seal holds a random salt, so its digest does not confirm guesses
        public["truth"] = sha256_of(folder / "truth" / SEAL)
    _write(folder / SEAL, public)


def _announce(folder: Path, private: Mapping[str, Any]) -> None:
    """Commit to the next private seal before writing it: after a kill in between, both the old and
    the new one are valid."""
    public = _existing(folder / SEAL)
    if public is not None:
        public["truth_next"] = hashlib.sha256(_text(private).encode()).hexdigest()
        _write(folder / SEAL, public)


def _elsewhere(folder: Path) -> str:
    """A keyed digest of a truth outside the folder, empty without one. The key is stored with that
    truth."""
    known = places(folder)[1]
    if known.resolve() == (folder / "truth").resolve() or not (known / "truth.json").is_file():
        return ""
    found = truth_digest(Truth.open(known))
    return found if (known / KEY).is_file() else ""  # without the key it cannot be checked


def seal_written(folder: Path, part: Part, *files: Path) -> None:
    """Seal files that were just written; removed files are struck from the list.

    Other files of the part keep their digests: an altered file does not become valid because
    another one was written.
    """
    public = _existing(folder / SEAL) or {"parts": {}, "gone": {}}
    listed = public["parts"].setdefault(part, {})
    for file in files:
        name = os.path.relpath(file, folder)
        listed.pop(name, None)
        if file.is_file():
            listed[name] = sha256_of(file)
    _write(folder / SEAL, public)


def _existing(file: Path) -> dict[str, Any] | None:
    """The existing seal; None if there is none or a power cut emptied it."""
    try:
        return _read(file)
    except Unreadable as error:
        if error.absent or error.empty:
            return None
        raise


def _text(content: Mapping[str, Any]) -> str:
    raw = {**content, "format": FORMAT, "version": VERSION}
    return to_json(raw, sort_keys=True) + "\n"


def _write(file: Path, content: Mapping[str, Any], private: bool = False) -> None:
    text = _text(content)
    with writing(file, remedy=FREE_SPACE):
        if not file.is_file() or read_text(file) != text:
            write_atomically(file, text, private=private)


def bury(folder: Path, parts: Iterable[Part], why: str, today: datetime.date) -> None:
    """Leave a tombstone for parts that are about to be removed."""
    public = _existing(folder / SEAL) or {"parts": {}, "gone": {}}
    mark = {"why": why, "on": today.isoformat()}
    public["gone"] = {**public.get("gone", {}), **dict.fromkeys(parts, mark)}
    _write(folder / SEAL, public)


def remove_parts(
    folder: Path, parts: Iterable[Part], why: str, today: datetime.date | None = None
) -> None:
    """Remove parts of a run and leave a tombstone for each. Results and report stay."""
    present = [p for p in parts if (folder / p).is_dir() and not (folder / p).is_symlink()]
    # the tombstone first: an interrupted removal can then be repeated
    bury(folder, present, why, today or datetime.date.today())
    for part in present:
        shutil.rmtree(folder / part)


def gone(folder: Path) -> dict[str, dict[str, str]]:
    """Removed part -> the reason and the day."""
    found = _existing(folder / SEAL)
    out = {} if found is None else dict(found.get("gone", {}))
    on = _trace_purged(folder)
    return {**out, "trace": {"why": "purged", "on": on}} if on else out


# -- checking --------------------------------------------------------------------------------------


def examine(folder: Path) -> list[PartCheck]:
    """Check every part of a run, of an audited trace, or of a study's own files."""
    try:
        public = _read(folder / SEAL)
    except Unreadable as error:
        if not error.absent and not error.empty:
            raise
        return [
            PartCheck("seal", "missing", (SEAL,), "the run is unfinished, or its seal was lost")
        ]
    buried = public.get("gone", {})
    own: dict[str, Any] = {"parts": {}}
    out: list[PartCheck] = []
    committed = {public.get("truth"), public.get("truth_next")} - {None}
    if committed and _has_truth(folder) and "truth" not in buried:
        private = folder / "truth" / SEAL
        if not private.is_file() or sha256_of(private) not in committed:
            state: State = "changed" if private.is_file() else "missing"
            out.append(PartCheck("truth", state, (f"truth/{SEAL}",)))
        else:
            own = _read(private)
    for part in PARTS:
        listed = own["parts"].get(part) if part in PRIVATE else public["parts"].get(part)
        if listed is None and part in ("config", "results"):
            listed = {}  # files of a part that was never sealed are not fedaudit's
        if part == "trace" and (on := _trace_purged(folder)):
            out.append(PartCheck(part, "purged", (), f"purged on {on}"))
        elif part in buried and not (folder / part).exists():
            note = f"{buried[part].get('why', 'removed')} on {buried[part].get('on', '?')}"
            out.append(PartCheck(part, "purged", (), note))
        elif part in PRIVATE and committed and not _is_there(folder, part):
            out.append(PartCheck(part, "held back", (), "it is not in this folder"))
        elif listed or (listed is not None and _files(folder, part)):
            out.append(_compared(folder, part, listed))
    out += _examined_elsewhere(folder, str(public.get("truth_elsewhere") or ""))
    return [*out, *_exchanged(folder)] if is_study(folder) else out


def _exchanged(folder: Path) -> list[PartCheck]:
    """Runs of a study whose settings differ from the study's list."""
    try:
        listed = read_object(folder / STUDY)["runs"]
        asked = {str(r["path"]): r["config_sha256"] for r in listed if "config_sha256" in r}
    except (Unreadable, KeyError, TypeError):
        return []  # the code that reads the list reports the error
    wrong = [
        name
        for name, sha in asked.items()
        if not is_lost(folder / name / "run.json")
        and read_object(folder / name / "run.json").get("config_sha256") != sha
    ]
    return [PartCheck("runs", "changed", tuple(wrong), "of other settings")] if wrong else []


def _is_there(folder: Path, part: Part) -> bool:
    return _has_truth(folder) if part == "truth" else (folder / part).is_dir()


def _trace_purged(folder: Path) -> str:
    """The day on which a trace outside the folder was purged; empty if it was not."""
    trace = places(folder)[0]
    if (trace / "manifest.json").exists() or trace.resolve() == (folder / "trace").resolve():
        return ""
    try:
        return str(read_object(trace / NOTE).get("purged", ""))
    except Unreadable:
        return ""


def _has_truth(folder: Path) -> bool:
    """Whether the folder holds a truth: more than the key for stored results."""
    return any(f.name != KEY for f in (folder / "truth").glob("*"))


def _examined_elsewhere(folder: Path, sealed: str) -> list[PartCheck]:
    """Check a truth outside the folder, if one was sealed."""
    known = places(folder)[1]
    if not sealed:
        return []
    if not (known / "truth.json").is_file():
        return [PartCheck("truth", "held back", (), "it lies elsewhere, and is not there now")]
    try:
        same = truth_digest(Truth.open(known)) == sealed
    except TraceError:
        same = False
    name = os.path.relpath(known, folder)
    return [PartCheck("truth", "whole" if same else "changed", () if same else (name,))]


def _compared(folder: Path, part: Part, listed: Mapping[str, str]) -> PartCheck:
    now = _digests(folder, part)
    if (folder / "trace").exists():
        listed = {n: d for n, d in listed.items() if n != REMAINS}  # of an interrupted purge
    missing = [n for n in listed if n not in now]
    changed = [n for n in now if n in listed and listed[n] != now[n]]
    # in private parts only sealed files are ever read
    added = [n for n in now if n not in listed and part not in PRIVATE]
    if changed or added:
        return PartCheck(part, "changed", (*changed, *added, *missing))
    return PartCheck(part, "missing", tuple(missing)) if missing else PartCheck(part, "whole")


def examine_run(folder: Path) -> list[PartCheck]:
    """Check every part of a run against the seal, and its own indexes against its files.

    A run that is still training has no seal yet: then only the indexes are checked.
    """
    inside = examine_contents(folder)
    bad = {c.part for c in inside}
    outside = [c for c in examine(folder) if c.state != "whole" or c.part not in bad]
    if [c.part for c in outside] == ["seal"] and not is_study(folder):
        manifest = places(folder)[0] / "manifest.json"
        if not manifest.is_file() or not read_manifest(manifest)[0].complete:
            outside = [
                PartCheck("seal", "unfinished", (), "a run is sealed when training has ended")
            ]
    return [*outside, *inside]


def examine_contents(folder: Path) -> list[PartCheck]:
    """Parts whose indexes do not fit their files: rounds of trace and truth, saved states."""
    recorded, known = places(folder)
    out = []
    if (recorded / "manifest.json").is_file():
        out += _tried("trace", lambda: Trace.open(recorded))
    if (known / "index.json").is_file():
        out += _tried("truth", lambda: Truth.open(known))
    if (folder / "checkpoint" / "checkpoint.json").is_file():
        out += _tried("checkpoint", lambda: check_states(folder / "checkpoint"))
    return out


def _tried(part: Part, read: Any) -> list[PartCheck]:
    try:
        read()
    except FedauditError as error:
        said = f"{error.what}: expected {error.expected}; got {error.got}"
        return [PartCheck(part, "changed", (), said)]
    return []


def check_seal(
    folder: Path,
    *,
    but: Iterable[Part] = (),
    rewritten: Iterable[str] = (),
    redoes: bool = False,
) -> None:
    """Refuse a folder whose files differ from its seal.

    Parts in `but` are not checked, nor files that the caller has `rewritten` or is about to. With
    `redoes`, files that a power cut emptied are skipped: the caller makes them again.
    """
    passed, ours = set(but), set(rewritten)
    wrong = []
    for c in examine(folder):
        files = [f for f in c.files if f not in ours]
        if redoes:
            # the private seal cannot be made again: nothing else protects the truth
            kept = f"truth/{SEAL}"
            files = [f for f in files if f == kept or not is_lost(folder / f)]
        if not c.fine and c.part not in passed and files:
            wrong.append(f"{c.part} {c.state}: {', '.join(files)}")
    if not wrong:
        return
    raise IntegrityError(
        f"files of {folder} are not as they were sealed",
        expected="the files that fedaudit wrote",
        got="; ".join(wrong),
        remedy="restore them from a copy, audit again, or start over with `fresh=True`; "
        f"fedaudit verify {folder} lists every part",
    )


def require_seal(folder: Path, *, but: Iterable[Part] = (), rewritten: Iterable[str] = ()) -> None:
    """As `check_seal`, except that a run which is still training needs no seal yet."""
    manifest = places(folder)[0] / "manifest.json"
    ended = is_study(folder) or (manifest.is_file() and read_manifest(manifest)[0].complete)
    found = any((folder / "results").glob("*.json"))
    if ended or found or (folder / SEAL).exists():
        check_seal(folder, but=but, rewritten=rewritten)


def is_sealed_as(folder: Path, file: Path) -> bool:
    """Whether the seal lists a file with its present digest; False without a seal."""
    public = _existing(folder / SEAL)
    name = os.path.relpath(file, folder)
    found = [] if public is None else [part.get(name) for part in public["parts"].values()]
    return file.is_file() and sha256_of(file) in found


def open_trace(path: str | os.PathLike[str]) -> Trace:
    """Open a trace; if it belongs to a run, check the run's seal."""
    opened = Trace.open(path)
    home = opened.path.parent
    if opened.path.name == "trace" and not is_lost(home / SEAL):
        check_seal(home, but=("config", "results"))
    return opened


# -- signatures ------------------------------------------------------------------------------------

SIGNATURE = "signature.json"


def _signed_text(folder: Path) -> bytes:
    """The signed text: the seal, and in a study the seals of all its runs."""
    runs = {}
    if is_study(folder):
        for entry in entries(folder):
            runs[os.path.relpath(entry.path, folder)] = sha256_of(entry.path / SEAL)
    plain = {"seal": sha256_of(folder / SEAL), "runs": runs}
    return b"fedaudit-signature-1\n" + json.dumps(plain, sort_keys=True).encode()


def sign(folder: Path, key: bytes) -> str:
    """Sign the seal of a complete run or study; return the public key in PEM."""
    from cryptography.hazmat.primitives import serialization

    for place in _all_of(folder):
        check_seal(place)
        _refuse_unfinished(place)
    private = _private_key(key)
    public = (
        private.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )
    made = {"signature": private.sign(_signed_text(folder)).hex(), "public_key": public}
    write_atomically(folder / SIGNATURE, to_json(made) + "\n")
    return public


def _refuse_unfinished(folder: Path) -> None:
    """Refuse to sign a run that is not recorded, audited and sealed."""
    wanted = ("config",) if is_study(folder) else ("config", "trace", "results")
    missing = [p for p in wanted if not _read(folder / SEAL)["parts"].get(p)]
    if missing:
        raise TraceError(
            f"{folder} is not finished",
            expected="a seal over config, trace and results",
            got=f"no seal over {', '.join(missing)}",
            remedy="let the run finish or audit the trace, then sign",
        )


def _all_of(folder: Path) -> list[Path]:
    return [folder, *(e.path for e in entries(folder))] if is_study(folder) else [folder]


def check_signature(folder: Path, public: bytes) -> None:
    """Refuse a run or study whose seal is not signed by the owner of `public` (PEM)."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(public)
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key("an Ed25519 public key in PEM")
    file = folder / SIGNATURE
    try:
        signature = bytes.fromhex(read_object(file)["signature"])
        key.verify(signature, _signed_text(folder))
    except (Unreadable, KeyError, TypeError, ValueError, InvalidSignature) as error:
        absent = isinstance(error, Unreadable) and error.absent
        raise IntegrityError(
            f"{folder} is not signed by the owner of this key",
            expected=f"a signature of its seal in {SIGNATURE}",
            got="no signature" if absent else "one that does not fit this key and this seal",
            remedy="let the owner sign it with `fedaudit seal`; later audits and purges "
            "need a new signature",
        ) from None
    for place in _all_of(folder):
        check_seal(place)


def _private_key(key: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        found = load_pem_private_key(key, password=None)
    except (ValueError, TypeError):
        found = None
    if not isinstance(found, Ed25519PrivateKey):
        raise _no_key("an Ed25519 private key in PEM, without a password")
    return found


def _no_key(expected: str) -> FedauditError:
    return TraceError(
        "this key cannot be used",
        expected=expected,
        got="something else",
        remedy="make one with: openssl genpkey -algorithm ed25519 -out key.pem; its public half "
        "with: openssl pkey -in key.pem -pubout -out public.pem",
    )
