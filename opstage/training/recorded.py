"""A whole training step of a model, or its forward pass, recorded as a graph without any data, and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import compilation
from ..api import check
from ..interpreters.graph import Graph
from ..interpreters.graph.recorder import record
from ..interpreters.shape_check import Report, with_captured
from ..models import Model
from ..ops.dims import DimScope
from ..ops.spec import as_specs, sized
from ..ops.types import as_dtype
from ..optim import Optimizer
from ..options import Options
from .step import Clip
from .validate import report_on, training_step


def record_model(
    model: Model,
    options: Options,
    optimizer: Optimizer | None = None,
    clip: Clip | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
) -> Graph:
    """Return the graph of one training step: forward, backward, clipping and update; without an optimizer, of the loss
    alone, or of the outputs if the model has no loss.

    sizes   numbers for named sizes of the batch, `{"B": 32}`; the others stay symbolic

    Inputs are called `params.<path>`, `state.<path>`, `slots.<path>.<i>`, by the names of the optimizer's scalars and
    of the loss's arguments, and `step` where the program draws random bits; outputs likewise, with `loss` and
    `metrics.<name>`. Raises UsageError for a size that the model does not have or does not allow.
    """
    if optimizer is None and model.loss is None:
        trees = [as_specs(tree) for tree in (model.init, model.state) if tree is not None]
        return compilation.record(model.forward, *trees, *_batch(model, sizes), options=options)
    loss = model.forward if optimizer is None else model.require_loss()
    planned = training_step(
        loss, model.init, *_batch(model, sizes), **_step(model, options, optimizer, clip), requires_grad=True
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


def check_model(
    model: Model,
    options: Options,
    optimizer: Optimizer | None = None,
    clip: Clip | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
) -> Report:
    """Return the report of a check on the graph that `record_model` records for the same arguments."""
    if optimizer is None and model.loss is None:
        trees = [as_specs(tree) for tree in (model.init, model.state) if tree is not None]
        return check(model.forward, *trees, *_batch(model, sizes), options=options, train=False)
    loss = model.require_loss()
    planned = _step(model, options, optimizer, clip)
    report, _ = report_on(loss, model.init, *_batch(model, sizes), **planned)
    return with_captured(report, loss, clip)


def _batch(model: Model, sizes: Mapping[str, int] | None) -> tuple[Any, ...]:
    return tuple(sized(tuple(as_specs(spec) for spec in model.batch), sizes or {}, model.name))


def _step(model: Model, options: Options, optimizer: Optimizer | None, clip: Clip | None) -> dict[str, Any]:
    train = optimizer is not None
    return {"optimizer": optimizer, "state": model.state, "options": options, "clip": clip, "train": train}
