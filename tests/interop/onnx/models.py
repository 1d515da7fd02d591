"""ONNX models written by hand for the tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import opstage.onnx

node = helper.make_node


def model(
    nodes: list[Any],
    inputs: dict[str, Any],
    outputs: list[str],
    weights: dict[str, Any] | None = None,
    *,
    opset: int = 20,
    functions: Any = (),
    domains: tuple[str, ...] = (),
) -> Any:
    """A ModelProto; inputs are shapes of float32, or pairs (element type, shape)."""
    given = []
    for name, shape in inputs.items():
        element, sizes = shape if isinstance(shape, tuple) else (TensorProto.FLOAT, shape)
        given.append(helper.make_tensor_value_info(name, element, sizes))
    made = [helper.make_empty_tensor_value_info(name) for name in outputs]
    arrays = [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(nodes, "net", given, made, arrays)
    imports = [helper.make_opsetid("", opset), *[helper.make_opsetid(domain, 1) for domain in domains]]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


def load(proto: Any, **settings: Any) -> opstage.onnx.OnnxModel:
    """The program of a ModelProto."""
    return opstage.onnx.load(proto.SerializeToString(), **settings)


def classifier(seed: int = 0) -> Any:
    """(B, 4) -> relu layer of 8, batch norm, dropout -> (B, 3) logits."""
    rng = np.random.default_rng(seed)
    weights = {
        "layer.weight": rng.standard_normal((8, 4)).astype(np.float32),
        "layer.bias": rng.standard_normal(8).astype(np.float32),
        "norm.weight": np.ones(8, np.float32),
        "norm.bias": np.zeros(8, np.float32),
        "norm.running_mean": rng.standard_normal(8).astype(np.float32),
        "norm.running_var": rng.uniform(0.5, 2, 8).astype(np.float32),
        "head.weight": rng.standard_normal((3, 8)).astype(np.float32),
        "rate": np.array(0.25, np.float32),
    }
    nodes = [
        node("Gemm", ["x", "layer.weight", "layer.bias"], ["a"], name="/layer/Gemm", transB=1),
        node(
            "BatchNormalization",
            ["a", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"],
            ["b"],
            name="/norm/BatchNormalization",
        ),
        node("Relu", ["b"], ["c"], name="/Relu"),
        node("Dropout", ["c", "rate"], ["d"], name="/Dropout"),
        node("Gemm", ["d", "head.weight"], ["logits"], name="/head/Gemm", transB=1),
    ]
    return model(nodes, {"x": ["batch", 4]}, ["logits"], weights)
