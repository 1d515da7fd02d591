"""Convolutions by products of matrices and by the direct kernels: both on the same samples, in runs of any length."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.compiler.gpu.probe import find_device
from opstage.interpreters.eager_cuda.kernels import columns, convolution
from opstage.interpreters.eager_cuda.kernels.columns import ColumnsGeometry, Run, by_product, runs
from opstage.interpreters.eager_cuda.kernels.windows import Windows
from opstage.ops.convolution import CONV, CONV_KERNEL_GRAD, CONV_TRANSPOSE
from opstage.ops.types import FLOAT32, TensorType
from opstage.options import Options
from tests.samples import SAMPLES
from tests.samples.sample import Sample

from . import test_conformance as conformance

CUDA = Options(device="cuda")
CONVOLUTIONS = [s for s in SAMPLES if s.op in ("conv", "conv2d", "conv_transpose", "conv_kernel_grad")]

WHOLE, IMAGES, SOME_WINDOWS = 256 << 20, 300, 100
"""Bytes of workspace: room for all windows of a sample, for those of about an image, for a few."""


@pytest.fixture
def by_products(monkeypatch: pytest.MonkeyPatch) -> list[ColumnsGeometry]:
    """Every convolution that has elements goes by products; which ones were asked for."""
    asked: list[ColumnsGeometry] = []

    def always(geometry: ColumnsGeometry) -> bool:
        asked.append(geometry)
        return bool(geometry.windows and geometry.outputs and geometry.inputs)

    monkeypatch.setattr(convolution, "by_product", always)
    return asked


@pytest.mark.parametrize("workspace", [WHOLE, IMAGES, SOME_WINDOWS])
@pytest.mark.parametrize("sample", CONVOLUTIONS, ids=lambda s: s.id)
def test_products_have_the_values_of_the_samples(
    sample: Sample, workspace: int, by_products: list[ColumnsGeometry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "WORKSPACE", workspace)
    conformance.test_values(sample, "eager")
    assert by_products


@pytest.mark.parametrize("backend", conformance.BACKENDS)
@pytest.mark.parametrize("sample", CONVOLUTIONS, ids=lambda s: s.id)
def test_products_have_the_derivatives_of_the_samples(
    sample: Sample, backend: str, by_products: list[ColumnsGeometry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "WORKSPACE", SOME_WINDOWS)
    conformance.test_first_derivatives(sample, backend)


SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "odd": ((5, 3, 3, 2), (3, 3, 5, 4), {"padding": (1, 0), "stride": (2, 1)}),
    "dilated": ((4, 2, 2, 3), (2, 2, 6, 7), {"dilation": (2, 3), "stride": 2, "padding": 2}),
    "groups": ((6, 2, 2, 2), (2, 6, 4, 3), {"groups": 3, "padding": 1}),
    "depthwise": ((4, 1, 3, 3), (2, 4, 4, 4), {"groups": 4, "padding": 1}),
    "one image": ((3, 2, 2, 2), (2, 4, 5), {}),
    "pointwise": ((3, 4, 1, 1), (2, 4, 3, 2), {}),
    "pointwise, wide": ((3, 4, 1, 1), (3, 4, 8, 8), {}),
    "pointwise, groups": ((4, 2, 1), (2, 4, 64), {"groups": 2}),
    "pointwise, one image": ((3, 4, 1, 1), (4, 3, 2), {}),
    "pointwise, stride": ((3, 2, 1, 1), (2, 2, 5, 4), {"stride": 2}),
    "five axes": ((2, 1, 1, 2, 1, 2, 1), (2, 1, 1, 2, 2, 2, 2), {"padding": (0, 1, 0, 0, 0)}),
}


def _arrays(shape: str) -> tuple[list[Any], dict[str, Any]]:
    kernel, x, static = SHAPES[shape]
    rng = np.random.default_rng(0)
    return [rng.standard_normal(n).astype(np.float32) for n in (kernel, (kernel[0],), x)], static


def _gradients(arrays: list[Any], static: dict[str, Any], options: Options) -> tuple[Any, ...]:
    """A conv's value and its derivatives in kernel, bias and x, each of another of the three ops."""

    def program(ops: Any, kernel: Any, bias: Any, x: Any) -> Any:
        y = ops.conv(kernel, bias, x, **static)
        return ops.sum(ops.mul(y, ops.sin(y)))

    value, gradient = opstage.value_and_grad(program, *arrays, wrt=(0, 1, 2), options=options)
    return (opstage.run(lambda ops, *a: ops.conv(*a, **static), *arrays, options=options), value, *gradient)


@pytest.mark.parametrize("shape", SHAPES)
def test_products_agree_with_direct_kernels(shape: str) -> None:
    arrays, static = _arrays(shape)
    direct = _gradients(arrays, static, CUDA)
    expected = _gradients([a.astype(np.float64) for a in arrays], static, Options(dtype="float64"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "by_product", lambda geometry: True)
        first = _gradients(arrays, static, CUDA)
        again = _gradients(arrays, static, CUDA)
    for a, b, c, e in zip(direct, first, again, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(b, e, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(b, c)  # sums have one order


@pytest.mark.parametrize("workspace", [4 * 23 * each for each in (70, 35, 20, 6)])
def test_matrices_are_given_back_and_take_no_more_than_the_workspace(
    workspace: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two images of 35 windows with 18 columns and 5 rows, as many at a time as fit."""
    monkeypatch.setattr(columns, "WORKSPACE", workspace)
    monkeypatch.setattr(convolution, "by_product", lambda geometry: True)
    device, rng = find_device(), np.random.default_rng(0)
    kernel, bias, x, y = (
        device.upload(rng.standard_normal(shape).astype(np.float32))
        for shape in ((5, 2, 3, 3), (5,), (2, 2, 7, 5), (2, 5, 7, 5))
    )
    static = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    calls: list[tuple[Any, ...]] = [
        (CONV, (kernel, bias, x), y, {"has_bias": True}, 0),
        (CONV_TRANSPOSE, (kernel, y), x, {"has_bias": False, "output_padding": (0, 0)}, 0),
        (CONV_KERNEL_GRAD, (x, y), kernel, {"kernel": (3, 3)}, kernel.size),  # the product of a run, and their sum
    ]
    for primitive, operands, like, more, beside in calls:
        entry, types = convolution.KERNELS[primitive], (TensorType(like.shape, FLOAT32),)
        entry(device, types, *operands, **static, **more)  # uploads numbers, which are kept
        device.peak = before = device.used
        out = entry(device, types, *operands, **static, **more)
        assert device.used == before + 4 * like.size
        assert device.peak - before <= workspace + 4 * (like.size + beside)
        assert device.peak - before > 4 * like.size + workspace // 2
        del out
        assert device.used == before


def test_images_are_columns_of_single_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is copied: beside the result there is no memory."""
    monkeypatch.setattr(convolution, "by_product", lambda geometry: True)
    device = find_device()
    kernel, x, y = (device.upload(np.ones(shape, np.float32)) for shape in ((3, 4, 1), (2, 4, 64), (2, 3, 64)))
    static = {"stride": (1,), "padding": (0,), "dilation": (1,), "groups": 1, "has_bias": False}
    for primitive, operand, like, more in ((CONV, x, y, {}), (CONV_TRANSPOSE, y, x, {"output_padding": (0,)})):
        entry, types = convolution.KERNELS[primitive], (TensorType(like.shape, FLOAT32),)
        entry(device, types, kernel, operand, **static, **more)  # uploads numbers, which are kept
        device.peak = before = device.used
        (out,) = entry(device, types, kernel, operand, **static, **more)
        assert device.peak - before == 4 * like.size
        assert (device.download(out) == operand.shape[1]).all()


# Runs and the rule ----------------------------------------------------------------------------------------------------


def geometry(images: int, groups: int, inputs: int, outputs: int, cells: int, places: int) -> ColumnsGeometry:
    nowhere: Any = None
    return ColumnsGeometry(
        images, groups, inputs, outputs, Windows(nowhere, 2, places, places, cells, False, cells == 1)
    )


@pytest.mark.parametrize(
    ("workspace", "expected"),
    [
        (10**6, [(0, 35)]),
        (4 * 10 * 15, [(0, 14), (14, 14), (28, 7)]),  # whole images
        (4 * 10 * 6, [(0, 6), (6, 6), (12, 6), (18, 6), (24, 6), (30, 5)]),
        (1, [(n, 1) for n in range(35)]),
    ],
)
def test_runs_are_whole_images_where_one_fits(
    workspace: int, expected: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "WORKSPACE", workspace)
    assert list(runs(geometry(5, 1, 2, 2, 4, 7))) == [Run(*each) for each in expected]


def test_runs_of_a_part_of_an_image_are_whole_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "WORKSPACE", 4 * 10 * 100)
    lengths = [run.length for run in runs(geometry(1, 1, 2, 2, 4, 200))]
    assert lengths == [96, 96, 8]


@pytest.mark.parametrize(
    ("name", "sizes", "product"),
    [
        ("the first layer of a residual network", (32, 1, 3, 64, 49, 112 * 112), True),
        ("3 x 3 on 64 channels", (32, 1, 64, 64, 9, 56 * 56), True),
        ("pointwise", (32, 1, 256, 64, 1, 56 * 56), True),
        ("patches of a vision transformer", (8, 1, 3, 192, 256, 196), True),
        ("groups of 32 channels", (32, 4, 32, 32, 9, 28 * 28), True),
        ("depthwise", (32, 64, 1, 1, 9, 56 * 56), False),
        ("three channels out", (32, 1, 64, 3, 9, 56 * 56), False),
        ("one image of digits", (1, 1, 1, 8, 9, 26 * 26), False),
        ("no image", (0, 1, 64, 64, 9, 56 * 56), False),
        ("no channel", (32, 1, 0, 64, 9, 56 * 56), False),
    ],
)
def test_what_is_computed_by_a_product(name: str, sizes: tuple[int, ...], product: bool) -> None:
    assert by_product(geometry(*sizes)) is product


def test_the_three_ops_ask_with_the_same_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ColumnsGeometry] = []
    monkeypatch.setattr(convolution, "by_product", lambda g: asked.append(g) or False)
    arrays, static = _arrays("groups")
    _gradients(arrays, static, CUDA)
    kernel, x, _ = SHAPES["groups"]
    of_conv = {(g.images, g.groups, g.inputs, g.outputs, g.w.plane, g.w.places, g.w.cells) for g in asked}
    assert of_conv == {(2, 3, kernel[1], 2, math.prod(x[2:]), 5 * 4, 4)}
    assert len(asked) == 4  # conv twice
