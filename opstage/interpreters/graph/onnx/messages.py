"""Nodes, values and types as ONNX protobuf messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ....ops.dims import DimExpr
from ....ops.errors import UsageError
from ....ops.types import DType, TensorType
from .nodes import OnnxNode, OnnxValue, Subgraph


def package() -> Any:
    try:
        import_module("onnx.helper")
        return import_module("onnx")
    except ModuleNotFoundError:
        raise UsageError(
            "writing ONNX needs the package onnx, which is not installed: pip install 'opstage[onnx]'"
        ) from None


@final
class Messages:
    """Makes messages with the package onnx."""

    def __init__(self, onnx: Any):
        self.onnx = onnx

    def graph(
        self,
        name: str,
        nodes: Sequence[OnnxNode],
        inputs: Sequence[OnnxValue],
        outputs: Sequence[OnnxValue],
        initializers: Mapping[str, npt.NDArray[Any]],
        types: Mapping[str, TensorType],
    ) -> Any:
        return self.onnx.helper.make_graph(
            [self.node(node) for node in nodes],
            name,
            [self.tensor(value.name, value.type) for value in inputs],
            [self.tensor(value.name, value.type) for value in outputs],
            [self.onnx.numpy_helper.from_array(array, name) for name, array in initializers.items()],
            value_info=[self.tensor(n, type_) for n, type_ in types.items()],
        )

    def node(self, node: OnnxNode) -> Any:
        attributes = {name: self.attribute(node, value) for name, value in node.attributes.items()}
        return self.onnx.helper.make_node(
            node.op, node.inputs, node.outputs, name=node.name, doc_string=node.doc or None, **attributes
        )

    def attribute(self, node: OnnxNode, value: Any) -> Any:
        if isinstance(value, Subgraph):
            return self.graph(f"{node.name}/body", value.nodes, value.inputs, value.outputs, {}, {})
        if isinstance(value, np.dtype):
            return self.element(value)
        if isinstance(value, np.ndarray):
            return self.onnx.numpy_helper.from_array(value)
        return list(value) if isinstance(value, tuple) else value

    def tensor(self, name: str, type_: TensorType) -> Any:
        shape = [str(d) if isinstance(d, DimExpr) else d for d in type_.shape]
        return self.onnx.helper.make_tensor_value_info(name, self.element(type_.dtype), shape)

    def element(self, dtype: DType) -> int:
        return int(self.onnx.helper.np_dtype_to_tensor_dtype(dtype))
