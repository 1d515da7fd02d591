"""Arrays that a program gives share memory with nothing: not with arguments, constants, each other, or a later run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options

CONSTANT = np.arange(6.0, dtype=np.float32)
LEAKED: list[Any] = []


def leaking(ops: Any, x: Any) -> Any:
    y = ops.mul(x, x)
    LEAKED.append(y.value)
    return y


def twice(ops: Any, x: Any) -> Any:
    y = ops.mul(x, x)
    return y, y, ops.reshape(y, shape=(2, 3)), ops.slice(y, axis=0, start=1, length=2)


PROGRAMS = {
    "argument": lambda ops, x: x,
    "argument as a view": lambda ops, x: ops.reshape(x, shape=(3, 2)),
    "constant": lambda ops, x: ops.const(CONSTANT),
    "new": lambda ops, x: ops.mul(x, x),
    "twice and views": twice,
    "broadcast": lambda ops, x: ops.broadcast_to(ops.sum(x), shape=(4,)),
    "leaked": leaking,
}


CASES = [(name, "eager") for name in PROGRAMS]
CASES += [(name, "compiled") for name in PROGRAMS if name != "leaked"]  # there are no values while it is recorded


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_results(name: str, backend: str) -> None:
    options = Options(backend=backend)
    x = np.arange(6.0, dtype=np.float32)
    found = [np.atleast_1d(each) for each in _leaves(opstage.run(PROGRAMS[name], x, options=options))]
    before = [each.copy() for each in found]
    others = [x, CONSTANT, *LEAKED]
    kept = [np.array(other) for other in others]
    for i, each in enumerate(found):
        each += 100
        for j, other in enumerate(found):
            np.testing.assert_array_equal(other, before[j] + (100 if j <= i else 0))
    for other, was in zip(others, kept):
        np.testing.assert_array_equal(other, was)
    again = _leaves(opstage.run(PROGRAMS[name], x, options=options))
    for a, b in zip(again, before):
        np.testing.assert_array_equal(np.atleast_1d(a), b)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_gradients_that_are_one_tensor_are_two_arrays(backend: str) -> None:
    x, y = (np.arange(3.0, dtype=np.float32) + i for i in range(2))
    program = lambda ops, x, y: ops.sum(ops.mul(s := ops.add(x, y), s))  # noqa: E731
    _, (dx, dy) = opstage.value_and_grad(program, x, y, wrt=(0, 1), options=Options(backend=backend))
    np.testing.assert_array_equal(dx, dy)
    dx[:] = -1
    np.testing.assert_array_equal(dy, 2 * (x + y))


def _leaves(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]
