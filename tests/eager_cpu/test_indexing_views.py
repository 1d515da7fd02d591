"""Entries read and added along any axis of an array: the elements of NumPy, lying as they lay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opstage import Options, RangeError
from opstage.interpreters.eager_cpu import NumpyOps

OPS = NumpyOps(Options())
SHAPES = {
    1: [(4, 7), (3, 7, 2), (3, 7, 2, 5), (1, 7), (4, 1, 3), (0, 7)],
    2: [(2, 3, 7), (2, 3, 7, 4)],
    3: [(2, 1, 3, 7)],
}
CASES = [(axis, shape) for axis, shapes in SHAPES.items() for shape in shapes]


def made(shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def behind(axis: int, rank: int) -> list[int]:
    return [axis, *[a for a in range(rank) if a != axis]]


@pytest.mark.parametrize("size", [(), (5,), (2, 3), (0,)])
@pytest.mark.parametrize(("axis", "shape"), CASES)
def test_entries_are_read_along_an_axis(axis: int, shape: tuple[int, ...], size: tuple[int, ...]) -> None:
    x, idx = made(shape), np.random.default_rng(1).integers(0, shape[axis], size)
    found = OPS.gather_rows(x.transpose(behind(axis, x.ndim)), idx)
    np.testing.assert_array_equal(found, np.moveaxis(x, axis, 0)[idx])


@pytest.mark.parametrize("start", ["zeros", "packed", "view"])
@pytest.mark.parametrize("many", [0, 1, 40])
@pytest.mark.parametrize(("axis", "shape"), CASES)
def test_entries_are_added_in_order_along_an_axis(axis: int, shape: tuple[int, ...], many: int, start: str) -> None:
    """The order is that of the indices, so the bits are those of a loop over them."""
    idx = np.random.default_rng(1).integers(0, shape[axis], many)
    order = behind(axis, len(shape))
    v = made((*shape[:axis], many, *shape[axis + 1 :]), 2).transpose(order)
    x = {
        "zeros": np.broadcast_to(np.float32(0), tuple(shape[a] for a in order)),
        "packed": made(tuple(shape[a] for a in order)),
        "view": made(shape).transpose(order),
    }[start]
    before, expected = x.copy(), x.copy()
    for i, row in zip(idx, v):
        expected[i] += row
    found = OPS.scatter_add_row(x, v, idx)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("bad", [-1, 7])
def test_an_index_out_of_range_is_refused_along_any_axis(bad: int) -> None:
    x = made((4, 7)).T
    with pytest.raises(RangeError, match=str(bad)):
        OPS.gather_rows(x, np.array([0, bad]))
    with pytest.raises(RangeError, match=str(bad)):
        OPS.scatter_add_row(x, made((4, 2)).T, np.array([0, bad]))
    np.testing.assert_array_equal(OPS.gather_rows(x, np.array([1, bad]), mode="zero")[1], np.zeros(4))


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32", "bool"])
def test_other_dtypes(dtype: str) -> None:
    x = (10 * made((4, 7))).astype(dtype)
    np.testing.assert_array_equal(OPS.gather_rows(x.T, np.array([3, 3, 0])), x.T[[3, 3, 0]])
