"""A private page with training records beside what was rebuilt of them.

Written only where somebody asks for it, to a file of its own: a report has no records.
"""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from fedaudit.arrays import Floats
from fedaudit.files import write_atomically
from fedaudit.reporting.environment import html

BANNER = (
    "Private: this page shows training records of clients. Do not hand it on; delete it when it "
    "has been read."
)
MOST_COLUMNS = 60
"""Columns of a table's records that the page shows."""
RIGHT_WITHIN = 0.05
"""Error, as a part of its range, up to which a number counts as right."""


class Pairs(Protocol):
    """Training records beside their nearest guesses, as an audit hands them over."""

    @property
    def true(self) -> Floats: ...
    @property
    def rebuilt(self) -> Floats: ...
    @property
    def client(self) -> tuple[str, ...]: ...
    @property
    def distance(self) -> Floats: ...
    @property
    def low(self) -> Floats: ...
    @property
    def high(self) -> Floats: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class ShownPair:
    """One record: pictures of both, or numbers (true, rebuilt, right) of each column."""

    client: str
    distance: str
    pictures: tuple[Markup, ...]
    numbers: tuple[tuple[str, str, bool], ...]


def write_shown_records(file: Path, pairs: Pairs, title: str) -> None:
    """Write the page, readable by its owner only."""
    page = (
        html()
        .get_template("records.html")
        .render(title=title, banner=BANNER, pairs=_shown(pairs), image=len(pairs.shape) == 3)
    )
    write_atomically(file, page, private=True)


def _shown(pairs: Pairs) -> list[ShownPair]:
    out = []
    span = np.maximum(pairs.high - pairs.low, 1e-12)
    for i, client in enumerate(pairs.client):
        both = pairs.true[i], pairs.rebuilt[i]
        pictures: tuple[Markup, ...] = ()
        numbers: tuple[tuple[str, str, bool], ...] = ()
        if len(pairs.shape) == 3:
            # one scale for the whole picture: a scale per pixel would tell nothing
            low, high = float(pairs.low.min()), float(pairs.high.max())
            pictures = tuple(
                picture(((x - low) / max(high - low, 1e-12)).reshape(pairs.shape)) for x in both
            )
        else:
            right = np.abs(both[0] - both[1]) <= RIGHT_WITHIN * span
            numbers = tuple(
                (f"{a:.4g}", f"{b:.4g}", bool(ok))
                for a, b, ok in list(zip(*both, right, strict=True))[:MOST_COLUMNS]
            )
        out.append(ShownPair(client, f"{pairs.distance[i]:.3f}", pictures, numbers))
    return out


def picture(image: Floats) -> Markup:
    """An image (C, H, W) from 0 to 1 as an HTML picture."""
    data = base64.b64encode(png(image)).decode("ascii")
    return Markup('<img src="data:image/png;base64,{}" width="96" alt="">').format(data)


def png(image: Floats) -> bytes:
    """An image (1 or 3, H, W) from 0 to 1 as a PNG file; of other channels the first."""
    pixels: npt.NDArray[np.uint8] = np.round(255 * np.clip(image, 0.0, 1.0)).astype(np.uint8)
    pixels = pixels if len(pixels) in (1, 3) else pixels[:1]
    channels, height, width = pixels.shape
    rows = pixels.transpose(1, 2, 0).reshape(height, -1)
    raw = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)

    def chunk(kind: bytes, content: bytes) -> bytes:
        crc = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc)

    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(raw)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
