from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedaudit.data.files import read
from fedaudit.errors import DataError


def picture(path: Path, colour: object, size: tuple[int, int] = (4, 3), mode: str = "RGB") -> None:
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.new(mode, size, colour).save(path)


def test_image_folders(tmp_path: Path) -> None:
    picture(tmp_path / "cat/1.png", (255, 0, 0))
    picture(tmp_path / "cat/2.png", (0, 255, 0))
    picture(tmp_path / "dog/1.png", (0, 0, 255))
    (tmp_path / "dog/notes.txt").write_text("not an image")
    data = read(tmp_path)
    assert data.classes == ("cat", "dog")
    assert data.y.tolist() == [0, 0, 1]
    assert data.x.shape == (3, 3, 3, 4)  # records, channels, height, width
    assert data.x[:, :, 0, 0].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert read(tmp_path, greyscale=True, size=(2, 6)).x.shape == (3, 1, 2, 6)

    picture(tmp_path / "dog/2.png", (0, 0, 9), size=(5, 3))
    with pytest.raises(DataError, match=r"2\.png differs in size") as caught:
        read(tmp_path)
    assert "size = [3, 4]" in str(caught.value)
    assert read(tmp_path, size=(3, 4)).x.shape == (4, 3, 3, 4)
    (tmp_path / "dog/2.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"2\.png cannot be read"):
        read(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        read(tmp_path)


def test_image_folders_with_their_own_test_part(
    tmp_path: Path, unsaid: Callable[..., list[str]]
) -> None:
    for part in ("train", "test"):
        picture(tmp_path / part / "a/1.png", 0, mode="L")
        picture(tmp_path / part / "b/1.png", 255, mode="L")
    data = read(tmp_path)
    assert data.x.shape == (2, 1, 3, 4)
    assert data.test is not None
    assert data.test.x.max() == 1.0
    picture(tmp_path / "test/c/1.png", 255, mode="L")
    assert not unsaid(tmp_path, "do not fit")


def test_a_small_file_of_a_huge_picture_is_refused(tmp_path: Path) -> None:
    from PIL import Image

    for kind in "ab":
        picture(tmp_path / kind / "0.png", (9, 9, 9))
    Image.new("1", (10_000, 10_000)).save(tmp_path / "a" / "1.png")
    assert (tmp_path / "a" / "1.png").stat().st_size < 100_000
    with pytest.raises(DataError, match=r"1\.png"):
        read(tmp_path)


def test_an_image_that_is_a_device_is_refused(tmp_path: Path) -> None:
    for kind in "ab":
        picture(tmp_path / kind / "0.png", (9, 9, 9))
    (tmp_path / "a" / "1.png").symlink_to("/dev/zero")
    with pytest.raises(DataError) as refused:
        read(tmp_path)
    assert refused.value.got == "a device"
