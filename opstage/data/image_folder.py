"""Read datasets of images from a folder per class, with Pillow (extra `images`)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ops.errors import UsageError, brief, nearest, require_extra, shown
from ..ops.tracebacks import called_by_users
from .dataset import Dataset

Bytes = npt.NDArray[np.uint8]

SUFFIXES = (".png", ".jpg", ".jpeg", ".mpo", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""JPEG means MPO too; Pillow has other formats, some of which run programs."""
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
_WIDE = re.compile(r";(1[0-6]|24|32)[BLNSF]")
"""How Pillow marks numbers of more than 8 bits in a file, of which it keeps 8 for colours: RGB;16B."""
_MOST_PIXELS = 50_000_000
_SKIPPED = ("thumbs.db", "desktop.ini")


@called_by_users
def from_images(
    folder: str | os.PathLike[str],
    *,
    size: tuple[int, int] | None = None,
    channels: int = 3,
    classes: Sequence[str] | None = None,
) -> Dataset:
    """Read x: uint8 (n, channels, height, width); y: int64 (n,), the class; from a folder of images for each class.

    Classes are the folders' names in sorted order, or `classes`; images are in the order of their names. `channels` is
    3 for RGB, or 1 for grey (ITU-R 601). `size` is (height, width), to which images are resized (bilinear); without it
    all must have one size. Photographs are rotated as their EXIF data say. Files with a name that begins with a dot are
    skipped.

    Raises UsageError, naming the file, if it is damaged or not an image, has another size, more than 50 million pixels
    or more than 8 bits a channel, or is not opaque. So are files of several frames, except MPO, the photographs of
    phones, whose first frame is read. Also raises it for a folder without images, and without Pillow.

    Raises:
        UsageError: a folder without class folders; images of several sizes; Pillow is not installed.
    """
    groups = _grouped(Path(folder))
    if not groups:
        raise UsageError(
            f"{folder}: the dataset is empty: expected a folder of images for each class, as in "
            f"{Path(folder) / 'cat' / '1.png'}"
        )
    names = tuple(groups) if classes is None else tuple(classes)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"from_images: classes: expected names of folders, got {brief(names)}")
    for name in groups:
        if name not in names:
            raise UsageError(
                f"{Path(folder) / name}: {brief(name)} is not a class of the training data"
                f"{nearest(name, names)}; these are {shown(names)}"
            )
    x = read_images([path for paths in groups.values() for path in paths], size=size, channels=channels)
    y = np.repeat([names.index(name) for name in groups], [len(paths) for paths in groups.values()]).astype(np.int64)
    return Dataset(("x", "y"), (x, y), (f"{folder}: images", f"{folder}: classes"), classes=names)


def read_image_data(
    place: str | os.PathLike[str],
    *,
    size: tuple[int, int] | None,
    channels: int,
    labelled: bool,
    classes: Sequence[str] | None = None,
) -> Dataset:
    """Return x, and with `labelled` y as `from_images` does, of a folder of images or one image."""
    if labelled:
        return from_images(place, size=size, channels=channels, classes=classes)
    return Dataset(("x",), (read_images(image_paths(place), size=size, channels=channels),), (f"{place}: images",))


def image_paths(place: str | os.PathLike[str]) -> list[Path]:
    """Return an image, the images of a folder, or those of its subfolders, sorted by name."""
    path = Path(place)
    if not path.is_dir():
        return [path]
    groups = _grouped(path)
    found = [image for paths in groups.values() for image in paths] if groups else _images(path)
    if not found:
        raise UsageError(f"{place}: the dataset is empty: expected images in the folder")
    return found


def image_names(place: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the paths of these relative to the folder, as text; bytes that are not UTF-8 are escaped."""
    folder = Path(place) if Path(place).is_dir() else Path(place).parent
    names = [path.relative_to(folder).as_posix() for path in image_paths(place)]
    return tuple([os.fsencode(name).decode("utf-8", "backslashreplace") for name in names])


def read_images(paths: Sequence[Path], *, size: tuple[int, int] | None, channels: int) -> Bytes:
    """Read images as uint8 (n, channels, height, width); see `from_images`."""
    require_extra("PIL", "images", f"{paths[0]}: an image", "Pillow")
    if channels not in (1, 3):
        raise UsageError(f"channels={channels}: images have 3, or 1 in grey")
    sizes = size if isinstance(size, (tuple, list)) else ()
    if size is not None and not (len(sizes) == 2 and all(isinstance(n, int) and n > 0 for n in sizes)):
        raise UsageError(f"size={brief(size)}: expected (height, width), in pixels")
    first = _image(paths[0], size, channels)
    made = np.empty((len(paths), *first.shape), np.uint8)
    made[0] = first
    for i, path in enumerate(paths[1:], 1):
        image = _image(path, size, channels)
        if image.shape != first.shape:
            (_, h, w), (_, height, width) = image.shape, first.shape
            raise UsageError(
                f"{path}: is of {h}x{w} pixels, but {paths[0]} of {height}x{width}; --data.size {height}x{width} "
                "(size= in Python) resizes all"
            )
        made[i] = image
    return made


def _image(path: Path, size: tuple[int, int] | None, channels: int) -> Bytes:
    import warnings

    from PIL import Image, ImageOps

    if not path.is_file():
        raise UsageError(f"{path}: " + ("is not a file that can be read" if path.exists() else "no such file"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large images; this module has its own limit
            with Image.open(path, formats=_FORMATS) as opened:
                _require_usable(path, opened)
                opened.load()
                image: Any = ImageOps.exif_transpose(opened)
                if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
                    image = image.convert("RGBA")
                    if image.getextrema()[3][0] < 255:
                        raise UsageError(f"{path}: is transparent in part; write it without an alpha channel")
                image = image.convert("L" if channels == 1 else "RGB")
                if size is not None and image.size != (size[1], size[0]):
                    image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
                array = np.asarray(image, np.uint8)
    except UsageError:
        raise
    except MemoryError:
        raise UsageError(f"{path}: not enough memory for the image") from None
    except Exception as error:  # decoders raise anything for a damaged file
        first = (str(error).splitlines() or [""])[0][:200]
        raise UsageError(f"{path}: not an image that can be read: {first or type(error).__name__}") from error
    return array[np.newaxis] if channels == 1 else np.ascontiguousarray(array.transpose(2, 0, 1))


def _require_usable(path: Path, image: Any) -> None:
    width, height = image.size
    if width * height > _MOST_PIXELS:
        raise UsageError(f"{path}: is of {height}x{width} pixels; at most {_MOST_PIXELS:,} are read")
    if image.format != "MPO" and getattr(image, "n_frames", 1) != 1:  # of which the first is the photograph
        raise UsageError(f"{path}: has {image.n_frames} frames; expected one image")
    if image.mode not in _MODES or any(map(_is_wide, image.tile)):
        raise UsageError(f"{path}: is of mode {image.mode}; expected at most 8 bits a channel, grey or colour")


def _is_wide(tile: Any) -> bool:
    """Return whether a part of an image has more than 8 bits a channel."""
    decoder, args = tile[0], tile[-1] if isinstance(tile[-1], tuple) else (tile[-1],)
    most = args[1] if decoder.startswith("ppm") and len(args) > 1 else 255
    return most > 255 or any(isinstance(arg, str) and _WIDE.search(arg) is not None for arg in args)


def _grouped(folder: Path) -> dict[str, list[Path]]:
    """Return the images in each subfolder, by its name; {} if there are none."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: " + ("is not a folder" if folder.exists() else "no such folder"))
    inner = [path for path in _entries(folder) if path.is_dir()]
    groups = {path.name: _images(path) for path in inner}
    for name, images in groups.items():
        if not images:
            raise UsageError(f"{folder / name}: the class is empty; expected images in its folder")
    stray = next((path for path in _entries(folder) if not path.is_dir() and _is_image(path)), None)
    if groups and stray is not None:
        raise UsageError(f"{stray}: an image next to the folders of the classes; move it into one")
    return groups


def _images(folder: Path) -> list[Path]:
    """Return the files of a folder, which must all be images."""
    paths = _entries(folder)
    for path in paths:
        if path.is_dir() or not _is_image(path):
            raise UsageError(f"{path}: is not an image; expected files of {', '.join(SUFFIXES)} alone")
    return paths


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if not p.name.startswith(".") and p.name.lower() not in _SKIPPED)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be read: {error.strerror}") from error
