"""ONNX models for measurements: ResNet-50 and BERT-base in shape, weights drawn at random, as exporters write."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


class _Writer:
    """A model under construction; the methods give names of values."""

    def __init__(self) -> None:
        from onnx import helper, numpy_helper

        self.helper, self.numpy_helper = helper, numpy_helper
        self.rng = np.random.default_rng(0)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(op, inputs, [name], name=f"/{name}/{op}", **attributes))
        return name

    def weight(self, name: str, *shape: int, fan: int = 0) -> str:
        scale = math.sqrt(2 / fan) if fan else 0.02
        return self.array(name, (scale * self.rng.standard_normal(shape)).astype(np.float32))

    def array(self, name: str, value: Any) -> str:
        self.weights.append(self.numpy_helper.from_array(value, name))
        return name

    def model(self, given: str, element: int, shape: Any, output: str) -> bytes:
        helper = self.helper
        inputs = [helper.make_tensor_value_info(given, element, shape)]
        outputs = [helper.make_empty_tensor_value_info(output)]
        graph = helper.make_graph(self.nodes, "net", inputs, outputs, self.weights)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        return bytes(made.SerializeToString())


def resnet50(size: int = 224) -> bytes:
    """(batch, 3, size, size) -> (batch, 1000); batch norms are folded into convolutions, as exporters fold them."""
    w = _Writer()

    def conv(x: str, name: str, a: int, b: int, k: int, stride: int = 1, relu: bool = True) -> str:
        weights = (
            w.weight(f"{name}.weight", b, a, k, k, fan=a * k * k),
            w.array(f"{name}.bias", np.zeros(b, np.float32)),
        )
        y = w.add("Conv", x, *weights, kernel_shape=[k, k], strides=[stride] * 2, pads=[k // 2] * 4)
        return w.add("Relu", y) if relu else y

    x = conv("x", "stem", 3, 64, 7, 2)
    x = w.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            name, stride = f"layer{stage}.{block}", 2 if stage and not block else 1
            y = conv(conv(x, f"{name}.a", channels, width, 1), f"{name}.b", width, width, 3, stride)
            y = conv(y, f"{name}.c", width, 4 * width, 1, relu=False)
            x = x if block else conv(x, f"{name}.down", channels, 4 * width, 1, stride, relu=False)
            x, channels = w.add("Relu", w.add("Add", x, y)), 4 * width
    x = w.add("Flatten", w.add("GlobalAveragePool", x))
    x = w.add("Gemm", x, w.weight("fc.weight", 1000, 2048), w.array("fc.bias", np.zeros(1000, np.float32)), transB=1)
    return w.model("x", 1, ["batch", 3, size, size], x)


def bert_base(length: int = 128, layers: int = 12, width: int = 768, heads: int = 12) -> bytes:
    """(batch, length) tokens -> (batch, length, width)."""
    w = _Writer()
    ids = "ids"
    x = w.add("Gather", w.weight("embeddings.weight", 30522, width), ids)
    x = w.add("Add", x, w.weight("positions.weight", 1, length, width))
    split = w.array("split", np.array([0, length, heads, width // heads]))
    join = w.array("join", np.array([0, length, width]))
    scale = w.array("scale", np.array(math.sqrt(width // heads), np.float32))

    def norm(x: str, name: str) -> str:
        ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
        return w.add("LayerNormalization", x, w.array(f"{name}.weight", ones), w.array(f"{name}.bias", zeros))

    def linear(x: str, name: str, a: int, b: int) -> str:
        y = w.add("MatMul", x, w.weight(f"{name}.weight", a, b))
        return w.add("Add", w.array(f"{name}.bias", np.zeros(b, np.float32)), y)

    for layer in range(layers):
        name = f"layer.{layer}"
        parts = [w.add("Reshape", linear(x, f"{name}.{part}", width, width), split) for part in ("q", "k", "v")]
        q, v = (w.add("Transpose", part, perm=[0, 2, 1, 3]) for part in (parts[0], parts[2]))
        k = w.add("Transpose", parts[1], perm=[0, 2, 3, 1])
        p = w.add("Softmax", w.add("Div", w.add("MatMul", q, k), scale), axis=-1)
        o = w.add("Reshape", w.add("Transpose", w.add("MatMul", p, v), perm=[0, 2, 1, 3]), join)
        x = norm(w.add("Add", linear(o, f"{name}.o", width, width), x), f"{name}.norm1")
        h = w.add("Gelu", linear(x, f"{name}.up", width, 4 * width))
        x = norm(w.add("Add", linear(h, f"{name}.down", 4 * width, width), x), f"{name}.norm2")
    return w.model(ids, 7, ["batch", length], x)


def many_weights(megabytes: int = 100) -> bytes:
    """A chain of products with so many bytes of weights."""
    w, width, x = _Writer(), 1024, "x"
    for i in range(megabytes * 2**20 // (4 * width * width)):
        x = w.add("Relu", w.add("MatMul", x, w.weight(f"layer.{i}.weight", width, width)))
    return w.model("x", 1, ["batch", width], x)
