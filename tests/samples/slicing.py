"""Samples: tensors joined, cut and padded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.samples.layout import ints, made, mask, ones
from tests.samples.sample import BadCall, Sample, given, halves, normal


def _concat(xs: Any, *, axis: int = 0) -> Any:
    axis %= xs[0].ndim
    entries = [np.take(x, i, axis) for x in xs for i in range(x.shape[axis])]
    shape = list(xs[0].shape)
    shape[axis] = len(entries)
    return made(shape, xs[0].dtype, lambda i: entries[i[axis]][i[:axis] + i[axis + 1 :]])


def _stack(xs: Any, *, axis: int = 0) -> Any:
    axis %= xs[0].ndim + 1
    shape = (*xs[0].shape[:axis], len(xs), *xs[0].shape[axis:])
    return made(shape, xs[0].dtype, lambda i: xs[i[axis]][i[:axis] + i[axis + 1 :]])


def _slice(x: Any, *, axis: int, start: int, length: int, step: int = 1) -> Any:
    return np.take(x, [start + i * step for i in range(length)], axis)


def _split(x: Any, *, sizes: Any, axis: int = 0) -> Any:
    return tuple(_slice(x, axis=axis, start=sum(sizes[:i]), length=size) for i, size in enumerate(sizes))


def _pad(x: Any, *, padding: Any, value: float = 0.0, interior: Any = None) -> Any:
    interior = interior or (0,) * x.ndim
    shape = [b + n + (n - 1) * i * (n > 0) + a for n, (b, a), i in zip(x.shape, padding, interior)]
    out = np.full(shape, value, dtype=x.dtype)
    for index in np.ndindex(x.shape):
        out[tuple(b + k * (i + 1) for k, (b, _), i in zip(index, padding, interior))] = x[index]
    return out


def _list(*shapes: tuple[int, ...], make: Any = halves) -> Callable[..., Any]:
    """One operand that is a list of arrays."""
    return lambda rng: (list(make(*shapes)(rng)),)


SAMPLES = [
    Sample("concat", "vectors", _list((2,), (3,)), _concat, exact=True),
    Sample("concat", "rows", _list((2, 3), (1, 3), (2, 3), make=normal), _concat, axis=0),
    Sample("concat", "columns", _list((2, 3), (2, 1), make=normal), _concat, axis=-1),
    Sample("concat", "one", _list((2, 3), make=normal), _concat, axis=1),
    Sample("concat", "one of them empty", _list((2, 0), (2, 2), make=normal), _concat, axis=1),
    Sample("concat", "integers", given([np.arange(2), np.arange(3)]), _concat, order=0),
    Sample("concat", "one twice", normal((2, 3)), lambda x: _concat([x, x]), call=lambda ops, x: ops.concat([x, x])),
    Sample("stack", "front", _list((2, 3), (2, 3)), _stack, exact=True),
    Sample("stack", "middle", _list((2, 3), (2, 3), (2, 3), make=normal), _stack, axis=1),
    Sample("stack", "back", _list((2, 3), (2, 3), make=normal), _stack, axis=-1),
    Sample("stack", "scalars", _list((), (), make=normal), _stack),
    Sample("slice", "front", halves((5, 2)), _slice, axis=0, start=0, length=2, exact=True),
    Sample("slice", "back", normal((2, 5)), _slice, axis=-1, start=3, length=2),
    Sample("slice", "all", normal((3,)), _slice, axis=0, start=0, length=3),
    Sample("slice", "steps", normal((2, 7)), _slice, axis=1, start=1, length=3, step=2),
    Sample("slice", "steps to the end", halves((7,)), _slice, axis=0, start=0, length=3, step=3, exact=True),
    Sample("slice", "one", normal((2, 3, 2)), _slice, axis=1, start=2, length=1, step=5),
    Sample("slice", "nothing", normal((3, 2)), _slice, axis=0, start=3, length=0, step=2),
    Sample("slice", "mask", mask(4), _slice, axis=0, start=1, length=2, order=0),
    Sample("split", "rows", halves((5, 2)), _split, sizes=(2, 3), exact=True),
    Sample("split", "columns", normal((2, 6)), _split, sizes=[1, 2, 3], axis=-1),
    Sample("split", "nothing in one", normal((2,)), _split, sizes=(0, 2)),
    Sample("pad", "ends", halves((2, 3)), _pad, padding=((1, 0), (0, 2)), exact=True),
    Sample("pad", "value", halves((2,)), _pad, padding=[(1, 2)], value=-1.5, exact=True),
    Sample("pad", "-inf", normal((2,)), _pad, padding=[(1, 0)], value=-np.inf, order=0),
    Sample("pad", "between", normal((3, 2)), _pad, padding=((0, 0), (0, 0)), interior=(2, 1)),
    Sample("pad", "both", normal((2, 3)), _pad, padding=((1, 2), (0, 1)), interior=(1, 0), value=2.0),
    Sample("pad", "nothing", normal((2, 3)), _pad, padding=((0, 0), (0, 0))),
    Sample("pad", "empty", normal((0, 2)), _pad, padding=((1, 1), (0, 0)), interior=(2, 0)),
    Sample("pad", "scalar", normal(()), _pad, padding=()),
    Sample("pad", "integers", ints(3), _pad, padding=((1, 1),), value=7, order=0),
]


def _all_ones(*shapes: tuple[int, ...]) -> Callable[[], tuple[Any, ...]]:
    return lambda: ([np.ones(shape) for shape in shapes],)


_part = {"axis": 0, "start": 0, "length": 1}

BAD_CALLS = [
    BadCall("concat", "none", given([]), "at least one tensor is needed"),
    BadCall("concat", "scalars", _all_ones((), ()), "it is a scalar"),
    BadCall("concat", "ranks", _all_ones((2, 3), (3,)), r"xs\[1\] is \(3,\): ranks 2 and 1 differ"),
    BadCall("concat", "sizes", _all_ones((2, 3), (2, 3), (2, 4)), r"xs\[2\] is \(2, 4\): axis 1 has 3 and 4"),
    BadCall("concat", "dtypes", given([np.ones(2), np.arange(2)]), r"xs\[0\] is float32 but xs\[1\] is int64"),
    BadCall("stack", "none", given([]), "at least one tensor is needed"),
    BadCall("stack", "shapes", _all_ones((2, 3), (2, 4)), r"xs\[0\] is \(2, 3\) but xs\[1\] is \(2, 4\)"),
    BadCall("stack", "no such axis", _all_ones((2,), (2,)), "axis 2 is out of range", axis=2),
    BadCall("slice", "too long", ones(3), "needs 4 entries but there are 3", {**_part, "start": 1, "length": 3}),
    BadCall("slice", "steps", ones(5), "needs 7 entries but there are 5", {**_part, "length": 3, "step": 3}),
    BadCall("slice", "behind the end", ones(3), "needs 4 entries", {**_part, "start": 4, "length": 0}),
    BadCall("slice", "before the start", ones(3), "start must be at least 0", {**_part, "start": -1}),
    BadCall("slice", "negative", ones(3), "length must be at least 0", {**_part, "length": -1}),
    BadCall("slice", "step 0", ones(3), "step must be at least 1", {**_part, "step": 0}),
    BadCall("slice", "no int", ones(3), "length must be an integer but is 1.5", {**_part, "length": 1.5}),
    BadCall("split", "sizes", ones(5), r"sizes \(2, 2\) add up to 4 but axis 0 of x has 5", sizes=(2, 2)),
    BadCall("split", "negative", ones(2), "length must be at least 0", sizes=(-1, 3)),
    BadCall("pad", "rank", ones(2, 3), r"padding has 1 entries but x is \(2, 3\)", padding=((1, 1),)),
    BadCall("pad", "no pairs", ones(2), r"must be a sequence with a pair", padding=(1, 1)),
    BadCall("pad", "negative", ones(2), "to take cells away use ops.slice", padding=((0, -1),)),
    BadCall("pad", "no int", ones(2), "padding must be an integer but is 0.5", padding=((0, 0.5),)),
    BadCall("pad", "between", ones(2), "interior must be at least 0", padding=((0, 0),), interior=(-1,)),
    BadCall("pad", "between rank", ones(2), "interior has 2 entries", padding=((0, 0),), interior=(0, 0)),
    BadCall("pad", "value", given(np.arange(2)), "value 0.5 is not a value of int64", padding=((1, 0),), value=0.5),
]
