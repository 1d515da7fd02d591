"""Gradients where a value is nan, infinite or tied: PyTorch's, written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage.options import Options

FLOAT64 = Options(dtype="float64")
NAN, INF = np.nan, np.inf


def _pulled(program: Any, *args: Any, cotangent: Any) -> tuple[Any, ...]:
    _, pullback = opstage.vjp(program, *args, options=FLOAT64)
    return pullback(np.array(cotangent))


@pytest.mark.parametrize("op", ["maximum", "minimum"])
def test_where_one_of_two_is_nan_both_get_the_gradient(op: str) -> None:
    x, y = np.array([NAN, 1.0, NAN, 2.0]), np.array([1.0, NAN, NAN, 2.0])
    gradients = _pulled(lambda ops, a, b: getattr(ops, op)(a, b), x, y, cotangent=[3.0, 5.0, 7.0, 4.0])
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, [3.0, 5.0, 7.0, 2.0])


def test_a_maximum_that_is_nan_has_a_gradient_of_nan() -> None:
    x = np.array([[1.0, NAN, 2.0], [INF, INF, 0.0], [-INF, -INF, -INF]])
    (gradient,) = _pulled(lambda ops, a: ops.reduce_max(a, axis=1), x, cotangent=[1.0, 6.0, 9.0])
    np.testing.assert_array_equal(gradient, [[NAN, NAN, NAN], [3.0, 3.0, 0.0], [3.0, 3.0, 3.0]])


def test_half_powers_are_square_roots() -> None:
    x = np.array([0.0, -0.0, 4.0, INF, -INF, -1.0])
    root = opstage.run(lambda ops, a: ops.pow(a, exponent=0.5), x, options=FLOAT64)
    np.testing.assert_array_equal(root, [0.0, -0.0, 2.0, INF, NAN, NAN])
    inverse = opstage.run(lambda ops, a: ops.pow(a, exponent=-0.5), x, options=FLOAT64)
    np.testing.assert_array_equal(inverse, [INF, -INF, 0.5, 0.0, NAN, NAN])
