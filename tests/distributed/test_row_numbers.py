"""Losses with numbers that depend on how many rows there are: those of the whole batch, wherever they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Accumulate, Aux, Options, UsageError, ValidationError
from tests.distributed.compared import assert_close, trained

X, Y = np.random.default_rng(0).normal(size=(8, 6)), np.random.default_rng(1).normal(size=(8, 6))


def loss_of(scaled: Callable[..., Any], ops: Any, p: Any, x: Any, y: Any) -> Any:
    """A loss of the squares d of each entry, of how many rows there are, and of the sum w of the squared weights."""
    d = x @ p["w"] - y
    return scaled(ops, d * d, x.shape[0], ops.sum(p["w"] * p["w"]))


FOLLOWED: dict[str, Callable[..., Any]] = {
    "mean by a product": lambda ops, d, rows, w: ops.sum(d) * (1.0 / rows),
    "mean by a quotient": lambda ops, d, rows, w: ops.sum(d) / rows,
    "mean of a sum": lambda ops, d, rows, w: ops.reduce_mean(d) * rows,
    "mean with decay": lambda ops, d, rows, w: ops.sum(d) / (6 * rows) + 0.1 * w,
    "sum of means": lambda ops, d, rows, w: ops.sum(ops.reduce_mean(d, axis=1)),
    "unbiased": lambda ops, d, rows, w: ops.sum(d) * (1.0 / (rows - 1)),
    "smoothed": lambda ops, d, rows, w: ops.sum(d) / (rows + 1.0),
    "decay by rows": lambda ops, d, rows, w: ops.reduce_mean(d) + 0.01 * rows * w,
    "each by rows": lambda ops, d, rows, w: ops.reduce_mean((d * (1.0 / rows)) ** 2),
    "each by one less": lambda ops, d, rows, w: ops.sum(d * (1.0 / (rows - 1))),
    "a power in a loop": lambda ops, d, rows, w: ops.scan(
        lambda ops, c, _: (c * (1.0 + 1.0 / rows), None), ops.sum(d), ops.iota(shape=(2,))
    )[0],
}
REFUSED: dict[str, Callable[..., Any]] = {
    "by a root": lambda ops, d, rows, w: ops.sum(d) / math.sqrt(rows),
    "by a logarithm": lambda ops, d, rows, w: ops.reduce_mean(d) * math.log(rows),
    "by a branch": lambda ops, d, rows, w: ops.sum(d) * (0.5 if rows > 4 else 1.0),
    "other ops": lambda ops, d, rows, w: ops.sum(d) if rows > 4 else ops.sum(ops.abs(d)),
    "by a constant": lambda ops, d, rows, w: ops.sum(d) * ops.const(np.float64(1 / (rows - 1))),
}


def steps(loss: Callable[..., Any], **how: Any) -> list[Any]:
    return trained(loss, {"w": np.eye(6)}, X, Y, **{"rate": 0.01, **how})


@pytest.mark.parametrize("name", FOLLOWED)
def test_numbers_of_rows_are_followed(name: str) -> None:
    loss = partial(loss_of, FOLLOWED[name])
    by = "sum" if name in ("mean of a sum", "sum of means") else "rows"
    for how in ({"mesh": "data=2"}, {"mesh": "data=4"}, {"parts": Accumulate(3, by=by)}):
        assert_close(steps(loss, **how), steps(loss), rtol=1e-12)


CONSTANTS = (257.0, 0.257, 1 / 257, 509.0, 0.509, 2.0, 0.5, 4.0, 8.0, 1 / 8, 3.0, 6.0, 1e-3, 127.0, 8191.0)


@pytest.mark.parametrize("constant", CONSTANTS)
def test_a_constant_is_no_number_of_rows(constant: float) -> None:
    """However often it is in it: means stay means, sums sums."""
    for powers in (1, -1, 2):
        mean = partial(loss_of, lambda ops, d, rows, w: ops.scale(ops.reduce_mean(d), c=constant**powers))
        total = partial(
            loss_of, lambda ops, d, rows, w: ops.div(ops.sum(d), ops.full(shape=(), value=constant**powers))
        )
        for loss, by in ((mean, "rows"), (total, "sum")):
            alone = steps(loss, rate=1e-6)
            for how in ({"parts": Accumulate(2, by=by)}, {"mesh": "data=2"}):
                assert_close(steps(loss, rate=1e-6, **how), alone, rtol=1e-12)


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused(name: str) -> None:
    loss = partial(loss_of, REFUSED[name])
    steps(loss)
    with pytest.raises(ValidationError, match="the loss cannot be sharded over mesh axis 'data'"):
        steps(loss, mesh="data=2")
    with pytest.raises(UsageError, match="accumulate: "):
        steps(loss, accumulate=2)


def test_a_metric_that_counts_rows_is_added() -> None:
    def loss(ops: Any, p: Any, x: Any, y: Any) -> Any:
        counted = ops.full(shape=(), value=x.shape[0], dtype="int64"), ops.full(shape=(), value=2.0 * x.shape[0])
        return ops.mse_loss(x @ p["w"], y), Aux(metrics=dict(zip(("rows", "twice"), counted)))

    for options in (Options(), Options(mesh="data=4"), Options(accumulate=3)):
        trainer = opstage.scalar_trainer(loss, {"w": np.eye(6)}, options=options)
        trainer.step(0.1, X, Y)
        assert (int(trainer.last_metrics["rows"]), float(trainer.last_metrics["twice"])) == (8, 16.0)
