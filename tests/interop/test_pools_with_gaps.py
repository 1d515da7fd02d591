"""Pools of imported models: windows with gaps, and where in them the maxima are, against a loop over windows."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.interop import values as pools
from tests.ops.functions import COMPILED, FLOAT64

INF, NAN = math.inf, math.nan


def _expected(x: Any, sizes: Any, padding: Any) -> tuple[Any, Any]:
    """One window after the other: the first of the greatest, and the last nan where there is one."""
    counts = [(n + lo + hi - d * (k - 1) - 1) // s + 1 for n, k, s, d, (lo, hi) in zip(x.shape[1:], *sizes, padding)]
    values, places = np.zeros((len(x), *counts)), np.zeros((len(x), *counts), np.int64)
    for row, *window in itertools.product(*map(range, values.shape)):
        best = at = None
        for cell in itertools.product(*map(range, sizes[0])):
            place = [w * s + c * d - lo for w, c, s, d, (lo, _) in zip(window, cell, *sizes[1:], padding)]
            if any(not 0 <= p < n for p, n in zip(place, x.shape[1:])):
                continue
            value = x[(row, *place)]
            if best is None or value > best or np.isnan(value):
                best, at = value, np.ravel_multi_index(place, x.shape[1:])
        values[(row, *window)], places[(row, *window)] = best, at
    return values, places


SIZES: dict[str, tuple[Any, Any]] = {
    "plain": (((2, 2), (2, 2), (1, 1)), ((0, 0), (0, 0))),
    "overlapping, padded": (((3, 2), (1, 2), (1, 1)), ((1, 1), (1, 0))),
    "gaps": (((2, 3), (2, 1), (3, 2)), ((1, 1), (1, 1))),
    "one axis": (((3,), (2,), (2,)), ((1, 1),)),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("kind", ["numbers", "ties", "edges"])
def test_maxima_and_their_places(name: str, kind: str) -> None:
    sizes, padding = SIZES[name]
    rng = np.random.default_rng(7)
    shape = (2, 7, 6)[: len(sizes[0]) + 1]
    x = rng.standard_normal(shape) if kind == "numbers" else rng.integers(0, 2, shape).astype(float)
    if kind == "edges":
        x = rng.choice(np.array([-INF, -INF, -INF, INF, NAN, 0.0]), shape)

    def program(ops: Any, x: Any) -> Any:
        return pools.maxima(ops, x, sizes, padding)

    expected = _expected(x, sizes, padding)
    for options in (FLOAT64, COMPILED):
        for found, right in zip(opstage.run(program, x, options=options), expected):
            np.testing.assert_array_equal(found, right)
    report = opstage.check(program, opstage.Spec(("B", *shape[1:])))
    assert report.ok, report
    assert [str(t.shape[0]) for t in report.outputs] == ["B", "B"]
    if kind == "numbers":  # each maximum's cotangent stands at its place, added up
        _, gradient = opstage.value_and_grad(lambda ops, x: ops.sum(program(ops, x)[0]), x, options=FLOAT64)
        counts = np.zeros((len(x), x[0].size))
        for row, places in enumerate(expected[1]):
            np.add.at(counts[row], places.ravel(), 1)
        np.testing.assert_array_equal(gradient, counts.reshape(x.shape))
