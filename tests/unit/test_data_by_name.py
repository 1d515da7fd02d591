"""Arrays of files and datasets go to the arguments of their names, in whatever order a file has them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opstage import Aux, Options, optim
from opstage.data import Dataset, Loader, Prefetch, from_arrays, from_csv, from_file, from_npy, from_npz
from opstage.ops.errors import UsageError
from opstage.training.fit import evaluate, fit
from opstage.training.trainer import ScalarTrainer, scalar_trainer

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 2))
Y = X @ np.array([1.0, -2.0])
W = RNG.uniform(0.5, 1.0, size=12)


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    e = ops.sub(ops.reshape(ops.matmul(x, params), shape=y.shape), y)
    return ops.sum(ops.mul(e, e))


def with_state(ops: Any, params: Any, state: Any, x: Any, y: Any, train: bool = False) -> Any:
    return loss(ops, params, x, y), Aux(state=state)


def weighted(ops: Any, params: Any, x: Any, y: Any, w: Any = None) -> Any:
    e = ops.sub(ops.reshape(ops.matmul(x, params), shape=y.shape), y)
    e = ops.mul(e, e)
    return ops.sum(e if w is None else ops.mul(e, w))


def metrics(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return {"loss": loss(ops, params, x, y)}


def with_state_metrics(ops: Any, params: Any, state: Any, y: Any, x: Any) -> Any:
    return metrics(ops, params, x, y)


def trained(batches: Any, program: Any = loss, held_out: Any = None) -> tuple[Any, list[Any]]:
    carried = program is with_state
    state = {"seen": np.zeros(())} if carried else None
    options = Options(dtype="float64", validate=False)
    t: ScalarTrainer = scalar_trainer(program, np.zeros((2, 1)), options=options, state=state)
    measured = with_state_metrics if carried else metrics
    results = fit(t, optim.sgd(lr=0.01), batches, batches if held_out is None else held_out, measured, epochs=2)
    return t.get_params(), [r.held_out["loss"] for r in results]


def same(a: tuple[Any, list[Any]], b: tuple[Any, list[Any]]) -> None:
    np.testing.assert_array_equal(a[0], b[0])
    np.testing.assert_allclose(a[1], b[1], rtol=1e-12)


PLAIN = trained(Loader(from_arrays(x=X, y=Y), 4, seed=1))


def files(folder: Path) -> dict[str, Callable[[], Dataset]]:
    np.savez(folder / "xy.npz", x=X, y=Y)
    np.savez(folder / "yx.npz", y=Y, x=X)
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", Y)
    return {
        "npz, x first": lambda: from_npz(folder / "xy.npz"),
        "npz, y first": lambda: from_npz(folder / "yx.npz"),
        "npz, keys": lambda: from_npz(folder / "yx.npz", ("y", "x")),
        "npz, only": lambda: from_npz(folder / "yx.npz").only("x", "y"),
        "any file": lambda: from_file(folder / "yx.npz"),
        "npy": lambda: from_npy(y=folder / "y.npy", x=folder / "x.npy"),
        "arrays": lambda: from_arrays(y=Y, x=X),
        "dictionary": lambda: from_arrays(**dict(sorted({"x": X, "y": Y}.items(), reverse=True))),
    }


@pytest.mark.parametrize("ahead", [0, 2], ids=["loader", "prefetch"])
@pytest.mark.parametrize("program", [loss, with_state], ids=["loss", "with state"])
def test_a_training_loop_binds_names(program: Any, ahead: int, tmp_path: Path) -> None:
    for made in files(tmp_path).values():
        batches: Any = Loader(made(), 4, seed=1)
        same(trained(Prefetch(batches, ahead) if ahead else batches, program), PLAIN)


def test_metrics_of_another_order_get_their_own() -> None:
    def turned(ops: Any, params: Any, y: Any, x: Any) -> Any:
        return {"loss": loss(ops, params, x, y)}

    t = scalar_trainer(loss, np.ones((2, 1)), options=Options(dtype="float64", validate=False))
    batches = Loader(from_arrays(x=X, y=Y), 5, shuffle=False)
    assert evaluate(t, turned, batches) == evaluate(t, metrics, batches)


def test_optional_arguments_take_part() -> None:
    two = trained(Loader(from_arrays(y=Y, x=X), 4, seed=1), weighted)
    same(two, PLAIN)
    held_out = Loader(from_arrays(x=X, y=Y), 4)
    results = [
        trained(Loader(from_arrays(**{n: {"x": X, "y": Y, "w": W}[n] for n in order}), 4, seed=1), weighted, held_out)
        for order in itertools.permutations("xyw")
    ]
    for result in results:
        same(result, results[0])
    assert not np.array_equal(results[0][0], two[0])


@pytest.mark.parametrize("ahead", [False, True])
def test_a_file_whose_order_nobody_asked_for_gives_no_batches_by_position(ahead: bool, tmp_path: Path) -> None:
    files(tmp_path)
    for name in ("xy", "yx"):
        dataset = from_npz(tmp_path / f"{name}.npz")
        assert set(dataset.names) == {"x", "y"}
        np.testing.assert_array_equal(dataset["x"], X)
        loader = Loader(dataset.take(np.arange(8)), 4)
        with pytest.raises(UsageError, match=r"have no order.*dataset\.only\('x', 'y'\), or keys="):
            next((Prefetch(loader) if ahead else loader).epoch(0))
        for x, y in Loader(dataset.only("x", "y"), 4).epoch(0):
            assert x.shape == (4, 2) and y.shape == (4,)
    np.savez(tmp_path / "one.npz", x=X)
    assert len(next(Loader(from_npz(tmp_path / "one.npz"), 4).epoch(0))) == 1


REFUSED: dict[str, tuple[Callable[[Path], Dataset], Any, str]] = {
    "other names, no order": (lambda f: from_npz(f / "ab.npz"), loss, r"arrays b, a, and the loss takes .* x, y; say"),
    "one of two": (lambda f: from_arrays(y=Y, z=X), loss, "y would not be the argument of its name"),
    "another place": (lambda f: from_arrays(a=Y, x=Y), loss, "x would not be the argument of its name"),
    "too many": (
        lambda f: from_arrays(x=X, y=Y, w=W),
        loss,
        r"takes the batch arguments x, y; say .*from_arrays\(x=",
    ),
    "too few": (lambda f: from_arrays(x=X), loss, "the loss takes the batch arguments x, y"),
    "no names, no order": (
        lambda f: from_npz(f / "xy.npz"),
        lambda ops, params, *batch: loss(ops, params, *batch),
        "does not name its batch arguments",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_bound_is_an_error(case: str, tmp_path: Path) -> None:
    files(tmp_path)
    np.savez(tmp_path / "ab.npz", b=Y, a=X)
    made, program, message = REFUSED[case]
    with pytest.raises(UsageError, match=message):
        trained(Loader(made(tmp_path), 4), program, Loader(from_arrays(x=X, y=Y), 4))


def test_an_order_that_was_asked_for_is_taken() -> None:
    """Of names that the program does not know, and of batches that are nobody's dataset."""
    held_out = Loader(from_arrays(x=X, y=Y), 4)
    same(trained(Loader(from_arrays(images=X, labels=Y), 4, seed=1), loss, held_out), PLAIN)
    same(
        trained(Loader(from_arrays(x=X, y=Y), 4, seed=1), lambda ops, p, *batch: loss(ops, p, *batch), held_out), PLAIN
    )

    class Own:
        def __init__(self) -> None:
            self.inner = Loader(from_arrays(y=Y, x=X), 4, seed=1)

        def __len__(self) -> int:
            return len(self.inner)

        def epoch(self, epoch: int, start: int = 0) -> Any:
            return ((x, y) for y, x in self.inner.epoch(epoch, start))

    same(trained(Own(), loss, held_out), PLAIN)


TABLES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "last": ("a,b,out", {}, "out"),
    "y": ("a,y,b", {}, "y"),
    "y first": ("y,a,b", {}, "y"),
    "label last": ("class,a,label", {}, "label"),
    "named": ("label,a,b", {"label": "label"}, "label"),
    "the last, asked for": ("label,a,b", {"label": -1}, "b"),
    "label first": ("label,a,b", {}, None),
    "Target": ("a,Target,b", {}, None),
}


@pytest.mark.parametrize("case", TABLES)
def test_the_label_of_a_table(case: str, tmp_path: Path) -> None:
    header, how, label = TABLES[case]
    names = header.split(",")
    (tmp_path / "t.csv").write_text(f"{header}\n1,2,3\n4,5,6\n")
    if label is None:
        with pytest.raises(UsageError, match=r"t\.csv: which column is the label\? The last is b, .*label="):
            from_csv(tmp_path / "t.csv", **how)
        return
    dataset = from_csv(tmp_path / "t.csv", **how)
    assert dataset["y"].tolist() == [1 + names.index(label), 4 + names.index(label)]
    assert dataset.names == ("x", "y")
