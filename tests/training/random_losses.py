"""Random losses of a batch, with a metric each, for steps in parts and on meshes beside those of one rank."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import opstage
from opstage import Aux, Options, UsageError, ValidationError, optim

WIDTH, ROWS = 5, 8
rng = np.random.default_rng(1)
W = {"w": rng.normal(size=(WIDTH, WIDTH))}
BATCH = rng.normal(size=(ROWS, WIDTH)), np.array([1, 2, 0, 3, 1, 5, 0, 2])


def random_loss(seed: int) -> Callable[..., Any]:
    """A loss of w (5, 5), x (rows, 5) and whole numbers t (rows): sums, means, broadcasts, ratios, guards, numbers of
    rows."""
    chosen = random.Random(seed)
    plan = [tuple(chosen.random() for _ in range(3)) for _ in range(chosen.randint(3, 9))]
    tail = [chosen.random() for _ in range(4)]

    def loss(ops: Any, params: Any, x: Any, t: Any) -> Any:
        rows = x.shape[0]
        weights = ops.cast(t, dtype="float64")
        pool = [x, params["w"], weights]
        for a, b, c in plan:
            pool.append(_grown(ops, pool, weights, rows, a, b, c))
        trained = ops.reduce_mean(ops.matmul(x, params["w"]))
        return ops.add(_end(ops, pool[-1], pool[-2], tail), trained), Aux(
            metrics={"m": _end(ops, pool[-2], pool[-1], tail[::-1])}
        )

    return loss


def _number(ops: Any, value: Any) -> Any:
    return ops.full(shape=(), value=value)


def _end(ops: Any, z: Any, other: Any, tail: list[float]) -> Any:
    out = ops.reduce_mean(z) if tail[0] < 0.4 else ops.sum(z)
    if tail[1] < 0.4:
        out = ops.add(out, ops.sum(other) if tail[2] < 0.5 else ops.reduce_mean(other))
    return ops.mul(out, out) if tail[3] < 0.1 else out


def _grown(ops: Any, pool: list[Any], weights: Any, rows: Any, a: float, b: float, c: float) -> Any:
    u = pool[int(a * len(pool))]
    rank, kind = len(u.shape), int(b * 18)
    same = [p for p in pool if len(p.shape) == rank and all(str(i) == str(j) for i, j in zip(p.shape, u.shape))]
    other = same[int(c * len(same))]
    axis = int(c * rank)
    if kind == 0:
        return ops.tanh(u)
    if kind == 1:
        return ops.scale(u, c=0.257 if c < 0.5 else 1 / 257)
    if kind == 2:
        return ops.mul(u, other)
    if kind == 3:
        return ops.add(u, other)
    if kind == 4 and rank:
        return ops.reduce_sum(u, axis=axis)
    if kind == 5 and rank:
        return ops.reduce_mean(u, axis=axis)
    if kind == 6:
        return ops.broadcast_to(ops.sum(u), shape=(rows, WIDTH) if c < 0.5 else (rows,))
    if kind == 7 and rank == 2:
        return ops.permute(u, axes=(1, 0))
    if kind == 8 and rank == 2:
        fitting = [p for p in pool if len(p.shape) == 2 and str(p.shape[0]) == str(u.shape[1])]
        return ops.matmul(u, fitting[int(c * len(fitting))]) if fitting else u
    if kind == 9 and rank:
        return ops.softmax(u, axis=axis)
    if kind == 10:
        guard = ops.sum(weights)
        if c < 0.3:
            guard = ops.maximum(guard, _number(ops, 1.0))
        elif c < 0.6:
            guard = ops.add(guard, _number(ops, 1e-3))
        return ops.div(ops.sum(u), guard)
    if kind == 11:
        return ops.full(shape=(rows, WIDTH), value=0.5) if c < 0.4 else ops.scale(ops.sum(u), c=1 / rows)
    if kind == 12 and rank == 2:
        return ops.reshape(u, shape=(u.shape[0] * u.shape[1],))
    if kind == 13:
        none = ops.less_equal(ops.sum(weights), _number(ops, 0.0))
        total = ops.sum(u)
        return (
            ops.select(none, _number(ops, 2.0), ops.div(total, ops.sum(weights)))
            if c < 0.5
            else ops.sqrt(ops.add(ops.mul(total, total), _number(ops, 1.0)))
        )
    if kind == 14:
        return ops.scale(ops.detach(ops.sum(u)), c=1 / (rows + 1)) if c < 0.5 else _number(ops, 2.0 * rows + 1.0)
    if kind == 15 and rank:
        return ops.reduce_max(u, axis=axis)
    if kind == 16 and rank:
        part = "sum" if c < 0.5 or rank == 1 else "mean"
        return ops.scan(
            lambda inner, total, row: (inner.add(total, _summed(inner, row, part)), None), _number(ops, 0.0), u
        )[0]
    return u


def _summed(ops: Any, row: Any, how: str) -> Any:
    return ops.sum(row) if how == "sum" else ops.reduce_mean(row)


PLACES: dict[str, dict[str, Any]] = {
    "mesh": {"mesh": "data=2"},
    "parts": {"accumulate": 2},
    "uneven parts": {"accumulate": 3},
    "both": {"mesh": "data=2", "accumulate": 2},
}


def step(loss: Callable[..., Any], **options: Any) -> np.ndarray[Any, Any] | None:
    """The loss of a step, its metric and the new parameters, in a row; None if it is refused."""
    parts = options.pop("accumulate", None)
    try:
        trainer = opstage.scalar_trainer(loss, W, options=Options(dtype="float64", **options), accumulate=parts)
        rule = optim.sgd(0.1)
        value = trainer.advance(rule, trainer.init_optim(rule), *BATCH).loss
    except (UsageError, ValidationError):
        return None
    return np.array([value, trainer.last_metrics["m"], *trainer.get_params()["w"].ravel()])
