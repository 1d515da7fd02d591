"""Arrays larger than memory: rows are read as they are needed, and are those of the array read whole."""

from __future__ import annotations

import gc
import os
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Spec, UsageError
from opstage.data import Dataset, Loader, from_arrays, map_files, train_test_split
from opstage.data.memory_map import RowView, is_mapped, row_view, watch
from opstage.data.text import read_text, windows
from opstage.runs.directory import data_digest

from .test_preparation import loaded, model_of, regression

RNG = np.random.default_rng(2)
PIXELS = RNG.integers(0, 256, (60, 3)).astype(np.uint8)
LABELS = np.arange(60) % 3


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("opstage.data.memory_map.MAPPED_FROM", 0)
    monkeypatch.setattr("opstage.data.memory_map._PIECE", 30)
    place = tmp_path / "large"
    place.mkdir()
    np.save(place / "x.npy", PIXELS)
    np.save(place / "y.npy", LABELS)
    return place


@pytest.mark.filterwarnings("error")
def test_its_file_is_closed_with_the_array(folder: Path) -> None:
    data = map_files({"x": folder / "x.npy"})
    watched = watch(data["x"])
    assert watched is not None
    number, place = watched._file, (folder / "x.npy").stat()
    assert os.path.samestat(os.fstat(number), place)
    del data, watched
    gc.collect()
    with suppress(OSError):  # the number may be another file's by now
        assert not os.path.samestat(os.fstat(number), place)


@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_are_those_of_the_array(folder: Path, order: Any) -> None:
    np.save(folder / "x.npy", np.asarray(PIXELS, order=order))
    data = map_files({"x": folder / "x.npy", "y": folder / "y.npy"})
    assert is_mapped(data["x"])
    whole = from_arrays(x=PIXELS, y=LABELS)
    for mapped, plain in zip(train_test_split(data, seed=4), train_test_split(whole, seed=4), strict=True):
        assert isinstance(mapped["x"], RowView)
        assert np.array_equal(np.asarray(mapped["x"]), plain["x"])
        assert data_digest(mapped) == data_digest(plain)
        for shuffle in (False, True):
            pairs = zip(*(Loader(d, 7, seed=1, shuffle=shuffle).epoch(2) for d in (mapped, plain)), strict=True)
            for found, expected in pairs:
                assert all(type(a) is np.ndarray and np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_an_array_that_is_mapped_already_stays_so(folder: Path) -> None:
    data = from_arrays(x=np.load(folder / "x.npy", mmap_mode="r"), y=LABELS)
    assert is_mapped(data["x"])
    assert isinstance(train_test_split(data)[0]["x"], RowView)


def test_a_view_is_indexed_as_an_array(folder: Path) -> None:
    view = row_view(map_files({"x": folder / "x.npy"})["x"]).take(np.array([5, 1, 7])).then(lambda rows: rows * 2.0)
    expected = PIXELS[[5, 1, 7]] * 2.0
    assert (view.shape, view.ndim, view.dtype, view.nbytes, len(view)) == ((3, 3), 2, np.float64, 72, 3)
    for key in (0, -1, slice(1, 3), slice(None, None, -1), np.array([2, 0]), np.array([True, False, True])):
        assert np.array_equal(view[key], expected[key])
    with pytest.raises(IndexError):
        view[3]


def test_a_run_on_mapped_data_is_bit_for_bit_that_on_arrays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = opstage.models.mlp.Config(inputs=(3,), classes=3, hidden=(4,))
    how: dict[str, Any] = {"config": config, "epochs": 2, "batch_size": 8, "progress": False}
    mapped = opstage.fit("mlp", folder, **how)
    monkeypatch.setattr("opstage.data.memory_map.MAPPED_FROM", 2**30)
    whole = opstage.fit("mlp", folder, **how)
    assert [r.train_loss for r in mapped.results] == [r.train_loss for r in whole.results]
    assert mapped.evaluate() == whole.evaluate()


def test_bad_rows_have_their_number_in_the_file(folder: Path) -> None:
    values = np.zeros((60, 3))
    values[41, 1] = np.inf
    np.save(folder / "x.npy", values)
    with pytest.raises(UsageError, match=r"x\.npy: row 41 holds inf"):
        map_files({"x": folder / "x.npy"})
    values[41, 1] = 0.5
    np.save(folder / "x.npy", values)
    with pytest.raises(UsageError, match=r"x\.npy: row 41 holds 0\.5 .*a whole number"):
        loaded(folder, model_of(regression, Spec("B 3", dtype="int64"), Spec("B", dtype="int64")))
    np.save(folder / "x.npy", PIXELS)
    with pytest.raises(UsageError, match="scale it in its file"):
        loaded(folder, scale="standard")
    (folder / "x.npy").write_bytes((folder / "x.npy").read_bytes()[:-1])
    with pytest.raises(UsageError, match=r"x\.npy: not a \.npy file that can be read: its header names"):
        loaded(folder)
    (folder / "x.npy").rename(folder / "xs.npy")
    with pytest.raises(UsageError, match=r"file x\.npy is missing \(did you mean 'xs'\?\)"):
        loaded(folder)


def test_nothing_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opstage.data.memory_map.MAPPED_FROM", 2**20)
    monkeypatch.setattr("opstage.data.memory_map._PIECE", 2**18)
    np.save(tmp_path / "x.npy", np.zeros((4000, 1000), np.float64))  # 32 MB
    tracemalloc.start()
    data: Dataset = map_files({"x": tmp_path / "x.npy"})
    training, _ = train_test_split(data, stratify=None)
    data_digest(training.take(np.arange(10)))
    next(Loader(training, 16).epoch(0))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 2**20


def changed(path: Path) -> None:
    """Write other numbers of the same size into a file, where it is."""
    with open(path, "r+b") as file:
        file.seek(200)
        file.write(b"\x01\x02\x03")
        file.flush()
        os.utime(path, ns=(0, 0))  # whatever the clock's resolution


def shortened(path: Path) -> None:
    os.truncate(path, 140)


def written_anew(path: Path) -> None:
    np.save(path, PIXELS[:30])


@pytest.mark.parametrize("change", [changed, shortened, written_anew])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_file_that_changes_while_it_is_used_is_an_error(folder: Path, change: Any, shuffle: bool) -> None:
    mapped = map_files({"x": folder / "x.npy", "y": folder / "y.npy"})
    given = from_arrays(x=np.load(folder / "x.npy", mmap_mode="r"), y=LABELS)
    loaders = [Loader(d, 7, shuffle=shuffle) for d in (mapped, train_test_split(mapped)[0], given)]
    before = [batch for loader in loaders for batch in loader.epoch(0)]
    kept = [array.copy() for batch in before for array in batch]
    change(folder / "x.npy")
    for loader in loaders:
        with pytest.raises(UsageError, match=r"x\.npy: has changed while it was used"):
            next(loader.epoch(1))
    flat = [array for batch in before for array in batch]
    assert all(np.array_equal(a, b) for a, b in zip(flat, kept, strict=True))  # what was read is in memory


@pytest.mark.parametrize("away", ["deleted", "replaced"])
def test_a_file_that_is_deleted_or_replaced_stays_what_it_was(folder: Path, away: str) -> None:
    data = map_files({"x": folder / "x.npy", "y": folder / "y.npy"})
    if away == "deleted":
        (folder / "x.npy").unlink()
    else:
        np.save(folder / "other.npy", PIXELS[::-1])
        (folder / "other.npy").replace(folder / "x.npy")
    assert np.array_equal(np.concatenate([x for x, _ in Loader(data, 7, shuffle=False).epoch(0)]), PIXELS)


def test_a_run_on_a_file_that_changes_stops_and_keeps_its_checkpoint(folder: Path, tmp_path: Path) -> None:
    def at_the_third(loop: Any, result: Any) -> None:
        if result.epoch == 2:
            written_anew(folder / "x.npy")

    config = opstage.models.mlp.Config(inputs=(3,), classes=3, hidden=(4,))
    how: dict[str, Any] = {"config": config, "epochs": 9, "batch_size": 8, "progress": False, "out": tmp_path / "run"}
    with pytest.raises(UsageError, match=r"x\.npy: has changed while it was used"):
        opstage.fit("mlp", folder, callbacks=opstage.callbacks.EachEpoch(at_the_third), **how)
    assert len(opstage.load(tmp_path / "run").results) == 3


def test_a_text_that_changes_is_an_error_too(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(bytes(range(200)))
    loader = Loader(windows(read_text(tmp_path / "text.txt"), 10), 4)
    next(loader.epoch(0))
    os.truncate(tmp_path / "text.txt", 20)
    with pytest.raises(UsageError, match=r"text\.txt: has changed while it was used"):
        next(loader.epoch(1))
