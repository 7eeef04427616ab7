"""Many runs on one page: a time line per measure, what changed between neighbours, links."""

from fedaudit.decide.history.gather import History, history

__all__ = ["History", "history"]
