"""The private page of rebuilt records: pictures and numbers are right, a banner says private."""

import base64
import re
import stat
import struct
import zlib

import numpy as np
import pytest

from fedaudit.audits.reconstruction.pairs import closest_pairs
from fedaudit.audits.reconstruction.scores import Asked
from fedaudit.reporting import shown_records

RNG = np.random.default_rng(0)


def pairs(shape, most=3):
    width = int(np.prod(shape))
    x = RNG.random((6, width))
    member = np.array([True, False, True, True, True, False])
    asked = Asked(x, np.array([0, 0, 1, 1, 0, 1]), np.zeros(6, dtype=np.int64), member)
    distance = np.array([0.5, 0.0, 0.1, np.inf, 0.2, 0.3])
    ranges = np.zeros(width), np.ones(width)
    return x, closest_pairs(
        x + 0.01, distance, asked, ("a<b", "other"), ranges=ranges, shape=shape, most=most
    )


def decoded(png):
    """Pixels (H, W, C) of a PNG file without filters."""
    at, parts = 8, {}
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        kind, content = png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        (check,) = struct.unpack(">I", png[at + 8 + size : at + 12 + size])
        assert check == zlib.crc32(kind + content)
        parts[kind] = content
        at += 12 + size
    width, height, bits, colour = struct.unpack(">IIBB", parts[b"IHDR"][:10])
    assert bits == 8
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), dtype=np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3 if colour == 2 else 1)


def test_the_closest_training_records_come_first_and_no_others():
    x, found = pairs((4,))
    assert found.client == ("other", "a<b", "a<b")
    np.testing.assert_array_equal(found.true, x[[2, 4, 0]])
    np.testing.assert_array_equal(found.distance, [0.1, 0.2, 0.5])
    assert len(pairs((4,), most=1)[1]) == 1


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_the_records(tmp_path, channels):
    x, found = pairs((channels, 5, 7))
    file = tmp_path / "records.html"
    shown_records.write_shown_records(file, found, "Records")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    assert shown_records.BANNER in text
    assert "a&lt;b" in text
    sent = re.findall(r"data:image/png;base64,([^\"]+)", text)
    assert len(sent) == 2 * len(found)
    expected = x[2].reshape(channels, 5, 7).transpose(1, 2, 0)
    pixels = decoded(base64.b64decode(sent[0]))
    assert pixels.shape == expected.shape
    np.testing.assert_allclose(pixels / 255, expected, atol=0.5 / 255)


def test_a_table_shows_numbers_and_marks_what_is_right(tmp_path):
    x, found = pairs((2,), most=1)
    file = tmp_path / "records.html"
    shown_records.write_shown_records(file, found, "Records")
    text = file.read_text()
    assert f"<td>{x[2, 0]:.4g}</td>" in text
    assert f'<td class="right">{x[2, 0] + 0.01:.4g}</td>' in text
    assert "<img" not in text
