"""Programs with a loop, written once for `ops.scan` and for a plain Python loop: `loop(ops, f, carry, xs, ...)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import optree

import opstage


def scanned(ops: Any, f: Any, carry: Any, xs: Any, **how: Any) -> Any:
    return ops.scan(f, carry, xs, **how)


def unrolled(ops: Any, f: Any, carry: Any, xs: Any, *, reverse: bool = False, length: int | None = None) -> Any:
    """The same loop in Python: an op of its own for every op of every iteration."""
    n = length if length is not None else optree.tree_leaves(xs)[0].shape[0]
    ys: list[Any] = [None] * n
    for i in reversed(range(n)) if reverse else range(n):
        x = optree.tree_map(lambda column, i=i: ops.gather_row(column, index=i), xs)
        carry, ys[i] = f(ops, carry, x)
    return carry, optree.tree_map(lambda *rows: ops.stack(rows), *ys)


@dataclass(frozen=True)
class Case:
    name: str
    program: Callable[..., Any]
    """(ops, loop, *args) -> a pytree of floats (and perhaps integers)."""
    args: tuple[Any, ...]

    def of(self, loop: Callable[..., Any]) -> Callable[..., Any]:
        return lambda ops, *args: self.program(ops, loop, *args)


def cumulative_sum(ops: Any, loop: Any, x: Any) -> Any:
    def add(ops: Any, total: Any, x: Any) -> Any:
        total = ops.add(total, x)
        return total, total

    return loop(ops, add, ops.full(shape=(3,), value=0.0), x)


def rnn(ops: Any, loop: Any, p: Any, h: Any, xs: Any, **how: Any) -> Any:
    """Elman's network; its parameters are captured by the body."""

    def cell(ops: Any, h: Any, x: Any) -> Any:
        h = ops.tanh(x @ p["wx"] + h @ p["wh"] + p["b"])
        return h, ops.mul(h, h)

    return loop(ops, cell, h, xs, **how)


def lstm(ops: Any, loop: Any, p: Any, state: Any, xs: Any) -> Any:
    """A long short-term memory with masked inputs: pytrees for carry, x and y."""

    def cell(ops: Any, state: Any, entry: Any) -> Any:
        x, mask = entry
        z = ops.linear(p["w"], p["b"], ops.concat([x, state["h"]], axis=1))
        i, f, g, o = ops.split(z, sizes=(3, 3, 3, 3), axis=1)
        c = ops.add(ops.mul(ops.sigmoid(f), state["c"]), ops.mul(ops.sigmoid(i), ops.tanh(g)))
        h = ops.mul(ops.sigmoid(o), ops.tanh(c))
        keep = ops.broadcast_to(ops.unsqueeze(mask, axis=1), shape=h.shape)
        new = {"h": ops.select(keep, h, state["h"]), "c": ops.select(keep, c, state["c"])}
        return new, {"out": new["h"], "gates": (i, o)}

    return loop(ops, cell, state, (xs["x"], xs["mask"]))


def nested(ops: Any, loop: Any, w: Any, rows: Any) -> Any:
    """A loop over rows of a loop over columns; the inner body captures the outer carry, x and w."""

    def outer(ops: Any, total: Any, row: Any) -> Any:
        def inner(ops: Any, c: Any, x: Any) -> Any:
            c = ops.sin(ops.add(ops.mul(c, w), ops.mul(x, total)))
            return c, ops.mul(c, ops.sum(row))

        last, ys = loop(ops, inner, total, row, reverse=True)
        return last, ops.sum(ops.mul(ys, row))

    return loop(ops, outer, ops.full(shape=(), value=0.5), rows)


def counted(ops: Any, loop: Any, table: Any, labels: Any) -> Any:
    """An integer carry and integer xs, beside a float that depends on both."""

    def step(ops: Any, carry: Any, label: Any) -> Any:
        count, total = carry
        total = total * ops.cast(count, dtype=total.dtype) + ops.gather_rows(table, label)
        return (ops.add(count, ops.const(1)), total), (count, total)

    start = ops.const(1), ops.full(shape=(2,), value=1.0)
    return loop(ops, step, start, labels)


def normalised(ops: Any, loop: Any, gamma: Any, h: Any, xs: Any) -> Any:
    """Composites with residuals and fused derivatives in the body."""

    def step(ops: Any, h: Any, x: Any) -> Any:
        h = ops.gelu(ops.layer_norm(ops.add(h, x), gamma, None))
        return h, ops.softmax(h, axis=-1)

    return loop(ops, step, h, xs)


def descended(ops: Any, loop: Any, a: Any, x0: Any) -> Any:
    """Gradient descent on Σ aₖ (xₖ² + cos xₖ), its gradient taken in the body: a loop without xs."""

    def step(ops: Any, x: Any, _: Any) -> Any:
        def objective(ops: Any, x: Any) -> Any:
            return ops.sum(ops.mul(a, ops.add(ops.mul(x, x), ops.cos(x))))

        x = ops.sub(x, ops.scale(opstage.transform.grad(ops, objective, x), c=0.1))
        return x, None

    return loop(ops, step, x0, None, length=4)[0]


def untouched(ops: Any, loop: Any, x: Any, w: Any) -> Any:
    """A carry that moves by a captured ref alone, one that is overwritten, a y that never moves, unread xs."""

    def step(ops: Any, carry: Any, entry: Any) -> Any:
        a, b = carry
        new = ops.mul(ops.add(a, b), w), ops.full(shape=(2,), value=2.0)
        return new, (ops.full(shape=(), value=3.0), ops.mul(a, entry["read"]))

    start = ops.full(shape=(2,), value=0.0), ops.exp(w)
    return loop(ops, step, start, {"read": x, "unread": ops.neg(x)})


def _arrays(seed: int, *shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [0.6 * rng.standard_normal(shape) for shape in shapes]


def _rnn_arguments() -> tuple[Any, ...]:
    wx, wh, b, h, xs = _arrays(1, (2, 3), (3, 3), (3,), (4, 3), (5, 4, 2))
    return {"wx": wx, "wh": wh, "b": b}, h, xs


def _lstm_arguments() -> tuple[Any, ...]:
    w, b, h, c, x = _arrays(2, (12, 5), (12,), (2, 3), (2, 3), (4, 2, 2))
    mask = np.array([[True, True], [True, False], [True, True], [False, True]])
    return {"w": w, "b": b}, {"h": h, "c": c}, {"x": x, "mask": mask}


CASES = [
    Case("cumulative sum", cumulative_sum, tuple(_arrays(0, (6, 3)))),
    Case("rnn", rnn, _rnn_arguments()),
    Case("rnn in reverse", lambda ops, loop, *args: rnn(ops, loop, *args, reverse=True), _rnn_arguments()),
    Case("lstm", lstm, _lstm_arguments()),
    Case("nested", nested, (np.array(0.7), *_arrays(3, (3, 4)))),
    Case("counted", counted, (*_arrays(4, (4, 2)), np.array([0, 3, 3, 1, 2]))),
    Case("normalised", normalised, tuple(_arrays(5, (3,), (2, 3), (4, 2, 3)))),
    Case("descended", descended, tuple(_arrays(6, (3,), (3,)))),
    Case("untouched", untouched, tuple(_arrays(7, (3, 2), (2,)))),
    Case("one turn", rnn, (*_rnn_arguments()[:2], _rnn_arguments()[2][:1])),
]
