"""Jinja2 environments of the report; they escape all text that a template prints.

html        autoescape for HTML; SVG and linked terms come in as `Markup`
markdown    every printed value is escaped for Markdown, see `escape_markdown`
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from fedaudit.reporting.terms import anchor
from fedaudit.reporting.text import clean
from fedaudit.reporting.wording import said


@lru_cache
def html() -> Environment:
    """The environment of the HTML page."""
    made = _environment(finalize=_worded)
    made.filters |= {"joined": joined, "anchor": anchor}
    return made


@lru_cache
def markdown() -> Environment:
    """The environment of Markdown files."""
    made = _environment(finalize=_escaped)
    made.filters["code"] = code
    return made


def _environment(**more: Any) -> Environment:
    return Environment(
        loader=PackageLoader("fedaudit.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **more,
    )


def joined(text: str) -> Markup:
    """Keep a number on the line of its unit."""
    return Markup(str(escape(text)).replace(" %", "&nbsp;%").replace("n = ", "n&nbsp;=&nbsp;"))


_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!@])")


def escape_markdown(text: str) -> Markup:
    """Escape text for Markdown: no markup, no mention, no line break."""
    escaped = _SPECIAL.sub(r"\\\1", " ".join(clean(text).split()))
    plain = escaped.replace(r"\<", "&lt;").replace(r"\>", "&gt;").replace(r"\@", "&#64;")
    return Markup(plain)


def _worded(value: Any) -> Any:
    return said(value) if type(value) is str else value


def _escaped(value: Any) -> Markup:
    return Markup(value) if hasattr(value, "__html__") else escape_markdown(str(value))


def code(text: str) -> Markup:
    """Text as inline code; it may contain backticks."""
    plain = " ".join(clean(text).split())
    ticks = "`" * (max((len(t) for t in re.findall("`+", plain)), default=0) + 1)
    return Markup(f"{ticks}{plain}{ticks}" if len(ticks) == 1 else f"{ticks} {plain} {ticks}")
