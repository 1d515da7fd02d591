"""Products by way of padded matrices: operands and results copied to rows of another length, as they lie or not."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.compiler.gpu.buffer import MatrixLayout
from opstage.compiler.gpu.probe import find_device
from opstage.interpreters.eager_cuda.kernels import linalg as matmul
from opstage.ops.types import FLOAT32, TensorType

SIZES = [(3, 5, 7), (4, 8, 12), (1, 1, 1), (2, 4, 5), (5, 6, 4), (6, 3, 4)]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OFTEN", "SMALL", "NARROW"):
        monkeypatch.setattr(matmul, name, 1)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("shared", [False, True], ids=["each", "one for all"])
def test_any_layout(sizes: tuple[int, int, int], shared: bool) -> None:
    """Operands that begin within memory, whose rows lie apart; one matrix y for all of a stack; a bias of one product.

    Memory that nobody wrote is a pattern that is not zero.
    """
    rows, terms, columns = sizes
    rng, device = np.random.default_rng(0), find_device()
    for stack, x_transposed, y_transposed, gap in itertools.product((1, 3), (False, True), (False, True), (0, 1, 2)):

        def operand(count: int, shape: tuple[int, int]) -> Any:
            wide = rng.standard_normal((count + 1, shape[0], shape[1] + gap)).astype(np.float32)
            of_matrix = wide[0].size
            layout = MatrixLayout(*shape, shape[1] + gap, of_matrix if count > 1 else 0, of_matrix)
            return device.upload(wide), layout, wide[1:, :, : shape[1]]

        x, of_x, left = operand(stack, (terms, rows) if x_transposed else (rows, terms))
        y, of_y, right = operand(1 if shared else stack, (columns, terms) if y_transposed else (terms, columns))
        bias = rng.standard_normal(columns).astype(np.float32) if stack == 1 else None
        out = device.empty(TensorType((stack, rows, columns), FLOAT32))
        matmul.padded_product(
            *(device, out, x, y),
            x_transposed=x_transposed,
            y_transposed=y_transposed,
            x_layout=of_x,
            y_layout=of_y,
            bias=None if bias is None else device.upload(bias),
        )
        a, b = (m.swapaxes(-1, -2) if t else m for m, t in ((left, x_transposed), (right, y_transposed)))
        expected = a @ b + (0 if bias is None else bias)
        np.testing.assert_allclose(device.download(out), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_with_cotangents(backend: Any, batch: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, y, z = (rng.standard_normal((*batch, *s)).astype(np.float32) for s in ((3, 5), (5, 7), (3, 7)))

    def loss(ops: Any, x: Any, y: Any, z: Any) -> Any:
        return ops.sum(ops.mul((ops.bmm if batch else ops.matmul)(x, y), z))

    options = Options(device="cuda", backend=backend)
    value, slopes = opstage.value_and_grad(loss, x, y, z, wrt=(0, 1, 2), options=options)
    np.testing.assert_allclose(value, np.sum(x @ y * z), rtol=1e-5)
    for found, expected in zip(slopes, (z @ np.swapaxes(y, -1, -2), np.swapaxes(x, -1, -2) @ z, x @ y), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_infinities_meet_no_padding(backend: Any) -> None:
    """0·inf is nan, so what is padded by zeros on one side is on the other too."""
    x, w = np.full((3, 5), np.inf, np.float32), np.ones((7, 5), np.float32)
    out = opstage.run(lambda ops, w, x: ops.linear(w, None, x), w, x, options=Options(device="cuda", backend=backend))
    assert np.all(out == np.inf)
