"""Export of a trained model: as ONNX, compared in onnxruntime first, or its weights."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..data.table import Scaling
from ..files import write_file
from ..interop.onnx.export import model_of
from ..interop.weights import export_weights, write_state_dict
from ..interpreters.graph import Graph
from ..ops.dims import evaluate
from ..ops.errors import OpstageError, UsageError, brief, is_installed
from .predictions import named_outputs
from .trained_model import Trained

FORMATS = ("onnx", "safetensors")

_TRIED = 16
"""The number of rows for the check; half as many are checked too, since sizes are symbolic."""

_TOLERANCE = {"float32": 1e-4, "float64": 1e-9}
"""The allowed difference of a runtime, relative to the largest number in an output: it sums in another order."""


def export(trained: Trained, path: Path, form: str) -> None:
    """Write a trained model in one of `FORMATS`.

    onnx           the prediction function, with parameters included, named inputs and outputs and symbolic sizes. It is
                   written only if onnxruntime computes our numbers on rows of the held-out data
    safetensors    the parameters and the state by PyTorch's usual names, as `opstage export-weights` writes them

    Raises UsageError, and writes nothing, if the extra onnx is missing or onnxruntime computes other numbers.
    """
    if form == "safetensors":
        write_state_dict(path, export_weights(trained.trainer.export()))
        return
    if not (is_installed("onnx") and is_installed("onnxruntime")):
        raise UsageError("--format onnx needs onnx and onnxruntime: pip install 'opstage[onnx]'")
    graph = _predicting(trained)
    held = [trained.trainer.get_params(), *([] if trained.model.state is None else [trained.trainer.state])]
    values: dict[str, Any] = dict(zip(trained.predictor.parameter_names, held))
    model = model_of(graph, values)
    for key, text in metadata(trained).items():
        model.metadata_props.add(key=key, value=text)
    data = model.SerializeToString()
    for rows in (_TRIED, _TRIED // 2):
        _compare(trained, data, _sample(trained, rows))
    write_file(path, [data])


def metadata(trained: Trained) -> dict[str, str]:
    """Return the names in an exported model's metadata, as JSON, which tensors alone do not carry.

    classes      the names of the classes, in the order of their numbers
    columns      for each input its table columns, in order
    bytes        the inputs that were bytes, which the model expects as x/255
    categories   for each input with categories, the names in each column, in order; one_hot: which of these inputs are
    one-hot encoded
    preparation  the document of the run's `Preparation`, whose scaling the model has taken over
    """
    preparation = trained.preparation
    if preparation is None:
        return {}
    unscaled = replace(preparation, parts=tuple(replace(part, scaling=None) for part in preparation.parts))
    found: dict[str, Any] = {"preparation": unscaled.to_document()}
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
    """Record the prediction function, with inputs in the units of the run's data and named outputs."""
    predictor, scalings = trained.predictor, _scalings(trained)
    graph = predictor.graph
    if any(scaling is not None for scaling in scalings):
        graph = predictor.record(lambda ops, inputs: _scaled(inputs, scalings))
    names = [name.removeprefix("output.") for name in graph.output_names]
    return Graph(graph.body, graph.input_names, names, graph.dtype, graph.seed)


def _scalings(trained: Trained) -> list[Scaling | None]:
    """Return the scaling of each input of the model."""
    parts = {} if trained.preparation is None else {part.argument: part for part in trained.preparation.parts}
    return [parts[name].scaling if name in parts else None for name in trained.predictor.names]


def _scaled(inputs: Iterable[Any], scalings: Sequence[Scaling | None]) -> list[Any]:
    """Return arrays or refs scaled for the model."""
    return [x if scaling is None else scaling.apply(x) for x, scaling in zip(inputs, scalings)]


def _sample(trained: Trained, rows: int) -> list[Any]:
    """Return inputs for the check, in the units of the run's data and the model's dtypes: the first held-out rows, or
    without data numbers between 0 and 1, and 0 for integers, with `rows` for every open size."""
    predictor = trained.predictor
    try:
        held_out = trained.prepared_rows()
        inputs = [np.asarray(held_out[name][:rows]) for name in predictor.names]
    except OpstageError:
        rng, sizes = np.random.default_rng(0), defaultdict[str, int](lambda: rows)
        shapes = [evaluate(t.shape, sizes) for t in predictor.types]
        inputs = [rng.random(s) if t.dtype.kind == "f" else np.zeros(s) for s, t in zip(shapes, predictor.types)]
    units = [x if s is None else s.undo(x) for x, s in zip(inputs, _scalings(trained))]
    return [np.asarray(x, t.dtype) for x, t in zip(units, predictor.types)]


def _compare(trained: Trained, data: bytes, inputs: Sequence[Any]) -> None:
    """Raise UsageError if onnxruntime does not run the model, or computes other numbers than we do."""
    import onnxruntime

    expected = named_outputs(trained.predictor(*_scaled(inputs, _scalings(trained))))
    try:
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        given = dict(zip(trained.predictor.names, inputs))
        theirs = session.run(None, {taken.name: given[taken.name] for taken in session.get_inputs()})
    except Exception as error:  # its exceptions have no class in common
        raise UsageError(f"onnxruntime cannot run the model, so nothing is written: {brief(str(error))}") from error
    for (name, ours), other in zip(expected.items(), theirs):
        if ours.dtype.kind != "f":
            continue  # ties between classes may break differently; the probabilities are compared
        finite = np.isfinite(ours)
        allowed = _TOLERANCE[ours.dtype.name] * max(float(np.abs(ours[finite]).max(initial=0.0)), 1e-6)
        alike = ours.shape == other.shape and np.array_equal(ours[~finite], other[~finite], equal_nan=True)
        off = float(np.abs(ours[finite] - other[finite]).max(initial=0.0)) if alike else float("inf")
        if not off <= allowed:
            raise UsageError(
                f"onnxruntime computes another {name} than the model: it is off by {off:.3g}, but rounding explains "
                f"{allowed:.3g}; nothing is written"
            )
