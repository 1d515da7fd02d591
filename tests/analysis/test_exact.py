"""Bounds of affine programs against exact arithmetic, from subnormal numbers to where the dtype ends."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from opstage import Box, bounds

Program = Callable[..., Any]
WAYS: dict[str, tuple[Program, bool]] = {
    "linear": (lambda ops, w, b, x: ops.linear(w, b, x), True),
    "linear without a bias": (lambda ops, w, b, x: ops.linear(w, None, x), False),
    "matmul": (lambda ops, w, b, x: ops.matmul(x, ops.transpose2d(w)), False),
    "sum of products": (
        lambda ops, w, b, x: ops.transpose2d(
            ops.reduce_sum(ops.mul(w, ops.broadcast_to(x, shape=w.shape)), axis=1, keepdims=True)
        ),
        False,
    ),
}


def samples(seed: int, count: int) -> Any:
    """Weights (2, n), biases (2,) and boxes of inputs (1, n), magnitudes all over float32."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        n = int(rng.integers(1, 7))
        e = int(rng.integers(-149, 60))
        ew = int(rng.integers(-140, 60))
        x, w, b = (rng.standard_normal(shape) for shape in ((1, n), (2, n), 2))
        radius = abs(rng.standard_normal()) * 2.0 ** rng.integers(-149, max(e, -140) + 1)
        cast = [v.astype("f4") for v in (w * 2.0**ew, b * 2.0 ** (e + ew), x * 2.0**e)]
        yield cast[0], cast[1], Box.around(cast[2], np.float32(radius))


def corners(box: Box, rng: np.random.Generator) -> Any:
    for _ in range(4):
        yield np.where(rng.random(box.lower.shape) < 0.5, box.lower, box.upper)


@pytest.mark.parametrize("method", ["interval", "crown"])
@pytest.mark.parametrize("way", WAYS)
def test_exact_values_of_affine_programs_lie_inside(way: str, method: Any) -> None:
    program, has_bias = WAYS[way]
    rng = np.random.default_rng(1)
    for w, b, box in samples(0, 40):
        found = bounds(program, w, b, box, method=method)
        for x in corners(box, rng):
            for i in range(2):
                exact = Fraction(float(b[i])) if has_bias else Fraction(0)
                exact += sum(Fraction(float(p)) * Fraction(float(q)) for p, q in zip(x[0], w[i]))
                low, high = float(found.lower[0, i]), float(found.upper[0, i])
                assert np.isinf(low) or Fraction(low) <= exact, (w, b, x, low)
                assert np.isinf(high) or exact <= Fraction(high), (w, b, x, high)
