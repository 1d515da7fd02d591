"""Samples: products of rows with the matrix of their group. The references go row by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample


def group_of(i: int, ends: Any) -> int | None:
    return next((group for group, end in enumerate(ends) if i < end), None)


def products_by_rows(x: Any, w: Any, ends: Any) -> Any:
    y = np.zeros((len(x), w.shape[2]))
    for i, row in enumerate(x):
        group = group_of(i, ends)
        if group is not None:
            y[i] = row @ w[group]
    return y


def sums_by_rows(x: Any, g: Any, ends: Any) -> Any:
    sums = np.zeros((len(ends), x.shape[1], g.shape[1]))
    for i, row in enumerate(x):
        group = group_of(i, ends)
        if group is not None:
            sums[group] += np.outer(row, g[i])
    return sums


def _given(first: tuple[int, ...], second: tuple[int, ...], ends: list[int], halved: bool = False) -> Any:
    """Two operands and ends; halves are products that every dtype has exactly."""

    def inputs(rng: Any) -> Any:
        if halved:
            return *(rng.integers(-4, 5, shape) / 2 for shape in (first, second)), np.array(ends)
        return rng.standard_normal(first), rng.standard_normal(second), np.array(ends, dtype=int)

    return inputs


_ENDS = {
    "each": [1, 3, 4], "rest": [1, 1, 3], "rising-and-falling": [2, 1, 3], "out-of-range": [-1, 2, 9],
}  # fmt: skip

SAMPLES: list[Sample] = [
    *(
        Sample("grouped_matmul", name, _given((4, 2), (3, 2, 3), ends), products_by_rows)
        for name, ends in _ENDS.items()
    ),
    Sample("grouped_matmul", "exact", _given((3, 2), (2, 2, 2), [1, 3], True), products_by_rows, exact=True),
    Sample("grouped_matmul", "no-rows", _given((0, 2), (2, 2, 3), [1, 3]), products_by_rows),
    Sample("grouped_matmul", "no-groups", _given((2, 2), (0, 2, 3), []), products_by_rows),
    Sample("grouped_matmul", "nothing-to-sum", _given((2, 0), (2, 0, 3), [1, 2]), products_by_rows),
    *(Sample("grouped_outer", name, _given((4, 2), (4, 3), ends), sums_by_rows) for name, ends in _ENDS.items()),
    Sample("grouped_outer", "exact", _given((3, 2), (3, 2), [1, 3], True), sums_by_rows, exact=True),
    Sample("grouped_outer", "no-rows", _given((0, 2), (0, 3), [1, 3]), sums_by_rows),
    Sample("grouped_outer", "no-groups", _given((2, 2), (2, 3), []), sums_by_rows),
    Sample("grouped_outer", "no-columns", _given((2, 0), (2, 3), [1, 2]), sums_by_rows),
]


def _zeros(*shapes: tuple[int, ...], ends: int = 2, dtype: Any = int) -> Any:
    return lambda: (*(np.zeros(shape) for shape in shapes), np.zeros(ends, dtype))


BAD_CALLS: list[BadCall] = [
    BadCall("grouped_matmul", "rank", _zeros((3,), (2, 3, 2)), r"x must be of rank 2|x must"),
    BadCall("grouped_matmul", "columns", _zeros((4, 2), (2, 3, 2)), r"a matrix has a row for each column of x"),
    BadCall("grouped_matmul", "groups", _zeros((4, 3), (2, 3, 2), ends=3), r"every group has an end"),
    BadCall("grouped_matmul", "ends", _zeros((4, 3), (2, 3, 2), dtype=float), r"ends must be an integer tensor"),
    BadCall("grouped_outer", "rows", _zeros((4, 3), (3, 2)), r"they must have the same rows"),
    BadCall("grouped_outer", "ends", _zeros((4, 3), (4, 2), dtype=float), r"ends must be an integer tensor"),
]
