"""Check a model's metrics and outputs, in addition to its loss, before a run starts."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

from ..api import check
from ..arguments import batch_arguments
from ..interpreters.shape_check import Finding
from ..models import Model
from ..ops.errors import OpstageError, UsageError
from ..ops.spec import as_specs
from ..options import Options
from ..training.predictor import input_specs
from ..training.row_terms import means
from .traced import proved_of_rows


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
