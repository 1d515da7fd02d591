"""The model as an ONNX message, and its file."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

from ....atomic import write_file
from ....ops.errors import UnsupportedError, UsageError
from ....ops.types import EXACT
from ..graph import Graph
from .messages import Messages, package
from .nodes import OnnxNode, OnnxValue, prune
from .table import RULES
from .values import arrays
from .writer import Writer

OPSET = 20
"""The opset version: the first with Gelu."""

IR_VERSION = 9
"""The version of the file format in the same release."""

_LARGEST = 2**31 - 1


def model_of(graph: Graph, values: Mapping[str, Any] | None = None) -> Any:
    """Return the onnx.ModelProto of a graph. See `Graph.to_onnx`."""
    onnx = package()
    if graph.dtype == EXACT:
        raise UnsupportedError("ONNX has no element type for dtype exact; record the program in float64")
    given = arrays(graph, values or {})
    writer = Writer(RULES, graph.dtype, graph.seed)
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
    proto = Messages(onnx).graph(
        "program",
        nodes,
        [value for value in inputs if value.name not in given_names],
        outputs,
        initializers,
        {name: type_ for name, type_ in writer.types.items() if name in written},
    )
    model = onnx.helper.make_model(
        proto,
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
