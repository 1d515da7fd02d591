"""Samples: reading entries at indices, and adding to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, given, gives, halves


def _gathered(x: Any, idx: Any, mode: str = "raise") -> Any:
    idx = np.asarray(idx)
    out = np.zeros((*idx.shape, *x.shape[1:]), x.dtype)
    for position in np.ndindex(idx.shape):
        if 0 <= idx[position] < len(x):
            out[position] = x[idx[position]]
    return out


def _added(x: Any, v: Any, idx: Any, mode: str = "raise") -> Any:
    idx, out = np.asarray(idx), x.copy()
    for position in np.ndindex(idx.shape):
        if 0 <= idx[position] < len(x):
            out[idx[position]] = out[idx[position]] + v[position]
    return out


def _reading(
    shape: tuple[int, ...], idx: Any, dtype: Any = np.int64
) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    """A tensor to read and the indices at which it is read."""
    return lambda rng: (*halves(shape)(rng), np.array(idx, dtype))


def _adding(
    shape: tuple[int, ...], idx: Any, dtype: Any = np.int64
) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    """A tensor, the updates and the indices at which they are added."""
    indices = np.array(idx, dtype)
    return lambda rng: (*halves(shape, (*indices.shape, *shape[1:]))(rng), indices)


def _at_static_index(op: str) -> Callable[..., Any]:
    """The form of a scatter whose index is an int, which is the third argument."""
    return lambda ops, x, v, *, index, mode="raise": getattr(ops, op)(x, v, index, mode=mode)


_ZERO = {"mode": "zero"}

SAMPLES = [
    Sample("gather_rows", "matrix", _reading((4, 3), [2, 0]), _gathered, exact=True),
    Sample("gather_rows", "repeated", _reading((4, 3), [1, 1, 3, 1], np.int32), _gathered, exact=True),
    Sample("gather_rows", "one row", _reading((4, 3), 2), _gathered, exact=True),
    Sample("gather_rows", "indices of a batch", _reading((3, 2), [[0, 2], [2, 2]]), _gathered),
    Sample("gather_rows", "rank 3", _reading((3, 2, 2), [2, 1]), _gathered),
    Sample("gather_rows", "vector", _reading((5,), [4, 0, 4]), _gathered),
    Sample("gather_rows", "no indices", _reading((3, 2), np.zeros((0,))), _gathered),
    Sample("gather_rows", "no rows", _reading((0, 2), np.zeros((0,))), _gathered),
    Sample("gather_rows", "empty rows", _reading((3, 0), [1, 2]), _gathered),
    Sample("gather_rows", "zero mode", _reading((3, 2), [-1, 0, 3, 2, 2, 99]), _gathered, _ZERO, exact=True),
    Sample("gather_rows", "zero mode, one row", _reading((3, 2), 3), _gathered, _ZERO, exact=True),
    Sample("gather_rows", "zero mode, no rows", _reading((0, 2), [0, 1]), _gathered, _ZERO),
    Sample("gather_rows", "integers", given([[1, 2], [3, 4]], [1, 1, 0]), gives([[3, 4], [3, 4], [1, 2]]), order=0),
    Sample(
        "gather_rows",
        "masks in zero mode",
        given([True, False], [0, 1, 2]),
        gives([True, False, False]),
        _ZERO,
        order=0,
    ),
    Sample("gather_vec", "repeated", _reading((5,), [3, 0, 3]), _gathered, exact=True),
    Sample("gather_vec", "one entry", _reading((5,), 4, np.int32), _gathered, exact=True),
    Sample("gather_vec", "indices of a batch", _reading((4,), [[0, 1, 2], [3, 3, 3]]), _gathered),
    Sample("gather_vec", "zero mode", _reading((4,), [4, 3, -1]), _gathered, _ZERO, exact=True),
    Sample("gather_row", "first", lambda rng: halves((3, 2))(rng), lambda x, index: x[0], index=0, exact=True),
    Sample("gather_row", "last of rank 3", halves((3, 2, 2)), lambda x, index: x[2], index=2),
    Sample("gather_row", "of a vector", halves((3,)), lambda x, index: x[1], index=1),
    Sample("gather_row", "NumPy's integer", halves((3, 2)), lambda x, index: x[1], index=np.int64(1)),
    Sample("gather_row", "zero mode, in range", halves((3, 2)), lambda x, index, mode: x[1], index=1, **_ZERO),
    Sample("gather_row", "zero mode, above", halves((3, 2)), gives(np.zeros(2)), index=3, **_ZERO, exact=True),
    Sample("gather_row", "zero mode, below", halves((3, 2)), gives(np.zeros(2)), index=-1, **_ZERO),
    Sample("gather_scalar", "middle", halves((4,)), lambda x, index: x[2], index=2, exact=True),
    Sample("gather_scalar", "only", halves((1,)), lambda x, index: x[0], index=0),
    Sample("gather_scalar", "zero mode", halves((4,)), gives(np.zeros(())), index=4, **_ZERO, exact=True),
    Sample("scatter_add_row", "matrix", _adding((4, 3), [2, 0]), _added, exact=True),
    Sample("scatter_add_row", "repeated", _adding((3, 2), [1, 1, 2, 1], np.int32), _added, exact=True),
    Sample("scatter_add_row", "one update", _adding((3, 2), 1), _added, exact=True),
    Sample("scatter_add_row", "indices of a batch", _adding((3, 2), [[0, 2], [2, 2]]), _added),
    Sample("scatter_add_row", "rank 3", _adding((3, 2, 2), [2, 0, 2]), _added),
    Sample("scatter_add_row", "no updates", _adding((3, 2), np.zeros((0,))), _added),
    Sample("scatter_add_row", "no rows", _adding((0, 2), np.zeros((0,))), _added),
    Sample("scatter_add_row", "zero mode", _adding((3, 2), [-1, 0, 3, 0]), _added, _ZERO, exact=True),
    Sample("scatter_add_row", "zero mode, one update", _adding((3, 2), 5), _added, _ZERO),
    Sample("scatter_add_row", "integers", given([1, 2, 3], [10, 20], [2, 2]), gives([1, 2, 33]), order=0),
    Sample("scatter_add_vec", "repeated", _adding((5,), [3, 0, 3]), _added, exact=True),
    Sample("scatter_add_vec", "one update", _adding((5,), 4), _added, exact=True),
    Sample("scatter_add_vec", "zero mode", _adding((4,), [4, 3, -1, 3]), _added, _ZERO),
    Sample(
        "scatter_add_vec",
        "static index",
        halves((4,), ()),
        lambda x, v, index: x + v * np.eye(4)[2],
        index=2,
        call=_at_static_index("scatter_add_vec"),
        exact=True,
    ),
    Sample(
        "scatter_add_vec",
        "static index, zero mode",
        halves((4,), ()),
        lambda x, v, index, mode: x,
        index=7,
        **_ZERO,
        call=_at_static_index("scatter_add_vec"),
    ),
    Sample(
        "scatter_add_row",
        "static index",
        halves((3, 2), (2,)),
        lambda x, v, index: x + np.array([[0, 0], [0, 0], v]),
        index=2,
        call=_at_static_index("scatter_add_row"),
        exact=True,
    ),
    Sample(
        "scatter_add_row",
        "static index, rank 3",
        halves((2, 2, 2), (2, 2)),
        lambda x, v, index: x + np.array([v, np.zeros((2, 2))]),
        index=0,
        call=_at_static_index("scatter_add_row"),
    ),
    Sample(
        "scatter_add_row",
        "static index, zero mode",
        halves((3, 2), (2,)),
        lambda x, v, index, mode: x,
        index=-1,
        **_ZERO,
        call=_at_static_index("scatter_add_row"),
        exact=True,
    ),
]


_MATRIX, _VECTOR, _INDEX = np.ones((3, 2)), np.ones(4), np.array([0, 1])

BAD_CALLS = [
    BadCall("gather_rows", "float index", given(_MATRIX, np.ones(2)), "idx must be an integer tensor"),
    BadCall("gather_rows", "scalar", given(np.ones(()), _INDEX), "x must have a first axis to index"),
    BadCall("gather_rows", "mode", given(_MATRIX, _INDEX), r"did you mean 'zero'\?", mode="zeros"),
    BadCall("gather_vec", "matrix", given(_MATRIX, _INDEX), "x must have rank 1"),
    BadCall("gather_row", "above", given(_MATRIX), r"index 3 is out of range.* 0 … 2", index=3),
    BadCall("gather_row", "negative", given(_MATRIX), "index -1 is out of range", index=-1),
    BadCall("gather_row", "float", given(_MATRIX), "index must be an int but is 1.5", index=1.5),
    BadCall("gather_scalar", "above", given(_VECTOR), 'index 4 is out of range.*mode="zero"', index=4),
    BadCall("gather_scalar", "matrix", given(_MATRIX), "x must have rank 1", index=0),
    BadCall("scatter_add_row", "shape", given(_MATRIX, np.ones((2, 3)), _INDEX), r"takes v of shape \(2, 2\)"),
    BadCall("scatter_add_row", "rank", given(_MATRIX, np.ones(2), _INDEX), r"takes v of shape \(2, 2\)"),
    BadCall("scatter_add_row", "dtype", given(_MATRIX, np.ones((2, 2), np.int64), _INDEX), "v is int64"),
    BadCall("scatter_add_row", "float index", given(_MATRIX, _MATRIX, np.ones(3)), "index must be an integer tensor"),
    BadCall(
        "scatter_add_row",
        "static, above",
        given(_MATRIX, np.ones(2)),
        "index 3 is out of range",
        index=3,
        call=_at_static_index("scatter_add_row"),
    ),
    BadCall(
        "scatter_add_row",
        "static, shape",
        given(_MATRIX, np.ones(3)),
        r"index 1 into x of shape \(3, 2\) takes v of shape \(2,\)",
        index=1,
        call=_at_static_index("scatter_add_row"),
    ),
    BadCall("scatter_add_vec", "matrix", given(_MATRIX, np.ones((2, 2)), _INDEX), "x must have rank 1"),
    BadCall(
        "scatter_add_vec",
        "static, negative",
        given(_VECTOR, np.ones(())),
        "index -1 is out of range",
        index=-1,
        call=_at_static_index("scatter_add_vec"),
    ),
]
