"""Text as bytes: files, the source of Python's standard library, and windows for predicting the next byte."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..files import require_file
from ..ops.errors import UsageError
from .dataset import Dataset

Bytes = npt.NDArray[np.uint8]

_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "encodings", "pydoc_data", "site-packages", "dist-packages"}
_HELD_OUT_EVERY = 20


def read_text(path: str | os.PathLike[str]) -> Bytes:
    """Return the bytes of a file, memory-mapped, in any encoding.

    Raises `UsageError`, naming the file, if it is missing, unreadable or empty.
    """
    file = Path(path)
    require_file(file)
    try:
        if file.stat().st_size == 0:
            raise UsageError(f"{path}: is empty; expected a text file")
        return np.memmap(file, np.uint8, mode="r")
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error


def windows(text: Bytes, length: int, *, stride: int | None = None, origin: str = "text") -> Dataset:
    """Return x (N, length) and y (N, length), uint8: y is x shifted by one byte; window n begins at byte n·stride
    (default: length).

    Both are views of `text`, not copies; an incomplete window at the end is dropped. Raises `UsageError` if `text` is
    shorter than one window and the byte after it.
    """
    stride = length if stride is None else stride
    if length < 1 or stride < 1:
        raise UsageError(f"windows need a length and a stride of at least 1 but have {length} and {stride}")
    if len(text) <= length:
        raise UsageError(
            f"{origin}: has {len(text)} bytes, but a window of {length} and the byte after it take {length + 1}; "
            "give a longer text or a shorter window"
        )
    whole = np.lib.stride_tricks.sliding_window_view(text, length + 1)[::stride]
    return Dataset(("x", "y"), (whole[:, :-1], whole[:, 1:]), (f"{origin}: x", f"{origin}: y"))


def split_text(text: Bytes, *, test: float = 0.1, origin: str = "text") -> tuple[Bytes, Bytes]:
    """Return (training, held out): the last fraction `test` of the bytes is held out. Raises `UsageError` if a part is
    empty."""
    kept = len(text) - round(test * len(text)) if 0 < test < 1 else 0
    if not 0 < kept < len(text):
        raise UsageError(f"{origin}: test={test} of {len(text)} bytes leaves one part empty")
    return text[:kept], text[kept:]


def standard_library() -> tuple[Bytes, Bytes]:
    """Return (training, held out): the source of Python's standard library, without its tests and tables.

    Every 20th file, in the order of their paths, is held out, so that no part of a held-out file is trained on. Raises
    `UsageError` if this Python has no sources.
    """
    root = Path(os.__file__).parent
    files = sorted(path for path in root.rglob("*.py") if _LEFT_OUT.isdisjoint(path.relative_to(root).parts))
    texts = [data for path in files if (data := path.read_bytes())]
    if len(texts) <= _HELD_OUT_EVERY:
        raise UsageError(f"{root}: the source of the standard library is not installed; name a text file instead")
    held_out = texts[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY]
    del texts[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY]
    return _concatenate(texts), _concatenate(held_out)


def _concatenate(texts: Sequence[bytes]) -> Bytes:
    return np.frombuffer(b"\n".join(texts), np.uint8)
