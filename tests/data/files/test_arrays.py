from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedaudit.data.files import idx_array, read
from fedaudit.errors import ConfigError, DataError


def test_npz_features_images_and_text(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(
        path, x=np.eye(3), y=[5, 7, 5], client=["a", "b", "b"], x_test=np.eye(3)[:1], y_test=[7]
    )
    data = read(path)
    assert (data.kind, data.classes, data.y.tolist()) == ("features", ("5", "7"), [0, 1, 0])
    assert data.client == ("a", "b", "b")
    assert data.test is not None
    assert data.test.y.tolist() == [1]

    pixels = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    np.savez(path, x=pixels, y=["cat", "dog"])
    data = read(path)
    assert data.kind == "image"
    np.testing.assert_allclose(data.x, pixels.transpose(0, 3, 1, 2) / 255, rtol=1e-6)
    assert data.classes == ("cat", "dog")

    np.savez(path, x=np.array(["one", "two"]))
    assert read(path).x == ("one", "two")


def test_npz_refusals(tmp_path: Path, unsaid: Callable[..., list[str]]) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([{}, []], dtype=object), y=[0, 1])
    assert not unsaid(path, "Python objects in array 'x'")
    np.savez(path, x=np.eye(2))
    assert not unsaid(path, "no array 'y'")
    np.savez(path, x=np.eye(2), y=[0, 1], klient=["a", "b"])
    assert not unsaid(path, "did you mean 'klient'", client="client")
    np.savez(path, x=np.eye(2), y=np.eye(2))
    assert not unsaid(path, "argmax")
    np.savez(path, x=np.eye(2), y=[0.0, np.nan])
    assert not unsaid(path, "missing labels")
    np.savez(path, x=np.full((2, 3, 3), 200.0), y=[0, 1])
    assert not unsaid(path, "not scaled", "200")
    np.savez(path, x=np.array([["a", "b"], ["c", "d"]]), y=[0, 1])
    assert not unsaid(path, "does not hold numbers")
    path.write_bytes(b"PK no zip")
    assert not unsaid(path, "numpy.savez")


def test_idx_pair_and_folder(
    tmp_path: Path, unsaid: Callable[..., list[str]], idx_bytes: Callable[[np.ndarray], bytes]
) -> None:
    pixels = np.arange(3 * 2 * 2).reshape(3, 2, 2)
    images = tmp_path / "train-images-idx3-ubyte"
    images.write_bytes(idx_bytes(pixels))
    assert not unsaid(images, "labels file")
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(
        gzip.compress(idx_bytes(np.array([0, 2, 1])))
    )
    data = read(images)
    np.testing.assert_allclose(data.x[:, 0], pixels / 255, rtol=1e-6)
    assert data.y.tolist() == [0, 2, 1]
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(pixels[:1]))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.array([3])))
    data = read(tmp_path)
    assert data.test is not None
    assert data.classes == data.test.classes == ("0", "1", "2", "3")
    images.write_bytes(idx_bytes(pixels)[:-1])
    assert not unsaid(images, "torn", "28 bytes", "27 bytes")
    images.write_bytes(idx_bytes(pixels[:2]))
    assert not unsaid(images, "do not fit")
    images.write_bytes(b"hello")
    assert not unsaid(images, "not an IDX file")
    with pytest.raises(ConfigError, match="leave client out"):
        read(images, client="x")


def test_idx_of_other_types() -> None:
    raw = struct.pack(">BBBBI2f", 0, 0, 0x0D, 1, 2, 1.5, -2.0)
    assert idx_array(raw, "here").tolist() == [1.5, -2.0]


@pytest.mark.parametrize("shape", [(0,), (0, 3), (4, 0), (0, 5, 5), ()])
def test_npz_without_records_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(shape), y=np.zeros(shape[:1]))
    with pytest.raises(DataError, match="no records"):
        read(tmp_path / "a.npz")


@pytest.mark.parametrize("kind", [np.int64, np.uint64, str])
def test_whole_labels_stay_exact(tmp_path: Path, kind: type) -> None:
    large = [2**53, 2**53 + 1, 2**62 + 1, 2**53]
    np.savez(tmp_path / "a.npz", x=np.eye(4), y=np.array(large).astype(kind))
    data = read(tmp_path / "a.npz")
    assert data.classes == tuple(str(v) for v in sorted(set(large)))
    assert data.y.tolist() == [0, 1, 2, 0]
    np.savez(tmp_path / "a.npz", x=np.eye(4), y=np.array(["1", "1.0", "+1", "1e999"]))
    assert read(tmp_path / "a.npz").classes == ("+1", "1", "1.0", "1e999"), "no number: text"


@pytest.mark.parametrize("kind", [np.float64, np.longdouble])
@pytest.mark.parametrize("shape", [(4, 2), (4, 3, 3)])
def test_numbers_too_large_are_refused_by_their_record(
    tmp_path: Path, kind: type, shape: tuple[int, ...]
) -> None:
    x = np.ones(shape, dtype=kind)
    x[2] = -1e300
    np.savez(tmp_path / "a.npz", x=x, y=[0, 1, 0, 1])
    with pytest.raises(DataError, match="record 2: a number in array 'x' is too large"):
        read(tmp_path / "a.npz")
