"""Compiled convolutions, whose addresses are known only when they run, in each way in which they are computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "depthwise": ((2, 32, 9, 7), (32, 1, 3, 3), {"stride": 2, "padding": 1, "groups": 32}),
    "cell by cell": ((2, 32, 6, 6), (48, 32, 3, 3), {"padding": 1}),
    "three axes": ((2, 16, 4, 5, 6), (32, 16, 3, 3, 2), {"stride": (1, 2, 1), "padding": 1}),
    "channels": ((2, 16, 14, 14), (32, 16, 3, 3), {"padding": 1}),
    "windows": ((2, 3, 20, 20), (5, 3, 3, 3), {"padding": 1}),
    "columns": ((2, 3, 4, 5, 6), (5, 3, 3, 3, 2), {"padding": 1}),
    "one product": ((6, 32, 1, 1), (48, 32, 1, 1), {}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_is_what_runs_op_by_op(case: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]) -> None:
    shape, kernel_shape, how = case
    rng = np.random.default_rng(0)
    kernel, bias, x = (rng.standard_normal(s).astype(np.float32) for s in (kernel_shape, kernel_shape[:1], shape))

    def loss(ops: Any, params: Any) -> Any:
        y = ops.conv(params["kernel"], params["bias"], params["x"], **how)
        return ops.sum(y * y)

    found = [
        opstage.value_and_grad(loss, {"kernel": kernel, "bias": bias, "x": x}, options=opstage.Options(backend=backend))
        for backend in ("eager", "compiled")
    ]
    (value, gradients), (again, others) = found
    np.testing.assert_allclose(again, value, rtol=1e-5)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(others[name], gradient, rtol=1e-4, atol=1e-4 * float(np.abs(gradient).max()))
