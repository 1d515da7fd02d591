"""How a model is evaluated: its metrics, checked before a run starts, and the confusion matrix of a classifier."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar, final

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from ..api import check
from ..data import Batches
from ..interpreters.graph.recorder import Recorder
from ..interpreters.shape_check.finding import Finding
from ..models import Model
from ..ops.dims import DimScope
from ..ops.errors import OpstageError, ProgramError, UsageError
from ..ops.loss import CROSS_ENTROPY
from ..ops.primitive import Primitive, Static
from ..ops.spec import as_specs, sized
from ..ops.trees import Structure, flatten, unflatten
from ..ops.types import TensorType, as_dtype, dtype_name
from ..options import Options
from ..program_arguments import batch_arguments
from ..training.loss_reduction import Divisor, loss_reduction, means
from ..training.predictor import input_specs
from ..training.sizes import sample_sizes
from ..training.step import TrainingStep
from ..training.trainer import ScalarTrainer
from ..training.validate import training_step
from ..transforms.transparent import Transparent

# Tracing --------------------------------------------------------------------------------------------------------------

T = TypeVar("T")


def prove_of_batch(
    prove: Callable[[Callable[..., Any], Sequence[TensorType], slice, Any], T],
    part: Callable[[TrainingStep], Callable[..., Any]],
    program: Callable[..., Any],
    model: Model,
    options: Options,
) -> T:
    """Return what `prove` says of a part of the step of `program`, evaluated on a model's batch of sample sizes.

    `prove` is a function of `training.loss_reduction`. Raises OpstageError if the program cannot be traced.
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


def model_metrics(model: Model, options: Options) -> Callable[..., Any]:
    """Return `Model.measures`, or the loss of all rows for a model without metrics.

    If the loss is a mean over counted rows (weights, targets that are not ignored), batches are weighed by its divisor.
    """
    if model.metrics is not None or model.loss is None:
        return model.measures
    divisor = _divisor(model, options)
    return model.measures if divisor is None else _weighed(model.loss, divisor)


def _divisor(model: Model, options: Options) -> Divisor | None:
    """Return the divisor of the loss of a batch, or None if it is the number of rows or unknown."""
    try:
        return prove_of_batch(loss_reduction, attrgetter("forward"), model.require_loss(), model, options).divisor
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
    """Find metrics that are proved to be means over a batch; they must be sums, to be averaged over all
    rows."""
    try:
        names = prove_of_batch(means, attrgetter("value"), model.measures, model, options)
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


# The confusion matrix of a classifier on held-out data, and its most confident mistakes -------------------------------

MOST_CLASSES = 40
MOST_MISTAKES = 12


@final
@dataclass(frozen=True)
class Mistake:
    """A misclassified sample.

    row            its number in the held-out data, from 0
    true, found    its class, and the predicted class
    probability    the predicted probability of the class found
    sample         its row of the batch's first array
    """

    row: int
    true: int
    found: int
    probability: float
    sample: npt.NDArray[Any]


@final
@dataclass(frozen=True)
class Scores:
    """Precision, recall and F1 of each class; nan if the divisor is 0.

    precision    the fraction of the predictions of the class that are right
    recall       the fraction of the samples of the class that are found
    f1           the harmonic mean of both: 2 tp/(samples + taken)
    """

    precision: npt.NDArray[np.float64]
    recall: npt.NDArray[np.float64]
    f1: npt.NDArray[np.float64]


@final
@dataclass(frozen=True)
class Classification:
    """The result of a classifier on held-out data.

    counts      counts (true class, predicted class)
    mistakes    the most confident mistakes, in descending order
    """

    counts: npt.NDArray[np.int64]
    mistakes: tuple[Mistake, ...]

    @property
    def scores(self) -> Scores:
        """Precision, recall and F1 of each class."""
        right = self.counts.diagonal().astype(np.float64)
        samples, taken = self.counts.sum(axis=1), self.counts.sum(axis=0)
        with np.errstate(invalid="ignore"):
            return Scores(right / taken, right / samples, 2 * right / (samples + taken))


@final
class _Classifications(Transparent[Any]):
    """Records the logits and labels that a program passes to cross_entropy."""

    __slots__ = ("seen",)

    def __init__(self, inner: Any):
        super().__init__(inner)
        self.seen: list[tuple[Any, Any]] = []

    @override
    def bind(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> tuple[Any, ...]:
        if primitive is CROSS_ENTROPY:
            self.seen.append((refs[0], refs[1]))
        outs: tuple[Any, ...] = self.inner.bind(primitive, refs, static)
        return outs


def classify(trainer: ScalarTrainer, metrics: Callable[..., Any], batches: Batches) -> Classification | None:
    """Return the result on `batches`, or None if the model is not a classifier of whole samples.

    A classifier is recognised by its metrics: they call cross_entropy once, on logits (B, classes) and labels (B).
    Samples with a negative label are ignored.
    """

    def program(ops: Any, *trees: Any) -> Any:
        watched = _Classifications(ops)
        metrics(watched, *trees)
        return list(watched.seen)

    counts: npt.NDArray[np.int64] | None = None
    mistakes: list[Mistake] = []
    before = 0
    with closing(batches.epoch(0)) as epoch:
        for batch in epoch:
            seen = trainer.evaluate(program, *batch)
            if len(seen) != 1:
                return None
            logits, labels = (np.asarray(value) for value in seen[0])
            if logits.ndim != 2 or len(logits) != len(batch[0]) or not 2 <= logits.shape[1] <= MOST_CLASSES:
                return None
            if labels.ndim != 1:
                return None
            classes = logits.shape[1]
            if counts is None:
                counts = np.zeros((classes, classes), np.int64)
            known, found = labels >= 0, logits.argmax(axis=1)
            np.add.at(counts, (labels[known], found[known]), 1)
            (wrong,) = np.nonzero(known & (found != labels))
            shares = _probabilities(logits[wrong], found[wrong])
            mistakes += [
                Mistake(before + int(i), int(labels[i]), int(found[i]), float(share), np.array(batch[0][i]))
                for i, share in sorted(zip(wrong, shares), key=lambda pair: -pair[1])[:MOST_MISTAKES]
            ]
            mistakes = sorted(mistakes, key=lambda mistake: -mistake.probability)[:MOST_MISTAKES]
            before += len(labels)
    return None if counts is None else Classification(counts, tuple(mistakes))


def _probabilities(logits: npt.NDArray[Any], classes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return softmax(logits)[class] of each row, for the class of its largest logit: 1/Σ exp(z - max z)."""
    z = logits.astype(np.float64)
    own = np.take_along_axis(z, classes[:, None], axis=1)
    shares: npt.NDArray[np.float64] = 1.0 / np.exp(z - own).sum(axis=1)
    return shares
