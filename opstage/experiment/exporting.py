"""A trained model as an ONNX model of its predicting function, tried in onnxruntime before it is written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..atomic import write_file
from ..data.cast import Scaling
from ..interpreters.graph import Graph
from ..interpreters.graph.onnx import model_of
from ..ops.errors import OpstageError, UsageError
from ..training.weights import export_weights, write_state_dict
from .extras import is_installed
from .predictions import named_outputs
from .trained import Trained

FORMATS = ("onnx", "safetensors")

_TRIED = 16
"""Rows on which the model is tried, and half as many, for its sizes are symbolic."""

_TOLERANCE = {"float32": 1e-4, "float64": 1e-9}
"""By which a runtime may differ, of the largest number in an output: it sums in another order."""


def export(trained: Trained, path: Path, form: str) -> None:
    """Write a trained model in one of `FORMATS`.

    onnx           the predicting function: parameters inside, inputs and outputs by their names, sizes symbolic. It is
                   run by onnxruntime on rows of the held-out data, and written if the numbers are ours
    safetensors    the parameters and the state by PyTorch's usual names, as `opstage export-weights` writes them

    Raises UsageError where the extra onnx is missing, and where onnxruntime has other numbers; then nothing is written.
    """
    if form == "safetensors":
        write_state_dict(path, export_weights(trained.trainer.export()))
        return
    if not (is_installed("onnx") and is_installed("onnxruntime")):
        raise UsageError("--format onnx needs onnx and onnxruntime: pip install 'opstage[onnx]'")
    graph = _predicting(trained)
    held = [trained.trainer.get_params(), *([] if trained.model.state is None else [trained.trainer.state])]
    values: dict[str, Any] = dict(zip(trained.predictor.held_names, held))
    model = model_of(graph, values)
    for key, text in metadata(trained).items():
        model.metadata_props.add(key=key, value=text)
    data = model.SerializeToString()
    sample = _sample(trained)
    for rows in (_TRIED, _TRIED // 2):
        _compare(trained, data, [x[:rows] for x in sample])
    write_file(path, [data])


def metadata(trained: Trained) -> dict[str, str]:
    """Names for an exported model's metadata, as JSON: what a tensor of numbers does not say.

    classes      the names of the classes, in the order of their numbers
    columns      for each input the columns of the table that it is made of, in order
    bytes        the inputs that were bytes, of which the model takes shares: x/255
    categories   for each input that has any, for each column the names that it holds, in order; one_hot: which of these
                 inputs have a column for each name
    """
    preparation = trained.preparation
    if preparation is None:
        return {}
    found: dict[str, Any] = {}
    if preparation.classes is not None:
        found["classes"] = preparation.classes
    inputs = [part for part in preparation.parts if part.argument in trained.predictor.names]
    if preparation.form == "table":
        found["columns"] = {part.argument: part.columns for part in inputs}
    shares = [part.argument for part in inputs if part.image]
    if shares:
        found["bytes"] = shares
    named = [part for part in inputs if part.categories]
    if named:
        found["categories"] = {part.argument: dict(zip(part.columns, part.categories)) for part in named}
        found["one_hot"] = [part.argument for part in named if part.one_hot]
    return {name: json.dumps(value, ensure_ascii=False) for name, value in found.items()}


def _predicting(trained: Trained) -> Graph:
    """The predicting function, recorded: of inputs in the units of the run's data, its outputs by their own names."""
    predictor, scalings = trained.predictor, _scalings(trained)
    graph = predictor.graph
    if any(scaling is not None for scaling in scalings):
        graph = predictor.record(lambda ops, inputs: _scaled(inputs, scalings))
    names = [name.removeprefix("output.") for name in graph.output_names]
    return Graph(graph.body, graph.input_names, names, graph.dtype, graph.seed)


def _scalings(trained: Trained) -> list[Scaling | None]:
    """How each input of the model is scaled before it predicts."""
    parts = {} if trained.preparation is None else {part.argument: part for part in trained.preparation.parts}
    return [parts[name].scaling if name in parts else None for name in trained.predictor.names]


def _scaled(inputs: Iterable[Any], scalings: Sequence[Scaling | None]) -> list[Any]:
    """Arrays or refs as the model takes them."""
    return [x if scaling is None else scaling.apply(x) for x, scaling in zip(inputs, scalings)]


def _sample(trained: Trained) -> list[Any]:
    """Inputs to try the model on, in the units of the run's data: of the first rows that it held out, or numbers
    between 0 and 1, and 0 for integers, where its data are not at hand."""
    names = trained.predictor.names
    try:
        held_out = trained.prepared_rows()
        inputs = [np.asarray(held_out[name][:_TRIED]) for name in names]
    except OpstageError:
        shapes = [tuple(dim if isinstance(dim, int) else _TRIED for dim in t.shape) for t in trained.predictor.types]
        rng, types = np.random.default_rng(0), trained.predictor.types
        inputs = [
            (rng.random(s) if t.dtype.kind == "f" else np.zeros(s)).astype(t.dtype) for s, t in zip(shapes, types)
        ]
    return [x if s is None else s.undo(x) for x, s in zip(inputs, _scalings(trained))]


def _compare(trained: Trained, data: bytes, inputs: Sequence[Any]) -> None:
    """Raise UsageError where onnxruntime computes other numbers than the model does."""
    import onnxruntime

    dtype = trained.trainer.options.dtype
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    given = {
        name: np.asarray(array, dtype if np.asarray(array).dtype.kind == "f" else None)
        for name, array in zip(trained.predictor.names, inputs)
    }
    expected = named_outputs(trained.predictor(*_scaled(given.values(), _scalings(trained))))
    theirs = session.run(list(expected), {taken.name: given[taken.name] for taken in session.get_inputs()})
    for (name, ours), other in zip(expected.items(), theirs):
        if ours.dtype.kind != "f":
            continue  # a class may go the other way where two are as likely; their probabilities are compared
        allowed = _TOLERANCE[dtype] * max(float(np.abs(ours).max(initial=0.0)), 1e-6)
        off = float(np.abs(ours - other).max(initial=0.0)) if ours.shape == other.shape else float("inf")
        if not off <= allowed:
            raise UsageError(
                f"onnxruntime computes another {name} than the model: it is off by {off:.3g}, and rounding explains "
                f"{allowed:.3g}; nothing is written"
            )
