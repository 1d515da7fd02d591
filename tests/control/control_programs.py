"""Programs that choose and loop by values, written once for the ops and once for plain Python on given decisions.

`flow.cond`, `flow.switch` and `flow.while_loop` are those of `ops`, or Python's own: `Plain` reads values as it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


class Structural:
    """The ops themselves."""

    def cond(self, ops: Any, pred: Any, yes: Any, no: Any, *operands: Any) -> Any:
        return ops.cond(pred, yes, no, *operands)

    def switch(self, ops: Any, index: Any, branches: Sequence[Any], *operands: Any) -> Any:
        return ops.switch(index, branches, *operands)

    def while_loop(self, ops: Any, cond: Any, body: Any, init: Any, limit: int) -> Any:
        return ops.while_loop(cond, body, init, max_iterations=limit)


def value_of(ref: Any) -> Any:
    """The array beneath a ref of eager interpreters, however they are nested."""
    while not isinstance(ref, np.ndarray):
        ref = ref.value
    return ref


class Plain:
    """Python's `if` and `while`, on the eager interpreter."""

    def cond(self, ops: Any, pred: Any, yes: Any, no: Any, *operands: Any) -> Any:
        return (yes if value_of(pred) else no)(ops, *operands)

    def switch(self, ops: Any, index: Any, branches: Sequence[Any], *operands: Any) -> Any:
        return branches[int(value_of(index))](ops, *operands)

    def while_loop(self, ops: Any, cond: Any, body: Any, init: Any, limit: int) -> Any:
        while value_of(cond(ops, init)):
            init = body(ops, init)
        return init


@dataclass(frozen=True)
class Case:
    name: str
    program: Callable[..., Any]
    """(ops, flow, *args) -> a pytree of floats (and perhaps integers)."""
    args: tuple[Any, ...]

    def of(self, flow: Any) -> Callable[..., Any]:
        return lambda ops, *args: self.program(ops, flow, *args)


def halves(ops: Any, flow: Any, x: Any, w: Any) -> Any:
    """Operands passed, a captured tensor, and integers among the results."""
    return flow.cond(
        ops,
        ops.sum(x) > 0.0,
        lambda ops, x: {"y": ops.tanh(x @ w), "n": ops.const(1, dtype="int64")},
        lambda ops, x: {"y": (x * x) @ w, "n": ops.const(2, dtype="int64")},
        x,
    )


def through(ops: Any, flow: Any, x: Any, y: Any, i: Any) -> Any:
    """Branches that give an operand as it is, two of them in another order, one twice, and a constant."""
    branches = [
        lambda ops, x, y: (x, y),
        lambda ops, x, y: (y, x),
        lambda ops, x, y: (x, x),
        lambda ops, x, y: (ops.full(shape=x.shape, value=2.0), y),
    ]
    a, b = flow.switch(ops, i, branches, x, y)
    return a * x + b * b, a


def nested(ops: Any, flow: Any, x: Any, w: Any) -> Any:
    """A choice in a choice in a scan; what is chosen by depends on what was computed."""

    def step(ops: Any, h: Any, x: Any) -> Any:
        def large(ops: Any, h: Any) -> Any:
            again = ops.sum(h * h) > 2.0
            return flow.cond(ops, again, lambda ops: ops.tanh(h) * w, lambda ops: h * w + x)

        h = flow.cond(ops, ops.sum(x) > 0.0, large, lambda ops, h: h, h)
        return h, ops.sum(h)

    start = ops.full(shape=w.shape, value=0.7)
    if isinstance(flow, Plain):
        rows = []
        for i in range(x.shape[0]):
            start, row = step(ops, start, ops.gather_row(x, index=i))
            rows.append(row)
        return start, ops.stack(rows)
    return ops.scan(step, start, x)


def newton(ops: Any, flow: Any, a: Any) -> Any:
    """√a, to machine precision, of a number that is captured."""
    near = lambda ops, x: ops.abs(x * x - a) > 1e-12  # noqa: E731
    return flow.while_loop(ops, near, lambda ops, x: 0.5 * (x + a / x), ops.full(shape=(), value=1.0), 30)


def decays(ops: Any, flow: Any, h: Any, w: Any) -> Any:
    """A pytree is carried, w captured; how often it runs depends on h."""

    def body(ops: Any, carry: Any) -> Any:
        h, total = carry["h"], carry["sums"][0]
        return {"h": ops.tanh(h @ w), "sums": (total * ops.sum(h * h), carry["sums"][1] + 1)}

    init = {"h": h, "sums": (ops.full(shape=(), value=1.5), ops.const(0, dtype="int64"))}
    return flow.while_loop(ops, lambda ops, carry: ops.sum(carry["h"] * carry["h"]) > 0.05, body, init, 40)


def never(ops: Any, flow: Any, x: Any) -> Any:
    """No iteration: what comes in goes out."""
    return flow.while_loop(ops, lambda ops, x: ops.sum(x) > 1e6, lambda ops, x: x * 2.0, x, 3) * x


def both(ops: Any, flow: Any, x: Any, w: Any) -> Any:
    """A choice within a loop, and a loop within a choice."""

    def body(ops: Any, c: Any) -> Any:
        return flow.cond(ops, ops.sum(c) > 2.0, lambda ops: c * 0.5, lambda ops: c * w)

    def looped(ops: Any, x: Any) -> Any:
        return flow.while_loop(ops, lambda ops, c: ops.sum(c * c) > 0.3, body, x, 25)

    return flow.cond(ops, ops.sum(x) > 0.0, looped, lambda ops, x: ops.exp(x), x)


_RNG = np.random.default_rng(7)
_X, _W = _RNG.normal(size=(2, 3)), _RNG.normal(size=(3, 3)) / 2
_POSITIVE = np.abs(_X) + 0.1

CASES = (
    Case("halves, the one", halves, (_POSITIVE, _W)),
    Case("halves, the other", halves, (-_POSITIVE, _W)),
    *[Case(f"through {i}", through, (_X, _X[::-1] + 0.5, np.array(i))) for i in range(4)],
    Case("nested", nested, (_RNG.normal(size=(6, 3)), np.array([0.9, -1.2, 1.4]))),
    Case("newton", newton, (np.array(2.3),)),
    Case("decays", decays, (_X, _W)),
    Case("never", never, (_X,)),
    Case("both, looped", both, (_POSITIVE[0], np.array([0.4, 0.8, 0.6]))),
    Case("both, not looped", both, (-_POSITIVE[0], np.array([0.4, 0.8, 0.6]))),
)
