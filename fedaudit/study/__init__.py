"""One TOML file in, a run directory out. `run` is a single run; `fedaudit.run` is `study.run`."""

from fedaudit.study.auditing import audit
from fedaudit.study.chapters import Run, report
from fedaudit.study.run import run

__all__ = ["Run", "audit", "report", "run"]
