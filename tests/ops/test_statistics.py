"""Statistics, sorting, sums and extremes by segment or so far, replacement and gates: against NumPy and SciPy."""

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
EDGES = np.array([[2.0, NAN, 1.0, INF], [0.0, -0.0, NAN, -INF], [1.0, 1.0, 0.5, 0.5], [INF, INF, INF, 1.0]])
INTS = np.array([[3, -1, 2, 3], [0, 7, 5, 0]])
ZERO = np.array([[0.0, 0.0], [3.0, -4.0]])


def _sorted_down(x: Any) -> Any:
    places = np.array([sorted(range(len(r)), key=lambda i: (r[i] == r[i], -r[i], i)) for r in x])
    return np.take_along_axis(x, places, 1), places


def _searched(rows: Any, values: Any, side: Any = "left") -> Any:
    return np.array([np.searchsorted(r, v, side) for r, v in zip(rows, values)])


def _unique(x: Any, size: int, fill: float) -> Any:
    values, counts = np.unique(x, return_counts=True)
    rest = size - len(values)
    return (
        np.append(values, np.full(rest, fill, x.dtype)),
        np.append(counts, np.zeros(rest, int)),
        np.array(len(values)),
    )


def _segments(x: Any, s: Any, count: int) -> Any:
    return np.array([sum((r for r, k in zip(x, s) if k == i), np.zeros(x.shape[1:], x.dtype)) for i in range(count)])


# fmt: off
ROWS = [
    of("var", ((2, 3, 4),), lambda x: np.var(x, axis=(0, 2), ddof=1), axis=(0, 2)),
    of("var all, kept", ((2, 3),), lambda x: np.var(x, keepdims=True), correction=0, keepdims=True),
    of("std", ((3, 4),), lambda x: np.std(x, axis=1, ddof=1), axis=-1),
    of("std far off", (np.array([1e9, 1e9 + 1, 1e9 + 2]),), lambda x: 1.0, gradient=False),
    of("norm 2", ((3, 4),), lambda x: np.linalg.norm(x, axis=1), axis=1),
    of("norm kept", ((2, 3, 2),), lambda x: np.sqrt((x**2).sum((0, 2), keepdims=True)), axis=(0, 2), keepdims=True),
    of("norm 1", ((3, 4),), lambda x: np.abs(x).sum(), ord=1),
    of("norm inf", ((3, 4),), lambda x: np.abs(x).max(0), ord=INF, axis=0),
    of("norm -inf", ((3, 4),), lambda x: np.abs(x).min(0), ord=-INF, axis=0),
    of("norm edges", (np.array([[1e200, 1e200], [1e-200, 0], [0, 0], [INF, 1], [NAN, 1]]),),
        lambda x: np.array([2**0.5 * 1e200, 1e-200, 0, INF, NAN]), gradient=False, axis=1),
    of("norm empty", ((2, 0),), lambda x: np.zeros(2), gradient=False, axis=1),
    of("sort", ((3, 5),), lambda x: (np.sort(x), np.argsort(x)), gradient=False),
    Row("sort values", ((2, 5, 3),), lambda ops, x: derived.sort(ops, x, axis=1, descending=True)[0],
        lambda x: -np.sort(-x, 1)),
    of("sort edges", (EDGES,), _sorted_down, gradient=False, descending=True),
    Row("sort ints", (INTS,), lambda ops, x: derived.sort(ops, x, axis=0)[0], lambda x: np.sort(x, 0), gradient=False),
    Row("sort empty", (np.zeros((2, 0)),), lambda ops, x: derived.sort(ops, x)[0], lambda x: x, gradient=False),
    Row("top_k", ((3, 6),), lambda ops, x: derived.top_k(ops, x, k=2)[0], lambda x: -np.sort(-x)[:, :2]),
    of("top_k least", ((6, 2),), lambda x: (np.sort(x, 0)[:4], np.argsort(x, 0)[:4]), gradient=False, k=4, axis=0,
        largest=False),
    of("top_k ties", (INTS,), lambda x: (np.array([[3, 3], [7, 5]]), np.array([[0, 3], [1, 2]])), gradient=False, k=2),
    Row("top_k none", ((2, 3),), lambda ops, x: derived.top_k(ops, x, k=0)[0], lambda x: x[:, :0], gradient=False),
    of("median even", ((3, 4),), lambda x: np.median(x, 1), axis=1),
    of("median all", ((3, 5),), lambda x: np.median(x, keepdims=True), keepdims=True),
    of("median edges", (EDGES,), lambda x: np.array([NAN, NAN, 0.75, INF]), gradient=False, axis=1),
    *(Row(f"quantile {q} {how}", ((6, 2),),
          lambda ops, x, q=q, how=how: derived.quantile(ops, x, q=q, axis=0, interpolation=how),
          lambda x, q=q, how=how: np.quantile(x, q, axis=0, method=how))
      for q, how in ((0.3, "linear"), (0.3, "lower"), (0.3, "higher"), (0.5, "midpoint"), (0, "linear"),
                     (1, "linear"), (0.1, "nearest"), (0.3, "nearest"), (0.5, "nearest"), (0.7, "nearest"),
                     (0.9, "nearest"))),
    Row("searchsorted", (np.array([1.0, 2.0, 2.0, INF, NAN]), np.array([[0.0, 2.0, 3.0], [INF, NAN, 1.0]])),
        lambda ops, s, v: (derived.searchsorted(ops, s, v), derived.searchsorted(ops, s, v, right=True)),
        lambda s, v: (np.searchsorted(s, v), np.searchsorted(s, v, "right")), gradient=False),
    Row("searchsorted ints", (np.array([1, 2, 2, 9]), np.array([0, 2, 10])), derived.searchsorted, np.searchsorted,
        gradient=False),
    Row("searchsorted rows", (np.sort(EDGES[:2]), np.array([[0.0, INF, NAN], [-INF, -0.0, NAN]])),
        lambda ops, s, v: (derived.searchsorted(ops, s, v), derived.searchsorted(ops, s, v, right=True)),
        lambda s, v: (_searched(s, v), _searched(s, v, "right")), gradient=False),
    Row("searchsorted rows of none", (np.zeros((2, 0)), np.ones((2, 3))), derived.searchsorted, _searched,
        gradient=False),
    of("bincount", (np.array([[0, 3], [3, 1]]),), lambda x: np.bincount(x.ravel(), minlength=5), gradient=False,
        size=5),
    Row("bincount weights", (np.array([0, 3, 3]), (3,)), lambda ops, x, w: derived.bincount(ops, x, size=4, weights=w),
        lambda x, w: np.bincount(x, w, 4)),
    of("segment_sum", ((4, 2), np.array([2, 0, 2, 2])), lambda x, s: _segments(x, s, 4), count=4),
    of("segment_sum of numbers", (np.array([1, 2, 3]), np.array([1, 1, 0])), lambda x, s: np.array([3, 3, 0]),
        gradient=False, count=3),
    of("unique", (INTS,), lambda x: _unique(x, 8, -9), gradient=False, size=8, fill=-9),
    of("unique edges", (EDGES,), lambda x: _unique(x, 9, 0), gradient=False, size=9),
    of("unique of none", (np.zeros(0),), lambda x: _unique(x, 2, 0), gradient=False, size=2),
    of("unique of one", (np.array([5.0, 5.0]),), lambda x: _unique(x, 1, 0), gradient=False, size=1),
]
# fmt: on


@pytest.mark.parametrize("call", [derived.norm, lambda ops, x: derived.std(ops, x, axis=1)[0]])
def test_the_gradient_of_a_root_at_zero_is_zero(call: Any) -> None:
    x = np.zeros((1, 3))
    value, gradient = opstage.value_and_grad(lambda ops, x: ops.sum(call(ops, x)), x, options=FLOAT64)
    assert value == 0 and not gradient.any()


def test_sizes_may_be_named() -> None:
    def program(ops: Any, x: Any) -> Any:
        values = derived.top_k(ops, x, k=2, axis=0)[0], derived.var(ops, x, axis=0)
        places = derived.searchsorted(ops, x, x[:, :2])
        return *values, derived.quantile(ops, x, q=0.25, axis=0), derived.unique(ops, x, size=4), places

    report = opstage.check(program, opstage.Spec("N 3", where=["N >= 2"]))
    assert report.ok, report
    top, var, quantile, (values, counts, found), places = report.outputs
    shapes = [t.shape for t in (top, var, quantile, values, counts, found)]
    assert shapes == [(2, 3), (3,), (3,), (4,), (4,), ()] and str(places.shape) == "(N, 2)"


BAD: list[tuple[str, type[Exception], str, Any]] = [
    ("var of one", ShapeError, "there are 1 elements, and with correction=1 .* at least 2",
     lambda ops, x: derived.var(ops, x[:1], axis=0)),
    ("var of ints", DtypeError, "x must be a float tensor",
     lambda ops, x: derived.var(ops, ops.cast(x, dtype="int32"))),
    ("norm 3", ShapeError, "ord must be 1, 2, inf or -inf but is 3", lambda ops, x: derived.norm(ops, x, ord=3)),
    ("quantile 2", ShapeError, "q must be a number from 0 to 1 but is 2", lambda ops, x: derived.quantile(ops, x, q=2)),
    ("quantile of none", ShapeError, "needs at least one element", lambda ops, x: derived.median(ops, x[:0])),
    ("top_k", ShapeError, "axis 1 has 3 elements, fewer than k=4", lambda ops, x: derived.top_k(ops, x, k=4)),
    ("unique mask", DtypeError, "must be a tensor of numbers", lambda ops, x: derived.unique(ops, x > 0, size=4)),
    ("unique", RangeError, "out of range", lambda ops, x: derived.unique(ops, x, size=5)),
    ("searchsorted rows", ShapeError, "ordered.*values", lambda ops, x: derived.searchsorted(ops, x, x[:1])),
    ("searchsorted rank", ShapeError, "ordered", lambda ops, x: derived.searchsorted(ops, x, x[0])),
    ("bincount", RangeError, "out of range", lambda ops, x: derived.bincount(ops, ops.const(np.array([2])), size=2)),
    ("segments", ShapeError, "one of each row",
     lambda ops, x: derived.segment_sum(ops, x, ops.iota(shape=(3,)), count=3)),
]  # fmt: skip


# Extremes so far and by segment, and functions that replace, slope and gate: against NumPy, and their edges -----------

TIED = np.array([[2.0, NAN, 1.0, INF], [0.0, -0.0, NAN, -INF], [2.0, 1.0, 0.5, INF]])
SEGMENTS = np.array([2, 0, 2, 2, 0])
PAIRS = np.array([[3, -1], [0, 7], [5, 0], [3, -1], [0, 7]])


def _so_far(x: Any, axis: int, sign: int) -> Any:
    """Of equal ones the last."""
    x = np.moveaxis(x, axis, 0)
    values, places = x.copy(), np.zeros(x.shape, np.int64)
    for i in range(1, len(x)):
        with np.errstate(invalid="ignore"):
            better = (sign * x[i] >= sign * values[i - 1]) | np.isnan(x[i])
        values[i], places[i] = np.where(better, x[i], values[i - 1]), np.where(better, i, places[i - 1])
    return np.moveaxis(values, 0, axis), np.moveaxis(places, 0, axis)


def _by_segment(x: Any, s: Any, count: int, reduce: Any, fill: float = 0) -> Any:
    rows = [reduce(x[s == i], axis=0) if (s == i).any() else np.full(x.shape[1:], fill, x.dtype) for i in range(count)]
    return np.array(rows)


# fmt: off
ROWS += [
    of("cummax", ((3, 5),), lambda x: _so_far(x, 1, 1), gradient=False, axis=1),
    Row("cummax values", ((4, 3),), lambda ops, x: derived.cummax(ops, x, axis=0)[0],
        lambda x: np.maximum.accumulate(x, 0)),
    Row("cummin values", ((2, 5, 2),), lambda ops, x: derived.cummin(ops, x, axis=1)[0],
        lambda x: np.minimum.accumulate(x, 1)),
    of("cummax edges", (TIED,), lambda x: _so_far(x, 0, 1), gradient=False, axis=0),
    of("cummin edges", (TIED,), lambda x: _so_far(x, 1, -1), gradient=False, axis=-1),
    of("cummin ints", (PAIRS,), lambda x: _so_far(x, 0, -1), gradient=False, axis=0),
    Row("cummax none", (np.zeros((0, 2)),), lambda ops, x: derived.cummax(ops, x, axis=0)[0], lambda x: x,
        gradient=False),
    of("segment_max", ((5, 2), SEGMENTS), lambda x, s: _by_segment(x, s, 4, np.max, -9), count=4, fill=-9),
    of("segment_min", ((5,), SEGMENTS), lambda x, s: _by_segment(x, s, 3, np.min), count=3),
    of("segment_max ints", (PAIRS, SEGMENTS), lambda x, s: _by_segment(x, s, 3, np.max, -1), gradient=False, count=3,
        fill=-1),
    of("segment_min ints", (PAIRS, SEGMENTS), lambda x, s: _by_segment(x, s, 3, np.min, -1), gradient=False, count=3,
        fill=-1),
    of("segment_max edges", (TIED, np.array([1, 1, 0])),
        lambda x, s: _by_segment(x, s, 2, np.max), gradient=False, count=2),
    of("segment_min edges", (TIED, np.array([1, 1, 0])),
        lambda x, s: _by_segment(x, s, 2, np.min), gradient=False, count=2),
    of("segment_max far", (np.array([1e308, 1e308, 1e308, -INF]), np.array([0, 0, 0, 1])), lambda x,
        s: np.array([1e308, -INF]), gradient=False, count=2),
    of("segment_max of none", (np.zeros((0, 2)), np.zeros(0, np.int64)), lambda x, s: np.full((2, 2), -INF),
        gradient=False, count=2, fill=-INF),
    of("nan_to_num", (TIED,), np.nan_to_num, gradient=False),
    of("nan_to_num stated", (TIED,), lambda x: np.nan_to_num(x, nan=1, posinf=2, neginf=NAN), gradient=False, nan=1,
        posinf=2, neginf=NAN),
    of("nan_to_num ints", (PAIRS,), lambda x: x, gradient=False),
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


def test_sizes_may_be_named_of_extremes() -> None:
    def program(ops: Any, x: Any) -> Any:
        segments = ops.full(shape=(x.shape[0],), value=0, dtype="int64")
        parts = derived.segment_max(ops, x, segments, count=4), derived.segment_min(ops, x, segments, count=x.shape[0])
        return *parts, derived.cummax(ops, x, axis=0)[0], derived.glu(ops, x, axis=1)

    report = opstage.check(program, opstage.Spec("N 6", where=["N >= 1"]))
    assert report.ok, report
    assert [show_shape(t.shape) for t in report.outputs] == ["(4, 6)", "(N, 6)", "(N, 6)", "(N, 3)"]


BAD += [
    ("glu", ShapeError, r"x is \(2, 3\): axis 1 has two halves", lambda ops, x: derived.glu(ops, x)),
    ("prelu", ShapeError, "weight has 2 numbers", lambda ops, x: derived.prelu(ops, x, ops.const(np.ones(2)))),
    ("prelu rank", ShapeError, "must be a number, a vector",
     lambda ops, x: derived.prelu(ops, x, ops.const(np.ones((1, 1, 1))))),
    ("cummax of a mask", DtypeError, "must be a tensor of numbers", lambda ops, x: derived.cummax(ops, x > 0, axis=0)),
    ("segment_max", ShapeError, "one of each row",
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
