"""What samples of a few elements cannot show of reductions: ties, sums of many, and symbolic sizes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.interpreters.eager_cpu.kernels.reduction import reduce_sum
from opstage.ops.dims import DimScope
from opstage.ops.errors import ShapeError
from opstage.ops.reduction import ARGMAX, REDUCE_MAX, REDUCE_MEAN, REDUCE_SUM, SOFTMAX
from opstage.ops.types import FLOAT32, INT32, INT64, TensorType
from opstage.options import Options

FLOAT64 = Options(dtype="float64")
TIES = np.array([[2.0, 1.0, 2.0], [3.0, 3.0, 3.0], [0.0, 5.0, -1.0]])
SHARES = np.array([[0.5, 0.0, 0.5], [1 / 3, 1 / 3, 1 / 3], [0.0, 1.0, 0.0]])


@pytest.mark.parametrize("keepdims", [False, True])
def test_maxima_that_tie_share_the_gradient_evenly(keepdims: bool) -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.reduce_max(x, axis=1, keepdims=keepdims)

    value, pullback = opstage.vjp(program, TIES, options=FLOAT64)
    g = np.array([1.0, -2.0, 4.0]).reshape(value.shape)
    np.testing.assert_allclose(pullback(g)[0], SHARES * g.reshape(3, 1), rtol=1e-15)

    t = np.arange(9.0).reshape(3, 3)
    _, tangent = opstage.jvp(program, (TIES,), (t,), options=FLOAT64)
    np.testing.assert_allclose(tangent.reshape(3), (SHARES * t).sum(axis=1), rtol=1e-15)


def test_ties_over_all_axes() -> None:
    _, (grad,) = opstage.value_and_grad(lambda ops, x: ops.reduce_max(x), np.array([[1.0, 4.0], [4.0, 4.0]]), wrt=(0,))
    np.testing.assert_allclose(grad, np.array([[0, 1], [1, 1]]) / 3, rtol=1e-6)


def test_gradient_of_a_squared_maximum_is_right_to_second_order() -> None:
    """f = Σ max(x)²: with k ties the Hessian-vector product is 2 · (share · v) · share."""

    def program(ops: Any, x: Any) -> Any:
        m = ops.reduce_max(x, axis=1)
        return ops.sum(ops.mul(m, m))

    v = np.arange(9.0).reshape(3, 3)
    expected = 2 * (SHARES * v).sum(axis=1, keepdims=True) * SHARES
    np.testing.assert_allclose(opstage.hvp(program, (TIES,), (v,), options=FLOAT64)[0], expected, rtol=1e-14)


AXES = [axes for n in range(4) for axes in itertools.combinations(range(3), n)]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("shape", [(8, 16, 9), (1100, 3, 2), (2, 3, 1100), (5000, 1, 1), (1, 2, 5000), (0, 2000, 3)])
def test_large_sums(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    for operand in (x, x.transpose(2, 1, 0), x[::-1], np.broadcast_to(x[:, :1], shape)):
        expected = operand.astype(np.float64).sum(axis=axes, keepdims=keepdims)
        actual = np.asarray(reduce_sum(operand, axes, keepdims))
        assert actual.shape == expected.shape and actual.dtype == np.float32
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_float32_sum_of_a_million_keeps_its_digits(axis: int) -> None:
    x = np.full((1_000_003, 3), 0.1, np.float32)
    x = x if axis == 0 else np.ascontiguousarray(x.T)
    expected = np.float64(np.float32(0.1)) * 1_000_003
    np.testing.assert_allclose(reduce_sum(x, (axis,), False), np.full(3, expected), rtol=2e-6)


def test_sums_keep_infinities_and_nan_in_their_column() -> None:
    x = np.ones((2000, 3), np.float32)
    x[7, 1], x[9, 2] = np.inf, np.nan
    np.testing.assert_array_equal(reduce_sum(x, (0,), False), [2000, np.inf, np.nan])
    np.testing.assert_array_equal(reduce_sum(np.ascontiguousarray(x.T), (1,), False), [2000, np.inf, np.nan])


def test_large_softmax_rows_add_up_to_one() -> None:
    x = np.random.default_rng(2).standard_normal((64, 1000)).astype(np.float32) * 30
    y = opstage.run(lambda ops, x: ops.softmax(x), x)
    np.testing.assert_allclose(y.astype(np.float64).sum(axis=1), np.ones(64), rtol=1e-6)


def _infer(primitive: Any, *shape: Any, dtype: Any = FLOAT32, **static: Any) -> TensorType:
    (out,) = primitive.infer((TensorType(shape, dtype),), static)
    return out  # type: ignore[no-any-return]


def test_symbolic_sizes_pass_through() -> None:
    scope = DimScope()
    b, t = scope.dim("B"), scope.dim("T")
    assert _infer(REDUCE_SUM, b, t, axes=(1,), keepdims=True) == TensorType((b, 1), FLOAT32)
    assert _infer(REDUCE_SUM, b, t, axes=(1,), keepdims=False, dtype=INT32) == TensorType((b,), INT64)
    assert _infer(REDUCE_MEAN, b, t, axes=(0, 1), keepdims=False) == TensorType((), FLOAT32)
    assert _infer(ARGMAX, b, t, axis=0, keepdims=False) == TensorType((t,), INT64)
    assert _infer(SOFTMAX, b, t, axis=1) == TensorType((b, t), FLOAT32)
    assert not scope.conditions


def test_an_axis_that_may_be_empty_is_refused() -> None:
    t = DimScope().dim("T")
    with pytest.raises(ShapeError, match=r"of no elements.* fails at T=1; add where="):
        _infer(REDUCE_MAX, 3, t - 1, axes=(1,), keepdims=False)
