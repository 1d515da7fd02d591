"""Extremes so far and by segment, and functions that replace, slope and gate: against NumPy, and their edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import derived
from opstage.ops.errors import DtypeError, RangeError, ShapeError
from opstage.ops.types import show_shape
from tests.ops.functions import COMPILED, FLOAT64, Row, assert_row, of

INF, NAN = np.inf, np.nan
EDGES = np.array([[2.0, NAN, 1.0, INF], [0.0, -0.0, NAN, -INF], [2.0, 1.0, 0.5, INF]])
SEGMENTS = np.array([2, 0, 2, 2, 0])
INTS = np.array([[3, -1], [0, 7], [5, 0], [3, -1], [0, 7]])


def _so_far(x: Any, axis: int, sign: int) -> Any:
    """Of equal ones the last."""
    x = np.moveaxis(x, axis, 0)
    values, places = x.copy(), np.zeros(x.shape, np.int64)
    for i in range(1, len(x)):
        with np.errstate(invalid="ignore"):
            better = (sign * x[i] >= sign * values[i - 1]) | np.isnan(x[i])
        values[i], places[i] = np.where(better, x[i], values[i - 1]), np.where(better, i, places[i - 1])
    return np.moveaxis(values, 0, axis), np.moveaxis(places, 0, axis)


def _segments(x: Any, s: Any, count: int, reduce: Any, fill: float = 0) -> Any:
    rows = [reduce(x[s == i], axis=0) if (s == i).any() else np.full(x.shape[1:], fill, x.dtype) for i in range(count)]
    return np.array(rows)


# fmt: off
ROWS = [
    of("cummax", ((3, 5),), lambda x: _so_far(x, 1, 1), gradient=False, axis=1),
    Row("cummax values", ((4, 3),), lambda ops, x: derived.cummax(ops, x, axis=0)[0],
        lambda x: np.maximum.accumulate(x, 0)),
    Row("cummin values", ((2, 5, 2),), lambda ops, x: derived.cummin(ops, x, axis=1)[0],
        lambda x: np.minimum.accumulate(x, 1)),
    of("cummax edges", (EDGES,), lambda x: _so_far(x, 0, 1), gradient=False, axis=0),
    of("cummin edges", (EDGES,), lambda x: _so_far(x, 1, -1), gradient=False, axis=-1),
    of("cummin ints", (INTS,), lambda x: _so_far(x, 0, -1), gradient=False, axis=0),
    Row("cummax none", (np.zeros((0, 2)),), lambda ops, x: derived.cummax(ops, x, axis=0)[0], lambda x: x,
        gradient=False),
    of("segment_max", ((5, 2), SEGMENTS), lambda x, s: _segments(x, s, 4, np.max, -9), count=4, fill=-9),
    of("segment_min", ((5,), SEGMENTS), lambda x, s: _segments(x, s, 3, np.min), count=3),
    of("segment_max ints", (INTS, SEGMENTS), lambda x, s: _segments(x, s, 3, np.max, -1), gradient=False, count=3,
        fill=-1),
    of("segment_min ints", (INTS, SEGMENTS), lambda x, s: _segments(x, s, 3, np.min, -1), gradient=False, count=3,
        fill=-1),
    of("segment_max edges", (EDGES, np.array([1, 1, 0])), lambda x, s: _segments(x, s, 2, np.max), gradient=False,
        count=2),
    of("segment_min edges", (EDGES, np.array([1, 1, 0])), lambda x, s: _segments(x, s, 2, np.min), gradient=False,
        count=2),
    of("segment_max far", (np.array([1e308, 1e308, 1e308, -INF]), np.array([0, 0, 0, 1])), lambda x,
        s: np.array([1e308, -INF]), gradient=False, count=2),
    of("segment_max of none", (np.zeros((0, 2)), np.zeros(0, np.int64)), lambda x, s: np.full((2, 2), -INF),
        gradient=False, count=2, fill=-INF),
    of("nan_to_num", (EDGES,), np.nan_to_num, gradient=False),
    of("nan_to_num stated", (EDGES,), lambda x: np.nan_to_num(x, nan=1, posinf=2, neginf=NAN), gradient=False, nan=1,
        posinf=2, neginf=NAN),
    of("nan_to_num ints", (INTS,), lambda x: x, gradient=False),
    of("prelu", ((2, 3, 4), (3,)), lambda x, w: np.where(x > 0, x, w[:, None] * x)),
    of("prelu one", ((2, 3), (1,)), lambda x, w: np.where(x > 0, x, w * x)),
    of("prelu last", ((2, 3), (3,)), lambda x, w: np.where(x > 0, x, w * x), axis=-1),
    of("prelu of a rank", ((2, 3), (2, 1)), lambda x, w: np.where(x > 0, x, w * x)),
    of("glu", ((2, 6),), lambda x: x[:, :3] / (1 + np.exp(-x[:, 3:]))),
    of("glu first", ((4, 3),), lambda x: x[:2] / (1 + np.exp(-x[2:])), axis=0),
]
# fmt: on


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_is_that_of_numpy(row: Row) -> None:
    with np.errstate(invalid="ignore"):
        assert_row(row)


def _gradient(program: Any, *args: Any, options: Any = FLOAT64) -> Any:
    return opstage.value_and_grad(lambda ops, *xs: ops.sum(program(ops, *xs)), *args, options=options)[1]


@pytest.mark.parametrize("options", [FLOAT64, COMPILED])
@pytest.mark.parametrize("peak", [3.0, INF])
def test_equal_extremes_of_a_segment_share_the_gradient(options: Any, peak: float) -> None:
    x, s = np.array([peak, peak, 1.0, peak, 2.0]), np.array([0, 0, 0, 0, 1])

    def program(ops: Any, x: Any) -> Any:
        return derived.segment_max(ops, x, ops.const(s), count=3)

    np.testing.assert_allclose(_gradient(program, x, options=options), [1 / 3, 1 / 3, 0, 1 / 3, 1])


def test_of_equal_extremes_so_far_the_last_has_the_gradient() -> None:
    gradient = _gradient(lambda ops, x: derived.cummax(ops, x, axis=0)[0], np.array([2.0, 2.0, 1.0, 2.0]))
    np.testing.assert_array_equal(gradient, [1, 2, 0, 1])


def test_what_nan_to_num_replaces_has_no_gradient() -> None:
    gradient = _gradient(lambda ops, x: derived.nan_to_num(ops, x), np.array([1.0, NAN, INF, -INF]))
    np.testing.assert_array_equal(gradient, [1, 0, 0, 0])


def test_the_slope_of_prelu_has_no_gradient_from_what_is_above_zero() -> None:
    x, w = np.array([[INF, 1.0, 0.0, -2.0]]), np.array([0.0])
    value, (dx, dw) = opstage.value_and_grad(
        lambda ops, p: ops.sum(derived.prelu(ops, p[0], p[1])), (x, w), options=FLOAT64
    )
    assert value == INF and dw.item() == -2
    np.testing.assert_array_equal(dx, [[1, 1, 0, 0]])


def test_sizes_may_be_named() -> None:
    def program(ops: Any, x: Any) -> Any:
        segments = ops.full(shape=(x.shape[0],), value=0, dtype="int64")
        parts = derived.segment_max(ops, x, segments, count=4), derived.segment_min(ops, x, segments, count=x.shape[0])
        return *parts, derived.cummax(ops, x, axis=0)[0], derived.glu(ops, x, axis=1)

    report = opstage.check(program, opstage.Spec("N 6", where=["N >= 1"]))
    assert report.ok, report
    assert [show_shape(t.shape) for t in report.outputs] == ["(4, 6)", "(N, 6)", "(N, 6)", "(N, 3)"]


BAD: list[tuple[str, type[Exception], str, Any]] = [
    ("glu", ShapeError, r"x is \(2, 3\): axis 1 has two halves", lambda ops, x: derived.glu(ops, x)),
    ("prelu", ShapeError, "weight has 2 numbers", lambda ops, x: derived.prelu(ops, x, ops.const(np.ones(2)))),
    ("prelu rank", ShapeError, "must be a number, a vector",
     lambda ops, x: derived.prelu(ops, x, ops.const(np.ones((1, 1, 1))))),
    ("cummax of a mask", DtypeError, "must be a tensor of numbers", lambda ops, x: derived.cummax(ops, x > 0, axis=0)),
    ("segments", ShapeError, "one of each row",
     lambda ops, x: derived.segment_max(ops, x, ops.iota(shape=(3,)), count=3)),
    ("segment outside", RangeError, "out of range",
     lambda ops, x: derived.segment_min(ops, x, ops.const(np.array([0, 2])), count=2)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "message", "program"), BAD, ids=[row[0] for row in BAD])
def test_bad_calls_say_so(name: str, kind: type[Exception], message: str, program: Any) -> None:
    x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    for options in (FLOAT64, COMPILED):
        with pytest.raises(kind, match=message):
            opstage.run(program, x, options=options)
