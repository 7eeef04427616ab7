"""Follow a growing trace: the cheap audits after every round, and limits that must hold.

rounds.py    reads one round after another: arrivals, coverage, linkage, accounting
page.py      a reading in one line, and as JSON
"""

from fedaudit.decide.watch.rounds import SILENCE, RoundReading, Watch, follow

__all__ = ["SILENCE", "RoundReading", "Watch", "follow"]
