"""Samples: cumulative sums and products, recurrences, and the order of sorted elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, distinct, given, gives, halves, normal


def _line_by_line(f: Callable[..., Any]) -> Callable[..., Any]:
    """f of each line along the axis, given as a list."""

    def reference(x: Any, *, axis: int = -1, **static: bool) -> Any:
        lines = np.moveaxis(x, axis, -1)
        out = np.array([f(list(line), **static) for line in lines.reshape(-1, x.shape[axis])])
        return np.moveaxis(out.reshape(lines.shape), -1, axis)

    return reference


def _sums(line: list[Any], exclusive: bool = False, reverse: bool = False) -> list[float]:
    """By the definition, one sum after the other."""
    n = len(line)
    ranges = [range(k + exclusive, n) if reverse else range(k + 1 - exclusive) for k in range(n)]
    return [float(sum((Fraction(line[i]) for i in r), Fraction(0))) for r in ranges]


def _products(line: list[Any], exclusive: bool = False, reverse: bool = False) -> list[float]:
    n = len(line)
    ranges = [range(k + exclusive, n) if reverse else range(k + 1 - exclusive) for k in range(n)]
    return [math.prod(line[i] for i in r) for r in ranges]


def _recurrence(a: Any, b: Any, axis: int = -1, reverse: bool = False) -> Any:
    """By the definition, along the last axis."""
    a, b = (np.moveaxis(x, axis, -1) for x in (a, b))
    out = np.zeros(b.shape, b.dtype)
    for place in np.ndindex(b.shape[:-1]):
        value = 0
        for k in reversed(range(b.shape[-1])) if reverse else range(b.shape[-1]):
            value = out[(*place, k)] = a[(*place, k)] * value + b[(*place, k)]
    return np.moveaxis(out, -1, axis)


def _order(line: list[Any], descending: bool = False) -> list[int]:
    """By Python's sort, which is stable; a nan is above all."""
    return sorted(range(len(line)), key=lambda i: _rank(line[i]), reverse=descending) if not descending else _down(line)


def _down(line: list[Any]) -> list[int]:
    return sorted(range(len(line)), key=lambda i: tuple(-part for part in _rank(line[i])))


def _rank(value: Any) -> tuple[Any, Any]:
    return (1, 0) if value != value else (0, float(value))


_ZEROS = np.array([[2.0, 0.0, 3.0, 0.5], [0.0, 1.5, 0.0, 2.0], [1.0, 2.0, -3.0, 0.0]])
_EDGES = [[2.0, np.nan, 1.0, 2.0, np.inf], [0.0, -0.0, np.nan, np.nan, -np.inf], [1.0, 1.0, 1.0, 0.5, 0.5]]

SAMPLES = [
    Sample("cumsum", "last", halves((2, 5)), _line_by_line(_sums), exact=True),
    Sample("cumsum", "middle, exclusive", normal((2, 3, 2)), _line_by_line(_sums), axis=1, exclusive=True),
    Sample("cumsum", "reverse", normal((4, 2)), _line_by_line(_sums), axis=0, reverse=True),
    Sample("cumsum", "both", halves((2, 4)), _line_by_line(_sums), exclusive=True, reverse=True, exact=True),
    Sample("cumsum", "empty axis", normal((2, 0)), lambda x, **_: x, exclusive=True),
    Sample(
        "cumsum",
        "beyond int32",
        given(np.full(3, 2**31 - 1, np.int32)),
        lambda x: np.cumsum(x.astype(int), axis=-1),
        order=0,
    ),
    Sample(
        "cumsum",
        "nan and infinity",
        given([[1.0, np.inf, 2.0, -np.inf], [np.nan, 1.0, 1.0, 1.0]]),
        gives([[0.0, 1.0, np.inf, np.inf], [0.0, np.nan, np.nan, np.nan]]),
        exclusive=True,
        order=0,
    ),
    Sample("cumprod", "middle", normal((2, 4, 2)), _line_by_line(_products), axis=1),
    Sample("cumprod", "zeros, exclusive", given(_ZEROS), _line_by_line(_products), exclusive=True),
    Sample("cumprod", "zeros, reverse", given(_ZEROS), _line_by_line(_products), reverse=True),
    Sample("cumprod", "exact", halves((5,)), _line_by_line(_products), exact=True),
    Sample("cumprod", "empty axis", normal((2, 0)), lambda x, **_: x, reverse=True),
    Sample(
        "cumprod", "integers", given(np.full(3, 2**20, np.int32)), lambda x: np.cumprod(x.astype(int), axis=-1), order=0
    ),
    Sample("cumprod", "infinite", given([np.inf, 2.0, 0.0, 1.0]), gives([np.inf, np.inf, np.nan, np.nan]), order=0),
    Sample("linear_recurrence", "last", normal((2, 5), (2, 5)), _recurrence),
    Sample("linear_recurrence", "reverse", normal((4, 2), (4, 2)), _recurrence, axis=0, reverse=True),
    Sample("linear_recurrence", "exact", halves((4,), (4,)), _recurrence, exact=True),
    Sample("linear_recurrence", "empty axis", normal((2, 0), (2, 0)), lambda a, b: b),
    Sample("linear_recurrence", "integers", given([2, 3, 4], [1, 1, 1]), gives([1, 4, 17]), order=0),
    Sample("reduce_prod", "outer two", normal((2, 3, 2)), lambda x, axis: x.prod((0, 2)), axis=(2, 0)),
    Sample("reduce_prod", "zeros, kept", given(_ZEROS), np.prod, axis=-1, keepdims=True),
    Sample("reduce_prod", "exact", halves((2, 2)), np.prod, exact=True),
    Sample("reduce_prod", "empty axis", normal((2, 0)), gives(np.ones(2)), axis=1),
    Sample("reduce_prod", "integers", given(np.full(3, 2**20, np.int32)), gives(2**60), order=0),
    Sample("argsort", "last", distinct((2, 7)), _line_by_line(_order), exact=True),
    Sample("argsort", "middle", normal((2, 5, 2)), _line_by_line(_order), axis=1, descending=True),
    Sample("argsort", "edges", given(_EDGES), _line_by_line(_order), order=0),
    Sample("argsort", "edges, descending", given(_EDGES), _line_by_line(_order), descending=True, order=0),
    Sample("argsort", "ties", lambda rng: (rng.integers(0, 3, (2, 9)),), _line_by_line(_order), order=0),
    Sample("argsort", "mask", given([True, False, True, False]), _line_by_line(_order), descending=True, order=0),
    Sample("argsort", "empty axis", normal((2, 0)), gives(np.zeros((2, 0), int)), order=0),
]

BAD_CALLS = [
    BadCall("cumsum", "mask", given(np.ones(3) > 0), "must be a tensor of numbers"),
    BadCall("cumsum", "scalar", given(np.ones(())), "it is a scalar"),
    BadCall("cumprod", "mask", given(np.ones(3) > 0), "must be a tensor of numbers"),
    BadCall("linear_recurrence", "shapes", given(np.ones(3), np.ones(4)), r"a is \(3,\) but b is \(4,\)"),
    BadCall("reduce_prod", "twice", given(np.ones((2, 3))), "names an axis twice", axis=(1, -1)),
    BadCall("argsort", "no such axis", given(np.ones((2, 3))), "axis 2 is out of range", axis=2),
]
