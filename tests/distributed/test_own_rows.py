"""Each process reads the rows of its ranks alone, and trains to the bits of one process that reads all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, UsageError, optim
from opstage.data import Dataset, Loader, Prefetch, from_parquet, map_files
from opstage.data import memory_map as mapped
from opstage.data.loader import OwnRows
from opstage.data.memory_map import RowView
from opstage.ops.errors import MeshError, OpstageError
from opstage.ops.mesh import Mesh
from opstage.training import checkpoint
from opstage.training.fit import Position, fit
from opstage.training.trainer import ScalarTrainer
from tests.distributed.compared import digest
from tests.distributed.threads import on_processes

ROWS, BATCH = 53, 12


class Recording:
    """An array as of a file, which remembers the rows that it was asked for."""

    def __init__(self, array: Any):
        self.array, self.shape, self.dtype, self.ndim, self.nbytes = (
            *(array, array.shape, array.dtype),
            *(array.ndim, array.nbytes),
        )
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: Any) -> Any:
        self.asked += np.arange(len(self.array))[rows].tolist()
        return self.array[rows]


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    return rng.standard_normal((ROWS, 5)), rng.integers(0, 3, ROWS)


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    """A linear classifier's cross-entropy."""
    return ops.cross_entropy(ops.linear(params["w"], params["b"], x), y)


def metrics(ops: Any, params: Any, x: Any, y: Any) -> Any:
    """Its sum over a batch."""
    return {"loss": ops.cross_entropy(ops.linear(params["w"], params["b"], x), y)}


def trainer_of(mesh: str, **options: Any) -> ScalarTrainer:
    params = {"w": np.zeros((3, 5)), "b": np.zeros(3)}
    return opstage.scalar_trainer(loss, params, options=Options(mesh=mesh, **options))


def trained(dataset: Dataset, mesh: str, ahead: int = 0, **options: Any) -> str:
    """The digest of the parameters after two epochs."""
    trainer = trainer_of(mesh, **options)
    batches = Loader(dataset, BATCH, seed=4, drop_last=True)
    held_out = Loader(Dataset(("x", "y"), data()), BATCH, shuffle=False)
    adam = optim.adam(lr=0.05)
    fit(trainer, adam, Prefetch(batches, ahead) if ahead else batches, held_out, metrics, epochs=2)
    return digest(trainer.get_params().values())


@pytest.mark.parametrize(
    "mesh, processes, options",
    [
        ("data=4", 2, {}),
        ("data=4", 4, {"ahead": 2}),
        ("data=6", 3, {"zero": 2}),
        ("data=4", 2, {"backend": "compiled"}),
        ("model=1,data=4", 2, {}),
    ],
)
def test_a_process_touches_the_rows_of_its_ranks_alone(mesh: str, processes: int, options: Any) -> None:
    ranks = Mesh.parse(mesh).ranks
    own, share = ranks // processes, BATCH // ranks

    def run(transport: Any) -> tuple[str, list[list[int]]]:
        found = [Recording(array) for array in data()]
        views: list[Any] = [RowView(array) for array in found]  # type: ignore[arg-type]
        for array in found:
            array.asked.clear()
        done = trained(Dataset(("x", "y"), tuple(views)), mesh, **options)
        return done, [array.asked for array in found]

    alone = trained(Dataset(("x", "y"), data()), mesh, **options)
    order = [Loader(Dataset(("x", "y"), data()), BATCH, seed=4).order(epoch) for epoch in (0, 1)]
    for process, (found, asked) in enumerate(on_processes(processes, run)):
        if options.get("backend") != "compiled":
            assert found == alone
        first = process * own * share
        wanted = [
            int(row)
            for each in order
            for start in range(0, ROWS - BATCH + 1, BATCH)
            for row in sorted(each[start : start + BATCH][first : first + own * share])  # as a file is read
        ]
        assert asked == [wanted, wanted]


def test_whole_batches_and_own_rows_give_the_same_bits() -> None:
    """What a program of one's own passes to a step by itself, against what the loader cuts out."""
    x, y = data()

    def run(transport: Any, cut: bool) -> str:
        trainer = trainer_of("data=4")
        batches: Any = Loader(Dataset(("x", "y"), (x, y)), BATCH, seed=1, drop_last=True)
        for batch in (batches.own(trainer.own_rows) if cut else batches).epoch(0):
            assert isinstance(batch[0], OwnRows) == cut
            assert len(batch[0]) == BATCH
            trainer.step(0.1, *batch)
        return digest(trainer.get_params().values())

    whole, cut = (on_processes(2, lambda transport, cut=cut: run(transport, cut)) for cut in (False, True))  # type: ignore[misc]
    assert whole == cut


def test_what_ranks_do_not_share_out_is_read_whole() -> None:
    """A mesh without rows to share, rows that cannot be shared, a batch in parts."""

    def run(transport: Any) -> list[Any]:
        parts = opstage.scalar_trainer(loss, {"w": np.zeros((3, 5))}, options=Options(mesh="data=2"), accumulate=2)
        return [trainer_of("model=2").own_rows(12), trainer_of("data=2").own_rows(7), parts.own_rows(12)]

    assert on_processes(2, run) == [[None] * 3] * 2


def test_rows_of_others_are_never_made_up() -> None:
    def run(transport: Any) -> None:
        trainer = trainer_of("data=2")
        x, y = data()
        (batch,) = Loader(Dataset(("x", "y"), (x[:4], y[:4])), 4, shuffle=False).own(trainer.own_rows).epoch(0)
        first = 2 * transport.process
        np.testing.assert_array_equal(batch[0].part(first, first + 2), x[first : first + 2])
        asks: list[Callable[[], Any]] = [
            lambda: np.asarray(batch[0]),
            lambda: batch[0].part(0, 4),
            lambda: batch[0].part(2 - first, 4 - first),
        ]
        for ask in asks:
            with pytest.raises(UsageError, match="this process has 2 of the 4 rows in a batch, those of its ranks"):
                ask()
        with pytest.raises((MeshError, OpstageError), match="each process has those of its ranks alone"):
            trainer.evaluate(lambda ops, params, x, y: {"rows": ops.sum(x)}, *batch)

    on_processes(2, run)


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_files(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a file that is mapped are read from it; a table is decoded once, and its rows taken from there."""
    x, y = data()
    if kind == "npy":
        monkeypatch.setattr(mapped, "MAPPED_FROM", 0)
        np.save(tmp_path / "x.npy", x)
        np.save(tmp_path / "y.npy", y)

        def dataset() -> Dataset:
            found = map_files({"x": tmp_path / "x.npy", "y": tmp_path / "y.npy"})
            assert isinstance(found["x"], np.memmap)
            return found
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({**{f"c{i}": x[:, i] for i in range(5)}, "y": y}), tmp_path / "t.parquet")

        def dataset() -> Dataset:
            found = from_parquet(tmp_path / "t.parquet", label="y")
            return Dataset(("x", "y"), (found["x"], found["y"].astype(np.int64)))

    alone = trained(dataset(), "data=4")
    assert on_processes(2, lambda transport: trained(dataset(), "data=4")) == [alone] * 2


def test_a_run_goes_on_in_the_middle_of_an_epoch_on_another_mesh(tmp_path: Path) -> None:
    """Two processes stop after six steps; one goes on, and three do: with the rows that come next, to the same bits."""
    x, y = data()
    dataset = Dataset(("x", "y"), (x, y))
    batches = Loader(dataset, BATCH, seed=4, drop_last=True)
    adam = optim.adam(lr=0.05)

    class Stop:
        def __init__(self, at: int):
            self.left = at

        def boundary(self, state: Any, position: Position) -> None:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

        def interrupted(self, state: Any, position: Position) -> None:
            self.snapshot = checkpoint.take_snapshot(trainer_here[0], adam, state, position)

    trainer_here: list[ScalarTrainer] = []

    def begin(transport: Any) -> Any:
        trainer = trainer_of("data=4")
        stop = Stop(6)
        if transport.process == 0:
            trainer_here.append(trainer)
        try:
            fit(trainer, adam, batches, batches, metrics, epochs=3, saver=stop if transport.process == 0 else Stop(6))
        except KeyboardInterrupt:
            return getattr(stop, "snapshot", None)
        raise AssertionError

    snapshot = on_processes(2, begin)[0]
    assert (snapshot.position.epoch, snapshot.position.batch) == (1, 1)

    def go_on(transport: Any) -> str:
        trainer = trainer_of("data=6")
        state = checkpoint.restore(trainer, snapshot, adam)
        fit(trainer, adam, batches, batches, metrics, epochs=3, state=state, start=snapshot.position)
        return digest(trainer.get_params().values())

    alone = go_on(None)
    assert on_processes(3, go_on) == [alone] * 3
