"""The guarded reader and the durable writer of small files."""

from __future__ import annotations

import gzip
import json
import math
import os
import stat
import struct
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedaudit import files, shapes
from fedaudit.errors import ConfigError
from fedaudit.files import (
    DEEPEST,
    MOST_BYTES,
    Unreadable,
    is_lost,
    make_folder,
    parse_json,
    parse_toml,
    read_bytes,
    read_data,
    read_json,
    read_npz,
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


def test_what_is_lost(tmp_path: Path):
    file = tmp_path / "f"
    assert is_lost(file)
    file.touch()
    assert is_lost(file)
    file.write_text("x", encoding="utf-8")
    assert not is_lost(file)
    assert is_lost(tmp_path / "a\x00b")
    assert is_lost(tmp_path / ("x" * 5_000))


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
        (folder / "f.part").chmod(0o666)
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


def test_a_link_or_a_pipe_in_the_way_is_not_written_through(tmp_path: Path):
    """A received folder may hold either under the name of a file to write."""
    victim = tmp_path / "victim"
    victim.write_text("of the user", encoding="utf-8")
    (tmp_path / "f.part").symlink_to(victim)
    write_atomically(tmp_path / "f", "new")
    assert victim.read_text(encoding="utf-8") == "of the user"
    os.mkfifo(tmp_path / "g.part")
    write_atomically(tmp_path / "g", "new")
    assert (tmp_path / "g").read_text(encoding="utf-8") == "new"


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


# -- arrays, archives, shapes ----------------------------------------------------------------------


def member(dtype: str, shape: tuple[int, ...], content: bytes) -> bytes:
    """An array file with a given header."""
    head = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}"
    text = head.encode() + b" " * (-(len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


def archive(file: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in members.items():
            out.writestr(f"{name}.npy", content)
    return file


def test_arrays_are_what_numpy_reads(tmp_path: Path):
    given = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3)),
        "c": np.array(["x", "yz"]),
        "d": np.array("one text"),
        "e": np.zeros((0, 3)),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "f.npz", **given)
        found = read_npz(tmp_path / "f.npz")
        assert list(found) == list(given)
        for name, array in given.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)
        found["a"][0, 0] = 9  # the caller may change it
    assert list(read_npz(tmp_path / "f.npz", ("c", "none"))) == ["c"]


@pytest.mark.parametrize(
    "content",
    [
        member("<U100000000", (3,), b""),
        member("<U100000000", (0,), b""),
        member("<f8", (10**12,), b"\0" * 80),
        member("<f8", (-1,), b""),
        member("<f8", (2,), b"\0" * 15),
        member("<f8", (2,), b"\0" * 17),
        member("|O", (1,), b"\x80\x04N."),
        member("nonsense", (1,), b"\0"),
        b"\x93NUMPY",
        b"",
    ],
)
def test_arrays_that_are_refused(tmp_path: Path, content: bytes):
    refused(archive(tmp_path / "f.npz", x=content), read_npz)


def test_an_array_of_objects_says_how_to_save_it(tmp_path: Path):
    np.savez(tmp_path / "f.npz", x=np.array([{}, []], dtype=object))
    error = refused(tmp_path / "f.npz", read_npz)
    assert "'x'" in error.got
    assert "astype" in error.remedy


def test_an_archive_of_something_else_or_the_same_twice_is_refused(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "f.npz", "w") as out:
        out.writestr("readme.txt", "hello")
    refused(tmp_path / "f.npz", read_npz)
    with zipfile.ZipFile(tmp_path / "f.npz", "w") as out, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            out.writestr("x.npy", member("<f8", (0,), b""))
    assert "twice" in refused(tmp_path / "f.npz", read_npz).got
    (tmp_path / "f.npz").write_bytes(b"PK no zip")
    refused(tmp_path / "f.npz", read_npz)


def test_an_archive_that_unpacks_to_far_more_is_refused(tmp_path: Path, monkeypatch):
    """Limits: one gigabyte, or a hundred times the size; the message states the limit."""
    monkeypatch.setattr(files, "_GIGABYTE", 4 << 20)
    packed = tmp_path / "f.csv.gz"
    packed.write_bytes(gzip.compress(bytes(8 << 20)))
    assert packed.stat().st_size < 20_000
    error = refused(packed, read_data)
    assert f"{4 << 20:,} bytes" in error.expected
    assert MOST_BYTES in error.remedy
    np.savez_compressed(tmp_path / "f.npz", x=np.zeros(1 << 20))
    error = refused(tmp_path / "f.npz", read_npz)
    assert f"{4 << 20:,} bytes" in error.expected
    assert MOST_BYTES in error.remedy
    monkeypatch.setenv(MOST_BYTES, str(16 << 20))
    assert len(read_data(packed)) == 8 << 20
    assert read_npz(tmp_path / "f.npz")["x"].shape == (1 << 20,)


def test_three_gigabytes_in_three_megabytes_are_refused_without_unpacking(tmp_path: Path):
    """The archive's directory states its size: nothing is unpacked."""
    file = tmp_path / "f.npz"
    archive(file, x=member("<f8", (1 << 22,), bytes(32 << 20)))
    raw = bytearray(file.read_bytes())
    at = raw.rindex(b"PK\x01\x02") + 24  # uncompressed size in the central directory
    raw[at : at + 4] = struct.pack("<I", 3_000_000_000)
    file.write_bytes(raw)
    assert "3,000,000,000 bytes" in refused(file, read_npz).got


def test_a_limit_that_is_no_number_is_refused(tmp_path: Path, monkeypatch):
    (tmp_path / "f").write_bytes(b"x")
    for text in ("", "-1", "1e9", "9" * 30):
        monkeypatch.setenv(MOST_BYTES, text)
        with pytest.raises(ConfigError, match=MOST_BYTES):
            read_data(tmp_path / "f")
    monkeypatch.setenv(MOST_BYTES, "0")
    refused(tmp_path / "f", read_data)


@pytest.mark.parametrize("name", ["f.csv", "f.csv.gz", "f.npz"])
@pytest.mark.parametrize("thing", ["pipe", "device", "folder"])
def test_data_are_regular_files(tmp_path: Path, name: str, thing: str):
    file = tmp_path / name
    make = {"pipe": os.mkfifo, "device": lambda f: f.symlink_to("/dev/zero"), "folder": Path.mkdir}
    make[thing](file)
    assert refused(file, read_npz if name == "f.npz" else read_data).got == f"a {thing}"


def test_half_a_gzip_file_is_refused(tmp_path: Path):
    whole = gzip.compress(b"a,b\n" * 100)
    for raw in (whole[:-5], b"no gzip", whole[:20] + b"\xff" * 9 + whole[29:]):
        (tmp_path / "f.gz").write_bytes(raw)
        refused(tmp_path / "f.gz", read_data)


@pytest.mark.parametrize("text", ["18446744073709551616", "-9223372036854775809", '"\\ud800"'])
def test_values_that_no_other_reader_takes_are_refused(text: str):
    with pytest.raises(ValueError):
        parse_json(text)
    assert parse_json("[18446744073709551615, -9223372036854775808]")
    assert parse_json('"\\ud83d\\ude00"') == "\U0001f600"
    with pytest.raises(ValueError):
        parse_toml("a = {b = [18446744073709551616]}")


def test_nan_is_read_where_it_is_allowed():
    assert math.isnan(parse_json("NaN", nan=True))


@pytest.mark.parametrize(
    ("value", "shape", "expected", "got"),
    [
        ([], {}, "an object", "a list"),
        ({"a": 1}, {"a": str}, "a: text", "a whole number"),
        ({}, {"a": str}, "a: text", "no such key"),
        ({"a": True}, {"a": int}, "a: a whole number", "true or false"),
        ({"a": None}, {"a?": float}, "a: a number", "null"),
        ({"a": [1, "b"]}, {"a": [int]}, "a[1]: a whole number", "text"),
        ({"a": {"b": 1}}, {"a": {str: str}}, "a.b: text", "a whole number"),
        ({"a": 1.5}, {"a": (str, shapes.NOTHING)}, "a: text or null", "a number"),
        ({"a": -1}, {"a": shapes.at_least(0)}, "a: a whole number of at least 0", "-1"),
        ({"a": "nan"}, {"a": shapes.budget}, "a: an epsilon", "nan"),
    ],
)
def test_values_of_another_shape(tmp_path: Path, value, shape, expected, got):
    (tmp_path / "f.json").write_text(json.dumps(value))
    error = refused(tmp_path / "f.json", lambda f: read_object(f, shape))
    assert error.expected.startswith(expected)
    assert got in error.got


def test_values_that_fit():
    shape = {"a": [float], "b?": (str, shapes.NOTHING), "c": shapes.one_of("x", "y")}
    assert shapes.misfit({"a": [1, 2.5], "c": "x", "more": object()}, shape) is None
    assert shapes.misfit({"a": [], "b": None, "c": "y"}, shape) is None
