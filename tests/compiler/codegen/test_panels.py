"""Rows that are gone through side by side: where an axis is reduced whose elements do not lie one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage.options import Options

# (shape, axis): lanes that fill panels, that do not, and too few for one; rows longer than a running sum
CASES = [((70, 64), 0), ((3, 70, 65), 1), ((2, 5, 9), 1), ((200, 7), 0), ((2, 300, 130), 1), ((4, 3, 5, 17), 2)]
SPECIAL = [np.nan, np.inf, -np.inf, -0.0]


def softmax(x: Any, axis: int) -> Any:
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(axis=axis, keepdims=True))
        return e / e.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_reductions_over_any_axis_are_numpys(shape: tuple[int, ...], axis: int, dtype: Any) -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal(shape).astype(dtype)
    x.flat[rng.integers(0, x.size, 4)] = SPECIAL

    def program(ops: Any, x: Any) -> tuple[Any, ...]:
        centred = ops.sub(
            x, ops.scale(ops.broadcast_to(ops.reduce_max(x, axis=axis, keepdims=True), shape=shape), c=0.5)
        )
        return (
            ops.reduce_max(x, axis=axis),
            ops.reduce_sum(ops.mul(x, x), axis=axis),
            ops.softmax(x, axis=axis),
            centred,
        )

    found = opstage.run(program, x, options=Options(dtype=dtype, backend="compiled"))
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        greatest = wide.max(axis=axis, keepdims=True)
        expected = greatest.squeeze(axis), (wide * wide).sum(axis=axis), softmax(wide, axis), wide - greatest / 2
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6 if dtype == "float32" else 1e-13, atol=1e-7)
