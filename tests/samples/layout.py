"""Samples: shapes, axes and the order of elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, halves, normal


def _made(shape: Any, dtype: Any, source: Callable[[tuple[int, ...]], Any]) -> Any:
    """The array whose element at each index is source(index)."""
    out = np.empty(shape, dtype=dtype)
    for index in np.ndindex(out.shape):
        out[index] = source(index)
    return out


def _broadcast_to(x: Any, *, shape: Any) -> Any:
    added = len(shape) - x.ndim
    return _made(shape, x.dtype, lambda i: x[tuple(0 if n == 1 else k for n, k in zip(x.shape, i[added:]))])


def _reshaped(shape: Any) -> Callable[..., Any]:
    """To a shape that the sample writes out, whatever was left open in the call."""

    def reference(x: Any, **_: Any) -> Any:
        elements = iter([x[index] for index in np.ndindex(x.shape)])
        return _made(shape, x.dtype, lambda _: next(elements))

    return reference


def _permute(x: Any, *, axes: Any) -> Any:
    axes = [a % x.ndim for a in axes]
    shape = [x.shape[a] for a in axes]
    return _made(shape, x.dtype, lambda i: x[tuple(i[axes.index(a)] for a in range(x.ndim))])


def _permuted(*axes: int) -> Callable[..., Any]:
    return lambda x, **_: _permute(x, axes=axes)


def _concat(xs: Any, *, axis: int = 0) -> Any:
    axis %= xs[0].ndim
    entries = [np.take(x, i, axis) for x in xs for i in range(x.shape[axis])]
    shape = list(xs[0].shape)
    shape[axis] = len(entries)
    return _made(shape, xs[0].dtype, lambda i: entries[i[axis]][i[:axis] + i[axis + 1 :]])


def _stack(xs: Any, *, axis: int = 0) -> Any:
    axis %= xs[0].ndim + 1
    shape = (*xs[0].shape[:axis], len(xs), *xs[0].shape[axis:])
    return _made(shape, xs[0].dtype, lambda i: xs[i[axis]][i[:axis] + i[axis + 1 :]])


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


def _ints(*shape: int) -> Callable[..., Any]:
    return lambda rng: (rng.integers(-9, 9, shape),)


def _mask(*shape: int) -> Callable[..., Any]:
    return lambda rng: (rng.random(shape) < 0.5,)


SAMPLES = [
    Sample("broadcast_to", "scalar", halves(()), _broadcast_to, {"shape": (2, 3)}, exact=True),
    Sample("broadcast_to", "new axis", normal((3,)), _broadcast_to, {"shape": (2, 3)}),
    Sample("broadcast_to", "stretched", halves((2, 1)), _broadcast_to, {"shape": (2, 3)}, exact=True),
    Sample("broadcast_to", "both", normal((2, 1, 3)), _broadcast_to, {"shape": (4, 2, 2, 3)}),
    Sample("broadcast_to", "as it is", normal((2, 1)), _broadcast_to, {"shape": (2, 1)}),
    Sample("broadcast_to", "new axes of 1", normal((2,)), _broadcast_to, {"shape": (1, 1, 2)}),
    Sample("broadcast_to", "to nothing", normal((1, 3)), _broadcast_to, {"shape": (0, 3)}),
    Sample("broadcast_to", "integers", _ints(3, 1), _broadcast_to, {"shape": (3, 2)}, order=0),
    Sample("broadcast_to", "mask", _mask(1, 3), _broadcast_to, {"shape": (2, 3)}, order=0),
    Sample("reshape", "all given", halves((2, 6)), _reshaped((3, 4)), {"shape": (3, 4)}, exact=True),
    Sample("reshape", "one open", normal((2, 6)), _reshaped((2, 3, 2)), {"shape": (2, -1, 2)}),
    Sample("reshape", "to scalar", normal((1, 1)), _reshaped(()), {"shape": ()}),
    Sample("reshape", "from scalar", normal(()), _reshaped((1,)), {"shape": (-1,)}),
    Sample("reshape", "empty", normal((0, 4)), _reshaped((0, 2)), {"shape": (-1, 2)}),
    Sample("reshape", "integers", _ints(4), _reshaped((2, 2)), {"shape": [2, 2]}, order=0),
    Sample(
        "reshape",
        "of a view",
        normal((2, 3)),
        lambda x: _reshaped((6,))(_permute(x, axes=(1, 0))),
        call=lambda ops, x: ops.reshape(ops.permute(x, axes=(1, 0)), shape=(-1,)),
    ),
    Sample("flatten", "all", halves((2, 3, 2)), _reshaped((12,)), exact=True),
    Sample("flatten", "behind the batch", normal((2, 3, 2)), _reshaped((2, 6)), {"start": 1}),
    Sample("flatten", "middle", normal((2, 3, 2, 2)), _reshaped((2, 6, 2)), {"start": -3, "end": 2}),
    Sample("flatten", "one axis", normal((2, 3)), _reshaped((2, 3)), {"start": 1, "end": 1}),
    Sample("flatten", "scalar", normal(()), _reshaped((1,))),
    Sample("flatten", "empty", normal((0, 3)), _reshaped((0,))),
    Sample("squeeze", "all", halves((1, 2, 1)), _reshaped((2,)), exact=True),
    Sample("squeeze", "one", normal((1, 2, 1)), _reshaped((1, 2)), {"axis": -1}),
    Sample("squeeze", "two", normal((1, 2, 1)), _reshaped((2,)), {"axis": (0, 2)}),
    Sample("squeeze", "none there", normal((2, 3)), _reshaped((2, 3))),
    Sample("unsqueeze", "front", halves((2, 3)), _reshaped((1, 2, 3)), {"axis": 0}, exact=True),
    Sample("unsqueeze", "middle", normal((2, 3)), _reshaped((2, 1, 3)), {"axis": -2}),
    Sample("unsqueeze", "back", normal((2, 3)), _reshaped((2, 3, 1)), {"axis": -1}),
    Sample("unsqueeze", "scalar", normal(()), _reshaped((1,)), {"axis": 0}),
    Sample("permute", "matrix", halves((2, 3)), _permute, {"axes": (1, 0)}, exact=True),
    Sample("permute", "no involution", normal((2, 3, 4)), _permute, {"axes": (2, 0, 1)}),
    Sample("permute", "from the end", normal((2, 3, 2, 2)), _permute, {"axes": (-1, 0, -2, 1)}),
    Sample("permute", "scalar", normal(()), _permute, {"axes": ()}),
    Sample("permute", "empty", normal((0, 3)), _permute, {"axes": (1, 0)}),
    Sample("permute", "mask", _mask(2, 3), _permute, {"axes": (1, 0)}, order=0),
    Sample("transpose2d", "matrix", halves((2, 3)), _permuted(1, 0), exact=True),
    Sample("transpose3d_first_to_last", "cube", normal((2, 3, 4)), _permuted(1, 2, 0)),
    Sample("transpose3d_last_to_first", "cube", normal((2, 3, 4)), _permuted(2, 0, 1)),
    Sample("transpose3d_last_two", "cube", normal((2, 3, 4)), _permuted(0, 2, 1)),
    Sample("swap_adjacent_at_depth", "front", normal((2, 3, 4)), _permuted(1, 0, 2), {"depth": 0}),
    Sample("swap_adjacent_at_depth", "back", halves((2, 3, 4)), _permuted(0, 2, 1), {"depth": 1}, exact=True),
    Sample("concat", "vectors", _list((2,), (3,)), _concat, exact=True),
    Sample("concat", "rows", _list((2, 3), (1, 3), (2, 3), make=normal), _concat, {"axis": 0}),
    Sample("concat", "columns", _list((2, 3), (2, 1), make=normal), _concat, {"axis": -1}),
    Sample("concat", "one", _list((2, 3), make=normal), _concat, {"axis": 1}),
    Sample("concat", "one of them empty", _list((2, 0), (2, 2), make=normal), _concat, {"axis": 1}),
    Sample("concat", "integers", lambda rng: ([np.arange(2), np.arange(3)],), _concat, order=0),
    Sample(
        "concat",
        "one twice",
        normal((2, 3)),
        lambda x: _concat([x, x]),
        call=lambda ops, x: ops.concat([x, x]),
    ),
    Sample("stack", "front", _list((2, 3), (2, 3)), _stack, exact=True),
    Sample("stack", "middle", _list((2, 3), (2, 3), (2, 3), make=normal), _stack, {"axis": 1}),
    Sample("stack", "back", _list((2, 3), (2, 3), make=normal), _stack, {"axis": -1}),
    Sample("stack", "scalars", _list((), (), make=normal), _stack),
    Sample("slice", "front", halves((5, 2)), _slice, {"axis": 0, "start": 0, "length": 2}, exact=True),
    Sample("slice", "back", normal((2, 5)), _slice, {"axis": -1, "start": 3, "length": 2}),
    Sample("slice", "all", normal((3,)), _slice, {"axis": 0, "start": 0, "length": 3}),
    Sample("slice", "steps", normal((2, 7)), _slice, {"axis": 1, "start": 1, "length": 3, "step": 2}),
    Sample(
        "slice", "steps to the end", halves((7,)), _slice, {"axis": 0, "start": 0, "length": 3, "step": 3}, exact=True
    ),
    Sample("slice", "one", normal((2, 3, 2)), _slice, {"axis": 1, "start": 2, "length": 1, "step": 5}),
    Sample("slice", "nothing", normal((3, 2)), _slice, {"axis": 0, "start": 3, "length": 0, "step": 2}),
    Sample("slice", "mask", _mask(4), _slice, {"axis": 0, "start": 1, "length": 2}, order=0),
    Sample("split", "rows", halves((5, 2)), _split, {"sizes": (2, 3)}, exact=True),
    Sample("split", "columns", normal((2, 6)), _split, {"sizes": [1, 2, 3], "axis": -1}),
    Sample("split", "nothing in one", normal((2,)), _split, {"sizes": (0, 2)}),
    Sample("pad", "ends", halves((2, 3)), _pad, {"padding": ((1, 0), (0, 2))}, exact=True),
    Sample("pad", "value", halves((2,)), _pad, {"padding": [(1, 2)], "value": -1.5}, exact=True),
    Sample("pad", "-inf", normal((2,)), _pad, {"padding": [(1, 0)], "value": -np.inf}, order=0),
    Sample("pad", "between", normal((3, 2)), _pad, {"padding": ((0, 0), (0, 0)), "interior": (2, 1)}),
    Sample("pad", "both", normal((2, 3)), _pad, {"padding": ((1, 2), (0, 1)), "interior": (1, 0), "value": 2.0}),
    Sample("pad", "nothing", normal((2, 3)), _pad, {"padding": ((0, 0), (0, 0))}),
    Sample("pad", "empty", normal((0, 2)), _pad, {"padding": ((1, 1), (0, 0)), "interior": (2, 0)}),
    Sample("pad", "scalar", normal(()), _pad, {"padding": ()}),
    Sample("pad", "integers", _ints(3), _pad, {"padding": ((1, 1),), "value": 7}, order=0),
]


def _ones(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (np.ones(shape),)


def _all_ones(*shapes: tuple[int, ...]) -> Callable[[], tuple[Any, ...]]:
    return lambda: ([np.ones(shape) for shape in shapes],)


_part = {"axis": 0, "start": 0, "length": 1}

BAD_CALLS = [
    BadCall(
        "permute", "no order", lambda: (np.ones((2, 3)),), "axes must be a sequence but is {0, 1}", {"axes": {0, 1}}
    ),
    BadCall("reshape", "no sizes", lambda: (np.ones((2, 3)),), "a shape must be a sequence but is 1.5", {"shape": 1.5}),
    BadCall("broadcast_to", "too many", lambda: (np.ones(1),), r"fewer than 2\*\*63 elements", {"shape": (2**70,)}),
    BadCall("broadcast_to", "size", _ones(2, 3), r"cannot become \(2, 4\): axis 1 has 3 where 4", {"shape": (2, 4)}),
    BadCall(
        "broadcast_to",
        "to 1",
        _ones(3),
        "axis 0 has 3 where 1 is wanted; only an axis of size 1 is repeated",
        {"shape": (1,)},
    ),
    BadCall("broadcast_to", "rank", _ones(1, 3), r"cannot become \(3,\) of rank 1", {"shape": (3,)}),
    BadCall("broadcast_to", "open size", _ones(3), "sizes that are at least 0", {"shape": (-1, 3)}),
    BadCall("reshape", "elements", _ones(2, 3), r"with 6 elements but \(4, 2\) has 8", {"shape": (4, 2)}),
    BadCall("reshape", "does not divide", _ones(2, 3), "6 elements, which 4 does not divide", {"shape": (4, -1)}),
    BadCall("reshape", "two open", _ones(2, 3), "only one entry may be -1", {"shape": (-1, -1)}),
    BadCall("reshape", "open beside 0", _ones(0, 3), "-1 could be anything", {"shape": (0, -1)}),
    BadCall("reshape", "negative", _ones(2, 3), "sizes that are at least 0", {"shape": (-2, 3)}),
    BadCall("reshape", "no shape", _ones(2, 3), "a shape holds ints and dims", {"shape": (2.0, 3)}),
    BadCall("flatten", "order", _ones(2, 3, 4), "start=2 lies behind end=1", {"start": 2, "end": 1}),
    BadCall("flatten", "no such axis", _ones(2, 3), "axis 2 is out of range", {"start": 2}),
    BadCall("squeeze", "size", _ones(1, 3), "axis 1 has 3; only an axis of size 1", {"axis": 1}),
    BadCall("squeeze", "no such axis", _ones(1, 3), "axis 2 is out of range", {"axis": 2}),
    BadCall("unsqueeze", "no such axis", _ones(2, 3), "axis 3 is out of range", {"axis": 3}),
    BadCall("permute", "too few", _ones(2, 3), r"axes \(0,\) must name each of the 2 axes of x", {"axes": (0,)}),
    BadCall("permute", "twice", _ones(2, 3), r"axes \(1, 1\) must name each", {"axes": (1, -1)}),
    BadCall("permute", "no such axis", _ones(2, 3), "axis 2 is out of range", {"axes": (0, 2)}),
    BadCall("transpose2d", "rank", _ones(2, 3, 4), "must have rank 2"),
    BadCall("transpose3d_first_to_last", "rank", _ones(2, 3), "must have rank 3"),
    BadCall("transpose3d_last_to_first", "rank", _ones(2, 3), "must have rank 3"),
    BadCall("transpose3d_last_two", "rank", _ones(2, 3), "must have rank 3"),
    BadCall("swap_adjacent_at_depth", "last axis", _ones(2, 3), "depth is 1 but x is .* of rank 2", {"depth": 1}),
    BadCall("swap_adjacent_at_depth", "negative", _ones(2, 3), "depth is -1", {"depth": -1}),
    BadCall("swap_adjacent_at_depth", "no int", _ones(2, 3), "depth must be an integer but is 0.5", {"depth": 0.5}),
    BadCall("concat", "none", lambda: ([],), "at least one tensor is needed"),
    BadCall("concat", "scalars", _all_ones((), ()), "it is a scalar"),
    BadCall("concat", "ranks", _all_ones((2, 3), (3,)), r"xs\[1\] is \(3,\): ranks 2 and 1 differ"),
    BadCall("concat", "sizes", _all_ones((2, 3), (2, 3), (2, 4)), r"xs\[2\] is \(2, 4\): axis 1 has 3 and 4"),
    BadCall("concat", "dtypes", lambda: ([np.ones(2), np.arange(2)],), r"xs\[0\] is float32 but xs\[1\] is int64"),
    BadCall("stack", "none", lambda: ([],), "at least one tensor is needed"),
    BadCall("stack", "shapes", _all_ones((2, 3), (2, 4)), r"xs\[0\] is \(2, 3\) but xs\[1\] is \(2, 4\)"),
    BadCall("stack", "no such axis", _all_ones((2,), (2,)), "axis 2 is out of range", {"axis": 2}),
    BadCall("slice", "too long", _ones(3), "needs 4 entries but there are 3", {**_part, "start": 1, "length": 3}),
    BadCall("slice", "steps", _ones(5), "needs 7 entries but there are 5", {**_part, "length": 3, "step": 3}),
    BadCall("slice", "behind the end", _ones(3), "needs 4 entries", {**_part, "start": 4, "length": 0}),
    BadCall("slice", "before the start", _ones(3), "start must be at least 0", {**_part, "start": -1}),
    BadCall("slice", "negative", _ones(3), "length must be at least 0", {**_part, "length": -1}),
    BadCall("slice", "step 0", _ones(3), "step must be at least 1", {**_part, "step": 0}),
    BadCall("slice", "no int", _ones(3), "length must be an integer but is 1.5", {**_part, "length": 1.5}),
    BadCall("split", "sizes", _ones(5), r"sizes \(2, 2\) add up to 4 but axis 0 of x has 5", {"sizes": (2, 2)}),
    BadCall("split", "negative", _ones(2), "length must be at least 0", {"sizes": (-1, 3)}),
    BadCall("pad", "rank", _ones(2, 3), r"padding has 1 entries but x is \(2, 3\)", {"padding": ((1, 1),)}),
    BadCall("pad", "no pairs", _ones(2), r"must be a sequence with a pair", {"padding": (1, 1)}),
    BadCall("pad", "negative", _ones(2), "to take cells away use ops.slice", {"padding": ((0, -1),)}),
    BadCall("pad", "no int", _ones(2), "padding must be an integer but is 0.5", {"padding": ((0, 0.5),)}),
    BadCall("pad", "between", _ones(2), "interior must be at least 0", {"padding": ((0, 0),), "interior": (-1,)}),
    BadCall("pad", "between rank", _ones(2), "interior has 2 entries", {"padding": ((0, 0),), "interior": (0, 0)}),
    BadCall(
        "pad",
        "value",
        lambda: (np.arange(2),),
        "value 0.5 is not a value of int64",
        {"padding": ((1, 0),), "value": 0.5},
    ),
]
