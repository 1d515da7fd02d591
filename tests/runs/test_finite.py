"""A run whose numbers are no longer finite stops, says where, and keeps the last checkpoint whose numbers are."""

from __future__ import annotations

import json
import math
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import opstage
from opstage import NotFiniteError, Options, ScalarModule, optim
from opstage.cli.main import cli
from opstage.data import Loader, from_arrays
from opstage.runs import train
from opstage.runs.directory import CHECKPOINT, METRICS, REPORT
from opstage.runs.metrics_log import read_metrics
from opstage.runs.settings import configure, configure_resumed
from opstage.training import checkpoint
from opstage.training.finite import first_not_finite
from opstage.training.fit import EpochResult, Position, fit

BACKENDS = ["eager", "compiled"]
X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
Y = X.sum(1, keepdims=True)


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.mse_loss(ops.linear(params["w"], None, x), y)


def metrics(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return {"loss": ops.sum(ops.abs(y))}


class Rows:
    """Batches of arrays as they are: a dataset would refuse those that are not finite."""

    def __init__(self, size: int, *arrays: Any):
        self.size, self.arrays = size, arrays

    def __len__(self) -> int:
        return len(self.arrays[0]) // self.size

    def epoch(self, epoch: int, start: int = 0) -> Generator[tuple[Any, ...]]:
        for at in range(start * self.size, len(self.arrays[0]), self.size):
            yield tuple(array[at : at + self.size] for array in self.arrays)


class Told:
    """A saver that counts what it is told of."""

    def __init__(self) -> None:
        self.positions: list[Position] = []

    def boundary(self, state: Any, position: Position) -> None:
        self.positions.append(position)

    def interrupted(self, state: Any, position: Position) -> None:
        raise AssertionError("nobody interrupts")


def fitted(backend: str = "eager", x: Any = X, held_out: Any = Y, params: Any = None, **how: Any) -> list[EpochResult]:
    params = {"w": np.zeros((1, 3))} if params is None else params
    trainer = opstage.scalar_trainer(loss, params, options=Options(backend=backend, validate=False))
    batches, test = Rows(4, x, Y), Rows(12, X, held_out)
    return fit(trainer, optim.adam(lr=0.01), batches, test, metrics, epochs=2, **how)


def with_one(array: Any, index: tuple[int, ...], value: float) -> Any:
    changed = np.array(array)
    changed[index] = value
    return changed


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_stops_before_the_saver_is_told(backend: str, value: float) -> None:
    told = Told()
    with pytest.raises(
        NotFiniteError, match=r"step 3: the loss is .*, of a batch whose x is .* at index \(1, 2\)"
    ) as e:
        fitted(backend, with_one(X, (9, 2), value), saver=told)
    assert e.value.step == 3 and "detect_anomaly" in str(e.value)
    assert [p.batch for p in told.positions] == [1, 2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parameter_alone_that_is_not_finite_stops_at_the_epoch_s_end(backend: str) -> None:
    told = Told()
    params = {"w": np.zeros((1, 3)), "idle": np.array([1.0, np.nan])}
    with pytest.raises(NotFiniteError, match=r"step 6: parameter .*idle.* is nan at index \(1,\)"):
        fitted(backend, params=params, saver=told)
    assert [p.batch for p in told.positions] == [1, 2, 3, 4, 5, 6]


def test_a_held_out_metric_alone_that_is_not_finite_stops() -> None:
    with pytest.raises(NotFiniteError, match="step 6: held-out loss is nan"):
        fitted(held_out=with_one(Y, (0, 0), np.nan))


def test_who_wants_to_goes_on_regardless() -> None:
    first, second = fitted(x=with_one(X, (9, 2), np.nan), require_finite=False)
    assert math.isnan(first.train_loss) and math.isnan(second.train_loss)


def test_frozen_parameters_may_hold_infinities_and_those_of_a_start_are_looked_at() -> None:
    params = {"w": np.zeros((1, 3)), "mask": np.array([0.0, -np.inf])}
    flags = {"w": True, "mask": False}
    trainer = opstage.scalar_trainer(loss, params, requires_grad=flags, options=Options(validate=False))
    batches, adam = Loader(from_arrays(x=X, y=Y), 4), optim.adam(lr=0.1)
    assert len(fit(trainer, adam, batches, batches, metrics, epochs=1)) == 1
    state = trainer.init_optim(adam)
    saved = trainer.export_optim(adam, state)
    broken = replace(saved, slots={"w": (saved.slots["w"][0], np.full((1, 3), np.inf, np.float32))})
    with pytest.raises(NotFiniteError, match=r"moment 1 of adam for .*w.* is inf"):
        again = {"state": trainer.import_optim(adam, broken), "start": Position()}
        fit(trainer, adam, batches, batches, metrics, epochs=2, **again)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", ["sgd", "adam"])
def test_modules_stop_too(backend: str, how: str) -> None:
    module = ScalarModule.create(loss, {"w": np.zeros((1, 3))}, Options(backend=backend))
    said: list[str] = []
    adam = optim.adam(lr=0.1)

    def run(**more: Any) -> None:
        samples = [(X, Y), (with_one(X, (1, 1), np.nan), Y)]
        if how == "sgd":
            module.train_sgd(0.1, 4, samples, log=said.append, **more)
        else:
            module.train_with(adam, module.init_optim(adam), 4, samples, log=said.append, **more)

    with pytest.raises(NotFiniteError, match=r"step 2: the loss is nan, of a batch whose argument 0 is nan"):
        run()
    assert [line[:8] for line in said] == ["step 1/4", "step 2/4"]
    run(require_finite=False)
    assert len(said) == 6


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("at", [(0, 0), (699, 999), (300, 500)])
def test_the_first_element_that_is_not_finite_is_found(dtype: Any, at: tuple[int, ...]) -> None:
    array = np.ones((700, 1000), dtype)
    assert first_not_finite(array) is None
    array[at] = np.nan
    array[-1, -1] = np.inf
    assert first_not_finite(array) == at
    assert first_not_finite(array.T) == at[::-1]
    assert first_not_finite(np.array([1, 2])) is None and first_not_finite(np.zeros((0, 3))) is None
    assert first_not_finite(np.array(np.inf)) == ()


# Whole runs ----------------------------------------------------------------------------------------------------------

SMALL = ["mlp", "--model.hidden", "8", "--epochs", "2", "--batch-size", "128", "--run.plot", "false"]


def invoked(*words: str) -> Any:
    return CliRunner().invoke(cli, ["train", *words], standalone_mode=False)


def finite(out: Path) -> checkpoint.Snapshot:
    snapshot = checkpoint.load(out / CHECKPOINT)
    assert all(np.isfinite(array).all() for array in snapshot.trainer.params.values())
    return snapshot


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_that_diverges_exits_with_1_and_keeps_the_last_finite_checkpoint(tmp_path: Path, backend: str) -> None:
    out = tmp_path / "run"
    run = invoked(*SMALL, "--lr", "1e20", "--backend", backend, "--out", str(out), "--run.checkpoint_every", "1")
    assert run.return_value == 1 and run.exception is None
    assert "opstage: stopped at step" in run.stderr and "the loss is nan" in run.stderr
    assert "--options.detect_anomaly true" in run.stderr and str(out / CHECKPOINT) in run.stderr
    finite(out)
    lines = [json.loads(row, parse_constant=pytest.fail) for row in (out / METRICS).read_text().splitlines()]
    assert lines[-1]["kind"] == "step" and lines[-1]["loss"] is None
    assert "Stopped after 0 of 2 epochs" in (out / REPORT).read_text()
    again = invoked("--resume", str(out))
    assert again.return_value == 1, "the same happens again"
    finite(out)
    watched = CliRunner().invoke(cli, ["train", "--resume", str(out), "--options.detect_anomaly", "true"])
    assert "gave" in str(watched.exception) and "from finite operands" in str(watched.exception)
    assert isinstance(watched.exception, ArithmeticError)
    finite(out)
    regardless = invoked("--resume", str(out), "--run.require_finite", "false")
    assert regardless.return_value == 0
    for line in read_metrics(out / METRICS):
        json.dumps(line, allow_nan=False)
    with pytest.raises(AssertionError):
        finite(out)
    assert invoked("--resume", str(out)).return_value == 1, "a checkpoint of such numbers is not gone on from"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "with the same settings"),
        (["--compare", "eager,eager:fast_kernels=false", "--compare-steps", "5"], "is not finite on either side"),
    ],
    ids=["a run that is not kept", "a comparison of sides that both diverge"],
)
def test_without_a_directory_too(words: list[str], said: str) -> None:
    run = invoked(*SMALL, "--lr", "1e20", *words)
    assert run.return_value == 1 and said in run.output + run.stderr


def test_python_s_own_runs_raise(tmp_path: Path) -> None:
    settings = configure(
        "mlp", values={"optimizer": {"lr": 1e20}, "run": {"plot": False, "out": str(tmp_path / "a")}}, environ={}
    )
    with pytest.raises(NotFiniteError, match=r"step \d: the loss is nan"):
        train(settings)
    assert finite(tmp_path / "a").trainer.steps_taken == 0
    assert configure_resumed(tmp_path / "a").settings.run.require_finite


def test_a_checkpoint_of_parameters_that_are_not_finite_takes_no_other_s_place(tmp_path: Path) -> None:
    trainer = opstage.scalar_trainer(loss, {"w": np.zeros((1, 3))}, options=Options(validate=False))
    checkpoint.save(tmp_path, checkpoint.take_snapshot(trainer))
    trainer.set_params({"w": np.full((1, 3), np.inf)})
    with pytest.raises(NotFiniteError, match=r"parameter .*w.* is inf"):
        checkpoint.save(tmp_path, checkpoint.take_snapshot(trainer))
    assert np.isfinite(checkpoint.load(tmp_path).trainer.params["w"]).all()
