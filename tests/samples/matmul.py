"""Samples: products of matrices. The references sum over the inner index one element at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.samples.sample import BadCall, Sample, halves, normal


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


def _zeros(*shapes: tuple[int, ...]) -> Any:
    return lambda: tuple(np.zeros(shape) for shape in shapes)


BAD_CALLS: list[BadCall] = [
    BadCall("matmul", "inner-sizes-differ", _zeros((2, 3), (4, 2)), r"x has 3 columns but y has 4 rows"),
    BadCall("matmul", "no-matrix", _zeros((2, 2, 3), (3, 2)), r"x must be a matrix.*bmm multiplies stacks"),
    BadCall("matmul", "vector", _zeros((2, 3), (3,)), r"y must be a matrix but is \(3,\) of rank 1"),
    BadCall("matmul", "integers", lambda: (np.zeros((2, 2), int), np.zeros((2, 2), int)), r"x must be a float tensor"),
    BadCall("matmul", "dtypes", lambda: (np.zeros((2, 2)), np.zeros((2, 2), int)), r"x is float32 but y is int64"),
    BadCall("bmm", "ranks", _zeros((2, 2, 3), (3, 2)), r"stacks of matrices have one rank, at least 2"),
    BadCall("bmm", "batch-sizes-differ", _zeros((2, 2, 3), (1, 3, 2)), r"batch axis 0 has 2 and 1.*never broadcasts"),
    BadCall("bmm", "inner-sizes-differ", _zeros((2, 2, 3), (2, 2, 3)), r"x has 3 columns but y has 2 rows"),
    BadCall("linear", "features", _zeros((256, 784), (256,), (5, 512)), r"in=784 differs from 512; did you mean"),
    BadCall("linear", "suggests-the-weight", _zeros((4, 3), (4,), (2, 5)), r"weight of shape \(4, 5\)\?"),
    BadCall("linear", "bias", _zeros((4, 3), (3,), (2, 3)), r"bias is \(3,\); it must be \(4,\)"),
    BadCall("linear", "bias-rank", _zeros((4, 3), (4, 1), (2, 3)), r"bias must have rank 1"),
    BadCall("linear", "weight-rank", _zeros((4,), (4,), (2, 3)), r"weight must have rank 2"),
    BadCall("linear", "scalar", _zeros((4, 3), (4,), ()), r"x must be \(\.\.\., in\) with in=3 but is a scalar"),
]
