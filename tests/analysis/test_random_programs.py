"""Random programs of a dozen ops: what they give at points of a box lies inside their bounds, of both methods."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from opstage import Box, Options, bounds, transform
from tests.analysis.inside import check_inside

UNARY: list[Callable[..., Any]] = [
    *(lambda ops, x, name=name: getattr(ops, name)(x) for name in ("relu", "tanh", "sigmoid", "exp", "abs", "square")),
    *(lambda ops, x, name=name: getattr(ops, name)(x) for name in ("sin", "cos", "softplus", "silu", "softmax", "neg")),
    lambda ops, x: ops.log(ops.add(ops.square(x), 0.5)),
    lambda ops, x: ops.clamp(x, lo=-1, hi=2),
    lambda ops, x: ops.transpose2d(ops.transpose2d(x)),
    lambda ops, x: ops.reshape(ops.permute(ops.reshape(x, shape=(3, 2, 2)), axes=(0, 2, 1)), shape=(3, 4)),
    lambda ops, x: ops.layer_norm(x, None, None),
    lambda ops, x: ops.broadcast_to(ops.reduce_mean(x, axis=1, keepdims=True), shape=(3, 4)),
    lambda ops, x: ops.broadcast_to(ops.reduce_max(x, axis=0, keepdims=True), shape=(3, 4)),
    lambda ops, x: ops.linear(ops.const(np.linspace(-1, 1, 16).reshape(4, 4)), None, x),
    lambda ops, x: transform.grad(ops, lambda ops, x: ops.sum(ops.tanh(ops.square(x))), x),
]
BINARY: list[Callable[..., Any]] = [
    *(lambda ops, x, y, name=name: getattr(ops, name)(x, y) for name in ("add", "sub", "mul", "maximum", "minimum")),
    lambda ops, x, y: ops.div(x, ops.add(ops.abs(y), 0.5)),
    lambda ops, x, y: ops.select(ops.less(x, y), x, ops.scale(y, c=0.5)),
    lambda ops, x, y: ops.slice(ops.concat([x, y], axis=1), axis=1, start=2, length=4),
    lambda ops, x, y: ops.matmul(ops.matmul(x, ops.transpose2d(y)), x),
]


def random_program(seed: int, ops: Any, x: Any) -> Any:
    rng = np.random.default_rng(seed)  # the same ops in every run
    pool = [x]
    for _ in range(12):
        first, second = (pool[int(rng.integers(len(pool)))] for _ in range(2))
        if rng.random() < 0.6:
            made = UNARY[int(rng.integers(len(UNARY)))](ops, first)
        else:
            made = BINARY[int(rng.integers(len(BINARY)))](ops, first, second)
        pool.append(made)
    return pool[-3:]


def check(seed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((3, 4)).astype(dtype)
    box = Box.around(x, (rng.random((3, 4)) * 10.0 ** rng.uniform(-6, 0.3)).astype(dtype))
    program, options = partial(random_program, seed), Options(dtype=dtype)
    for method in ("interval", "crown"):
        found = bounds(program, box, method=method, options=options)  # type: ignore[arg-type]
        check_inside(program, found, [box.lower], [box.upper], rng, options, 6)


@pytest.mark.parametrize("seed", range(6))
def test_values_of_random_programs_lie_inside(seed: int) -> None:
    check(seed, "float32")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(6, 186, 30))
def test_values_of_many_random_programs_lie_inside(first: int) -> None:
    for seed in range(first, first + 30):
        check(seed, "float64" if seed % 3 == 0 else "float32")
