"""The program that evaluates a model: its metrics, or its loss with batches combined as in the loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from ..models import Model
from ..ops.errors import OpstageError, ProgramError
from ..ops.trees import Structure, flatten, unflatten
from ..ops.types import TensorType, dtype_name
from ..options import Options
from ..training.row_terms import Divisor, joining
from .traced import proved_of_rows


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
