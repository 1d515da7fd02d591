"""Metrics and outputs of a model: checked before a run starts, and how metrics follow from the rows of a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar

from ..api import check
from ..arguments import batch_arguments
from ..interpreters.graph.recorder import Recorder
from ..interpreters.shape_check import Finding
from ..models import Model
from ..ops.dims import DimScope
from ..ops.errors import OpstageError, ProgramError, UsageError
from ..ops.spec import as_specs, sized
from ..ops.trees import Structure, flatten, unflatten
from ..ops.types import TensorType, as_dtype, dtype_name
from ..options import Options
from ..training.predictor import input_specs
from ..training.row_terms import Divisor, joining, means
from ..training.sizes import sample_sizes
from ..training.step import TrainingStep
from ..training.validate import training_step

# Tracing --------------------------------------------------------------------------------------------------------------

T = TypeVar("T")


def proved_of_rows(
    prove: Callable[[Callable[..., Any], Sequence[TensorType], slice, Any], T],
    part: Callable[[TrainingStep], Callable[..., Any]],
    program: Callable[..., Any],
    model: Model,
    options: Options,
) -> T:
    """Return what `prove` says of a part of the step of `program`, evaluated on a model's batch of sample sizes.

    `prove` is a function of `training.row_terms`. Raises OpstageError if the program cannot be traced.
    """
    made = training_step(
        program, model.init, *model.batch, state=model.state, options=options, requires_grad=True, train=False
    )
    specs = sized(made.specs, sample_sizes(made.specs, {}), model.name)
    dtype = as_dtype(options.dtype)
    types = [spec.bind(DimScope(), dtype) for spec in specs]
    first, last = sum(made.layout.counts[:2]), sum(made.layout.counts[:3])
    return prove(part(made.layout), types[:last], slice(first, last), Recorder(dtype, options.seed))


# Evaluation by the metrics of a model, or by its loss -----------------------------------------------------------------


def measures_of(model: Model, options: Options) -> Callable[..., Any]:
    """Return `Model.measures`. For a model without metrics whose loss is a mean over counted rows (targets that are not
    ignored, weights), weigh batches by the divisor of the loss, so that the result is the loss of all rows."""
    if model.metrics is not None or model.loss is None:
        return model.measures
    divisor = _divisor(model, options)
    return model.measures if divisor is None else _weighed(model.loss, divisor)


def _divisor(model: Model, options: Options) -> Divisor | None:
    """Return the divisor of the loss of a batch, or None if it is the number of rows or unknown."""
    try:
        return proved_of_rows(joining, attrgetter("forward"), model.require_loss(), model, options).divisor
    except OpstageError:
        return None


def _weighed(loss: Callable[..., Any], divisor: Divisor) -> Callable[..., Any]:
    def metrics(ops: Any, *arguments: Any, **keywords: Any) -> dict[str, Any]:
        value = _value(loss(ops, *arguments, **keywords))
        row, structure = flatten(arguments)

        def flat(traced: Any, *refs: Any) -> tuple[list[Any], Structure]:
            return flatten(_value(loss(traced, *unflatten(structure, list(refs)), **keywords)))

        types = [TensorType(ref.shape, ref.dtype) for ref in row]
        try:
            counted = divisor.value(ops, flat, row, types)
        except ProgramError:
            raise ProgramError(
                "the loss counts its rows in another way for batches of another size, so held-out batches do not join; "
                "give the model metrics=, sums over a batch, with that number as 'count'"
            ) from None
        count = ops.cast(counted, dtype=dtype_name(value.dtype))
        zero = ops.full(shape=(), value=0.0, dtype=dtype_name(value.dtype))
        # a mean of no rows is nan, and has no weight
        return {"loss": ops.select(ops.less(zero, count), ops.mul(value, count), zero), "count": count}

    metrics.__signature__ = inspect.signature(loss)  # type: ignore[attr-defined]  # its batch is bound by these names
    return metrics


def _value(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def require_batch(model: Model) -> None:
    """Raise UsageError unless a model has one Spec per batch argument of its loss."""
    known = batch_arguments(model.forward, skip=model.batch_starts)
    if known is None:
        return
    names, count = (*known.required, *known.optional), len(model.batch)
    if len(known.required) <= count <= len(names):
        return
    hint, what = "", "loss takes" if model.loss is not None else "outputs take"
    if model.state is None and count == len(known.required) - 1:
        hint = "; a loss with state, (ops, params, state, …), needs state= with its first values"
    raise UsageError(
        f"model {model.name}: its {what} the batch arguments {', '.join(names) or 'none'}, and batch= has {count} "
        f"Specs; give one for each{hint}"
    )


def check_parts(model: Model, options: Options) -> tuple[Finding, ...]:
    """Return errors of the metrics and the outputs, found on shapes in evaluation form; each names its program.

    Raises UsageError for outputs with arguments that are not in the batch.
    """
    held = [as_specs(tree) for tree in (model.init, model.state) if tree is not None]
    parts = [] if model.loss is None else [("metrics", model.measures, model.batch)]
    if model.outputs is not None:
        parts.append(("outputs", model.outputs, tuple(input_specs(model).values())))
    found: list[Finding] = []
    for name, program, specs in parts:
        report = check(program, *held, *specs, options=options, train=False)
        found += [replace(error, reason=f"in the {name}: {error.reason}") for error in report.errors]
    return tuple(found) if found or model.metrics is None else tuple(_means(model, options))


def _means(model: Model, options: Options) -> list[Finding]:
    """Find metrics that are proved to be means over the rows of a batch; they must be sums, to be averaged over all
    rows."""
    try:
        names = proved_of_rows(means, attrgetter("value"), model.measures, model, options)
    except OpstageError:
        return []  # nothing is proved if it cannot be traced
    return [
        Finding(
            "metrics",
            f"in the metrics: {name!r} is a mean over the batch, but metrics are sums, which are divided by all "
            "samples in the end",
            fix=f"return the sum over the batch as {name!r}, and, to divide by something else than the samples, a sum "
            "called 'count'",
        )
        for name in names
        if name != "count"
    ]
