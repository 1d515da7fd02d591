"""Arrays in files of other libraries: large ones are read row by row, when rows are used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import UsageError
from opstage.data import Loader, Prefetch, from_arrays, train_test_split
from opstage.data import memory_map as mapped_module
from opstage.data.memory_map import RowView
from opstage.models import mlp

h5py = pytest.importorskip("h5py")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 5)).astype(np.float32)
Y = np.arange(200)


class Store:
    """An array of zarr, without `len`, that counts the rows read at once."""

    chunks = (16, 5)

    def __init__(self, array: Any):
        self.array, self.most = array, 0
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, rows: Any) -> Any:
        found = self.array[rows]
        self.most = max(self.most, len(found))
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        assert self.array.nbytes < mapped_module.MAPPED_FROM, "read whole"
        return self[:]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every array is a large one, read a few rows at a time."""
    monkeypatch.setattr(mapped_module, "MAPPED_FROM", 0)
    monkeypatch.setattr(mapped_module, "_PIECE", 640)


def arrays(folder: Path) -> dict[str, Any]:
    file = h5py.File(folder / "x.h5", "w")
    swapped = np.memmap(folder / "x.bin", ">f4", "w+", shape=X.shape)
    swapped[:] = X
    return {
        "h5py": file.create_dataset("x", data=X),
        "h5py in chunks": file.create_dataset("chunks", data=X, chunks=(16, 5)),
        "h5py, swapped": file.create_dataset("swapped", data=X.astype(">f8")),
        "store": Store(X),
        "memmap, swapped": swapped,
    }


KINDS = ["h5py", "h5py in chunks", "h5py, swapped", "store", "memmap, swapped"]


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_read_when_they_are_used(tmp_path: Path, kind: str) -> None:
    array = arrays(tmp_path)[kind]
    training, held_out = train_test_split(from_arrays(x=array, y=Y), stratify=None)
    loader = Loader(training, 17, seed=1)
    for epoch in range(2):
        batches = [*Prefetch(loader).epoch(epoch)]
        found, rows = (np.concatenate([batch[i] for batch in batches]) for i in range(2))
        assert found.dtype.isnative and len(rows) == len(training)
        np.testing.assert_array_equal(found, X[rows])
    np.testing.assert_array_equal(np.asarray(held_out["x"]), X[held_out["y"]])
    if isinstance(array, Store):
        array.most = 0
        assert len([*loader.epoch(3)]) and array.most <= 200 - 17  # of 17 shuffled rows, not of all


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "key",
    [slice(3, 9), slice(None, None, -2), slice(5, 5), np.array([7, 2, 2, -1]), np.array([], int), Y % 3 == 0, 4, -1],
    ids=str,
)
def test_a_view_indexes_as_its_array(tmp_path: Path, kind: str, key: Any) -> None:
    view = from_arrays(x=arrays(tmp_path)[kind])["x"]
    assert isinstance(view, RowView)
    np.testing.assert_array_equal(view[key], X[key])


@pytest.mark.usefixtures("large")
def test_numbers_that_are_not_finite_are_found_in_pieces() -> None:
    store = Store(np.where(np.arange(200)[:, np.newaxis] == 77, np.nan, X))
    with pytest.raises(UsageError, match="x: row 77 holds nan"):
        from_arrays(x=store)
    assert store.most <= 32


@pytest.mark.parametrize("kind", KINDS[:4])
def test_small_ones_are_read_whole(tmp_path: Path, kind: str) -> None:
    found = from_arrays(x=arrays(tmp_path)[kind])["x"]
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, X)


@pytest.mark.usefixtures("large")
def test_a_model_trains_and_predicts_on_a_file(tmp_path: Path) -> None:
    labels = (X[:, 0] > 0).astype(np.int64)
    config = mlp.Config(inputs=(5,), classes=2)
    stored, in_memory = (
        opstage.fit("mlp", {"x": x, "y": labels}, config=config, epochs=3, progress=False)
        for x in (arrays(tmp_path)["h5py"], X)
    )
    assert stored.evaluate() == in_memory.evaluate()
    file = h5py.File(tmp_path / "x.h5", "r+")
    np.testing.assert_array_equal(stored.predict(file["x"])["class"], in_memory.predict(X)["class"])
