"""Operands that are views of one element, and sums over axes in the middle."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.interpreters.eager_cpu import NumpyOps
from opstage.interpreters.eager_cpu.loops import arrays as loops

OPS = NumpyOps(Options())
SHAPE = (3, 5, 67)


def drawn(shape: tuple[int, ...] = SHAPE, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def spread(value: float, dtype: Any = np.float32) -> Any:
    return np.broadcast_to(dtype(value), SHAPE)


KINDS = {
    "packed": drawn,
    "one": lambda seed=0, dtype=np.float32: spread(1.5 + seed, dtype),
    "row": lambda seed=0, dtype=np.float32: np.broadcast_to(drawn((67,), seed, dtype), SHAPE),
    "column": lambda seed=0, dtype=np.float32: np.broadcast_to(drawn((3, 5, 1), seed, dtype), SHAPE),
    "every second": lambda seed=0, dtype=np.float32: drawn((3, 5, 134), seed, dtype)[..., ::2],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("left", "right"), list(product(KINDS, KINDS)))
def test_operands_of_any_strides(left: str, right: str, dtype: Any) -> None:
    x, y = KINDS[left](seed=0, dtype=dtype), KINDS[right](seed=1, dtype=dtype)
    mask = drawn(SHAPE, 2) > 0
    for m in (mask, np.broadcast_to(mask[0, 0, 0], SHAPE), mask.transpose(2, 1, 0).copy().transpose(2, 1, 0)):
        np.testing.assert_array_equal(loops.select(m, x, y), np.where(m, x, y))
    np.testing.assert_array_equal(loops.relu_grad(x, y), np.where(x <= 0, 0, y))
    np.testing.assert_array_equal(OPS.maximum(x, y), np.maximum(x, y))
    np.testing.assert_array_equal(OPS.minimum(y, x), np.minimum(y, x))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["sqrt", "inv", "sigmoid", "silu", "relu", "erf"])
def test_an_element_has_the_bits_of_a_number_wherever_it_stands(name: str, dtype: Any) -> None:
    """In a vector of 67, with a rest, by itself, one element spread, and with strides."""
    of, x = getattr(loops, name), np.abs(drawn((67,), 3, dtype)) + dtype(0.1)
    whole = of(x)
    np.testing.assert_array_equal(whole, [of(x[i : i + 1])[0] for i in range(67)])
    np.testing.assert_array_equal(whole, of(np.repeat(x, 2)[::2]))
    np.testing.assert_array_equal(of(np.broadcast_to(x[5:6], (40,))), np.repeat(whole[5], 40))


def test_a_constant_can_be_written_to_by_whoever_gets_it() -> None:
    x = np.zeros(4, np.float32)
    found = opstage.run(lambda ops, x: ops.full(shape=(3, 4), value=2.0), x)
    found[0, 0] = 5.0
    assert found.tolist() == [[5, 2, 2, 2], [2, 2, 2, 2], [2, 2, 2, 2]]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 700, 9), (2, 128, 64), (5, 2, 1000), (1, 257, 8), (4, 300, 2, 20), (6, 256, 7)])
def test_a_sum_over_an_axis_in_the_middle(shape: tuple[int, ...], dtype: str, keepdims: bool) -> None:
    x = drawn(shape, 4, np.dtype(dtype).type) + 1
    ops = NumpyOps(Options(dtype=dtype))
    for axes in ((1,), (1, 2), (0, 1)) if len(shape) == 4 else ((1,),):
        found = ops.reduce_sum(x, axis=axes, keepdims=keepdims)
        expected = x.astype(np.longdouble).sum(axis=axes, keepdims=keepdims)
        assert found.shape == expected.shape and found.dtype == dtype
        np.testing.assert_allclose(found, expected.astype(float), rtol=3e-6 if dtype == "float32" else 1e-14)
    x[0, 1] = np.inf
    x[0, 0] = np.nan
    assert np.isnan(ops.reduce_sum(x, axis=1)[0]).all() and np.isfinite(ops.reduce_sum(x, axis=1)[1:]).all()
