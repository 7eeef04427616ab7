"""Read images, one folder per class."""

from __future__ import annotations

import io
import itertools
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaudit.data.dataset import Dataset
from fedaudit.errors import ConfigError, DataError
from fedaudit.files import Unreadable, read_bytes

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")


def _visible(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if not p.name.startswith("."))


def holds_images(folder: Path) -> bool:
    """Whether an image lies in a folder, or in a folder of it."""
    places = itertools.chain(folder.glob("*"), folder.glob("*/*"), folder.glob("*/*/*"))
    return any(p.suffix.lower() in _IMAGES for p in places)


def read_images(
    path: Path, name: str, greyscale: bool | None, size: tuple[int, int] | None
) -> Dataset:
    """Read one folder of images per class, or two parts of that form: see `read`."""
    if not path.is_dir():
        raise DataError(
            f"{path} is one file",
            expected="a folder with one folder of images per class",
            got="a file",
            remedy="give the folder",
        )
    folders = [p for p in _visible(path) if p.is_dir()]
    parts = {p.name.lower(): p for p in folders}
    if set(parts) in ({"train", "test"}, {"train", "val"}, {"train", "valid"}):
        train_path = parts.pop("train")
        (test_path,) = parts.values()
        dataset = read_images(train_path, name, greyscale, size)
        assert isinstance(dataset.x, np.ndarray)
        grey = dataset.x.shape[1] == 1
        shape = (dataset.x.shape[2], dataset.x.shape[3]) if size is not None else None
        test = read_images(test_path, name, grey, shape)
        assert isinstance(test.x, np.ndarray)
        if test.classes != dataset.classes or test.x.shape[1:] != dataset.x.shape[1:]:
            raise DataError(
                f"{path}: the two parts do not fit",
                expected=f"classes {', '.join(dataset.classes)}, images {dataset.x.shape[1:]}",
                got=f"classes {', '.join(test.classes)}, images {test.x.shape[1:]}",
                remedy="give both the same class folders, and a common size = [height, width]",
            )
        return replace(dataset, test=test)
    files = [
        (number, file)
        for number, folder in enumerate(folders)
        for file in sorted(folder.rglob("*"))
        if file.suffix.lower() in _IMAGES and not file.name.startswith(".")
    ]
    if len(folders) < 2 or not files:
        raise DataError(
            f"{path}: no classes of images",
            expected="at least two folders, one per class, with images in them",
            got=f"{len(folders)} folders, {len(files)} images ({', '.join(_IMAGES[:4])}, ...)",
            remedy='put texts into one .jsonl file, an object with "text" per line'
            if not any(f.suffix.lower() in _IMAGES for f in path.rglob("*"))
            and any(f.suffix.lower() in (".txt", ".md", ".json", ".jsonl") for f in path.rglob("*"))
            else "sort the images into one folder per class",
        )
    counts = Counter(number for number, _ in files)
    for number, folder in enumerate(folders):
        if not counts[number]:
            raise DataError(
                f"{folder} holds no images",
                expected=f"images ({', '.join(_IMAGES[:4])}, ...) of class {folder.name!r}",
                got="none",
                remedy="remove the folder or fill it",
            )
    x, notes = _load_images([file for _, file in files], greyscale, size)
    return Dataset(
        name=name,
        kind="image",
        x=x,
        y=np.array([number for number, _ in files], dtype=np.int64),
        classes=tuple(folder.name for folder in folders),
        notes=notes,
    )


def _load_images(
    files: Sequence[Path], greyscale: bool | None, size: tuple[int, int] | None
) -> tuple[npt.NDArray[np.float32], tuple[str, ...]]:
    """Images (n, 1 or 3, height, width) in [0, 1]."""
    from PIL import Image

    def opened(file: Path) -> Any:
        try:
            raw = read_bytes(file)
            with warnings.catch_warnings(), Image.open(io.BytesIO(raw)) as image:
                # a small file can unpack to a huge picture
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                image.load()
                return image
        except Unreadable as error:
            raise error.as_error(DataError) from None
        except MemoryError:
            raise
        except Exception as error:  # a damaged file can raise anything
            raise DataError(
                f"{file} cannot be read as an image",
                expected="an image file",
                got=str(error),
                remedy="replace or remove it",
            ) from None

    if size is not None and (len(size) != 2 or min(size) < 1):
        raise ConfigError(
            f"size cannot be {size!r}",
            expected="two whole numbers, height and width",
            got=repr(size),
            remedy="size = [32, 32]",
        )
    grey = greyscale
    if grey is None:
        grey = all(opened(f).mode in ("1", "L", "I", "I;16", "LA") for f in files)
    out: list[npt.NDArray[np.uint8]] = []
    first: tuple[int, int] | None = None
    for file in files:
        image = opened(file)
        if image.mode in ("I", "I;16"):
            # 16-bit grey: Pillow's conversion clips at 255 instead of scaling
            deep = np.asarray(image, dtype=np.float64)
            image = Image.fromarray((deep / 257.0).clip(0, 255).astype(np.uint8))
        image = image.convert("L" if grey else "RGB")
        if size is not None:
            image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        shape = (image.height, image.width)
        if first is None:
            first = shape
        elif shape != first:
            raise DataError(
                f"{file} differs in size from the images before it",
                expected=f"{first[0]} x {first[1]} (height x width), as {files[0]}",
                got=f"{shape[0]} x {shape[1]}",
                remedy=f"size = [{first[0]}, {first[1]}] scales all images to one size",
            )
        pixels = np.asarray(image, dtype=np.uint8)
        out.append(pixels[None] if grey else pixels.transpose(2, 0, 1))
    notes = [] if size is None else [f"images brought to {size[0]} x {size[1]}"]
    if greyscale:
        notes.append("images turned to grey")
    return np.stack(out).astype(np.float32) / 255.0, tuple(notes)
