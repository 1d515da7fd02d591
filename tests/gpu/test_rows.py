"""Rows longer than a warp takes: 1025, which is one number more than that, 5000, and the 50257 of a vocabulary.

Values and gradients beside float64 on the CPU, eager and compiled, and rows whose numbers are great and offset.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage.options import Options
from tests.conformance.harness import assert_close
from tests.conformance.test_values import upcast
from tests.cuda.test_fused import CLASSES, ROWS, agree

from .here import REHEARSAL

LONG = [pytest.param(n, id=f"long{n}") for n in ((1025, 5000, 50257) if not REHEARSAL else (129, 200))]
"""In a rehearsal a block takes rows from 128 numbers on."""

CUDA = Options(device="cuda")
WITHOUT_ATTENTION = [name for name in ROWS if "attention" not in name]
"""That has rows of queries, and a file of its own."""


def operands(n: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(n)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in ((3, n), (n,), (3, n)))


@pytest.mark.parametrize("n", LONG)
@pytest.mark.parametrize("name", WITHOUT_ATTENTION)
def test_values_and_gradients(name: str, n: int) -> None:
    agree(ROWS[name], *operands(n))


@pytest.mark.parametrize("n", LONG)
@pytest.mark.parametrize("name", CLASSES)
def test_losses_of_so_many_classes(name: str, n: int) -> None:
    agree(CLASSES[name], *operands(n), wrt=(0,))


@pytest.mark.parametrize("n", LONG)
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm", "rms_norm", "cross_entropy", "mse_loss"])
def test_compiled(name: str, n: int) -> None:
    program, (x, v, b) = {**ROWS, **CLASSES}[name], operands(n)
    options = CUDA.replace(backend="compiled")

    def total(ops: Any, x: Any, v: Any, b: Any) -> Any:
        y = program(ops, x, v, b)
        return ops.sum(ops.mul(y, y))

    value, gradient = opstage.value_and_grad(total, x, v, b, wrt=(0, 1, 2), options=options)
    exact, slope = opstage.value_and_grad(total, *upcast((x, v, b)), wrt=(0, 1, 2), options=Options(dtype="float64"))
    assert_close(value / (1 + abs(exact)), exact / (1 + abs(exact)), (1e-4, 1e-4), name)
    for a, e in zip(gradient, slope, strict=True):
        scale = 1 + float(np.max(np.abs(e), initial=0))
        assert_close(a / scale, e / scale, (1e-4, 1e-4), f"gradient of {name}")


@pytest.mark.parametrize("n", LONG)
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "cross_entropy"])
@pytest.mark.parametrize("offset", [-1e4, 80.0, 1e4])
def test_great_numbers_close_together(name: str, n: int, offset: float) -> None:
    """Exponentials of what is left of the greatest number of a row, wherever in the row that stands."""
    x, v, b = operands(n)
    for place in (0, n // 2, n - 1):
        shifted = (np.round(x * 4) / 4 + offset).astype(np.float32)  # exact, so that float64 sees the same numbers
        shifted[:, place] = offset + 8
        agree({**ROWS, **CLASSES}[name], shifted, v, b, wrt=(0,))


@pytest.mark.parametrize("n", LONG)
def test_one_number_out_of_many_decides(n: int) -> None:
    """A maximum and a nan are found wherever they stand."""
    for place in (0, 1, 31, 32, n // 3, n - 2, n - 1):
        x = np.zeros((2, n), np.float32)
        x[0, place], x[1, place] = 3, np.nan
        found = opstage.run(lambda ops, x: ops.reduce_max(x, axis=-1), x, options=CUDA)
        np.testing.assert_array_equal(found, np.array([3, np.nan], np.float32))
        weights = opstage.run(lambda ops, x: ops.softmax(x), x, options=CUDA)
        assert np.argmax(weights[0]) == place and np.isnan(weights[1]).all()


@pytest.mark.parametrize("n", LONG)
def test_rows_of_one_number(n: int) -> None:
    """Sums whose parts are all alike, to the bit."""
    x = np.full((2, n), 0.5, np.float32)
    np.testing.assert_array_equal(opstage.run(lambda ops, x: ops.reduce_sum(x, axis=-1), x, options=CUDA), [n / 2] * 2)
    np.testing.assert_allclose(opstage.run(lambda ops, x: ops.softmax(x), x, options=CUDA), 1 / n, rtol=1e-5)


@pytest.mark.parametrize("n", LONG)
def test_the_head_of_a_language_model(n: int) -> None:
    """Its rows of odd width are written apart and copied together; so is the gradient of what comes in."""
    rng = np.random.default_rng(n)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 8), (n, 8)))
    b, y = rng.standard_normal(n).astype(np.float32), rng.integers(0, n, 6)

    def loss(ops: Any, x: Any, w: Any, b: Any, y: Any) -> Any:
        return ops.cross_entropy(ops.linear(w, b, x), y)

    exact, slope = opstage.value_and_grad(loss, *upcast((x, w, b)), y, wrt=(0, 1, 2), options=Options(dtype="float64"))
    for backend in ("eager", "compiled"):
        options = CUDA.replace(backend=backend)
        value, gradient = opstage.value_and_grad(loss, x, w, b, y, wrt=(0, 1, 2), options=options)
        np.testing.assert_allclose(value, exact, rtol=1e-5)
        for a, e in zip(gradient, slope, strict=True):
            np.testing.assert_allclose(a, e, rtol=1e-3, atol=1e-6)
