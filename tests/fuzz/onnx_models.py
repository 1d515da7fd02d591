"""Valid ONNX models: onnx's own tests of operators, and small networks, one with its weights in another file."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

from tests.interop.onnx.models import classifier, model

_LONGEST = 12_000


@cache
def operators() -> list[dict[str, bytes]]:
    """The models of onnx's node tests; what is a shape, or may be one, is known in them."""
    from tests.onnx_nodes.cases import cases, small_inputs

    made = []
    for case in cases().values():
        proto = type(case.model)()
        proto.CopyFrom(case.model)
        for name, value in small_inputs(case).items():
            proto.graph.initializer.append(numpy_helper.from_array(value, name))
        data = proto.SerializeToString()
        if len(data) <= _LONGEST:
            made.append({"model.onnx": data})
    return made


def networks() -> list[dict[str, bytes]]:
    """Models of several nodes."""
    protos = [classifier(), _sizes(), _images(), _recurrent(), _branches(), _loop(), _attention(), _quantised()]
    data = [each.SerializeToString() for each in (*protos, _with_function())]
    external = _external()
    return [*[{**external, "model.onnx": each} for each in data], external]


def _random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _sizes() -> Any:
    """Arithmetic on shapes, as exporters write it."""
    weights = {"zero": np.array(0), "one": np.array([1]), "rest": np.array([-1]), "two": np.array([2, 1])}
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["b"], axis=0),
        helper.make_node("Unsqueeze", ["b", "one0"], ["b1"]),
        helper.make_node("Concat", ["b1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["flat"]),
        helper.make_node("Tile", ["flat", "two"], ["tiled"]),
        helper.make_node("Range", ["zero", "b", "step"], ["places"]),
        helper.make_node("Gather", ["tiled", "places"], ["rows"], axis=0),
        helper.make_node("Slice", ["rows", "one", "end", "one", "one"], ["cut"]),
        helper.make_node("ConstantOfShape", ["target2"], ["zeros"]),
        helper.make_node("Add", ["cut", "zeros"], ["y"]),
    ]
    weights |= {"one0": np.array([0]), "step": np.array(1), "end": np.array([6]), "target2": np.array([1, 1])}
    return model(nodes, {"x": ["B", "T", 6]}, ["y"], weights)


def _images() -> Any:
    weights = {"conv.weight": _random(4, 3, 3, 3), "conv.bias": _random(4), "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    weights["sizes"] = np.array([1, 4, 8, 8])
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["p"], mode="reflect"),
        helper.make_node("Conv", ["p", "conv.weight", "conv.bias"], ["a"], strides=[2, 2], dilations=[1, 1]),
        helper.make_node("Clip", ["a"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], ceil_mode=1),
        helper.make_node("Resize", ["c", "", "", "sizes"], ["d"], mode="linear"),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("Split", ["f"], ["g", "h"], axis=1, num_outputs=2),
        helper.make_node("Softmax", ["g"], ["y"]),
    ]
    return model(nodes, {"x": [1, 3, 9, 9]}, ["y", "h"], weights)


def _recurrent() -> Any:
    weights = {"W": _random(1, 16, 3), "R": _random(1, 16, 4), "B": _random(1, 32), "n": np.array([2], np.int32)}
    nodes = [
        helper.make_node("LSTM", ["x", "W", "R", "B", "n"], ["y", "h"], hidden_size=4),
        helper.make_node("Squeeze", ["h", "axis"], ["z"]),
        helper.make_node("CumSum", ["y", "one"], ["c"]),
    ]
    return model(nodes, {"x": ["T", 1, 3]}, ["z", "c"], weights | {"axis": np.array([0]), "one": np.array(1)})


def _branches() -> Any:
    value = helper.make_empty_tensor_value_info
    then = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["t"])], "then", [], [value("t")])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["e"])], "else", [], [value("e")])
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["mask"]),
        helper.make_node("If", ["mask"], ["y"], then_branch=then, else_branch=other),
    ]
    return model(nodes, {"x": ["N", 3]}, ["y"], {"w": _random(3), "zero": np.array(0, np.float32)})


def _loop() -> Any:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["goes"]),
            helper.make_node("MatMul", ["h", "w"], ["m"]),
            helper.make_node("Tanh", ["m"], ["next"]),
            helper.make_node("ReduceMean", ["next"], ["mean"], keepdims=0),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h", TensorProto.FLOAT, None),
        ],
        [helper.make_empty_tensor_value_info(name) for name in ("goes", "next", "mean")],
    )
    nodes = [
        helper.make_node("Loop", ["count", "go", "x"], ["y", "means"], body=body),
        helper.make_node("SequenceConstruct", ["y", "y"], ["several"]),
        helper.make_node("ConcatFromSequence", ["several"], ["z"], axis=0),
    ]
    weights = {"w": _random(3, 3), "count": np.array(4), "go": np.array(True)}
    return model(nodes, {"x": ["N", 3]}, ["z", "means"], weights)


def _attention() -> Any:
    names = ["q.weight", "k.weight", "v.weight"]
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x"])]
    nodes += [helper.make_node("MatMul", ["x", name], [name[0]]) for name in names]
    nodes += [
        helper.make_node("Einsum", ["q", "k"], ["s"], equation="bqd,bkd->bqk"),
        helper.make_node("Trilu", ["s"], ["tri"], upper=0),
        helper.make_node("Equal", ["tri", "zero"], ["none"]),
        helper.make_node("Where", ["none", "low", "s"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["p"]),
        helper.make_node("MatMul", ["p", "v"], ["o"]),
        helper.make_node("LayerNormalization", ["o", "norm.weight", "norm.bias"], ["y"]),
        helper.make_node("TopK", ["y", "two"], ["best", "places"]),
        helper.make_node("OneHot", ["ids", "depth", "off_on"], ["hot"]),
    ]
    weights = {name: _random(6, 6) for name in names} | {"table": _random(5, 6), "norm.weight": _random(6)}
    weights |= {"norm.bias": _random(6), "zero": np.array(0, np.float32), "low": np.array(-1e9, np.float32)}
    weights |= {"two": np.array([2]), "depth": np.array(5), "off_on": np.array([0, 1], np.float32)}
    return model(nodes, {"ids": (TensorProto.INT64, ["B", "T"])}, ["y", "best", "hot"], weights)


def _quantised() -> Any:
    weights = {"scale": np.array(0.1, np.float32), "zero": np.array(3, np.uint8), "w": np.ones((3, 2), np.uint8)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["a"]),
        helper.make_node("MatMulInteger", ["a", "w", "zero", "zero"], ["b"]),
        helper.make_node("DequantizeLinear", ["a", "scale", "zero"], ["c"]),
        helper.make_node("Cast", ["b"], ["d"], to=TensorProto.FLOAT),
    ]
    return model(nodes, {"x": ["N", 3]}, ["c", "d"], weights)


def _with_function() -> Any:
    body = [helper.make_node("Mul", ["a", "a"], ["s"]), helper.make_node("Pow", ["s", "p"], ["b"])]
    function = helper.make_function("mine", "Odd", ["a", "p"], ["b"], body, [helper.make_opsetid("", 20)])
    nodes = [
        helper.make_node("Odd", ["x", "p"], ["y"], domain="mine"),
        helper.make_node("Odd", ["y", "p"], ["z"], domain="mine"),
    ]
    return model(nodes, {"x": [3]}, ["z"], {"p": np.array(2, np.float32)}, functions=[function], domains=("mine",))


def _external() -> dict[str, bytes]:
    """A model whose weights stand in `w.bin`, one after the other."""
    proto = classifier()
    convert_model_to_external_data(proto, location="w.bin", size_threshold=0)
    data = b""
    for tensor in proto.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            for key, number in (("offset", len(data)), ("length", len(tensor.raw_data))):
                entry = tensor.external_data.add()
                entry.key, entry.value = key, str(number)
            data += tensor.raw_data
            tensor.ClearField("raw_data")
    return {"model.onnx": proto.SerializeToString(), "w.bin": data}
