"""A prediction network, made a `Model` by adding a loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ..compilation import record
from ..models.model import Model
from ..ops.derived import binary_cross_entropy_with_logits, correct_count, counted
from ..ops.dims import ratio
from ..ops.errors import UsageError, nearest
from ..ops.protocol import Aux
from ..ops.spec import Spec
from ..ops.types import TensorType, dtype_name, is_float
from ..safetensors_files import decode, read_bytes

LOSSES = ("cross_entropy", "binary_cross_entropy", "mse")


@dataclass(frozen=True, eq=False)
class Network:
    """A prediction program with its parameters.

    program   (ops, params, [state,] *inputs, train=) -> outputs by name; with state a pair of those and the state
              after this step
    params    the parameters, a tree of arrays
    inputs    a Spec for each input, by the name of the program's argument
    outputs   the names of the outputs
    state     running statistics; None for a network without
    """

    name: str
    program: Callable[..., Any]
    params: Any
    inputs: Mapping[str, Spec]
    outputs: tuple[str, ...]
    state: Any = None

    @property
    def batch(self) -> tuple[Spec, ...]:
        """The Specs of the inputs, in the order of the program's arguments."""
        return tuple(self.inputs.values())


def tensors_beside(file: str, name: str) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors of the safetensors file `name` in a module's folder, as read-only arrays.

    Raises UsageError for a file that is not one.
    """
    path = Path(file).with_name(name)
    tensors = decode(read_bytes(path), path)
    for array in tensors.values():
        array.flags.writeable = False
    return tensors


def supervised(network: Network, config: Any, *, loss: str = "", output: str = "") -> Model:
    """The Model of a network. The labels are the last batch argument, `y`. Raises UsageError for an unknown loss.

    loss     cross_entropy, of logits (B, C, …) and class indices (B, …); binary_cross_entropy, of logits and labels of
             their shape, each 0 or 1; mse, of an output and values of its shape; empty, the model predicts only
    output   the output to compare with the labels, by default the only one
    """
    outputs = _evaluated(network)
    if output and output not in network.outputs:
        near = nearest(output, network.outputs)
        raise UsageError(f"no output is called {output!r}{near}; there are {', '.join(network.outputs)}")
    if not loss:
        return Model(network.name, config, network.params, None, None, network.batch, network.state, outputs)
    if loss not in LOSSES:
        raise UsageError(f"unknown loss {loss!r}{nearest(loss, LOSSES)}; there are {', '.join(LOSSES)}")
    output = output or _only(network)
    label = "y" if "y" not in network.inputs else "label"
    batch = (*of_several(network), _labels(network, output, loss))
    program, metrics = _compared(network, output, loss, label)
    return Model(network.name, config, network.params, program, metrics, batch, network.state, outputs)


def of_several(network: Network) -> tuple[Spec, ...]:
    """Return the inputs; if batch normalisation trains, for batches of at least 2, so that the variance is defined."""
    if network.state is None or not network.batch:
        return network.batch
    first, *rest = network.batch
    size = first.entries[0] if first.entries else 1
    if not isinstance(size, str):
        return network.batch
    return (first.changed(where=(*first.where, f"{size} >= 2")), *rest)


def _only(network: Network) -> str:
    if len(network.outputs) > 1:
        raise UsageError(
            f"{network.name} has several outputs; say which one the loss is of: {', '.join(network.outputs)}"
        )
    return network.outputs[0]


def _labels(network: Network, output: str, loss: str) -> Spec:
    """Return the Spec of the labels, from the shape of the output."""
    trees = [tree for tree in (network.params, network.state) if tree is not None]

    def alone(ops: Any, *args: Any) -> Any:
        return evaluated(ops, *args)[output]

    evaluated = _evaluated(network)
    graph = record(alone, *trees, *network.batch)
    found: TensorType = graph.body.types[graph.body.outputs[0]]
    if not is_float(found.dtype):
        raise UsageError(f"the output {output!r} is of {dtype_name(found.dtype)}; a loss is of floats")
    shape = tuple(size if isinstance(size, int) else str(size) for size in found.shape)
    if loss != "cross_entropy":
        return Spec(shape)
    if len(shape) < 2:
        raise UsageError(f"the output {output!r} is {found}; cross_entropy takes logits (B, classes, …)")
    return Spec((shape[0], *shape[2:]), dtype="int64")


def _signed(program: Callable[..., Any], network: Network, *labels: str, train: bool) -> Callable[..., Any]:
    """Return the program with a signature, by whose names data are bound."""
    kinds = inspect.Parameter
    names = ["ops", "params", *(["state"] if network.state is not None else []), *network.inputs, *labels]
    parameters = [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in names]
    if train:
        parameters.append(kinds("train", kinds.KEYWORD_ONLY, default=False))
    program.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return program


def _evaluated(network: Network) -> Callable[..., Any]:
    """Return the program of the outputs by name, in evaluation form."""

    forward, stateful = network.program, network.state is not None

    def outputs(ops: Any, params: Any, /, *rest: Any) -> Any:
        result = forward(ops, params, *rest)
        return result[0] if stateful else result

    return _signed(outputs, network, train=False)


def _compared(network: Network, output: str, loss: str, label: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the loss and the metrics of an output and labels."""
    forward, stateful = network.program, network.state is not None

    def of(ops: Any, y: Any, labels: Any, reduction: str) -> Any:
        if loss == "cross_entropy":
            return ops.cross_entropy(y, labels, reduction=reduction)
        if loss == "mse":
            mean = ops.mse_loss(y, labels)
            return mean if reduction == "mean" else ops.scale(mean, c=ratio(y.shape[0], 1))
        return binary_cross_entropy_with_logits(ops, y, labels, reduction=reduction)

    def program(ops: Any, params: Any, /, *rest: Any, train: bool = False) -> Any:
        *inputs, labels = rest
        result = forward(ops, params, *inputs, train=train)
        if not stateful:
            return of(ops, result[output], labels, "mean")
        found, state = result
        return of(ops, found[output], labels, "mean"), Aux(state=state)

    def metrics(ops: Any, params: Any, /, *rest: Any) -> Any:
        *inputs, labels = rest
        result = forward(ops, params, *inputs)
        y = (result[0] if stateful else result)[output]
        sums = {"loss": of(ops, y, labels, "sum")}
        if loss == "cross_entropy":  # each label counts that is not ignored, whatever the axes
            count = ops.sum(ops.cast(counted(ops, labels), dtype=y.dtype))
            return {**sums, "accuracy": correct_count(ops, y, labels), "count": count}
        if loss != "mse" and len(y.shape) > 1:  # each sample counts once
            sums["loss"] = ops.scale(of(ops, y, labels, "mean"), c=ratio(y.shape[0], 1))
        return sums

    return _signed(program, network, label, train=True), _signed(metrics, network, label, train=False)


def below(tree: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the entries of a tree whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tree.items() if name.startswith(prefix)}
