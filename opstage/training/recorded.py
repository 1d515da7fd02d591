"""A whole training step of a model, or its forward pass, recorded as a graph without any data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..api import argument_paths, with_train
from ..interpreters.graph import Graph
from ..interpreters.graph.recorder import record
from ..models import Model
from ..ops.dims import DimScope
from ..ops.places import Places
from ..ops.spec import as_specs, sized
from ..ops.trees import Structure, flatten, structure_paths
from ..ops.types import as_dtype
from ..options import Options
from .layout import step_layout
from .optim import Optimizer
from .step import Clip, LossProgram


def record_model(
    model: Model,
    options: Options,
    optimizer: Optimizer | None = None,
    clip: Clip | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
) -> Graph:
    """The graph of one training step: forward, backward, clipping and update; without an optimizer, of the loss alone.

    sizes   numbers for named sizes of the batch, `{"B": 32}`; the others stay symbolic

    Inputs are called `params.<path>`, `state.<path>`, `slots.<path>.<i>`, by the names of the optimizer's scalars and
    of the loss's arguments, and `step` where the program draws random bits; outputs likewise, beside `loss` and
    `metrics.<name>`. Raises UsageError for a size that the model does not have or does not allow.
    """
    dtype = as_dtype(options.dtype)
    places = Places.of(model.init)
    parameters = places.first(flatten(as_specs(model.init))[0])
    state = None if model.state is None else as_specs(model.state)
    skip = 1 if state is None else 2
    batch = sized(tuple(as_specs(spec) for spec in model.batch), sizes or {}, model.name)
    batch_names = argument_paths(model.loss, (*(None,) * skip, *model.batch))
    trained = (True,) * len(parameters)
    loss = LossProgram(with_train(model.loss, optimizer is not None), places, trained, state is not None)
    layout = step_layout(loss, parameters, state, batch, batch_names, dtype, optimizer, clip)
    scope = DimScope()
    result: list[Structure] = []

    def base(ops: Any, *refs: Any) -> tuple[Any, ...]:
        outputs, shape = flatten(layout.program(ops, *refs))
        result.append(shape)
        return tuple(outputs)

    types = [spec.bind(scope, dtype) for spec in layout.specs]
    for spec in layout.specs:
        spec.declare(scope)
    graph = record(base, types, dtype, options.seed, layout.names)
    return Graph(graph.body, graph.input_names, _output_names(result[0], places.names), dtype, options.seed)


def _output_names(structure: Structure, parameters: Sequence[str]) -> list[str]:
    """`loss`, `metrics.accuracy`, `state.…`, `params.…`, `slots.…`, from the places in the result's tree."""
    names = []
    for path in structure_paths(structure):
        part, _, rest = path.partition(".")
        kind = ("loss", "metrics", "state", "params", "slots")[int(part)]
        if kind in ("params", "slots"):
            number, _, slot = rest.partition(".")
            rest = parameters[int(number)] + (f".{slot}" if slot else "")
        names.append(f"{kind}.{rest}" if rest else kind)
    return names
