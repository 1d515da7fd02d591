"""Samples: masks, dtypes, and tensors made from nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, given, gives, halves, normal


def _with_ties(rng: np.random.Generator) -> tuple[Any, ...]:
    return rng.integers(0, 3, (3, 4)) / 1.0, rng.integers(0, 3, (3, 4)) / 1.0


def _masks(rng: np.random.Generator) -> tuple[Any, ...]:
    return np.array([True, True, False, False]), np.array([True, False, True, False])


def _select(rng: np.random.Generator) -> tuple[Any, ...]:
    return (rng.random((2, 3)) < 0.5, *normal((2, 3), (2, 3))(rng))


def _pick(mask: Any, x: Any, y: Any) -> Any:
    return np.array([a if m else b for m, a, b in zip(mask.flat, x.flat, y.flat)]).reshape(mask.shape)


def _iota(shape: tuple[int, ...], axis: int, dtype: str = "int64") -> Any:
    return np.indices(shape)[axis].astype(dtype)


def _special(rng: np.random.Generator) -> tuple[Any, ...]:
    return (np.array([1.0, np.inf, -np.inf, np.nan, -0.0]),)


SAMPLES = [
    Sample("less", "ties", _with_ties, lambda x, y: np.array(x < y), order=0, exact=True),
    Sample("less_equal", "ties", _with_ties, lambda x, y: np.array(x <= y), order=0, exact=True),
    Sample("equal", "ties", _with_ties, lambda x, y: np.array(x == y), order=0, exact=True),
    Sample("equal", "masks", _masks, gives([True, False, False, True]), order=0),
    Sample("less", "integers", given(np.arange(3), [1, 1, 1]), gives([True, False, False]), order=0),
    Sample("logical_or", "all", _masks, gives([True, True, True, False]), order=0),
    Sample("logical_xor", "all", _masks, gives([False, True, True, False]), order=0),
    Sample("isnan", "edges", _special, gives([False, False, False, True, False]), order=0),
    Sample("isnan", "integers", given(np.arange(3)), gives(np.zeros(3, bool)), order=0),
    Sample("isinf", "edges", _special, gives([False, True, True, False, False]), order=0),
    Sample("isinf", "integers", given(np.arange(3)), gives(np.zeros(3, bool)), order=0),
    Sample("isfinite", "edges", _special, gives([True, False, False, False, True]), order=0),
    Sample("isfinite", "integers", given(np.arange(3)), gives(np.ones(3, bool)), order=0),
    Sample("isfinite", "exact", halves((3,)), gives(np.ones(3, bool)), order=0, exact=True),
    Sample("logical_and", "all", _masks, gives([True, False, False, False]), order=0),
    Sample("logical_not", "all", lambda rng: _masks(rng)[:1], gives([False, False, True, True]), order=0),
    Sample("select", "floats", _select, _pick),
    Sample("select", "exact", lambda rng: (rng.random((5,)) < 0.5, *halves((5,), (5,))(rng)), _pick, exact=True),
    Sample("select", "integers", given([True, False], [1, 2], [3, 4]), _pick, order=0),
    Sample("select", "masks", lambda rng: tuple(rng.random((3, 9)) < 0.5), _pick, order=0),
    Sample(
        "select",
        "the other side may be anything",
        given([True, False], [1.0, np.nan], [np.inf, 2.0]),
        gives([1.0, 2.0]),
        order=0,
    ),
    Sample("cast", "up", normal((3,)), lambda x, dtype: x, dtype="float64"),
    Sample("cast", "to integer", given([-1.7, -0.2, 0.9, 2.5]), gives([-1, 0, 0, 2]), dtype="int64", order=0),
    Sample("cast", "to bool", given([0.0, 0.5, -2.0]), gives([False, True, True]), dtype="bool", order=0),
    Sample("cast", "from integer", given(np.arange(3)), lambda x, dtype: x * 1.0, dtype="float32", order=0),
    Sample("cast", "from bool", lambda rng: _masks(rng)[:1], gives([1, 1, 0, 0]), dtype="int32", order=0),
    Sample("detach", "matrix", normal((2, 3)), lambda x: x, order=0),
    Sample("full", "matrix", given(), gives([[2.5] * 3] * 2), shape=(2, 3), value=2.5, order=0),
    Sample("full", "scalar", given(), gives(1.0), shape=(), value=1, order=0),
    Sample("full", "integers", given(), gives([7, 7]), shape=(2,), value=7, dtype="int64", order=0),
    Sample("iota", "rows", given(), _iota, shape=(2, 3), axis=0, order=0),
    Sample("iota", "vector", given(), gives(np.arange(3)), shape=(3,), order=0),
    Sample("iota", "columns", given(), _iota, shape=(2, 3), axis=-1, order=0),
    Sample(
        "iota",
        "floats",
        given(),
        _iota,
        shape=(4,),
        axis=0,
        dtype="float64",
        order=0,
        call=lambda ops, **s: ops.cast(ops.iota(**s), dtype=ops.dtype),
    ),
]

BAD_CALLS = [
    BadCall(
        "less", "masks", given(np.ones(2, bool), np.ones(2, bool)), r"x must be a tensor of numbers but is \(2,\) bool"
    ),
    BadCall("less", "shapes", given(np.ones(2), np.ones(3)), r"axis 0 has 2 and 3"),
    BadCall("isnan", "masks", given(np.ones(3, bool)), r"x must be a tensor of numbers but is \(3,\) bool"),
    BadCall("logical_and", "floats", given(np.ones(2), np.ones(2)), r"x must be a boolean mask but is \(2,\) float32"),
    BadCall("logical_not", "floats", given(np.ones(2)), r"x must be a boolean mask"),
    BadCall("select", "mask dtype", given(np.ones(2), np.ones(2), np.ones(2)), r"mask must be a boolean mask"),
    BadCall("select", "mask shape", given(np.ones(3, bool), np.ones(2), np.ones(2)), r"mask is \(3,\) but x is \(2,\)"),
    BadCall("select", "dtypes", given(np.ones(2, bool), np.ones(2), np.arange(2)), r"x is float32 but y is int64"),
    BadCall("iota", "no axis", given(), r"the axis is missing: of 2 axes one must be named", shape=(1, 3)),
    BadCall("iota", "axis", given(), r"axis 2 is out of range for a tensor of rank 2", shape=(2, 3), axis=2),
    BadCall("full", "negative", given(), r"sizes that are at least 0 but is \(-1,\)", shape=(-1,), value=0),
]
