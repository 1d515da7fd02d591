"""Datasets, their files, the stratified split and the loader; every kind of bad data gives an error that says where."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opstage.data import Dataset, Loader, digits, from_arrays, from_npy, from_npz, train_test_split
from opstage.ops.errors import UsageError


def test_digits_are_the_published_ones() -> None:
    data = digits()
    assert data.names == ("x", "y")
    x, y = data["x"], data["y"]
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((1797, 1, 8, 8), np.float32, (1797,), np.int64)
    counts = (x * 16).astype(np.uint8)
    assert (counts / 16 == x).all()
    # The table of 1797 rows of 64 counts and a label, as unsigned bytes.
    table = np.column_stack([counts.reshape(1797, 64), y.astype(np.uint8)])
    assert hashlib.sha256(table.tobytes()).hexdigest() == (
        "68aea062d35a127749050fa0e52dca09d6569ac08092c925610e0954e172dde2"
    )
    assert np.bincount(y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    first_zero = [0, 0, 5, 13, 9, 1, 0, 0]
    assert counts[0, 0, 0].tolist() == first_zero
    assert y[:10].tolist() == list(range(10))


def test_digits_are_fresh_arrays() -> None:
    digits()["x"][:] = 5
    assert digits()["x"].max() == 1


def test_dataset_holds_its_arrays() -> None:
    x, y = np.ones((3, 2)), np.array([1, 2, 3])
    data = from_arrays(x=x, y=y)
    assert (len(data), data.names) == (3, ("x", "y"))
    assert data["x"] is x
    assert data.take(np.array([2, 0]))["y"].tolist() == [3, 1]
    with pytest.raises(UsageError, match=r"array 'labels' is missing; the dataset has x, y"):
        data["labels"]
    with pytest.raises(UsageError, match=r"array 'Y1' is missing \(did you mean 'y1'\?\)"):
        from_arrays(x1=x, y1=y)["Y1"]


NAN = np.ones((5, 2, 2), np.float32)
NAN[3, 1, 0] = np.nan


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: from_arrays(), "a dataset needs at least one array"),
        (lambda: Dataset(("x", "x"), (np.ones(2), np.ones(2))), "the names of a dataset's arrays must differ"),
        (lambda: Dataset(("x",), (np.ones(2), np.ones(2))), "has 2 arrays, 1 names and 1 origins"),
        (lambda: from_arrays(x=np.ones((0, 3))), "x: the dataset is empty (shape (0, 3))"),
        (lambda: from_arrays(x=np.ones((4, 3)), y=np.ones(5)), "y: has 5 rows but x has 4"),
        (lambda: from_arrays(x=3.0), "x: is a single number"),
        (lambda: from_arrays(x=[[1.0], [1.0, 2.0]]), "x: row 1 is of shape (2,), but row 0 of (1,)"),
        (lambda: from_arrays(x=[[1.0], [[1.0], 2.0]]), "x: row 1 (counted from 0): its parts differ in shape"),
        (lambda: from_arrays(x=["a", "b"]), "x: holds <U1 values; expected floats, integers or booleans"),
        (lambda: from_arrays(x=[None]), "x: row 0 is missing (rows are counted from 0)"),
        (lambda: from_arrays(x=NAN), "x: row 3 holds nan (rows are counted from 0)"),
        (lambda: from_arrays(x=[1.0, -np.inf]), "x: row 1 holds -inf"),
    ],
)
def test_bad_arrays(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        make()


def test_npy_files(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.arange(6.0).reshape(3, 2))
    np.save(tmp_path / "labels.npy", np.array([0, 1, 2]))
    data = from_npy(x=tmp_path / "images.npy", y=str(tmp_path / "labels.npy"))
    assert data.names == ("x", "y")
    assert data["x"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert data["y"].dtype == np.int64


def test_npz_files(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.ones((3, 2)), y=np.arange(3), extra=np.ones(7))
    assert from_npz(path, ["y", "x"]).names == ("y", "x")
    with pytest.raises(UsageError, match=r"data\.npz: extra: has 7 rows but .*data\.npz: x has 3$"):
        from_npz(path)
    np.savez_compressed(path, x=np.ones((3, 2)), y=np.arange(3))
    assert from_npz(path).names == ("x", "y")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "nan.npy", NAN)
    np.save(tmp_path / "short.npy", np.ones(2))
    np.save(tmp_path / "empty.npy", np.ones((0, 2)))
    np.save(tmp_path / "pickled.npy", np.array([None]), allow_pickle=True)
    np.savez(tmp_path / "nan.npz", images=NAN, labels=np.arange(5))
    np.savez(tmp_path / "none.npz")
    np.savez_compressed(tmp_path / "broken.npz", x=np.arange(1000))
    whole = bytearray((tmp_path / "broken.npz").read_bytes())
    whole[100:140] = bytes(40)
    (tmp_path / "broken.npz").write_bytes(whole)
    (tmp_path / "text.npy").write_text("1 2 3")
    (tmp_path / "nothing.npz").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (lambda f: from_npy(x=f / "absent.npy"), "absent.npy: no such file"),
        (lambda f: from_npz(f / "absent.npz"), "absent.npz: no such file"),
        (lambda f: from_npy(x=f), ": not a .npy file that can be read: "),
        (lambda f: from_npy(x=f / "text.npy"), "text.npy: not a .npy file that can be read: "),
        (lambda f: from_npy(x=f / "pickled.npy"), "pickled.npy: not a .npy file that can be read: Object arrays"),
        (lambda f: from_npz(f / "nothing.npz"), "nothing.npz: not a .npz file that can be read: "),
        (lambda f: from_npz(f / "broken.npz"), "broken.npz: cannot read 'x': "),
        (lambda f: from_npz(f / "nan.npy"), "nan.npy: is a .npy file; expected a .npz file"),
        (lambda f: from_npy(x=f / "nan.npz"), "nan.npz: is a .npz file; expected a .npy file"),
        (lambda f: from_npy(x=f / "nan.npy"), "nan.npy: row 3 holds nan"),
        (lambda f: from_npz(f / "nan.npz"), "nan.npz: images: row 3 holds nan"),
        (
            lambda f: from_npz(f / "nan.npz", ["lables"]),
            "array 'lables' is missing (did you mean 'labels'?); the file has images, labels",
        ),
        (lambda f: from_npz(f / "none.npz"), "none.npz: the dataset is empty: the file has no array"),
        (lambda f: from_npz(f / "nan.npz", []), "nan.npz: the dataset is empty: no array was asked for"),
        (lambda f: from_npy(x=f / "empty.npy"), "empty.npy: the dataset is empty (shape (0, 2))"),
        (lambda f: from_npy(y=f / "short.npy", x=f / "empty.npy"), "empty.npy: the dataset is empty"),
    ],
)
def test_bad_files(folder: Path, load: Callable[[Path], Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        load(folder)
    assert str(error.value).startswith(str(folder))


def test_a_length_mismatch_names_both_files(folder: Path) -> None:
    np.save(folder / "long.npy", np.ones(3))
    with pytest.raises(UsageError, match=r"short\.npy: has 2 rows but .*long\.npy has 3$"):
        from_npy(x=folder / "long.npy", y=folder / "short.npy")


@pytest.mark.parametrize("seed", range(5))
def test_the_split_is_stratified_and_a_partition(seed: int) -> None:
    y = digits()["y"]
    data = from_arrays(row=np.arange(1797), y=y)
    train, test = train_test_split(data, seed=seed)
    assert len(test) == 359
    assert sorted([*train["row"], *test["row"]]) == list(range(1797))
    assert (np.diff(train["row"]) > 0).all()
    assert (np.diff(test["row"]) > 0).all()
    assert (test["y"] == y[test["row"]]).all()
    assert (np.abs(np.bincount(test["y"]) - np.bincount(y) * 359 / 1797) < 1).all()


def test_the_split_depends_on_its_seed() -> None:
    data = from_arrays(row=np.arange(100), y=np.arange(100) % 3)
    rows = [tuple(train_test_split(data, seed=seed)[1]["row"]) for seed in range(20)]
    assert len(set(rows)) == 20
    assert tuple(train_test_split(data, seed=3)[1]["row"]) == rows[3]


def test_the_split_draws_every_row_alike() -> None:
    data = from_arrays(row=np.arange(10), y=[0, 0, 0, 0, 0, 1, 1, 1, 1, 1])
    drawn = np.zeros(10)
    for seed in range(1000):
        drawn[train_test_split(data, test=0.4, seed=seed)[1]["row"]] += 1
    assert (np.abs(drawn - 400) < 5 * np.sqrt(1000 * 0.4 * 0.6)).all()


def test_a_split_without_classes() -> None:
    train, test = train_test_split(from_arrays(x=np.arange(10.0)), test=0.3, stratify=None)
    assert (len(train), len(test)) == (7, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": 0.0}, "test=0.0 of 10 rows leaves one part empty"),
        ({"test": 0.01}, "test=0.01 of 10 rows leaves one part empty"),
        ({"test": 0.99}, "leaves one part empty"),
        ({"test": 1.5}, "leaves one part empty"),
        ({"seed": -1}, "seed=-1 is not a seed"),
        ({}, "array 'y' is missing; the dataset has x"),
        ({"stratify": "x"}, "cannot stratify by x: expected integer labels of shape (10,)"),
    ],
)
def test_bad_splits(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        train_test_split(from_arrays(x=np.arange(10.0)), **options)


ROWS = from_arrays(x=np.arange(20.0).reshape(10, 2), y=np.arange(10))


@pytest.mark.parametrize(
    ("batch_size", "drop_last", "sizes"),
    [
        (4, False, [4, 4, 2]),
        (4, True, [4, 4]),
        (5, False, [5, 5]),
        (5, True, [5, 5]),
        (10, True, [10]),
        (1, False, [1] * 10),
    ],
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_cover_an_epoch(batch_size: int, drop_last: bool, sizes: list[int], shuffle: bool) -> None:
    loader = Loader(ROWS, batch_size, shuffle=shuffle, drop_last=drop_last)
    batches = list(loader.epoch(0))
    assert len(loader) == len(batches)
    assert [len(y) for _, y in batches] == sizes
    seen = np.concatenate([y for _, y in batches])
    assert len(set(seen)) == len(seen) == sum(sizes)
    assert np.concatenate([x for x, _ in batches]).tolist() == [[2.0 * row, 2.0 * row + 1] for row in seen]
    assert shuffle or seen.tolist() == list(range(sum(sizes)))


def order(loader: Loader, epoch: int) -> list[int]:
    return [int(row) for _, y in loader.epoch(epoch) for row in y]


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    np.random.seed(0)
    state = np.random.get_state()[1].tolist()  # type: ignore[union-attr, index]
    orders = {(seed, epoch): order(Loader(ROWS, 3, seed=seed), epoch) for seed in range(5) for epoch in range(5)}
    assert len({tuple(rows) for rows in orders.values()}) == 25
    one = Loader(ROWS, 7, seed=4)
    for epoch in (3, 0, 3, 1):
        assert order(one, epoch) == orders[4, epoch] == one.order(epoch).tolist()
    assert np.random.get_state()[1].tolist() == state  # type: ignore[union-attr, index]


def splitmix(x: int) -> int:
    z = (x + 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def test_the_order_is_that_of_the_rows_words() -> None:
    site = int.from_bytes(hashlib.blake2b(b"14:opstage.loader#0/0", digest_size=8).digest(), "little")
    key = splitmix(splitmix(splitmix(6) + 2) + site)
    assert order(Loader(ROWS, 4, seed=6), 2) == sorted(range(10), key=lambda row: splitmix(key + row))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 11}, "batch_size=11 is larger than the dataset, which has 10 rows; expected at most 10"),
        ({"batch_size": 0}, "batch_size=0 is not a number of rows; expected an integer > 0"),
        ({"batch_size": 2.5}, "batch_size=2.5 is not a number of rows"),
        ({"batch_size": True}, "batch_size=True is not a number of rows"),
        ({"batch_size": 2, "seed": 1.5}, "seed=1.5 is not a seed"),
    ],
)
def test_bad_loaders(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Loader(ROWS, **options)


def test_epochs_are_counted_from_zero() -> None:
    with pytest.raises(UsageError, match="epoch=-1 does not exist"):
        Loader(ROWS, 2).epoch(-1)


def test_only_keeps_the_arrays_asked_for_in_that_order() -> None:
    data = from_arrays(x=np.zeros((3, 2)), y=np.arange(3), z=np.ones(3))
    part = data.only("z", "x")
    assert part.names == part.origins == ("z", "x")
    assert part["z"] is data["z"]
    assert part["x"] is data["x"]
    with pytest.raises(UsageError, match=r"array 'w' is missing.*the dataset has x, y, z"):
        data.only("w")


def test_lists_are_arrays() -> None:
    data = Dataset(("x", "y"), ([[1.0, 2.0], [3.0, 4.0]], [0, 1]))  # type: ignore[arg-type]
    assert (data["x"].shape, data["y"].dtype.kind, len(data.take(np.array([1])))) == ((2, 2), "i", 1)
    with pytest.raises(UsageError, match="y: is a single number"):
        Dataset(("x", "y"), ([1.0], 3))  # type: ignore[arg-type]
