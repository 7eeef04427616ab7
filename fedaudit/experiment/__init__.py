"""One TOML file in, a run directory out."""

from fedaudit.experiment.run import Run, audit, report, run

__all__ = ["Run", "audit", "report", "run"]
