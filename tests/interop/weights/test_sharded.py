"""Weights in several files: read mapped and written whole, and indices that are wrong are one clear error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opstage.files import Disk, WriteError
from opstage.interop.weights import INDEX, SINGLE, read_state_dict, read_weights, write_weights
from opstage.ops.errors import UsageError
from opstage.safetensors_files import encode, map_tensors, read_tensors

Tensors = dict[str, Any]
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def tensors() -> Tensors:
    rng = np.random.default_rng(0)
    return {
        "z.weight": rng.normal(size=(4, 3)),
        "a.bias": rng.normal(size=5).astype(np.float32),
        "count": np.array(7),
        "mask": np.array([True, False, True]),
        "none": np.zeros((0, 3), np.float32),
        "half": rng.normal(size=(2, 2)).astype(np.float16),
    }


def require_same(found: Tensors, expected: Tensors) -> None:
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)


def is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, memoryview) and not isinstance(array.obj, bytes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files and their index: `a` in the first, `b` and `c` in the second."""
    write_weights(tmp_path / "w", {"a": np.ones(4), "b": np.arange(2.0), "c": np.zeros(2)}, shard_size=40)
    assert sorted(path.name for path in (tmp_path / "w").iterdir()) == [FIRST, SECOND, INDEX]
    return tmp_path / "w"


@pytest.mark.parametrize("size", [1, 60, "1KB", "5GB"])
def test_what_is_written_is_read(tmp_path: Path, size: int | str) -> None:
    written = write_weights(tmp_path / "w", tensors(), shard_size=size)
    assert sorted(written) == sorted((tmp_path / "w").iterdir())
    assert len(written) == {1: 7, 60: 3}.get(size, 1)
    for path in (tmp_path / "w", written[-1]):
        require_same(read_weights(path), tensors())
        require_same(read_state_dict(path), tensors())


def test_tensors_are_mapped_and_cannot_be_written_to(folder: Path) -> None:
    found = read_weights(folder)
    assert all(map(is_mapped, found.values()))
    with pytest.raises(ValueError, match="read-only"):
        found["a"][0] = 2


def test_mapped_tensors_are_those_that_are_read(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(encode(tensors(), {"format": "pt"}))
    found, metadata = map_tensors(path)
    require_same(found, read_tensors(path))
    assert metadata == {"format": "pt"}
    path.write_bytes(encode({}))
    assert map_tensors(path) == ({}, {})


def raw(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return len(text).to_bytes(8, "little") + text + data


def test_tensors_at_odd_addresses_and_brain_floats_are_copied(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    header = {
        "odd": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "x": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
        "brain": {"dtype": "BF16", "shape": [1], "data_offsets": [9, 11]},
    }
    path.write_bytes(raw(header, b"\x05" + np.array([1.5, 2], np.float32).tobytes() + b"\xc0\x3f"))
    found, _ = map_tensors(path)
    np.testing.assert_array_equal(found["x"], np.array([1.5, 2], np.float32))
    np.testing.assert_array_equal(found["brain"], np.array([1.5], np.float32))
    assert found["x"].flags.aligned and not found["x"].flags.writeable


def entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "count", "message"),
    [
        ({"x": entry(0, 8, [3])}, 8, r"'x' of shape .3,. holds F32 values, which 8 bytes cannot be"),
        ({"x": entry(0, 8, [2]), "y": entry(4, 12, [2])}, 12, "'y' overlaps another tensor or follows a gap"),
        ({"x": entry(0, 4, [1]), "y": entry(8, 12, [1])}, 12, "'y' overlaps another tensor or follows a gap"),
        ({"x": entry(4, 8, [1])}, 8, "'x' overlaps another tensor or follows a gap"),
        ({"x": entry(8, 4, [1]), "y": entry(0, 8, [2])}, 8, "overlaps another tensor or follows a gap"),
        ({"x": entry(0, 8, [2])}, 7, "truncated or altered"),
        ({"x": entry(0, 4, [1], "F8_E4M3")}, 4, "holds F8_E4M3 values; expected one of"),
        ({"x": entry(0, 4, [2**62, 4])}, 4, "which no array has"),
        ({"x": {"dtype": "F32"}}, 0, "its header does not list tensors"),
        (b"[" * 100_000, 0, "its header does not list tensors"),
        ({"__metadata__": {"a": 1}}, 0, "are not strings by name"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, header: Any, count: int, message: str) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(raw(header, b"\0" * count))
    with pytest.raises(UsageError, match=message) as error:
        map_tensors(path)
    assert str(path) in str(error.value)


def test_one_array_under_two_names_is_stored_once(tmp_path: Path) -> None:
    shared = np.arange(3.0)
    write_weights(tmp_path / "w", {"a": shared, "x": np.ones(3), "b": shared}, shard_size=24)
    found = read_weights(tmp_path / "w")
    assert found["a"] is found["b"] and sorted(found) == ["a", "b", "x"]
    assert len(list((tmp_path / "w").glob("*.safetensors"))) == 2


# Indices that are wrong -----------------------------------------------------------------------------------------------


def with_map(change: Callable[[dict[str, str]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        document = json.loads((folder / INDEX).read_text())
        change(document["weight_map"])
        (folder / INDEX).write_text(json.dumps(document))

    return edit


def to_file(name: str) -> Callable[[Path], None]:
    return with_map(lambda files: files.update(a=name))


def text(data: str | bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / INDEX).write_bytes(data.encode() if isinstance(data, str) else data) and None


def second(held: Tensors) -> Callable[[Path], None]:
    return lambda folder: (folder / SECOND).write_bytes(encode(held)) and None


BC = {"b": np.arange(2.0), "c": np.zeros(2)}
WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "above": (to_file("../secret.safetensors"), "names the file '../secret.safetensors'; expected the name of a"),
    "absolute": (to_file("/etc/passwd"), "names the file '/etc/passwd'; expected the name of a"),
    "windows": (to_file("..\\secret.safetensors"), "expected the name of a"),
    "drive": (to_file("C:secret.safetensors"), "expected the name of a"),
    "folder": (to_file("sub/x.safetensors"), "expected the name of a"),
    "nul": (to_file("a\0.safetensors"), "expected the name of a"),
    "nothing": (to_file(""), "expected the name of a"),
    "dots": (to_file(".."), "expected the name of a"),
    "pickle": (to_file("pytorch_model.bin"), "expected the name of a .safetensors file"),
    "long": (to_file("x" * 5000 + ".safetensors"), "that are not in its folder: xxx"),
    "missing": (to_file("gone.safetensors"), "names files that are not in its folder: gone.safetensors"),
    "lacks": (with_map(lambda files: files.update(d=SECOND)), f"{SECOND} does not hold what the index says it does: d"),
    "swapped": (with_map(lambda files: files.update(a=SECOND)), f"{SECOND} does not hold what the index says"),
    "unlisted": (with_map(lambda files: files.pop("c")), f"{SECOND} holds tensors that the index does not list: c"),
    "two files": (second({**BC, "a": np.ones(4)}), f"'a' is in two files, {FIRST} and {SECOND}"),
    "same key": (text(f'{{"weight_map": {{"a": "{FIRST}", "a": "{SECOND}"}}}}'), "'a' is in it twice"),
    "no JSON": (text("{"), "it is not JSON"),
    "not text": (text(b"\xff\xfe\x00"), "it is not JSON"),
    "deep": (text("[" * 200_000), "it is not JSON"),
    "digits": (text('{"weight_map": ' + "9" * 10_000 + "}"), "it is not JSON"),
    "list": (text("[]"), 'expected "weight_map"'),
    "no map": (text("{}"), 'expected "weight_map"'),
    "numbers": (text('{"weight_map": {"a": 1}}'), 'expected "weight_map"'),
    "empty": (text('{"weight_map": {}}'), "an index of no weights"),
    "truncated": (lambda folder: os.truncate(folder / SECOND, 100), SECOND),
    "pickle inside": (lambda folder: (folder / SECOND).write_bytes(b"PK\x03\x04" + b"x" * 60) and None, "a pickle"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_index_that_is_wrong(folder: Path, case: str) -> None:
    (folder.parent / "secret.safetensors").write_bytes(encode({"a": np.ones(4)}))
    break_it, message = WRONG[case]
    break_it(folder)
    with pytest.raises(UsageError) as error:
        read_weights(folder)
    assert message in str(error.value)
    assert str(folder) in str(error.value) and len(str(error.value)) < 500


def test_a_long_index_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opstage.interop.weights.HEADER_LIMIT", 50)
    with pytest.raises(UsageError, match="too long for an index"):
        read_weights(folder)


def test_links_lead_nowhere_but_into_the_cache(folder: Path) -> None:
    outside = folder.parent / "outside.safetensors"
    (folder / SECOND).rename(outside)
    (folder / SECOND).symlink_to(outside)
    with pytest.raises(UsageError, match="a link to a file that is not in the index's folder"):
        read_weights(folder)
    (folder / SECOND).unlink()
    (folder / SECOND).symlink_to(SECOND)
    with pytest.raises(UsageError, match="names"):
        read_weights(folder)


def test_the_cache_of_hugging_face_is_read(folder: Path) -> None:
    """A model's folder there: `blobs/HASH`, and links to them by name in `snapshots/REVISION`."""
    model = folder.parent / "models--someone--some"
    (model / "snapshots").mkdir(parents=True)
    (model / "snapshots" / "0123").mkdir()
    folder.rename(model / "blobs")
    for number, name in enumerate((FIRST, SECOND, INDEX)):
        (model / "blobs" / name).rename(model / "blobs" / str(number))
        (model / "snapshots" / "0123" / name).symlink_to(f"../../blobs/{number}")
    assert sorted(read_weights(model / "snapshots" / "0123")) == ["a", "b", "c"]


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no weights; expected model\.safetensors\.index\.json or"):
        read_weights(tmp_path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_weights(tmp_path / "gone" / INDEX)


# Writing --------------------------------------------------------------------------------------------------------------


class Failing(Disk):
    """A disk that refuses the nth of its calls."""

    def __init__(self, count: int):
        self.left = count

    def _call(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(28, "No space left on device")

    def create(self, path: Path) -> int:
        self._call()
        return super().create(path)

    def write(self, file: int, data: memoryview) -> int:
        self._call()
        return super().write(file, data)

    def rename(self, source: Path, target: Path) -> None:
        self._call()
        super().rename(source, target)


@pytest.mark.parametrize("call", range(1, 11))
def test_a_disk_that_fails_leaves_nothing(tmp_path: Path, call: int) -> None:
    """Three files, each created, written and renamed; then the folder."""
    with pytest.raises(WriteError, match=r"w: cannot be written: No space left on device; nothing was changed"):
        write_weights(tmp_path / "w", {"a": np.ones(4), "b": np.ones(4)}, shard_size=32, disk=Failing(call))
    assert list(tmp_path.iterdir()) == []


def test_the_disk_was_called_that_often(tmp_path: Path) -> None:
    write_weights(tmp_path / "w", {"a": np.ones(4), "b": np.ones(4)}, shard_size=32, disk=Failing(11))
    assert sorted(read_weights(tmp_path / "w")) == ["a", "b"]


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    class Interrupted(Disk):
        def sync(self, file: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_weights(tmp_path / "w", {"a": np.ones(4)}, disk=Interrupted())
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_replaced(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UsageError, match="is there already; weights are written to a new folder"):
        write_weights(folder, {"a": np.ones(4)})
    with pytest.raises(UsageError, match="is there already"):
        write_weights(folder / FIRST, {"a": np.ones(4)})
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    assert write_weights(tmp_path / "w", {"a": np.ones(4)}) == [tmp_path / "w" / SINGLE]
    np.testing.assert_array_equal(read_weights(tmp_path / "w")["a"], np.ones(4))


@pytest.mark.parametrize("size", [0, -1, "5 apples", 2.5])
def test_sizes_that_are_none(tmp_path: Path, size: Any) -> None:
    with pytest.raises(UsageError, match="write 24GiB"):
        write_weights(tmp_path / "w", {"a": np.ones(4)}, shard_size=size)
    assert list(tmp_path.iterdir()) == []
