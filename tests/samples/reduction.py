"""Samples: reductions along axes, and the normalised exponentials."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, distinct, given, gives, halves, normal


def _over(f: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    """A reduction by f, which gets the elements of one cell of the result as a list."""

    def reference(x: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
        axes = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
        axes = [a % x.ndim for a in axes]
        out = np.empty([1 if a in axes else n for a, n in enumerate(x.shape)])
        for index in np.ndindex(out.shape):
            cell = x[tuple(slice(None) if a in axes else i for a, i in enumerate(index))]
            out[index] = f(list(cell.flat))
        return out if keepdims else out.reshape([n for a, n in enumerate(x.shape) if a not in axes])

    return reference


def _along(f: Callable[..., Any]) -> Callable[..., Any]:
    """f of each line along an axis, given as a list from every operand, gives that line of the result."""

    def reference(*xs: Any, axis: int = -1) -> Any:
        lines = [np.moveaxis(x, axis, -1) for x in xs]
        out = np.empty(lines[0].shape)
        for index in np.ndindex(out.shape[:-1]):
            out[index] = f(*(list(line[index]) for line in lines))
        return np.moveaxis(out, -1, axis)

    return reference


def _argmax(x: Any, *, axis: int = -1, keepdims: bool = False) -> Any:
    first = _over(lambda cell: cell.index(max(cell)))(x, axis=axis, keepdims=keepdims)
    return first.astype(np.int64)


def _softmax(line: list[float]) -> list[float]:
    total = math.fsum(math.exp(v) for v in line)
    return [math.exp(v) / total for v in line]


def _log_softmax(line: list[float]) -> list[float]:
    total = math.log(math.fsum(math.exp(v) for v in line))
    return [v - total for v in line]


def _softmax_grad(y: list[float], g: list[float]) -> Any:
    """By the whole Jacobian, diag(y) - y yᵀ."""
    return (np.diag(y) - np.outer(y, y)) @ np.array(g)


def _log_softmax_grad(y: list[float], g: list[float]) -> Any:
    """By the whole Jacobian, I - 1 ⊗ e^y, transposed."""
    return (np.eye(len(y)) - np.outer(np.ones(len(y)), np.exp(y))).T @ np.array(g)


_sum = _over(math.fsum)
_mean = _over(lambda cell: math.fsum(cell) / len(cell))
_max = _over(max)
_min = _over(min)
_MASK = np.arange(24).reshape(2, 3, 4) % 12 < 8
_NUMBERS = np.array([[0.0, -0.0, 0.0], [0.0, np.nan, 0.0], [1.0, np.inf, -1e-30]])


def _ints(*shape: int, dtype: Any = np.int64) -> Callable[..., Any]:
    return lambda rng: (rng.integers(-9, 9, shape).astype(dtype),)


SAMPLES = [
    Sample("sum", "cube", normal((2, 3, 4)), _sum),
    Sample("sum", "scalar", normal(()), _sum),
    Sample("sum", "empty", normal((2, 0)), _sum),
    Sample("sum", "exact", halves((2, 3)), _sum, exact=True),
    Sample("sum", "exact and empty", halves((0,)), _sum, exact=True),
    Sample("sum", "integers", _ints(3, 2), _sum, order=0),
    Sample("reduce_sum", "all", halves((2, 3)), _sum, exact=True),
    Sample("reduce_sum", "scalar", normal(()), _sum),
    Sample("reduce_sum", "first", halves((3, 4)), _sum, axis=0, exact=True),
    Sample("reduce_sum", "last, kept", halves((3, 4)), _sum, axis=-1, keepdims=True, exact=True),
    Sample("reduce_sum", "outer two", normal((2, 3, 4)), _sum, axis=(0, 2)),
    Sample("reduce_sum", "outer two, kept, unsorted", normal((2, 3, 4)), _sum, axis=(-1, 0), keepdims=True),
    Sample("reduce_sum", "leading two", normal((2, 3, 4)), _sum, axis=(0, 1)),
    Sample("reduce_sum", "trailing two", normal((2, 3, 4)), _sum, axis=[1, 2]),
    Sample("reduce_sum", "no axis", normal((2, 3)), _sum, axis=()),
    Sample("reduce_sum", "empty axis", halves((0, 3)), _sum, axis=0, exact=True),
    Sample("reduce_sum", "empty result", normal((0, 3)), _sum, axis=1),
    Sample("reduce_sum", "integers", _ints(3, 4, dtype=np.int32), _sum, axis=1, order=0),
    Sample("reduce_sum", "beyond int32", given(np.full(3, 2**31 - 1, np.int32)), gives(3 * 2**31 - 3), order=0),
    Sample("reduce_mean", "all", normal((2, 3)), _mean),
    Sample("reduce_mean", "scalar", normal(()), _mean),
    Sample("reduce_mean", "first", halves((3, 4)), _mean, axis=0, exact=True),
    Sample("reduce_mean", "outer two, kept", normal((2, 3, 4)), _mean, axis=(0, -1), keepdims=True),
    Sample("reduce_mean", "empty result", normal((3, 0)), _mean, axis=0),
    Sample("reduce_max", "all", distinct((2, 3)), _max, exact=True),
    Sample("reduce_max", "scalar", distinct(()), _max),
    Sample("reduce_max", "first", distinct((3, 4)), _max, axis=0),
    Sample("reduce_max", "last, kept", distinct((3, 4)), _max, axis=-1, keepdims=True),
    Sample("reduce_max", "outer two", distinct((2, 3, 4)), _max, axis=(2, 0)),
    Sample("reduce_max", "empty result", distinct((0, 3)), _max, axis=1),
    Sample("reduce_max", "ties", given([[1.0, 2.0, 2.0], [0.5, 0.5, 0.5]]), _max, axis=1, order=0, exact=True),
    Sample("reduce_max", "integers", _ints(3, 4), _max, axis=0, order=0),
    Sample(
        "reduce_max",
        "infinities and nan",
        given([[-np.inf, -np.inf], [np.inf, 1.0], [np.nan, 1.0], [1.0, np.nan]]),
        gives([-np.inf, np.inf, np.nan, np.nan]),
        axis=1,
        order=0,
    ),
    Sample("argmax", "last", distinct((3, 4)), _argmax, exact=True),
    Sample("argmax", "first, kept", distinct((3, 4)), _argmax, axis=0, keepdims=True),
    Sample("argmax", "ties", given([[1.0, 2.0, 2.0], [0.5, 0.5, 0.5]]), _argmax, order=0, exact=True),
    Sample("argmax", "integers", _ints(3, 4, dtype=np.int32), _argmax, axis=-2, order=0),
    Sample("argmax", "empty result", distinct((0, 3)), _argmax),
    Sample("reduce_min", "outer two, kept", distinct((2, 3, 4)), _min, axis=(2, 0), keepdims=True, exact=True),
    Sample("reduce_min", "least integers", given([[-(2**63), 5], [2**63 - 1, 3]]), _min, axis=1, order=0),
    Sample(
        "reduce_min",
        "infinities, nan and ties",
        given([[np.inf, np.inf], [-np.inf, 1.0], [np.nan, 1.0], [1.0, np.nan], [2.0, 2.0]]),
        gives([np.inf, -np.inf, np.nan, np.nan, 2.0]),
        axis=1,
        order=0,
    ),
    Sample("argmin", "last", distinct((3, 4)), lambda x: np.argmin(x.astype(float), axis=-1), exact=True),
    Sample(
        "argmin",
        "edges, kept",
        given([[2.0, 1.0, 1.0], [1.0, np.nan, np.nan], [np.inf, -np.inf, 0.0]]),
        gives([[1], [1], [1]]),
        axis=1,
        keepdims=True,
        order=0,
    ),
    Sample("argmin", "least integers", given([[5, -(2**63)], [2**63 - 1, 2**63 - 1]]), gives([1, 0]), order=0),
    Sample("reduce_any", "mask", given(_MASK), np.any, axis=(0, 2), order=0),
    Sample("reduce_any", "numbers, kept", given(_NUMBERS), np.any, axis=1, keepdims=True, order=0),
    Sample("reduce_any", "empty", given(np.zeros((2, 0), bool)), np.any, axis=1, order=0),
    Sample("reduce_all", "mask", given(_MASK), np.all, axis=(0, 2), order=0),
    Sample("reduce_all", "numbers, kept", given(_NUMBERS), np.all, axis=1, keepdims=True, order=0),
    Sample("reduce_all", "empty", given(np.zeros((2, 0), bool)), np.all, axis=1, order=0),
    Sample("softmax", "last", normal((3, 4)), _along(_softmax)),
    Sample("softmax", "first", normal((3, 4)), _along(_softmax), axis=0),
    Sample("softmax", "middle", normal((2, 3, 2)), _along(_softmax), axis=-2),
    Sample("softmax", "one", normal((3, 1)), _along(_softmax)),
    Sample("softmax", "empty result", normal((0, 3)), _along(_softmax)),
    Sample("softmax", "empty axis", normal((2, 0)), lambda x, axis=-1: x),
    Sample("softmax", "empty axis within", normal((2, 0, 3)), lambda x, axis=-1: x, axis=1),
    Sample("softmax", "nothing along the first", normal((0, 3)), lambda x, axis=-1: x, axis=0),
    Sample(
        "softmax",
        "far apart",
        given([[1e4, 0.0, -1e4], [1e30, 1e30, -1e30], [-np.inf, 0.0, 0.0]]),
        gives([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]),
        order=0,
    ),
    Sample("log_softmax", "last", normal((3, 4)), _along(_log_softmax)),
    Sample("log_softmax", "first", normal((3, 4)), _along(_log_softmax), axis=0),
    Sample("log_softmax", "middle", normal((2, 3, 2)), _along(_log_softmax), axis=-2),
    Sample("log_softmax", "one", normal((3, 1)), _along(_log_softmax)),
    Sample("log_softmax", "empty result", normal((0, 3)), _along(_log_softmax)),
    Sample("log_softmax", "empty axis", normal((2, 0)), lambda x, axis=-1: x),
    Sample("log_softmax", "empty axis within", normal((2, 0, 3)), lambda x, axis=-1: x, axis=1),
    Sample("log_softmax", "nothing along the first", normal((0, 3)), lambda x, axis=-1: x, axis=0),
    Sample(
        "log_softmax",
        "far apart",
        given([[1e4, 0.0, -1e4], [1e4, 1e4, -np.inf]]),
        gives([[0.0, -1e4, -2e4], [-math.log(2), -math.log(2), -np.inf]]),
        order=0,
    ),
    Sample("softmax_grad", "last", halves((3, 4), (3, 4)), _along(_softmax_grad), axis=-1, exact=True),
    Sample("softmax_grad", "first", normal((3, 4), (3, 4)), _along(_softmax_grad), axis=0),
    Sample("log_softmax_grad", "last", normal((3, 4), (3, 4)), _along(_log_softmax_grad), axis=-1),
    Sample("log_softmax_grad", "first", normal((3, 4), (3, 4)), _along(_log_softmax_grad), axis=0),
]

_matrix = np.ones((2, 3))
_empty = np.ones((2, 0))

BAD_CALLS = [
    BadCall("sum", "mask", given(_matrix > 0), "must be a tensor of numbers but is .* bool"),
    BadCall("reduce_sum", "no such axis", given(_matrix), r"axis 2 is out of range .* rank 2", axis=2),
    BadCall("reduce_sum", "twice", given(_matrix), "names an axis twice", axis=(1, -1)),
    BadCall("reduce_sum", "scalar", given(np.ones(())), "it is a scalar", axis=0),
    BadCall("reduce_sum", "axis no int", given(_matrix), "axis must be an int but is 1.5", axis=(1.5,)),
    BadCall("reduce_sum", "no flag", given(_matrix), "keepdims must be True or False but is 'no'", keepdims="no"),
    BadCall("reduce_sum", "half a flag", given(_matrix), "keepdims must be True or False but is 0.5", keepdims=0.5),
    BadCall("reduce_sum", "a list for a flag", given(_matrix), r"keepdims must be True or False", keepdims=[1]),
    BadCall("reduce_mean", "integers", given(np.arange(3)), "must be a float tensor but is .* int64"),
    BadCall("reduce_mean", "empty", given(_empty), r"x is \(2, 0\), so the mean over axis 1", axis=1),
    BadCall("reduce_mean", "empty, all", given(_empty), r"the mean over axes \(0, 1\) needs at least one element"),
    BadCall("reduce_max", "empty", given(_empty), r"x is \(2, 0\), so the maximum over axis 1", axis=-1),
    BadCall("reduce_max", "mask", given(_matrix > 0), "must be a tensor of numbers"),
    BadCall("argmax", "empty", given(_empty), r"x is \(2, 0\), so the argmax over axis 1"),
    BadCall("argmax", "scalar", given(np.ones(())), "it is a scalar"),
    BadCall("argmax", "mask", given(_matrix > 0), "must be a tensor of numbers"),
    BadCall("reduce_min", "empty", given(_empty), r"x is \(2, 0\), so the minimum over axis 1", axis=-1),
    BadCall("reduce_min", "mask", given(_matrix > 0), "must be a tensor of numbers"),
    BadCall("argmin", "empty", given(_empty), r"x is \(2, 0\), so the argmin over axis 1"),
    BadCall("reduce_any", "no such axis", given(_matrix), r"axis 2 is out of range", axis=2),
    BadCall("reduce_all", "twice", given(_matrix), "names an axis twice", axis=(1, -1)),
    BadCall("softmax", "integers", given(np.arange(3)), "must be a float tensor but is .* int64"),
    BadCall("softmax", "no such axis", given(_matrix), "axis -3 is out of range", axis=-3),
    BadCall("softmax_grad", "shapes", given(_matrix, np.ones((3, 2))), r"y is \(2, 3\) but g is", axis=0),
    BadCall("log_softmax_grad", "ranks", given(_matrix, np.ones(3)), "ranks 2 and 1 differ", axis=0),
]
