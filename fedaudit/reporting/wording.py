"""How printed text names settings.

Messages and findings name a parameter as Python takes it, in backticks. Whoever prints for readers
who do not write Python, as the command line does, sets a translation for the time of its work.
Stored facts stay as they are: only pages, Markdown and terminal text are translated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Translation = Callable[[str], str]

_translation: ContextVar[Translation | None] = ContextVar("translation", default=None)


@contextmanager
def worded(by: Translation) -> Iterator[None]:
    """Translate everything that is printed or rendered meanwhile."""
    before = _translation.set(by)
    try:
        yield
    finally:
        _translation.reset(before)


def said(text: str) -> str:
    """The text for the reader: translated, if a translation is set."""
    by = _translation.get()
    return text if by is None or "`" not in text else by(text)
