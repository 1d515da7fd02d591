"""A folder of images for each class; no file in it is trusted."""

from __future__ import annotations

import io
import json
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opstage import Recipe, UsageError
from opstage.data import from_images
from opstage.data.image_folder import read_images
from opstage.data.preparation import Preparation
from opstage.files import Document
from opstage.models import cnn
from opstage.runs import DataSettings, RunSettings, Settings
from opstage.runs.run_data import Loaded, load_data

Image = pytest.importorskip("PIL.Image")
RNG = np.random.default_rng(3)
PIXELS = RNG.integers(0, 256, (12, 8, 8, 3)).astype(np.uint8)
CLASSES = ["cat", "ape", "dog"]


def png(pixels: Any, **how: Any) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG", **how)
    return data.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "pets"
    for i, pixels in enumerate(PIXELS):
        place = root / CLASSES[i % 3]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i:02}.png").write_bytes(png(pixels))
        (place / ".DS_Store").write_text("none of ours")
    return root


ORDER = [i for name in ("ape", "cat", "dog") for i in range(12) if CLASSES[i % 3] == name]


def loaded(path: Path, config: Any = None, **data: Any) -> Loaded:
    config = cnn.Config(inputs=3, classes=3) if config is None else config
    settings = Settings(run=RunSettings(model="cnn"), data=DataSettings(file=path, **data), model=config)
    return load_data(settings, cnn.make(config), Recipe())


def test_classes_that_are_not_names_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"from_images: classes: expected names of folders, got \(1,\)"):
        from_images(folder, classes=[1])  # type: ignore[list-item]


def test_pixels_and_classes(folder: Path) -> None:
    data = from_images(folder)
    assert data.classes == ("ape", "cat", "dog")
    assert np.array_equal(data["x"], PIXELS[ORDER].transpose(0, 3, 1, 2))
    assert data["y"].tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_grey_and_sizes(folder: Path) -> None:
    grey = from_images(folder, channels=1, size=(4, 6))
    assert grey["x"].shape == (12, 1, 4, 6)
    red, green, blue = PIXELS[ORDER].astype(float).transpose(3, 0, 1, 2)
    expected = 0.299 * red + 0.587 * green + 0.114 * blue
    assert np.abs(from_images(folder, channels=1)["x"][:, 0] - expected).max() <= 1


def test_a_run_reads_new_images_as_its_own(folder: Path, tmp_path: Path) -> None:
    found = loaded(folder, held_out=0.25)
    assert found.preparation is not None
    assert found.training["x"].dtype == np.float32
    assert (len(found.training), len(found.held_out)) == (9, 3)
    kept = Preparation.of(Document.of(json.dumps(found.preparation.to_document()), "kept"))
    assert kept == found.preparation
    expected = PIXELS[ORDER].transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
    assert np.array_equal(kept.inputs(folder, ["x"])["x"], expected)
    assert np.array_equal(kept.inputs(folder / "cat", ["x"])["x"], expected[4:8])
    assert np.array_equal(kept.inputs(folder / "dog" / "02.png", ["x"])["x"], expected[8:9])
    assert kept.labelled(folder)["y"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    (folder / "ape").rename(tmp_path / "ape")
    assert kept.labelled(folder)["y"].tolist() == [1] * 4 + [2] * 4  # by the run's classes
    (folder / "dog").rename(folder / "dogs")
    with pytest.raises(UsageError, match=r"dogs: 'dogs' is not a class .*did you mean 'dog'"):
        kept.labelled(folder)


def test_a_mistake_says_what_to_set(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"--model\.classes 3"):
        loaded(folder, cnn.Config(inputs=3))
    with pytest.raises(UsageError, match=r"set --model\.height 4, in Python settings={'model': {'height': 4}}$"):
        loaded(folder, cnn.Config(inputs=3, classes=3), size="4x8")
    with pytest.raises(UsageError, match="size must be HEIGHTxWIDTH"):
        DataSettings(size="big")
    assert loaded(folder, cnn.Config(classes=3)).training["x"].shape[1] == 1


def bomb(_: bytes) -> bytes:
    """A PNG of 9000x9000 white pixels in a few bytes."""
    chunks = b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in (
            (b"IHDR", struct.pack(">IIBBBBB", 9000, 9000, 1, 0, 0, 0, 0)),
            (b"IDAT", zlib.compress(b"\xff" * 100)),
            (b"IEND", b""),
        )
    )
    return b"\x89PNG\r\n\x1a\n" + chunks


def frames(_: bytes) -> bytes:
    data = io.BytesIO()
    two = [Image.fromarray(PIXELS[i]) for i in range(2)]
    two[0].save(data, "GIF", save_all=True, append_images=two[1:])
    return data.getvalue()


def see_through(_: bytes) -> bytes:
    return png(np.concatenate([PIXELS[0], np.full((8, 8, 1), 128, np.uint8)], axis=2))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "not an image that can be read"),
        (lambda data: b"hello", "not an image that can be read"),
        (lambda data: data[: len(data) // 2], "not an image that can be read"),
        (lambda data: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", "not an image that can be read"),
        (lambda data: png(PIXELS[0, :4]), "is of 4x8 pixels, but"),
        (lambda data: png(np.zeros((8, 8), np.uint16)), "expected at most 8 bits a channel"),
        (bomb, "is of 9000x9000 pixels; at most 50,000,000"),
        (frames, "has 2 frames"),
        (see_through, "is transparent in part"),
    ],
)
def test_a_file_that_is_no_image_of_the_others(folder: Path, damage: Callable[[bytes], bytes], message: str) -> None:
    path = folder / "dog" / "05.png"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        from_images(folder)
    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize("size", [0, "2x3", (2,), (0, 3), (2.5, 3)])
def test_a_size_that_is_none(folder: Path, size: Any) -> None:
    with pytest.raises(UsageError, match=r"^size=.*: expected \(height, width\), in pixels"):
        from_images(folder, size=size)


def test_a_folder_of_one_class_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pets" / "cat").mkdir(parents=True)
    for i, pixels in enumerate(PIXELS):
        (tmp_path / "pets" / "cat" / f"{i}.png").write_bytes(png(pixels))
    with pytest.raises(UsageError, match="pets: all rows are of one class, 'cat'; expected two or more classes"):
        loaded(tmp_path / "pets")


def test_palettes_are_colours_and_photographs_are_turned(tmp_path: Path) -> None:
    indices = RNG.integers(0, 4, (5, 7)).astype(np.uint8)
    colours = RNG.integers(0, 256, (4, 3)).astype(np.uint8)
    image = Image.fromarray(indices, "P")
    image.putpalette(colours.tobytes())
    image.save(tmp_path / "p.png")
    (found,) = read_images([tmp_path / "p.png"], size=None, channels=3)
    assert np.array_equal(found, colours[indices].transpose(2, 0, 1))
    for orientation, turned in ((3, lambda x: x[::-1, ::-1]), (6, lambda x: np.rot90(x, -1)), (8, np.rot90)):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(PIXELS[0, :5]).save(tmp_path / "t.png", exif=exif)
        (found,) = read_images([tmp_path / "t.png"], size=None, channels=3)
        assert np.array_equal(found, turned(PIXELS[0, :5]).transpose(2, 0, 1))


def test_folders_that_are_none_of_images(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (folder / "dog" / "notes.txt").write_text("woof")
    for path, message in (
        (folder, "notes.txt: is not an image"),
        (tmp_path / "empty", "the dataset is empty"),
        (tmp_path / "none", "no such folder"),
        (folder / "cat" / "00.png", "is not a folder"),
    ):
        with pytest.raises(UsageError, match=message):
            from_images(path)
    (folder / "dog" / "notes.txt").unlink()
    (folder / "stray.png").write_bytes(png(PIXELS[0]))
    with pytest.raises(UsageError, match=r"stray\.png: an image next to the folders"):
        from_images(folder)
    (folder / "stray.png").unlink()
    (folder / "emu").mkdir()
    with pytest.raises(UsageError, match="emu: the class is empty"):
        from_images(folder)


def test_images_without_pillow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opstage.ops.errors.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'opstage\[images\]'"):
        from_images(folder)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_bytes_are_an_image_or_one_error(folder: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    path = folder / "dog" / "05.png"
    form = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")[seed % 7]
    data = io.BytesIO()
    Image.fromarray(PIXELS[5]).save(data, form)
    damaged = bytearray(data.getvalue())
    for at in rng.integers(0, len(damaged), 1 + seed % 5):
        damaged[at] = rng.integers(0, 256)
    path.write_bytes(bytes(damaged[: rng.integers(len(damaged) // 2, len(damaged) + 1)]))
    try:
        assert from_images(folder)["x"].shape == (12, 3, 8, 8)
    except UsageError as error:
        assert str(path) in str(error)


def tiff(bits: int, order: str) -> bytes:
    """Return 2x2 pixels in three channels of `bits` bits."""
    pixels = np.arange(12).astype(f"{order}u{bits // 8}").tobytes()
    tags = [(256, 2), (257, 2), (258, None), (259, 1), (262, 2), (273, None), (277, 3), (278, 2), (279, len(pixels))]
    start = 8 + 2 + 12 * len(tags) + 4
    file = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HIH", 42, 8, len(tags))
    for tag, value in tags:
        count, value = (3, start) if tag == 258 else (1, start + 6 if tag == 273 else value)
        file += struct.pack(f"{order}HHII", tag, 4, count, value) if tag in (273, 279) else b""
        if tag == 258:
            file += struct.pack(f"{order}HHII", tag, 3, count, value)
        elif tag not in (273, 279):
            file += struct.pack(f"{order}HHIHH", tag, 3, count, value, 0)
    return file + struct.pack(f"{order}IHHH", 0, bits, bits, bits) + pixels


def raw_png(depth: int, colour: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    channels = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    rows = (b"\0" + b"\xff" * (2 * channels * depth // 8)) * 2
    header = chunk(b"IHDR", struct.pack(">2I5B", 2, 2, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


DEPTHS: dict[str, Callable[[int], bytes]] = {
    "grey.png": lambda bits: raw_png(bits, 0),
    "colour.png": lambda bits: raw_png(bits, 2),
    "grey-alpha.png": lambda bits: raw_png(bits, 4),
    "colour-alpha.png": lambda bits: raw_png(bits, 6),
    "colour.ppm": lambda bits: b"P6 2 2 %d\n" % (2**bits - 1) + bytes(range(12 * bits // 8)),
    "colour-text.ppm": lambda bits: b"P3 2 2 %d\n" % (2**bits - 1) + b"7 " * 12,
    "grey.pgm": lambda bits: b"P5 2 2 %d\n" % (2**bits - 1) + bytes(range(4 * bits // 8)),
    "colour-little.tif": lambda bits: tiff(bits, "<"),
    "colour-big.tif": lambda bits: tiff(bits, ">"),
}


@pytest.mark.parametrize("name", DEPTHS)
def test_images_of_more_than_8_bits_a_channel_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(DEPTHS[name](8))
    assert read_images([path], size=None, channels=3).shape == (1, 3, 2, 2)
    path.write_bytes(DEPTHS[name](16))
    with pytest.raises(UsageError, match="expected at most 8 bits a channel"):
        read_images([path], size=None, channels=3)


@pytest.mark.parametrize("name", ["photo.jpg", "photo.MPO"])
def test_the_first_picture_of_a_photograph_is_read(tmp_path: Path, name: str) -> None:
    first, second = (Image.fromarray(np.full((8, 8, 3), grey, np.uint8)) for grey in (200, 10))
    first.save(tmp_path / name, "MPO", save_all=True, append_images=[second])
    first.save(tmp_path / "alone.jpg")
    found, alone = (read_images([tmp_path / each], size=None, channels=3) for each in (name, "alone.jpg"))
    np.testing.assert_array_equal(found, alone)
    first.save(tmp_path / "moving.gif", save_all=True, append_images=[second])
    with pytest.raises(UsageError, match="has 2 frames"):
        read_images([tmp_path / "moving.gif"], size=None, channels=3)
