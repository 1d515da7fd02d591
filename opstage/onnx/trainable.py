"""An ONNX model as a `Model`: what the commands and `opstage.fit` take."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..compilation import record
from ..models.model import Model
from ..ops.derived import binary_cross_entropy_with_logits, correct_count
from ..ops.dims import ratio
from ..ops.errors import UsageError, nearest
from ..ops.program import Aux
from ..ops.spec import Spec
from ..ops.types import TensorType, dtype_name, is_float
from .model import OnnxModel, load

LOSSES = ("cross_entropy", "binary_cross_entropy", "mse")


@dataclass(frozen=True)
class Config:
    """How an ONNX model is loaded and trained.

    loss     cross_entropy, binary_cross_entropy (both of logits) or mse; left out, the model predicts only
    output   the output that is compared with the labels, by default the only one
    fixed    inputs with a value, `sr=16000` or `shape=2 3`, and `where`: constraints on open sizes, see `load`
    """

    loss: str = ""
    output: str = ""
    fixed: tuple[str, ...] = ()
    where: tuple[str, ...] = ()


def trainable(model: OnnxModel, config: Config) -> Model:
    """The Model of a file. Its labels are its last batch argument, `y`. Raises UsageError for an unknown loss.

    cross_entropy         of logits (B, C, …) and class numbers (B, …)
    binary_cross_entropy  of logits and labels of their shape, each 0 or 1
    mse                   of an output and values of its shape
    """
    outputs = _evaluated(model)
    if not config.loss:
        return Model(model.name, config, model.params, None, None, model.batch, model.state, outputs)
    if config.loss not in LOSSES:
        raise UsageError(f"unknown loss {config.loss!r}{nearest(config.loss, LOSSES)}; there are {', '.join(LOSSES)}")
    output = config.output or _only(model)
    if output not in model.outputs:
        near = nearest(output, model.outputs)
        raise UsageError(f"no output is called {output!r}{near}; there are {', '.join(model.outputs)}")
    label = "y" if "y" not in model.inputs else "label"
    batch = (*_of_several(model), _labels(model, output, config.loss))
    loss, metrics = _compared(model, output, config.loss, label)
    return Model(model.name, config, model.params, loss, metrics, batch, model.state, outputs)


def configured(path: Path, config: Config) -> Model:
    """The Model of a file, loaded as `config` says."""
    fixed = {}
    for word in config.fixed:
        name, equals, value = word.partition("=")
        try:
            numbers = [float(each) if "." in each else int(each) for each in value.split()]
        except ValueError:
            numbers = []
        if not equals or not numbers:
            raise UsageError(f"model.fixed: {word!r} is not a name and its value, as in sr=16000 or shape=2 3")
        fixed[name.strip()] = np.array(numbers if len(numbers) > 1 else numbers[0])
    return trainable(load(path, fixed=fixed, where=config.where), config)


def _of_several(model: OnnxModel) -> tuple[Spec, ...]:
    """The inputs; where batch normalisation trains, of batches of at least 2, whose variance it takes."""
    first, *rest = model.batch
    size = first.entries[0] if first.entries else 1
    if model.state is None or not isinstance(size, str):
        return model.batch
    return (Spec(first.shape, first.dtype, (*first.where, f"{size} >= 2")), *rest)


def _only(model: OnnxModel) -> str:
    if len(model.outputs) > 1:
        raise UsageError(f"{model.name} has several outputs; say which one the loss is of: {', '.join(model.outputs)}")
    return model.outputs[0]


def _labels(model: OnnxModel, output: str, loss: str) -> Spec:
    """The Spec of the labels, from the shape of the output."""
    trees = [tree for tree in (model.params, model.state) if tree is not None]

    def alone(ops: Any, *args: Any) -> Any:
        return evaluated(ops, *args)[output]

    evaluated = _evaluated(model)
    graph = record(alone, *trees, *model.batch)
    found: TensorType = graph.body.types[graph.body.outputs[0]]
    if not is_float(found.dtype):
        raise UsageError(f"the output {output!r} is of {dtype_name(found.dtype)}; a loss is of floats")
    shape = tuple(size if isinstance(size, int) else str(size) for size in found.shape)
    if loss != "cross_entropy":
        return Spec(shape)
    if len(shape) < 2:
        raise UsageError(f"the output {output!r} is {found}; cross_entropy takes logits (B, classes, …)")
    return Spec((shape[0], *shape[2:]), dtype="int64")


def _signed(program: Callable[..., Any], model: OnnxModel, *labels: str, train: bool) -> Callable[..., Any]:
    """The program with the names of its arguments, by which data are bound to it."""
    kinds = inspect.Parameter
    names = ["ops", "params", *(["state"] if model.state is not None else []), *model.inputs, *labels]
    parameters = [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in names]
    if train:
        parameters.append(kinds("train", kinds.KEYWORD_ONLY, default=False))
    program.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return program


def _evaluated(model: OnnxModel) -> Callable[..., Any]:
    """The outputs by name, in evaluation form."""

    def outputs(ops: Any, params: Any, /, *rest: Any) -> Any:
        result = model(ops, params, *rest)
        return result if model.state is None else result[0]

    return _signed(outputs, model, train=False)


def _compared(model: OnnxModel, output: str, loss: str, label: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The loss and the metrics of an output and labels."""

    def of(ops: Any, y: Any, labels: Any, reduction: str) -> Any:
        if loss == "cross_entropy":
            return ops.cross_entropy(y, labels, reduction=reduction)
        if loss == "mse":
            mean = ops.mse_loss(y, labels)
            return mean if reduction == "mean" else ops.scale(mean, c=ratio(y.shape[0], 1))
        return binary_cross_entropy_with_logits(ops, y, labels, reduction=reduction)

    def program(ops: Any, params: Any, /, *rest: Any, train: bool = False) -> Any:
        *inputs, labels = rest
        result = model(ops, params, *inputs, train=train)
        if model.state is None:
            return of(ops, result[output], labels, "mean")
        found, state = result
        return of(ops, found[output], labels, "mean"), Aux(state=state)

    def metrics(ops: Any, params: Any, /, *rest: Any) -> Any:
        *inputs, labels = rest
        result = model(ops, params, *inputs)
        y = (result if model.state is None else result[0])[output]
        sums = {"loss": of(ops, y, labels, "sum")}  # a mean counts each sample once, whatever its axes
        if loss != "mse" and len(y.shape) > (1 if loss != "cross_entropy" else 2):
            sums["loss"] = ops.scale(of(ops, y, labels, "mean"), c=ratio(y.shape[0], 1))
        if loss == "cross_entropy":
            sums["accuracy"] = correct_count(ops, y, labels)
        return sums

    return _signed(program, model, label, train=True), _signed(metrics, model, label, train=False)
