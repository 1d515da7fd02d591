"""Recorded programs as ONNX models: checked by onnx, run by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnxruntime

from opstage.interop.onnx.export import model_of
from opstage.interpreters.graph import Graph
from opstage.ops.trees import flatten


def checked(graph: Graph, values: Mapping[str, Any] | None = None) -> onnx.ModelProto:
    """The model of a graph, against which onnx's checker has nothing to say."""
    model: onnx.ModelProto = model_of(graph, values)
    onnx.checker.check_model(model, full_check=True)
    return model


def session_of(model: onnx.ModelProto, *, optimized: bool = False) -> onnxruntime.InferenceSession:
    """The model as onnxruntime runs it on one core: as it is written, for some fusions round float64 to float32."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run_session(session: onnxruntime.InferenceSession, graph: Graph, *trees: Any, step: int = 0) -> list[np.ndarray]:
    """The outputs for the leaves of the program's arguments, as far as they are inputs of the model, at a step."""
    wanted = {taken.name for taken in session.get_inputs()}
    feeds = {}
    for name, type_, leaf in zip(graph.input_names, graph.input_types, flatten(trees)[0]):
        if name in wanted:
            feeds[name] = np.asarray(leaf, type_.dtype)
    if "step" in wanted:
        feeds["step"] = np.asarray(step, np.int64)
    results: list[np.ndarray] = session.run(None, feeds)
    return results


def operators(model: onnx.ModelProto) -> set[str]:
    """The operators of a model, those in the bodies of loops among them."""
    found: set[str] = set()
    graphs = [model.graph]
    while graphs:
        for node in graphs.pop().node:
            found.add(node.op_type)
            graphs += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return found
