"""Normalisations and deviations of rows that are constant, or nearly so beside their mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, derived, scalar_trainer

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
