"""Read stored results of a run: results/NAME.json."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fedaudit import shapes
from fedaudit.files import Unreadable, read_object, unreadable
from fedaudit.results import AuditResult, Need, OldResult
from fedaudit.setup.catalogue import AUDITS, find
from fedaudit.trace import Trace


def stored_results(folder: Path) -> list[AuditResult]:
    """The results of a folder in the order of the catalogue; a torn file is an error."""
    files = (folder / "results" / f"{name}.json" for name in AUDITS)
    return [read_result(file)[1] for file in files if file.exists()]


def read_result(file: Path) -> tuple[dict[str, Any], AuditResult]:
    """What a stored result was asked for, and the result."""
    again = f"remove results/{file.name} and audit again"
    try:
        stamped = read_object(file, shapes.RESULT)
        result = AuditResult.from_json(json.dumps(stamped["result"]))
        if result.audit != file.stem:
            raise ValueError(f"a result of {result.audit}")
        return stamped["asked"], result
    except OldResult as error:
        need = Need(code="old_result", what=str(error), remedy=again)
        return stamped["asked"], _unread(file.stem, need)
    except ValueError as error:
        found = unreadable(file, f"a result of {file.stem} as an audit stores it", str(error))
    except Unreadable as error:
        found = error
    raise found.as_error(Unreadable, remedy=again)


def _unread(audit: str, need: Need) -> AuditResult:
    """A failed result in place of a stored one that cannot be used."""
    question = find(AUDITS, "audit", audit).question
    return AuditResult(
        audit=audit, question=question, vantage="unknown", status="failed", need=need
    )


def is_about(result: AuditResult, trace: Trace) -> bool:
    return result.trace_sha256 == trace.sha256


def asked_with_records(folder: Path) -> set[str]:
    """Audits whose stored result is about records that the user handed over (--data)."""
    out = set()
    for name in AUDITS:
        file = folder / "results" / f"{name}.json"
        if file.exists() and read_result(file)[0].get("records", {}).get("data_sha256"):
            out.add(name)
    return out


def result_sha256(file: Path) -> str:
    """Hash of a stored result's findings, as JSON with sorted keys and no blanks.

    Its "asked" part is left out: it holds a keyed hash, which differs in every run.
    """
    plain = json.dumps(
        read_object(file, shapes.RESULT)["result"], sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(plain.encode()).hexdigest()
