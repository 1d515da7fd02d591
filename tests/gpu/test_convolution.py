"""Convolutions on a GPU: the samples both ways, and sizes for which the rule itself chooses products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage.interpreters.eager_cuda.kernels import columns, convolution
from tests.cuda.test_convolution import *  # noqa: F403  # pytest runs what stands here
from tests.cuda.test_convolution import CUDA

from .here import REHEARSAL

# Of kernel and x, with static parameters.
NETWORKS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3 x 3": ((96, 64, 3, 3), (8, 64, 28, 28), {"padding": 1}),
    "7 x 7, stride": ((64, 3, 7, 7), (4, 3, 113, 113), {"padding": 3, "stride": 2}),
    "pointwise": ((128, 64, 1, 1), (8, 64, 28, 28), {}),
    "pointwise, few windows": ((128, 64, 1, 1), (64, 64, 7, 7), {}),
    "groups, dilated": ((64, 16, 3, 3), (8, 64, 28, 28), {"groups": 4, "dilation": 2}),
    "volumes": ((32, 16, 3, 3, 3), (2, 16, 12, 12, 12), {"padding": 1}),
}
if REHEARSAL:
    NETWORKS = {"3 x 3": ((4, 2, 3, 3), (2, 2, 5, 5), {"padding": 1})}


@pytest.mark.parametrize("workspace", [256 << 20, 3 << 20, 1 << 18])
@pytest.mark.parametrize("network", NETWORKS)
def test_both_ways_agree_at_sizes_of_networks(network: str, workspace: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x, static = NETWORKS[network]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(n).astype(np.float32) for n in (kernel, (kernel[0],), x)]

    def loss(ops: Any, *refs: Any) -> Any:
        y = ops.conv(*refs, **static)
        return ops.sum(ops.mul(y, y))

    def gradient() -> Any:
        return opstage.value_and_grad(loss, *arrays, wrt=(0, 1, 2), options=CUDA)[1]

    monkeypatch.setattr(columns, "WORKSPACE", workspace)
    asked: list[bool] = []
    monkeypatch.setattr(convolution, "by_product", lambda g: asked.append(columns.by_product(g)) or False)
    direct = gradient()
    assert asked == [not REHEARSAL] * 3, "so small ones are no products by themselves"
    monkeypatch.setattr(convolution, "by_product", columns.by_product if not REHEARSAL else lambda g: True)
    products, again = gradient(), gradient()
    for a, b, c in zip(products, direct, again, strict=True):
        np.testing.assert_array_equal(a, c)
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * float(np.abs(b).max()))
