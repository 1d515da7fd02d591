"""Rows times the matrix of their group: against a loop over rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import derived
from opstage.ops.errors import DtypeError, ShapeError
from tests.ops.functions import FLOAT64, Row, assert_row

INF, NAN = np.inf, np.nan


def _by_rows(x: Any, w: Any, ends: Any) -> Any:
    y = np.zeros((len(x), w.shape[2]))
    for i, row in enumerate(x):
        for group, (start, end) in enumerate(zip([0, *ends], ends)):
            if start <= i < end:
                y[i] = row @ w[group]
    return y


ENDS = {
    "each": [2, 5, 7], "none in one": [0, 4, 7], "none in any": [0, 0, 0], "rest": [1, 2, 5], "all in one": [0, 7, 7],
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_is_that_of_rows(name: str) -> None:
    ends = np.array(ENDS[name])
    call = lambda ops, x, w: derived.grouped_matmul(ops, x, w, ops.const(ends))  # noqa: E731
    assert_row(Row(name, ((7, 3), (3, 3, 2)), call, lambda x, w: _by_rows(x, w, ends)))


@pytest.mark.parametrize("shapes", [((0, 3), (2, 3, 2)), ((4, 0), (2, 0, 2)), ((4, 3), (2, 3, 0))])
def test_empty_sizes(shapes: Any) -> None:
    ends = np.array([1, 3])
    call = lambda ops, x, w: derived.grouped_matmul(ops, x, w, ops.const(ends))  # noqa: E731
    assert_row(Row("empty", shapes, call, lambda x, w: _by_rows(x, w, ends), gradient=False))


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_another_group_s_nan_does_not_reach_a_row(backend: str) -> None:
    x, w = np.ones((3, 2)), np.ones((3, 2, 2))
    w[1], w[2, 0, 0] = NAN, INF
    options = FLOAT64.replace(backend=backend)
    y = opstage.run(derived.grouped_matmul, x, w, np.array([2, 2, 3]), options=options)
    assert y.tolist() == [[2, 2], [2, 2], [INF, 2]]


def test_sizes_may_be_named() -> None:
    specs = opstage.Spec("N K"), opstage.Spec("E K M"), opstage.Spec("E", dtype="int64")
    report = opstage.check(derived.grouped_matmul, *specs)
    assert report.ok and str(report.outputs.shape) == "(N, M)", report


BAD: dict[str, tuple[type[Exception], str, tuple[Any, ...]]] = {
    "rank of x": (ShapeError, "x", ((3,), (2, 3, 2), [1, 2])),
    "rank of w": (ShapeError, "w", ((4, 3), (3, 2), [1, 2])),
    "columns": (ShapeError, "a matrix has a row for each column of x", ((4, 2), (2, 3, 2), [1, 2])),
    "groups": (ShapeError, "every group has an end", ((4, 3), (2, 3, 2), [1, 2, 3])),
    "float ends": (DtypeError, "ends", ((4, 3), (2, 3, 2), [1.0, 2.0])),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_calls_say_so(name: str) -> None:
    kind, message, (x, w, ends) = BAD[name]
    with pytest.raises(kind, match=message):
        opstage.run(derived.grouped_matmul, np.ones(x), np.ones(w), np.array(ends), options=FLOAT64)
