"""Programs recorded with symbolic sizes, written as ONNX, checked by onnx and run by onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnxruntime

from opstage.api import argument_paths
from opstage.interpreters.derivatives import run_on_tape
from opstage.interpreters.graph.graph import Graph
from opstage.interpreters.graph.onnx import model_of
from opstage.interpreters.graph.recorder import record
from opstage.ops.dims import DimScope
from opstage.ops.spec import as_specs
from opstage.ops.trees import flatten, unflatten
from opstage.ops.types import as_dtype

onnxruntime.set_default_logger_severity(4)


def recorded(program: Callable[..., Any], *trees: Any, dtype: str = "float32", seed: int = 0) -> Graph:
    """The graph of `program(ops, *trees)`; leaves are arrays, or Specs whose names stay symbolic."""
    specs = tuple(as_specs(tree) for tree in trees)
    leaves, structure = flatten(specs)
    scope, float_ = DimScope(), as_dtype(dtype)
    types = [leaf.bind(scope, float_) for leaf in leaves]
    for leaf in leaves:
        leaf.declare(scope)

    def base(ops: Any, *refs: Any) -> tuple[Any, ...]:
        arguments = unflatten(structure, list(refs))
        _, _, outputs, _ = run_on_tape(ops, program, arguments, (False,) * len(arguments))
        return tuple(node.value for node in outputs)

    return record(base, types, float_, seed, argument_paths(program, specs))


def session_of(model: Any, *, optimized: bool = False) -> onnxruntime.InferenceSession:
    """The model as onnxruntime runs it on one core; its fusions round factors of float64 to float32."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def checked(graph: Graph, values: Mapping[str, Any] | None = None) -> Any:
    """The model of a graph, once onnx's checker has nothing to say against it."""
    model = model_of(graph, values)
    onnx.checker.check_model(model, full_check=True)
    return model


def run_model(session: onnxruntime.InferenceSession, graph: Graph, *trees: Any) -> list[Any]:
    """What the model gives for the leaves of the arguments, as far as they are inputs of it."""
    wanted = {input.name for input in session.get_inputs()}
    feeds = {}
    for name, type_, leaf in zip(graph.input_names, graph.input_types, flatten(trees)[0]):
        array = np.asarray(leaf)
        if name in wanted:
            feeds[name] = array.astype(type_.dtype) if array.dtype.kind == "f" else array
    results: list[Any] = session.run(list(graph.output_names), feeds)
    return results
