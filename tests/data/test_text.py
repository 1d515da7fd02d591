"""Text as data: files, windows that copy nothing, splits, and the standard library's source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opstage.data import Loader, text
from opstage.ops.errors import UsageError


def as_bytes(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def test_windows_are_consecutive_and_y_is_one_byte_on() -> None:
    data = text.windows(as_bytes(b"abcdefghij"), 3)
    assert [row.tobytes() for row in data["x"]] == [b"abc", b"def", b"ghi"]
    assert [row.tobytes() for row in data["y"]] == [b"bcd", b"efg", b"hij"]


def test_windows_with_a_stride_overlap() -> None:
    data = text.windows(as_bytes(b"abcdef"), 3, stride=2)
    assert [row.tobytes() for row in data["x"]] == [b"abc", b"cde"]


def test_windows_are_views_of_the_text() -> None:
    whole = np.arange(100, dtype=np.uint8)
    data = text.windows(whole, 10)
    assert np.shares_memory(data["x"], whole) and np.shares_memory(data["y"], whole)
    batch = next(Loader(data, 4, shuffle=False).epoch(0))
    assert np.shares_memory(batch[0], whole)


@pytest.mark.parametrize(("length", "stride"), [(0, None), (3, 0), (-1, 1)])
def test_windows_need_a_length_and_a_stride(length: int, stride: int | None) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        text.windows(as_bytes(b"abcdef"), length, stride=stride)


def test_a_text_shorter_than_a_window_is_refused_by_name() -> None:
    assert len(text.windows(as_bytes(b"abcd"), 3)) == 1
    with pytest.raises(UsageError, match=r"poem.txt: has 3 bytes.*take 4"):
        text.windows(as_bytes(b"abc"), 3, origin="poem.txt")


def test_a_file_is_read_as_bytes_whatever_they_are(tmp_path: Path) -> None:
    path = tmp_path / "any.bin"
    path.write_bytes(bytes(range(256)))
    np.testing.assert_array_equal(text.read_text(path), np.arange(256))


def test_a_file_that_is_missing_empty_or_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.txt: no such file"):
        text.read_text(tmp_path / "none.txt")
    (tmp_path / "empty.txt").touch()
    with pytest.raises(UsageError, match=r"empty\.txt: is empty"):
        text.read_text(tmp_path / "empty.txt")
    with pytest.raises(UsageError, match="cannot be read"):
        text.read_text(tmp_path)


def test_the_end_of_a_text_is_held_out() -> None:
    training, held_out = text.split_text(as_bytes(b"0123456789"), test=0.2)
    assert (training.tobytes(), held_out.tobytes()) == (b"01234567", b"89")
    for share in (0.0, 1.0, 0.01):
        with pytest.raises(UsageError, match="leaves one part empty"):
            text.split_text(as_bytes(b"0123456789"), test=share)


def test_the_standard_library_is_source_and_holds_whole_files_out() -> None:
    training, held_out = text.standard_library()
    assert len(training) > 4_000_000
    assert 0.01 < len(held_out) / len(training) < 0.2
    assert training.tobytes().count(b"def ") > 10_000
    piece = held_out[1000:1500].tobytes()
    assert piece not in training.tobytes()
