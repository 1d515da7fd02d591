"""Samples: products of matrices, of stacks and of groups of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, given, halves, normal, zeros


def _matmul(x: Any, y: Any) -> Any:
    out = np.zeros((x.shape[0], y.shape[1]))
    for i in range(x.shape[0]):
        for j in range(y.shape[1]):
            for k in range(x.shape[1]):
                out[i, j] += x[i, k] * y[k, j]
    return out


def _bmm(x: Any, y: Any) -> Any:
    out = np.zeros((*x.shape[:-1], y.shape[-1]))
    for batch in np.ndindex(x.shape[:-2]):
        out[batch] = _matmul(x[batch], y[batch])
    return out


def _linear(weight: Any, bias: Any, x: Any) -> Any:
    out = np.zeros((*x.shape[:-1], weight.shape[0]))
    for place in np.ndindex(x.shape[:-1]):
        for o in range(weight.shape[0]):
            out[place][o] = (0.0 if bias is None else bias[o]) + sum(w * v for w, v in zip(weight[o], x[place]))
    return out


def _without_bias(weight: tuple[int, ...], x: tuple[int, ...]) -> Any:
    return lambda rng: (rng.standard_normal(weight), None, rng.standard_normal(x))


def _infix(ops: Any, x: Any, y: Any) -> Any:
    return x @ y


SAMPLES: list[Sample] = [
    Sample("matmul", "matrices", normal((2, 3), (3, 4)), _matmul),
    Sample("matmul", "exact", halves((2, 3), (3, 2)), _matmul, exact=True),
    Sample("matmul", "row-by-column", normal((1, 4), (4, 1)), _matmul),
    Sample("matmul", "nothing-to-sum", normal((2, 0), (0, 3)), _matmul, exact=True),
    Sample("matmul", "no-rows", normal((0, 2), (2, 3)), _matmul),
    Sample("matmul", "infix", normal((3, 2), (2, 2)), _matmul, call=_infix),
    Sample("bmm", "stack", normal((2, 2, 3), (2, 3, 2)), _bmm),
    Sample("bmm", "exact", halves((2, 1, 3), (2, 3, 2)), _bmm, exact=True),
    Sample("bmm", "two-leading-axes", normal((2, 2, 1, 3), (2, 2, 3, 2)), _bmm),
    Sample("bmm", "matrices", normal((2, 3), (3, 2)), _bmm),
    Sample("bmm", "empty-batch", normal((0, 2, 3), (0, 3, 2)), _bmm),
    Sample("bmm", "nothing-to-sum", normal((2, 2, 0), (2, 0, 1)), _bmm, exact=True),
    Sample("bmm", "infix", normal((2, 3, 2), (2, 2, 2)), _bmm, call=_infix),
    Sample("linear", "batch", normal((3, 4), (3,), (2, 4)), _linear),
    Sample("linear", "vector", normal((3, 4), (3,), (4,)), _linear),
    Sample("linear", "two-leading-axes", normal((3, 2), (3,), (2, 2, 2)), _linear),
    Sample("linear", "without-bias", _without_bias((3, 4), (2, 4)), _linear),
    Sample("linear", "vector-without-bias", _without_bias((2, 3), (3,)), _linear),
    Sample("linear", "exact", halves((2, 3), (2,), (2, 3)), _linear, exact=True),
    Sample("linear", "empty-batch", normal((3, 2), (3,), (0, 2)), _linear),
    Sample("linear", "no-features", normal((2, 0), (2,), (3, 0)), _linear, exact=True),
]


BAD_CALLS: list[BadCall] = [
    BadCall("matmul", "inner-sizes-differ", zeros((2, 3), (4, 2)), r"x has 3 columns but y has 4 rows"),
    BadCall("matmul", "no-matrix", zeros((2, 2, 3), (3, 2)), r"x must be a matrix.*bmm multiplies stacks"),
    BadCall("matmul", "vector", zeros((2, 3), (3,)), r"y must be a matrix but is \(3,\) of rank 1"),
    BadCall("matmul", "integers", given(np.zeros((2, 2), int), np.zeros((2, 2), int)), r"x must be a float tensor"),
    BadCall("matmul", "dtypes", given(np.zeros((2, 2)), np.zeros((2, 2), int)), r"x is float32 but y is int64"),
    BadCall("bmm", "ranks", zeros((2, 2, 3), (3, 2)), r"stacks of matrices have one rank, at least 2"),
    BadCall("bmm", "batch-sizes-differ", zeros((2, 2, 3), (1, 3, 2)), r"batch axis 0 has 2 and 1.*never broadcasts"),
    BadCall("bmm", "inner-sizes-differ", zeros((2, 2, 3), (2, 2, 3)), r"x has 3 columns but y has 2 rows"),
    BadCall("linear", "features", zeros((256, 784), (256,), (5, 512)), r"in=784 differs from 512; did you mean"),
    BadCall("linear", "suggests-the-weight", zeros((4, 3), (4,), (2, 5)), r"weight of shape \(4, 5\)\?"),
    BadCall("linear", "bias", zeros((4, 3), (3,), (2, 3)), r"bias is \(3,\); it must be \(4,\)"),
    BadCall("linear", "bias-rank", zeros((4, 3), (4, 1), (2, 3)), r"bias must have rank 1"),
    BadCall("linear", "weight-rank", zeros((4,), (4,), (2, 3)), r"weight must have rank 2"),
    BadCall("linear", "scalar", zeros((4, 3), (4,), ()), r"x must be \(\.\.\., in\) with in=3 but is a scalar"),
]


# Products of rows with the matrix of their group. The references go row by row ----------------------------------------


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

SAMPLES += [
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


def _with_ends(*shapes: tuple[int, ...], ends: int = 2, dtype: Any = int) -> Any:
    return lambda: (*(np.zeros(shape) for shape in shapes), np.zeros(ends, dtype))


BAD_CALLS += [
    BadCall("grouped_matmul", "rank", _with_ends((3,), (2, 3, 2)), r"x must be of rank 2|x must"),
    BadCall("grouped_matmul", "columns", _with_ends((4, 2), (2, 3, 2)), r"a matrix has a row for each column of x"),
    BadCall("grouped_matmul", "groups", _with_ends((4, 3), (2, 3, 2), ends=3), r"every group has an end"),
    BadCall("grouped_matmul", "ends", _with_ends((4, 3), (2, 3, 2), dtype=float), r"ends must be an integer tensor"),
    BadCall("grouped_outer", "rows", _with_ends((4, 3), (3, 2)), r"they must have the same rows"),
    BadCall("grouped_outer", "ends", _with_ends((4, 3), (4, 2), dtype=float), r"ends must be an integer tensor"),
]
