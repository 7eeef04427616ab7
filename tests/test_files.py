"""The guarded reader and the durable writer of small files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fedaudit.files import (
    DEEPEST,
    Unreadable,
    make_folder,
    parse_json,
    parse_toml,
    read_bytes,
    read_json,
    read_object,
    read_text,
    read_toml,
    replacing,
    sha256_of,
    write_all,
    write_atomically,
)


def refused(path: Path, read=read_json, **given) -> Unreadable:
    with pytest.raises(Unreadable) as caught:
        read(path, **given)
    assert caught.value.expected
    assert caught.value.got
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
        '{"a":' * 500 + "1" + "}" * 500,
        "NaN",
        "-Infinity",
        "1e999",
        '{"a": 1, "a": 2}',
        "9" * 5_000,
        "{",
        "\x00",
    ],
)
def test_json_that_is_refused(tmp_path: Path, text: str):
    file = tmp_path / "f.json"
    file.write_text(text, encoding="utf-8")
    refused(file)


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 100_000, "a = " + "9" * 5_000, "a = \x00", "a", "a = 1\na = 2"]
)
def test_toml_that_is_refused(tmp_path: Path, text: str):
    file = tmp_path / "f.toml"
    file.write_text(text, encoding="utf-8")
    refused(file, read_toml)


def test_values_at_the_limit_are_read(tmp_path: Path):
    deep = "[" * DEEPEST + "]" * DEEPEST
    assert parse_json(deep) is not None
    assert parse_toml(f"v = {deep[1:-1]}")
    file = tmp_path / "f.json"
    file.write_text('{"a": [1, 2.5, "x"]}', encoding="utf-8")
    assert read_object(file) == {"a": [1, 2.5, "x"]}
    assert read_bytes(file, limit=file.stat().st_size) == file.read_bytes()
    assert refused(file, read_bytes, limit=file.stat().st_size - 1)


def test_only_regular_files_are_read(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "pipe" in (refused(pipe).got or "")
    link = tmp_path / "zero"
    link.symlink_to("/dev/zero")
    assert "device" in (refused(link).got or "")
    assert "folder" in (refused(tmp_path).got or "")
    assert refused(tmp_path / "none").absent
    assert not refused(tmp_path).absent
    refused(tmp_path / "a\x00b")
    refused(pipe, sha256_of)


def test_an_empty_file_is_told_from_a_wrong_one(tmp_path: Path):
    file = tmp_path / "f.json"
    file.touch()
    assert refused(file).empty
    file.write_text("[]", encoding="utf-8")
    assert not refused(file, read_object).empty


def test_text_of_another_encoding_is_refused(tmp_path: Path):
    file = tmp_path / "f"
    file.write_bytes("Ä".encode())
    assert read_text(file) == "Ä"
    refused(file, read_text, encoding="ascii")
    file.write_bytes(b"\xff")
    refused(file, read_text)


def test_private_files_and_folders_whatever_the_umask(tmp_path: Path):
    before = os.umask(0)
    try:
        folder = tmp_path / "truth"
        folder.mkdir(0o777)
        make_folder(folder, private=True)
        file = folder / "f"
        (folder / "f.part").write_text("left over, open to all", encoding="utf-8")
        write_atomically(file, "secret", private=True)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text(encoding="utf-8") == "secret"


def test_content_is_on_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """fsync of the file, rename, fsync of the folder: in this order."""
    done: list[str] = []
    sync, rename = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def replace(a: object, b: object) -> None:
        done.append("rename")
        rename(a, b)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_atomically(tmp_path / "f", b"x")
    assert done == ["file", "rename", "folder"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path):
    file = tmp_path / "f"
    write_atomically(file, "old")

    def stopped() -> None:
        with replacing(file) as descriptor:
            write_all(descriptor, b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert file.read_text(encoding="utf-8") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
