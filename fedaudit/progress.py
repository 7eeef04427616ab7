"""Callbacks that report progress of long work."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int, str], None]
"""(stage, done, total, note): called as a stage advances."""


def no_progress(stage: str, done: int, total: int, note: str) -> None:
    """Default progress callback: does nothing."""
