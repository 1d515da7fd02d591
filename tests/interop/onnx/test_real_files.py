"""Forms that exporters of real networks write and the node tests do not have: against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import opstage
import opstage.onnx
from opstage import Options
from opstage.ops.errors import UnsupportedError
from tests.interop.onnx.models import load, model, node
from tests.interop.onnx.test_load import runtime, values

UINT8, INT8 = TensorProto.UINT8, TensorProto.INT8


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("channels", "group"), [(8, 1), (8, 4), (64, 1), (600, 1)], ids=str)
def test_integers_are_convolved_exactly(channels: int, group: int, dtype: str) -> None:
    """The greatest sums: of 72 products they are integers of float32, of 576 and of 5,400 they are not."""
    rng = np.random.default_rng(0)
    kernel = rng.integers(-128, 128, (4, channels // group, 3, 3)).astype(np.int8)
    kernel[0], kernel[1] = 127, -128
    x = rng.integers(0, 256, (2, channels, 4, 4)).astype(np.uint8)
    x[0] = 255
    made = node("ConvInteger", ["x", "w", "zero"], ["y"], group=group, pads=[1, 1, 1, 1], kernel_shape=[3, 3])
    weights = {"w": kernel, "zero": np.uint8(3)}
    proto = model([made], {"x": (UINT8, ["n", channels, 4, 4])}, ["y"], weights, opset=10)
    loaded = load(proto)
    assert loaded.check().ok
    for backend in ("eager", "compiled"):
        (found,) = values(loaded, x, backend=backend, dtype=dtype)
        np.testing.assert_array_equal(found, runtime(proto, x=x)[0])


def test_a_quantised_convolution_adds_its_bias_as_an_integer() -> None:
    rng = np.random.default_rng(1)
    weights: dict[str, Any] = {
        "w": rng.integers(-128, 128, (3, 100, 3, 3)).astype(np.int8),
        "bias": np.array([2**24 + 1, -(2**25) - 1, 7], np.int32),
        "xs": np.float32(0.5), "xz": np.uint8(100), "ws": np.array([1e-5, 2e-5, 3e-5], np.float32),
        "wz": np.zeros(3, np.int8), "ys": np.float32(0.75), "yz": np.uint8(90),
    }  # fmt: skip
    inputs = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "bias"]
    proto = model([node("QLinearConv", inputs, ["y"])], {"x": (UINT8, ["n", 100, 6, 6])}, ["y"], weights)
    x = rng.integers(0, 256, (2, 100, 6, 6)).astype(np.uint8)
    loaded = load(proto)
    (found,) = values(loaded, x)
    np.testing.assert_array_equal(found, runtime(proto, x=x)[0])


@pytest.mark.parametrize(("start", "step"), [(0.0, 1.0), (2.0, 1.0), (0.0, 3.0)])
def test_a_range_of_floats_up_to_a_size(start: float, step: float) -> None:
    """The grids of detectors: a size, cast to floats, is still that size."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "one"], ["n"]),
        node("Cast", ["n"], ["limit"], to=TensorProto.FLOAT),
        node("Range", ["start", "limit", "step"], ["y"]),
    ]
    weights = {"one": np.array(1), "start": np.float32(start), "step": np.float32(step)}
    proto = model(nodes, {"x": ["batch", "width"]}, ["y"], weights)
    loaded = load(proto)
    report = loaded.check()
    assert report.ok, report
    for width in (1, 2, 7):
        x = np.zeros((2, width), np.float32)
        for backend in ("eager", "compiled"):
            (found,) = values(loaded, x, backend=backend)
            np.testing.assert_array_equal(found, runtime(proto, x=x)[0])


def test_a_range_behind_a_fault_of_sizes_is_left_to_the_check() -> None:
    """The check says which constraint the sizes need; with it the range has a length."""
    nodes = [
        node("Add", ["x", "y"], ["z"]),
        node("Shape", ["z"], ["s"], start=0, end=1),
        node("Squeeze", ["s"], ["n"]),
        node("Cast", ["n"], ["limit"], to=TensorProto.FLOAT),
        node("Range", ["start", "limit", "step"], ["r"]),
    ]
    weights = {"start": np.float32(0), "step": np.float32(1)}
    data = model(nodes, {"x": ["a"], "y": ["b"]}, ["r"], weights).SerializeToString()
    loaded = opstage.onnx.load(data)
    assert not loaded.check().ok
    held = opstage.onnx.load(data, where=["a == b"])
    assert held.check().ok
    x = np.ones(3, np.float32)
    assert opstage.run(held, held.params, x, x, options=Options(backend="compiled"))["r"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
def test_statistics_in_float32_are_asked_for_by_their_number(op: str) -> None:
    weights = {"scale": np.linspace(0.5, 2, 5, dtype=np.float32)}
    inputs = {"x": ["n", 5]}
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)

    def proto(stash: int) -> Any:
        made = node(op, ["x", "scale"], ["y"], stash_type=stash)
        return model([made], inputs, ["y"], weights, opset=23)

    (found,) = values(load(proto(1)), x)
    np.testing.assert_allclose(found, runtime(proto(1), x=x)[0], rtol=1e-6, atol=1e-6)
    for short in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
        with pytest.raises(UnsupportedError, match="statistics of short floats"):
            load(proto(short))
