"""Reductions and normalisations at ties, nan and infinities, of many elements, constant rows and symbolic sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, derived, scalar_trainer
from opstage.interpreters.eager_cpu.kernels.reduction import reduce_sum
from opstage.ops.dims import DimScope
from opstage.ops.errors import ShapeError
from opstage.ops.reduction import ARGMAX, REDUCE_MAX, REDUCE_MEAN, REDUCE_SUM, SOFTMAX
from opstage.ops.types import FLOAT32, INT32, INT64, TensorType

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
    with pytest.raises(ShapeError, match=r"at least one element.* fails at T=1; add where="):
        _infer(REDUCE_MAX, 3, t - 1, axes=(1,), keepdims=False)


# Gradients where a value is nan, infinite or tied: PyTorch's, written out ---------------------------------------------

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


# Normalisations and deviations of rows that are constant, or nearly so beside their mean ------------------------------

RUNS = [Options(), Options(fast_kernels=False), Options(backend="compiled")]
LEVELS = [333333.3, -333333.3, 1e7 / 3, 0.1, 1e-3, 3e18, 0.0]
SHAPE = (6, 6, 5, 7)

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "layer_norm": lambda ops, x: ops.layer_norm(x, None, None),
    "group_norm": lambda ops, x: ops.group_norm(x, None, None, groups=2),
    "instance_norm": lambda ops, x: ops.group_norm(x, None, None, groups=6),
    "batch_norm": lambda ops, x: ops.batch_norm(x, None, None)[0],
    "variance of batch_norm": lambda ops, x: ops.mul(ops.batch_norm(x, None, None)[2], 1.0),
    "batch_norm, last": lambda ops, x: ops.batch_norm(x, None, None, channel_axis=3)[0],
    "var": lambda ops, x: derived.var(ops, x),
    "var of rows": lambda ops, x: derived.var(ops, x, axis=(1, 3), correction=0),
    "std": lambda ops, x: derived.std(ops, x, axis=-1),
}


@pytest.mark.parametrize("options", RUNS, ids=lambda o: f"{o.backend}-{o.fast_kernels}")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_deviation_of_equal_numbers_is_0(call: Callable[..., Any], options: Options) -> None:
    for level in LEVELS:
        x = np.full(SHAPE, level, np.float32)
        value, gradient = opstage.value_and_grad(lambda ops, x: ops.sum(ops.abs(call(ops, x))), x, options=options)
        assert value == 0.0
        np.testing.assert_array_equal(gradient, np.zeros(SHAPE))


@pytest.mark.parametrize("options", RUNS, ids=lambda o: f"{o.backend}-{o.fast_kernels}")
def test_statistics_of_equal_numbers_are_theirs(options: Options) -> None:
    x = np.full(SHAPE, 333333.3, np.float32)
    _, mean, variance = opstage.run(lambda ops, x: ops.batch_norm(x, None, None), x, options=options)
    np.testing.assert_array_equal(mean, x[0, :, 0, 0])
    np.testing.assert_array_equal(variance, np.zeros(6))


@pytest.mark.parametrize("options", RUNS, ids=lambda o: f"{o.backend}-{o.fast_kernels}")
@pytest.mark.parametrize("outlier", [0.0, 1e4])
def test_small_deviations_beside_a_large_mean_are_kept(outlier: float, options: Options) -> None:
    """Multiples of a quarter beside 2^18 are exact in float32, and so is what is expected, in float64."""
    rng = np.random.default_rng(0)
    exact = 2.0**18 + rng.integers(-8, 9, (4, 1000)) / 4
    exact[:, 0] += outlier
    centred = exact - exact.mean(1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    found = opstage.run(lambda ops, x: ops.layer_norm(x, None, None), exact.astype(np.float32), options=options)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=0.01 if not outlier else 1e-4)
    deviation = opstage.run(lambda ops, x: derived.std(ops, x, axis=1), exact.astype(np.float32), options=options)
    np.testing.assert_allclose(deviation, exact.std(1, ddof=1), rtol=1e-4)


@pytest.mark.parametrize("ranks", [2, 3])
def test_batch_norm_of_equal_numbers_is_0_on_a_mesh(ranks: int) -> None:
    levels = np.random.default_rng(0).uniform(1e5, 1e6, 100).astype(np.float32)

    def loss(ops: Any, params: Any, x: Any) -> Any:
        return ops.reduce_mean(ops.abs(ops.batch_norm(x, params["gamma"], None)[0]))

    trainer = scalar_trainer(loss, {"gamma": np.ones(100, np.float32)}, options=Options(mesh=f"data={ranks}"))
    assert trainer.loss_and_backward(np.tile(levels, (7 * ranks, 1)))[0] == 0.0
