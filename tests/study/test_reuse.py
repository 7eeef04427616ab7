"""Keys of what may be reused: a key that cannot be read is drawn anew."""

import os

import pytest

from fedaudit.study.reuse import KEY, truth_digest
from fedaudit.trace import Truth, TruthRecorder


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", "Schl\u00fcssel".encode(), b"x" * 10_000])
def test_a_key_that_is_none_is_drawn_anew(tmp_path, raw):
    TruthRecorder(tmp_path, {"notes": ["a"]})
    truth = Truth.open(tmp_path)
    before = truth_digest(truth)
    assert truth_digest(truth) == before
    (tmp_path / KEY).write_bytes(raw)
    after = truth_digest(truth)
    assert len(after) == 32
    assert truth_digest(truth) == after


@pytest.mark.parametrize("make", [os.mkfifo, lambda file: file.symlink_to("/dev/zero"), os.mkdir])
def test_a_key_that_is_no_file_stops_nothing(tmp_path, make):
    TruthRecorder(tmp_path, {})
    make(tmp_path / KEY)
    assert len(truth_digest(Truth.open(tmp_path))) == 32
