"""The learning-rate range test: rates, losses, where it stops, and that nothing is left of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from opstage import UsageError, optim, scalar_trainer
from opstage.cli.train import train
from opstage.data import Loader, from_arrays
from opstage.optim import schedule
from opstage.training.checkpoint import take_snapshot
from opstage.training.lr_range import lr_range_test
from tests.training.same import run_bits

rng = np.random.default_rng(4)
X = rng.standard_normal((24, 3))
DATA = from_arrays(x=X, y=X @ np.array([[1.0], [-2.0], [0.5]]))


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.mse_loss(ops.linear(params["w"], None, x), y)


def made() -> Any:
    trainer = scalar_trainer(loss, {"w": np.zeros((1, 3))})
    for batch in Loader(DATA, 8, seed=1).epoch(0):
        trainer.adam_step(1e-3, 0.9, 0.999, 1e-8, *batch)
    return trainer


def test_a_notebook_shows_it_in_a_line() -> None:
    found = lr_range_test(made(), optim.sgd(0.5), Loader(DATA, 8, seed=1), start=1e-4, end=1e-2, steps=5)
    assert repr(found).startswith("LrRange(5 rates from 0.0001 to 0.01, suggestion=")


def test_losses_are_those_of_steps_at_rising_rates() -> None:
    found = lr_range_test(made(), optim.sgd(0.5), Loader(DATA, 8, seed=1), start=1e-4, end=1e-2, steps=5)
    np.testing.assert_allclose(found.rates, np.geomspace(1e-4, 1e-2, 5), rtol=1e-12)
    other, expected = made(), []
    batches = [*Loader(DATA, 8, seed=1).epoch(0), *Loader(DATA, 8, seed=1).epoch(1)]
    for rate, batch in zip(found.rates, batches):
        expected.append(float(other.step(rate, *batch)))
    np.testing.assert_allclose(found.losses, expected, rtol=1e-6)
    weights = [0.98**i for i in range(5)]
    mean = sum(w * value for w, value in zip(reversed(weights), expected)) / sum(weights)
    np.testing.assert_allclose(found.smoothed[-1], mean, rtol=1e-6)
    assert found.diverged is None


def test_it_stops_where_the_loss_diverges_and_suggests_a_rate_that_trains() -> None:
    found = lr_range_test(made(), optim.sgd(0.5), Loader(DATA, 8, seed=1), start=1e-4, end=1e4, steps=80)
    assert found.diverged is not None and len(found.rates) < 80
    assert found.suggestion is not None and 1e-3 < found.suggestion < 0.5
    assert str(found).splitlines()[-1] == f"suggested rate: {found.suggestion:.3g}, where the loss fell fastest"


@pytest.mark.parametrize("end", [1e-2, 1e30])
def test_nothing_is_left_of_it(end: float) -> None:
    trainer = made()
    before = run_bits(take_snapshot(trainer))
    lr_range_test(trainer, optim.adamw(0.1), Loader(DATA, 8, seed=1), end=end, steps=30)
    assert run_bits(take_snapshot(trainer)) == before


def test_an_interrupt_takes_it_back_too() -> None:
    class Stops:
        def epoch(self, epoch: int, start: int = 0) -> Any:
            yield from Loader(DATA, 8, seed=1).epoch(epoch, start)
            raise KeyboardInterrupt

        def __len__(self) -> int:
            return 3

        dataset = DATA

    trainer = made()
    before = run_bits(take_snapshot(trainer))
    with pytest.raises(KeyboardInterrupt):
        lr_range_test(trainer, optim.sgd(0.1), Stops())
    assert run_bits(take_snapshot(trainer)) == before


@pytest.mark.parametrize(
    ("optimizer", "how", "message"),
    [
        (optim.sgd(schedule.constant(0.1)), {}, "whose lr is a number above 0"),
        (optim.sgd(0.0), {}, "whose lr is a number above 0"),
        (optim.sgd(0.1), {"start": 0}, "start must be a finite number above 0"),
        (optim.sgd(0.1), {"start": 1, "end": 0.5}, "end must be above start, 1, but is 0.5"),
        (optim.sgd(0.1), {"steps": 1}, "steps must be an int that is at least 2"),
    ],
)
def test_what_is_no_range(optimizer: Any, how: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        lr_range_test(made(), optimizer, Loader(DATA, 8, seed=1), **how)


def test_on_the_command_line(tmp_path: Any) -> None:
    words = ["mlp", "--model.hidden", "8", "--optimizer.groups", "*.bias: lr_scale=2", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(train, [*words, "--lr-range", "1e-5,10"])
    assert result.exception is None, result.output
    assert result.output.splitlines()[0].split() == ["rate", "loss", "smoothed"]
    assert "suggested rate: " in result.output and not (tmp_path / "run").exists()
    for text in ("1e-5", "1,x", "1,0.1"):
        assert isinstance(CliRunner().invoke(train, ["mlp", "--lr-range", text]).exception, UsageError)
