"""One TOML file in, a run directory out. `run` is a single run; `fedaudit.run` is `study.run`."""

from fedaudit.experiment.auditing import audit
from fedaudit.experiment.reporting import Run, report
from fedaudit.experiment.run import run

__all__ = ["Run", "audit", "report", "run"]
