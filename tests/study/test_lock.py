"""One process at a time in a folder, and nothing in the way of those that come after it."""

import json
import os
import platform
import signal
import subprocess
import sys

import pytest

from fedaudit.errors import TraceError, UsageError
from fedaudit.study import study
from fedaudit.study.lock import LOCK, alone_in

CONFIG = {
    "data": {"name": "gaussian-mixture", "records": 60},
    "task": {"kind": "mlp", "hidden": [2]},
    "federation": {"clients": 3, "rounds": 2},
    "audits": {"coverage": {}},
}

HOLDER = """
import sys
from pathlib import Path
from fedaudit.study.lock import alone_in
with alone_in(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()  # until it is killed
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that is at work in `tmp_path / "run"`."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as other:
        assert other.stdout.readline() == "held\n"
        yield other
        other.kill()


def test_a_second_run_is_told_who_is_at_work(holder, tmp_path):
    before = sorted(p.name for p in (tmp_path / "run").iterdir())
    with pytest.raises(UsageError, match="another process is at work") as refused:
        study.study(study.plan([CONFIG]), tmp_path / "run")
    assert refused.value.exit_code == 2
    assert f"process {holder.pid}" in refused.value.got
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == before == [LOCK]


def test_the_lock_of_a_process_that_was_killed_is_in_nobodys_way(holder, tmp_path):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "run" / LOCK).exists()
    done = study.study(study.plan([CONFIG]), tmp_path / "run")
    assert len(done.runs) == 1
    assert not list((tmp_path / "run").glob("*.part"))


def test_a_number_that_was_given_again_is_another_process(tmp_path):
    here = {"pid": os.getpid(), "began": 1, "host": platform.node()}
    (tmp_path / LOCK).write_text(json.dumps(here))
    with alone_in(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["began"] != 1
    assert not (tmp_path / LOCK).exists()


TORN = ["", "{", "[]", '{"pid": "x"}', '{"pid": -1}', '{"pid": 1' + "0" * 30 + "}", "[" * 100_000]


@pytest.mark.parametrize("text", [*TORN, '{"pid": 1000000000000}', '{"pid": 1, "began": "x"}'])
def test_a_torn_lock_is_none(text, tmp_path):
    (tmp_path / LOCK).write_text(text)
    with alone_in(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()


@pytest.mark.parametrize("make", [os.mkfifo, lambda file: file.symlink_to("/dev/zero")])
def test_a_lock_that_is_no_file_is_none(make, tmp_path):
    make(tmp_path / LOCK)
    with alone_in(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()


def test_a_folder_in_place_of_the_lock_is_refused(tmp_path):
    (tmp_path / LOCK).mkdir()
    with pytest.raises(UsageError, match="in the way"), alone_in(tmp_path):
        pass


def test_a_lock_of_another_machine_counts_until_it_is_removed(tmp_path):
    (tmp_path / LOCK).write_text(json.dumps({"pid": 1, "began": 1, "host": "elsewhere"}))
    with pytest.raises(UsageError, match="at work") as refused, alone_in(tmp_path):
        pass
    assert "elsewhere" in refused.value.got
    assert LOCK in refused.value.remedy


def test_it_is_given_back_whatever_ends_the_work(tmp_path):
    with pytest.raises(KeyboardInterrupt), alone_in(tmp_path / "new"):
        raise KeyboardInterrupt
    assert not (tmp_path / "new").exists()  # nothing was begun
    with alone_in(tmp_path / "new"):
        (tmp_path / "new" / "kept").write_text("x")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["kept"]


def test_a_folder_that_cannot_be_written_is_refused_as_ever(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(TraceError, match="cannot use"):
        study.study(study.plan([CONFIG]), tmp_path / "file" / "run")


def test_one_process_does_not_take_it_twice(tmp_path):
    with alone_in(tmp_path), pytest.raises(UsageError), alone_in(tmp_path):
        pass
    with alone_in(tmp_path):
        pass
