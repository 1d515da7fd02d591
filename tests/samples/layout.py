"""Samples: shapes and the order of axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, given, halves, normal


def made(shape: Any, dtype: Any, source: Callable[[tuple[int, ...]], Any]) -> Any:
    """The array whose element at each index is source(index)."""
    out = np.empty(shape, dtype=dtype)
    for index in np.ndindex(out.shape):
        out[index] = source(index)
    return out


def _broadcast_to(x: Any, *, shape: Any) -> Any:
    added = len(shape) - x.ndim
    return made(shape, x.dtype, lambda i: x[tuple(0 if n == 1 else k for n, k in zip(x.shape, i[added:]))])


def _reshaped(shape: Any) -> Callable[..., Any]:
    """To a shape that the sample writes out, whatever was left open in the call."""

    def reference(x: Any, **_: Any) -> Any:
        elements = iter([x[index] for index in np.ndindex(x.shape)])
        return made(shape, x.dtype, lambda _: next(elements))

    return reference


def _permute(x: Any, *, axes: Any) -> Any:
    axes = [a % x.ndim for a in axes]
    shape = [x.shape[a] for a in axes]
    return made(shape, x.dtype, lambda i: x[tuple(i[axes.index(a)] for a in range(x.ndim))])


def _permuted(*axes: int) -> Callable[..., Any]:
    return lambda x, **_: _permute(x, axes=axes)


def ints(*shape: int) -> Callable[..., Any]:
    return lambda rng: (rng.integers(-9, 9, shape),)


def mask(*shape: int) -> Callable[..., Any]:
    return lambda rng: (rng.random(shape) < 0.5,)


SAMPLES = [
    Sample("broadcast_to", "scalar", halves(()), _broadcast_to, shape=(2, 3), exact=True),
    Sample("broadcast_to", "new axis", normal((3,)), _broadcast_to, shape=(2, 3)),
    Sample("broadcast_to", "stretched", halves((2, 1)), _broadcast_to, shape=(2, 3), exact=True),
    Sample("broadcast_to", "both", normal((2, 1, 3)), _broadcast_to, shape=(4, 2, 2, 3)),
    Sample("broadcast_to", "as it is", normal((2, 1)), _broadcast_to, shape=(2, 1)),
    Sample("broadcast_to", "new axes of 1", normal((2,)), _broadcast_to, shape=(1, 1, 2)),
    Sample("broadcast_to", "to nothing", normal((1, 3)), _broadcast_to, shape=(0, 3)),
    Sample("broadcast_to", "integers", ints(3, 1), _broadcast_to, shape=(3, 2), order=0),
    Sample("broadcast_to", "mask", mask(1, 3), _broadcast_to, shape=(2, 3), order=0),
    Sample("reshape", "all given", halves((2, 6)), _reshaped((3, 4)), shape=(3, 4), exact=True),
    Sample("reshape", "one open", normal((2, 6)), _reshaped((2, 3, 2)), shape=(2, -1, 2)),
    Sample("reshape", "to scalar", normal((1, 1)), _reshaped(()), shape=()),
    Sample("reshape", "from scalar", normal(()), _reshaped((1,)), shape=(-1,)),
    Sample("reshape", "empty", normal((0, 4)), _reshaped((0, 2)), shape=(-1, 2)),
    Sample("reshape", "integers", ints(4), _reshaped((2, 2)), shape=[2, 2], order=0),
    Sample(
        "reshape",
        "of a view",
        normal((2, 3)),
        lambda x: _reshaped((6,))(_permute(x, axes=(1, 0))),
        call=lambda ops, x: ops.reshape(ops.permute(x, axes=(1, 0)), shape=(-1,)),
    ),
    Sample("flatten", "all", halves((2, 3, 2)), _reshaped((12,)), exact=True),
    Sample("flatten", "behind the batch", normal((2, 3, 2)), _reshaped((2, 6)), start=1),
    Sample("flatten", "middle", normal((2, 3, 2, 2)), _reshaped((2, 6, 2)), start=-3, end=2),
    Sample("flatten", "one axis", normal((2, 3)), _reshaped((2, 3)), start=1, end=1),
    Sample("flatten", "scalar", normal(()), _reshaped((1,))),
    Sample("flatten", "empty", normal((0, 3)), _reshaped((0,))),
    Sample("squeeze", "all", halves((1, 2, 1)), _reshaped((2,)), exact=True),
    Sample("squeeze", "one", normal((1, 2, 1)), _reshaped((1, 2)), axis=-1),
    Sample("squeeze", "two", normal((1, 2, 1)), _reshaped((2,)), axis=(0, 2)),
    Sample("squeeze", "none there", normal((2, 3)), _reshaped((2, 3))),
    Sample("unsqueeze", "front", halves((2, 3)), _reshaped((1, 2, 3)), axis=0, exact=True),
    Sample("unsqueeze", "middle", normal((2, 3)), _reshaped((2, 1, 3)), axis=-2),
    Sample("unsqueeze", "back", normal((2, 3)), _reshaped((2, 3, 1)), axis=-1),
    Sample("unsqueeze", "scalar", normal(()), _reshaped((1,)), axis=0),
    Sample("permute", "matrix", halves((2, 3)), _permute, axes=(1, 0), exact=True),
    Sample("permute", "no involution", normal((2, 3, 4)), _permute, axes=(2, 0, 1)),
    Sample("permute", "from the end", normal((2, 3, 2, 2)), _permute, axes=(-1, 0, -2, 1)),
    Sample("permute", "scalar", normal(()), _permute, axes=()),
    Sample("permute", "empty", normal((0, 3)), _permute, axes=(1, 0)),
    Sample("permute", "mask", mask(2, 3), _permute, axes=(1, 0), order=0),
    Sample("transpose2d", "matrix", halves((2, 3)), _permuted(1, 0), exact=True),
    Sample("transpose3d_first_to_last", "cube", normal((2, 3, 4)), _permuted(1, 2, 0)),
    Sample("transpose3d_last_to_first", "cube", normal((2, 3, 4)), _permuted(2, 0, 1)),
    Sample("transpose3d_last_two", "cube", normal((2, 3, 4)), _permuted(0, 2, 1)),
    Sample("swap_adjacent_at_depth", "front", normal((2, 3, 4)), _permuted(1, 0, 2), depth=0),
    Sample("swap_adjacent_at_depth", "back", halves((2, 3, 4)), _permuted(0, 2, 1), depth=1, exact=True),
]


def ones(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (np.ones(shape),)


BAD_CALLS = [
    BadCall("permute", "no order", given(np.ones((2, 3))), "axes must be a sequence but is {0, 1}", axes={0, 1}),
    BadCall("reshape", "no sizes", given(np.ones((2, 3))), "a shape must be a sequence but is 1.5", shape=1.5),
    BadCall("broadcast_to", "too many", given(np.ones(1)), r"fewer than 2\*\*63 elements", shape=(2**70,)),
    BadCall("broadcast_to", "size", ones(2, 3), r"cannot become \(2, 4\): axis 1 has 3 where 4", shape=(2, 4)),
    BadCall(
        "broadcast_to",
        "to 1",
        ones(3),
        "axis 0 has 3 where 1 is wanted; only an axis of size 1 is repeated",
        shape=(1,),
    ),
    BadCall("broadcast_to", "rank", ones(1, 3), r"cannot become \(3,\) of rank 1", shape=(3,)),
    BadCall("broadcast_to", "open size", ones(3), "sizes that are at least 0", shape=(-1, 3)),
    BadCall("reshape", "elements", ones(2, 3), r"with 6 elements but \(4, 2\) has 8", shape=(4, 2)),
    BadCall("reshape", "does not divide", ones(2, 3), "6 elements, which 4 does not divide", shape=(4, -1)),
    BadCall("reshape", "two open", ones(2, 3), "only one entry may be -1", shape=(-1, -1)),
    BadCall("reshape", "open beside 0", ones(0, 3), "-1 could be anything", shape=(0, -1)),
    BadCall("reshape", "negative", ones(2, 3), "sizes that are at least 0", shape=(-2, 3)),
    BadCall("reshape", "no shape", ones(2, 3), "a shape holds ints and dims", shape=(2.0, 3)),
    BadCall("flatten", "order", ones(2, 3, 4), "start=2 lies behind end=1", start=2, end=1),
    BadCall("flatten", "no such axis", ones(2, 3), "axis 2 is out of range", start=2),
    BadCall("squeeze", "size", ones(1, 3), "axis 1 has 3; only an axis of size 1", axis=1),
    BadCall("squeeze", "no such axis", ones(1, 3), "axis 2 is out of range", axis=2),
    BadCall("unsqueeze", "no such axis", ones(2, 3), "axis 3 is out of range", axis=3),
    BadCall("permute", "too few", ones(2, 3), r"axes \(0,\) must name each of the 2 axes of x", axes=(0,)),
    BadCall("permute", "twice", ones(2, 3), r"axes \(1, 1\) must name each", axes=(1, -1)),
    BadCall("permute", "no such axis", ones(2, 3), "axis 2 is out of range", axes=(0, 2)),
    BadCall("transpose2d", "rank", ones(2, 3, 4), "must have rank 2"),
    BadCall("transpose3d_first_to_last", "rank", ones(2, 3), "must have rank 3"),
    BadCall("transpose3d_last_to_first", "rank", ones(2, 3), "must have rank 3"),
    BadCall("transpose3d_last_two", "rank", ones(2, 3), "must have rank 3"),
    BadCall("swap_adjacent_at_depth", "last axis", ones(2, 3), "depth is 1 but x is .* of rank 2", depth=1),
    BadCall("swap_adjacent_at_depth", "negative", ones(2, 3), "depth is -1", depth=-1),
    BadCall("swap_adjacent_at_depth", "no int", ones(2, 3), "depth must be an integer but is 0.5", depth=0.5),
]
