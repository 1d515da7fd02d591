"""Metrics of a training step: those of the whole batch on every mesh and in any parts, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Accumulate, Aux, Options, UsageError, ValidationError
from opstage.ops.derived import all_mean

X, Y = np.random.default_rng(0).normal(size=(8, 6)), np.random.default_rng(1).normal(size=(8, 6))
W = {"w": np.eye(6)}
MESHES = ("data=2", "data=4")


def difference(ops: Any, p: Any, x: Any, y: Any) -> Any:
    return x @ p["w"] - y


def positive(ops: Any, y: Any) -> Any:
    return ops.cast(ops.less(ops.full(shape=y.shape, value=0.0), y), dtype="float64")


def followed(ops: Any, p: Any, x: Any, y: Any) -> dict[str, Any]:
    """Metrics that follow from those of parts."""
    d, mask = difference(ops, p, x, y), positive(ops, y)
    return {
        "sum": ops.sum(d),
        "mean": ops.reduce_mean(ops.abs(d)),
        "of rows": ops.reduce_mean(ops.reduce_max(d, axis=1)),
        "fixed": ops.sum(p["w"] * p["w"]),
        "count": ops.cast(ops.sum(mask), dtype="int64"),
        "size": ops.full(shape=(), value=6, dtype="int64"),
    }


def divided(ops: Any, p: Any, x: Any, y: Any) -> dict[str, Any]:
    """Over another number than the loss: the entries that count, which no rank has as many of."""
    mask = positive(ops, y)
    return {"masked": ops.sum(mask * difference(ops, p, x, y)) / ops.sum(mask)}


def of_sums(ops: Any, p: Any, x: Any, y: Any) -> dict[str, Any]:
    """Other functions of sums over the rows, and of how many rows there are."""
    d = difference(ops, p, x, y)
    return {
        "root": ops.sqrt(ops.reduce_mean(d * d)),
        "perplexity": ops.exp(ops.reduce_mean(d * d)),
        "odd": ops.full(shape=(), value=2 * x.shape[0] + 1, dtype="int64"),
        "percent": ops.cast(ops.reduce_mean(positive(ops, y)) * 100.0, dtype="int64"),
        "hits": ops.sum(positive(ops, d)) / ops.maximum(ops.sum(positive(ops, y)), ops.full(shape=(), value=1.0)),
    }


def of_the_data(ops: Any, p: Any, x: Any, y: Any) -> dict[str, Any]:
    return {name: value for name, value in of_sums(ops, p, x, y).items() if name not in ("root", "perplexity")}


OTHERS: dict[str, Callable[..., Any]] = {
    "largest": lambda ops, d: ops.reduce_max(d),
    "each": lambda ops, d: ops.reduce_mean(d, axis=1),
    "place": lambda ops, d: ops.argmax(ops.reduce_sum(d, axis=1), axis=0),
}


def program(*metrics: Callable[..., dict[str, Any]], by_hand: bool = False) -> Callable[..., Any]:
    def loss(ops: Any, p: Any, x: Any, y: Any) -> Any:
        d = difference(ops, p, x, y)
        error = ops.reduce_mean(d * d)
        told = {name: value for each in metrics for name, value in each(ops, p, x, y).items()}
        return all_mean(ops, error, axis="data") if by_hand else error, Aux(metrics=told)

    return loss


def other(name: str) -> Callable[..., dict[str, Any]]:
    return lambda ops, p, x, y: {name: OTHERS[name](ops, difference(ops, p, x, y))}


def told(loss: Callable[..., Any], parts: Any = None, **options: Any) -> dict[str, Any]:
    trainer = opstage.scalar_trainer(loss, W, options=Options(dtype="float64", **options), accumulate=parts)
    trainer.step(0.1, X, Y)
    return dict(trainer.last_metrics)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("by_hand", [False, True])
def test_on_a_mesh_they_are_those_of_one_rank(by_hand: bool, mesh: str, backend: str) -> None:
    loss = program(followed, divided, *([] if by_hand else [of_sums]), by_hand=by_hand)
    found = told(loss, mesh=mesh, backend=backend)
    for name, value in told(loss).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("parts", [2, 3])
def test_in_parts_they_are_those_of_the_batch(parts: int) -> None:
    loss = program(followed, divided, of_the_data)
    found = told(loss, accumulate=parts)
    for name, value in told(loss).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_others_are_refused(name: str, by_hand: bool) -> None:
    loss = program(other(name), by_hand=by_hand)
    with pytest.raises(ValidationError, match=f"the metric '{name}' cannot be sharded over mesh axis"):
        told(loss, mesh="data=2")


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_refused_in_parts(name: str) -> None:
    loss = program(other(name))
    with pytest.raises(UsageError, match=f"the metric '{name}' of a batch does not follow from those of its parts"):
        told(loss, accumulate=2)
    assert name in told(loss, Accumulate(2, check=False))


@pytest.mark.parametrize("name", ["root", "perplexity"])
def test_functions_of_sums_that_parameters_decide_are_refused_in_parts(name: str) -> None:
    loss = program(lambda *arguments: {name: of_sums(*arguments)[name]})
    with pytest.raises(UsageError, match=f"the metric '{name}' of a batch does not follow from those of its parts"):
        told(loss, accumulate=2)
