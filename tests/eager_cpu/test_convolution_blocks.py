"""The convolution kernels give the same whether they take all images at once, or a row of one image at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opstage.interpreters.eager_cpu.kernels import convolution

CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((4, 3, 3, 2), (3, 3, 9, 7), {"stride": (1, 1), "padding": (1, 0), "dilation": (1, 1), "groups": 1}),
    ((4, 1, 2, 3), (2, 2, 11, 8), {"stride": (2, 3), "padding": (2, 1), "dilation": (3, 1), "groups": 2}),
    ((2, 2, 3), (5, 2, 12), {"stride": (3,), "padding": (2,), "dilation": (2,), "groups": 1}),
    ((2, 1, 2, 1, 2), (2, 2, 5, 4, 3), {"stride": (1, 2, 1), "padding": (1, 0, 1), "dilation": (2, 1, 1), "groups": 2}),
]


def _results(
    kernel: Any, bias: Any, x: Any, g: Any, unreached: tuple[int, ...], window: dict[str, Any]
) -> tuple[Any, ...]:
    return (
        convolution.conv(kernel, bias, x, has_bias=True, **window),
        convolution.conv_kernel_grad(x, g, kernel=kernel.shape[2:], **window),
        convolution.conv_transpose(kernel, g, output_padding=unreached, has_bias=False, **window),
    )


@pytest.mark.parametrize(("kernel_shape", "x_shape", "window"), CASES)
def test_blocks_do_not_change_the_result(
    kernel_shape: tuple[int, ...], x_shape: tuple[int, ...], window: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(7)
    kernel, bias, x = (rng.standard_normal(shape) for shape in (kernel_shape, kernel_shape[:1], x_shape))
    out = convolution.conv(kernel, bias, x, has_bias=True, **window)
    g = rng.standard_normal(out.shape)
    unreached = tuple(
        n + 2 * p - d * (k - 1) - 1 - (count - 1) * s
        for n, count, k, s, p, d in zip(
            x_shape[2:], out.shape[2:], kernel_shape[2:], window["stride"], window["padding"], window["dilation"]
        )
    )
    whole = _results(kernel, bias, x, g, unreached, window)
    monkeypatch.setattr(convolution, "_room", lambda kernel_bytes: 1)
    for together, apart in zip(whole, _results(kernel, bias, x, g, unreached, window)):
        np.testing.assert_allclose(apart, together, rtol=1e-12, atol=1e-12)
