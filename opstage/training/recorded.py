"""A whole training step of a model, or its forward pass, recorded as a graph without any data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..interpreters.graph import Graph
from ..interpreters.graph.recorder import record
from ..models import Model
from ..ops.dims import DimScope
from ..ops.spec import as_specs, sized
from ..ops.types import as_dtype
from ..options import Options
from .optim import Optimizer
from .step import Clip
from .validate import training_step


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
    batch = sized(tuple(as_specs(spec) for spec in model.batch), sizes or {}, model.name)
    planned = training_step(
        model.loss,
        model.init,
        *batch,
        optimizer=optimizer,
        state=model.state,
        options=options,
        requires_grad=True,
        clip=clip,
        train=optimizer is not None,
    )
    layout, scope, dtype = planned.layout, DimScope(), as_dtype(options.dtype)
    outputs: list[str] = []

    def base(ops: Any, *refs: Any) -> tuple[Any, ...]:
        results, structure = layout.program(ops, *refs)
        outputs[:] = layout.output_names(structure)
        return tuple(results)

    types = [spec.bind(scope, dtype) for spec in planned.specs]
    for spec in planned.specs:
        spec.declare(scope)
    graph = record(base, types, dtype, options.seed, planned.names)
    return Graph(graph.body, graph.input_names, outputs, dtype, options.seed)
