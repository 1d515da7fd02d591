"""Bounds of numbers near the largest of the dtype: partial sums in any order, quotients at the end and what hides nan.

A finite bound says that no interpreter overflows on the way, whatever the order of its sums; where one may, nothing is
known. Terms that cancel, means of large numbers and attention, which divides last, are such.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opstage import Box, Options, bounds, derived
from opstage.api import run
from opstage.ops.trees import flatten
from tests.analysis.inside import flatten_boxes, outside, points_in
from tests.searches import share

ROWS, COLUMNS = 4, 6
Program = Callable[[Any, Any], Any]

LARGEST = {"float32": 38.5, "float64": 308.2}
RUNS = ({"backend": "eager"}, {"backend": "eager", "fast_kernels": False}, {"backend": "compiled"})


def _weights(seed: int, *shape: int) -> Any:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 3, shape)


def _unit(ops: Any, *shape: int) -> Any:
    """Terms that cancel: 1, -1, 1, …"""
    count = int(np.prod(shape))
    return ops.const(np.where(np.arange(count) % 3 == 1, -1.0, 1.0).reshape(shape))


def _spread(ops: Any, x: Any) -> Any:
    return ops.broadcast_to(x, shape=(ROWS, COLUMNS))


OPS: dict[str, Program] = {
    "reduce_sum": lambda ops, x: _spread(ops, ops.reduce_sum(x, axis=1, keepdims=True)),
    "signed_sum": lambda ops, x: _spread(ops, ops.reduce_sum(ops.mul(x, _unit(ops, ROWS, COLUMNS)), axis=(0, 1))),
    "sum": lambda ops, x: _spread(ops, ops.sum(x)),
    "mean": lambda ops, x: _spread(ops, ops.reduce_mean(x, axis=1, keepdims=True)),
    "mean_of_all": lambda ops, x: _spread(ops, ops.reduce_mean(x, axis=(0, 1), keepdims=True)),
    "variance": lambda ops, x: _spread(ops, derived.var(ops, x, axis=1, keepdims=True)),
    "norm": lambda ops, x: _spread(ops, derived.norm(ops, x, axis=1, keepdims=True)),
    "cumsum": lambda ops, x: ops.cumsum(ops.mul(x, _unit(ops, ROWS, COLUMNS)), axis=1),
    "matmul": lambda ops, x: ops.matmul(x, _unit(ops, COLUMNS, COLUMNS)),
    "matmul_of_weights": lambda ops, x: ops.matmul(x, ops.const(_weights(0, COLUMNS, COLUMNS))),
    "matmul_left": lambda ops, x: ops.matmul(_unit(ops, ROWS, ROWS), x),
    "linear": lambda ops, x: ops.linear(_unit(ops, COLUMNS, COLUMNS), _unit(ops, COLUMNS), x),
    "gram": lambda ops, x: ops.matmul(ops.matmul(x, ops.transpose2d(x)), _unit(ops, ROWS, COLUMNS)),
    "bmm": lambda ops, x: ops.reshape(
        ops.bmm(ops.reshape(x, shape=(2, 2, 6)), _unit(ops, 2, 6, 6)), shape=(ROWS, COLUMNS)
    ),
    "conv": lambda ops, x: ops.conv(_unit(ops, ROWS, ROWS, 3), None, x, stride=1, padding=1),
    "conv_of_weights": lambda ops, x: ops.conv(ops.const(_weights(1, ROWS, ROWS, 3)), None, x, stride=1, padding=1),
    "conv_transpose": lambda ops, x: ops.conv_transpose(_unit(ops, ROWS, ROWS, 3), None, x, stride=1, padding=1),
    "einsum": lambda ops, x: derived.einsum(
        ops, "ij,kj,kl->il", x, _unit(ops, ROWS, COLUMNS), _unit(ops, ROWS, COLUMNS)
    ),
    "avg_pool": lambda ops, x: ops.avg_pool(x, kernel=(3,), stride=1, padding=1),
    "softmax": lambda ops, x: ops.softmax(x, axis=1),
    "log_softmax": lambda ops, x: ops.log_softmax(x, axis=1),
    "logsumexp": lambda ops, x: _spread(ops, derived.logsumexp(ops, x, axis=1, keepdims=True)),
    "attention": lambda ops, x: ops.scaled_dot_product_attention(x, x, x),
    "attention_to_one": lambda ops, x: ops.scaled_dot_product_attention(ops.scale(x, c=0.0), ops.scale(x, c=0.0), x),
    "causal": lambda ops, x: ops.scaled_dot_product_attention(ops.tanh(x), ops.tanh(x), x, causal=True),
    "layer_norm": lambda ops, x: ops.layer_norm(x, None, None),
    "rms_norm": lambda ops, x: ops.rms_norm(x, None),
    "group_norm": lambda ops, x: ops.group_norm(x, None, None, groups=2),
    "mse": lambda ops, x: _spread(ops, ops.mse_loss(x, ops.neg(x))),
    "scatter": lambda ops, x: ops.scatter_add_row(x, x, ops.const(np.array([0, 0, 1, 1]))),
    "add": lambda ops, x: ops.add(x, x),
    "sub": lambda ops, x: ops.sub(ops.scale(x, c=2.0), ops.scale(x, c=3.0)),
    "sub_rows": lambda ops, x: ops.sub(x, ops.gather_rows(x, ops.const(np.array([1, 2, 3, 0])))),
    "mul": lambda ops, x: ops.mul(x, ops.gather_rows(x, ops.const(np.array([1, 2, 3, 0])))),
    "square": lambda ops, x: ops.square(x),
    "div": lambda ops, x: ops.div(x, ops.add(ops.abs(ops.gather_rows(x, ops.const(np.array([1, 2, 3, 0])))), 1e-3)),
    "exp": lambda ops, x: ops.exp(x),
    "sqrt": lambda ops, x: ops.sqrt(ops.abs(x)),
}
WRAPS: dict[str, Program] = {
    "tanh": lambda ops, x: ops.tanh(x),
    "sigmoid": lambda ops, x: ops.sigmoid(x),
    "clamp": lambda ops, x: ops.clamp(x, lo=-1, hi=2),
    "relu": lambda ops, x: ops.relu(x),
    "minimum": lambda ops, x: ops.minimum(x, 5.0),
    "maximum": lambda ops, x: ops.maximum(x, -5.0),
    "small": lambda ops, x: ops.scale(x, c=1e-30),
    "smaller": lambda ops, x: ops.scale(ops.scale(x, c=1e-30), c=1e-10),
    "large": lambda ops, x: ops.scale(x, c=1e30),
    "halved": lambda ops, x: ops.scale(x, c=0.5),
    "less": lambda ops, x: ops.cast(ops.less(x, ops.full(shape=x.shape, value=0.0)), dtype=x.dtype),
    "less itself": lambda ops, x: ops.sub(x, ops.scale(x, c=0.5)),
    "softmax": lambda ops, x: ops.softmax(x, axis=1),
    "sin": lambda ops, x: ops.sin(x),
    "inverse": lambda ops, x: ops.inv(ops.add(ops.abs(x), 1.0)),
    "largest": lambda ops, x: _spread(ops, ops.reduce_max(x, axis=1, keepdims=True)),
    "gelu": lambda ops, x: ops.gelu(x),
    "silu": lambda ops, x: ops.silu(x),
    "floor": lambda ops, x: ops.floor(x),
    "selected": lambda ops, x: ops.select(
        ops.less(x, ops.full(shape=x.shape, value=1.0)), x, ops.full(shape=x.shape, value=1.0)
    ),
}


def random_box(rng: np.random.Generator, dtype: str) -> Box:
    top = LARGEST[dtype]
    most = rng.choice([top, top - 0.3, top - 0.8, top - 6, top / 2 + 0.2, top / 2 - 1, top / 4])
    size = 10.0 ** np.minimum(most - rng.random((ROWS, COLUMNS)) * rng.choice([0, 0.3, 3, 60]), top)
    x = np.where(rng.random((ROWS, COLUMNS)) < rng.choice([0, 0.5]), -size, size)
    limit = np.finfo(dtype).max
    with np.errstate(all="ignore"):
        width = np.abs(x) * rng.choice([0.0, 1e-7, 1e-3, 0.3, 2.0])
        lower, upper = (np.clip(end, -limit, limit).astype(dtype) for end in (x - width, x + width))
    return Box(np.clip(lower, -limit, limit), np.clip(upper, -limit, limit))


def problems(seed: int) -> list[str]:
    """Where the bounds of a random program do not hold what it gives, run in three ways at points of a random box."""
    rng = np.random.default_rng(seed)
    dtype = "float64" if seed % 4 == 3 else "float32"
    names = [str(rng.choice([*OPS])), *[str(rng.choice([*WRAPS])) for _ in range(rng.integers(0, 3))]]
    if rng.random() < 0.3:
        names.insert(0, str(rng.choice([*OPS])))
    box = random_box(rng, dtype)

    def program(ops: Any, x: Any) -> Any:
        for name in names:
            x = (OPS.get(name) or WRAPS[name])(ops, x)
        return x

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for method in ("interval", "crown"):
            (ends,) = flatten_boxes(bounds(program, box, method=method, options=Options(dtype=dtype)))  # type: ignore[arg-type]
            for point in points_in([box.lower], [box.upper], np.random.default_rng(seed), 4):
                for more in RUNS if seed % 8 == 0 else RUNS[:2]:
                    (value,) = flatten(run(program, *point, options=Options(dtype=dtype, **more)))[0]
                    problem = outside(ends, value)
                    if problem is not None:
                        found.append(f"{seed}: {method} of {' -> '.join(names)} in {dtype}, {more}: {problem}")
                        break
    return found


def test_sums_that_cancel_have_no_finite_bounds() -> None:
    """Their total is finite, and a partial sum is not."""
    x = np.full((ROWS, COLUMNS), 3e38, "f4")
    for name in (
        "matmul",
        "linear",
        "bmm",
        "conv",
        "conv_transpose",
        "einsum",
        "cumsum",
        "signed_sum",
        "attention_to_one",
    ):
        for method in ("interval", "crown"):
            box = bounds(OPS[name], Box(x, x), method=method, options=Options(dtype="float32"))  # type: ignore[arg-type]
            assert np.isinf(box.lower).any() and np.isinf(box.upper).any(), (name, method)
            small = bounds(OPS[name], Box(x / 1e8, x / 1e8), method=method, options=Options(dtype="float32"))  # type: ignore[arg-type]
            assert np.isfinite(small.lower).all() and np.isfinite(small.upper).all(), (name, method)


def test_what_may_be_infinite_and_then_nan_is_unknown() -> None:
    x = Box(np.full((ROWS, COLUMNS), 1e38, "f4"), np.full((ROWS, COLUMNS), 3e38, "f4"))
    for name in ("sub", "less itself"):
        for method in ("interval", "crown"):

            def program(ops: Any, x: Any, name: str = name) -> Any:
                return ops.tanh((OPS.get(name) or WRAPS[name])(ops, ops.scale(x, c=1e10)))

            box = bounds(program, x, method=method, options=Options(dtype="float32"))  # type: ignore[arg-type]
            assert np.isinf(box.lower).all() and np.isinf(box.upper).all(), (name, method)


def search(seeds: range) -> None:
    found = [problem for seed in seeds for problem in problems(seed)]
    assert not found, f"{len(found)} of {2 * len(seeds)}:\n" + "\n".join(found[:20])


def test_bounds_of_large_numbers_hold_what_runs_give() -> None:
    search(range(16))


@pytest.mark.slow
@pytest.mark.soak
def test_bounds_of_many_more_large_numbers() -> None:
    search(range(16, 16 + share(6000)))
