"""Write a recorded program as an ONNX model: the format of `Graph.to_onnx`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ...files import write_file
from ...interpreters.graph.graph import Graph
from ...ops.dims import DimExpr
from ...ops.errors import UnsupportedError, UsageError, nearest
from ...ops.primitive import Primitive
from ...ops.trees import flatten, paths
from ...ops.types import EXACT, DType, TensorType, show_shape
from .operators import EXPORTS
from .writer import OnnxNode, OnnxValue, OnnxWriter, Subgraph, prune

# Protobuf messages ----------------------------------------------------------------------------------------------------


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

    def graph(self, name: str, graph: Subgraph, arrays: Mapping[str, Any], types: Mapping[str, TensorType]) -> Any:
        inputs, outputs = (
            [self.tensor(each.name, each.type) for each in side] for side in (graph.inputs, graph.outputs)
        )
        initializers = [self.onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
        values = [self.tensor(name, type_) for name, type_ in types.items()]
        nodes = [self.node(node) for node in graph.nodes]
        return self.onnx.helper.make_graph(nodes, name, inputs, outputs, initializers, value_info=values)

    def node(self, node: OnnxNode) -> Any:
        attributes = {name: self.attribute(node, value) for name, value in node.attributes.items()}
        return self.onnx.helper.make_node(
            node.op, node.inputs, node.outputs, name=node.name, doc_string=node.doc or None, **attributes
        )

    def attribute(self, node: OnnxNode, value: Any) -> Any:
        if isinstance(value, Subgraph):
            return self.graph(f"{node.name}/body", value, {}, {})
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


# Values of inputs that become constants -------------------------------------------------------------------------------


def arrays(graph: Graph, values: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the values for inputs by input name, converted to the types of the inputs."""
    types = dict(zip(graph.input_names, graph.input_types))
    found: dict[str, npt.NDArray[Any]] = {}
    for argument, tree in values.items():
        for path, leaf in zip(paths(tree), flatten(tree)[0]):
            name = f"{argument}.{path}" if path else argument
            if name not in types:
                raise UsageError(f"no input is called {name!r}{nearest(name, types)}; there are {', '.join(types)}")
            found[name] = _array(name, leaf, types[name])
    _require_one_size(found, types)
    return found


def _require_one_size(found: Mapping[str, npt.NDArray[Any]], types: Mapping[str, TensorType]) -> None:
    """Raise UsageError if the values assign two numbers to one symbolic size."""
    sizes: dict[str, tuple[int, str]] = {}
    for name, array in found.items():
        for n, d in zip(array.shape, types[name].shape):
            if isinstance(d, DimExpr):
                known, first = sizes.setdefault(str(d), (n, name))
                if known != n:
                    raise UsageError(
                        f"the size {d} is {known} in the value given for {first} but {n} in that for {name}"
                    )


def _array(name: str, leaf: Any, type_: TensorType) -> npt.NDArray[Any]:
    array = np.asarray(leaf)
    if type_.dtype.kind == "f" and array.dtype.kind == "f":
        array = array.astype(type_.dtype, copy=False)
    fits = len(array.shape) == len(type_.shape) and all(
        isinstance(d, DimExpr) or n == d for n, d in zip(array.shape, type_.shape)
    )
    if array.dtype != type_.dtype or not fits:
        raise UsageError(
            f"the value given for {name} is {show_shape(array.shape)} {array.dtype} but the input is {type_}"
        )
    return array


OPSET = 20
"""The opset version: the first with Gelu."""

IR_VERSION = 9
"""The version of the file format in the same release."""

_LARGEST = 2**31 - 1


def model_of(graph: Graph, values: Mapping[str, Any] | None = None) -> Any:
    """Return the onnx.ModelProto of a graph. See `Graph.to_onnx`."""
    onnx = package()
    if graph.dtype == EXACT:
        raise UnsupportedError("dtype exact is not supported by ONNX; record the program in float64")
    given = arrays(graph, values or {})
    writer = OnnxWriter(EXPORTS, graph.dtype, graph.seed)
    names = list(graph.input_names)
    inputs = [writer.input(name, type_) for name, type_ in zip(names, graph.input_types)]
    # ONNX names are unique, so an output with the name of an input, such as an updated parameter, is renamed.
    free = [writer.unique(f"{name}.new" if name in names else name) for name in graph.output_names]
    results = writer.write(graph.body, inputs)
    outputs = [OnnxValue(name, result.type, writer) for name, result in zip(free, results)]
    for output, result in zip(outputs, results):
        writer.nodes.append(OnnxNode("Identity", [result.name], [output.name], {}, output.name))
    nodes = prune(writer.nodes, {output.name for output in outputs})
    read = set[str]().union(*[node.reads() for node in nodes])
    given_names = {value.name: given[name] for value, name in zip(inputs, names) if name in given}
    initializers = {n: a for n, a in {**given_names, **writer.initializers}.items() if n in read or n in given_names}
    if sum(array.nbytes for array in initializers.values()) > _LARGEST:
        raise UsageError(
            "the model would be larger than 2 GiB, which one ONNX file cannot hold; leave parameters out of `values`, "
            "and they are inputs of the model"
        )
    written = {output for node in nodes for output in node.outputs}
    whole = Subgraph(nodes, [value for value in inputs if value.name not in given_names], outputs)
    types = {name: type_ for name, type_ in writer.types.items() if name in written}
    model = onnx.helper.make_model(
        Messages(onnx).graph("program", whole, initializers, types),
        producer_name="opstage",
        producer_version=_version(),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    return model


def write_model(graph: Graph, path: str | PathLike[str], values: Mapping[str, Any] | None = None) -> None:
    """Write the model of a graph to a file atomically. See `Graph.to_onnx`."""
    write_file(Path(path), [model_of(graph, values).SerializeToString()])


def _version() -> str:
    return str(import_module("opstage").__version__)


@final
class OnnxFormat:
    """ONNX among the formats of graphs: see `opstage.interpreters.registry.GraphFormat`."""

    name = "ONNX"
    dtypes = ("float32", "float64")

    def expresses(self, primitive: Primitive) -> bool:
        """Whether there is a rule for an op; others are exported by their decomposition."""
        return primitive in EXPORTS

    def write(self, graph: Graph, path: str | PathLike[str], values: Mapping[str, Any] | None) -> None:
        """Write a graph to a file: see `Graph.to_onnx`."""
        write_model(graph, path, values)


FORMAT = OnnxFormat()
