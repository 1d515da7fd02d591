"""Training steps whose batches are computed in parts: the gradient is that of the whole batch, the memory of a part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple, final

import numpy as np

from ..ops.errors import UsageError
from ..ops.trees import Structure, flatten, lists_as_arrays, unflatten
from ..options import Options
from .by_name import by_position
from .hyperparameters import keep, require_count
from .row_terms import COUNT, ROWS, SUM
from .running import Running, result_of
from .step import StepLayout


@final
@dataclass(frozen=True)
class Accumulate:
    """Each training step computes its batch in `parts`, cut along the rows, and makes one update of all of them.

    parts   how many; a batch of fewer rows has as many parts as rows
    by      how the loss of a batch follows from those of its parts. "rows": it is a mean over rows, so parts are
            weighed by their rows, or over those that count (targets that are not ignored, weights), so by what its sum
            is divided by. "sum": it is a sum over rows. Any other word is a metric of `Aux(metrics=)`, by which they
            are weighed, for a loss of which that cannot be read
    check   refuse a loss that does not follow so. It is derived from the traced loss; where it cannot be, the loss of
            every batch is computed in evaluation form, as a whole and in parts, and compared

    The gradient is Σ w·g / Σ w over parts, which is that of the whole batch but for rounding. It cannot be where rows
    meet in another way: statistics of a batch are those of a part (running ones move once a part), and random draws
    are others than those of the whole batch, though no part shares them with another one.

    Raises:
        UsageError: parts that are no integer >= 1.
    """

    parts: int
    by: str = ROWS
    check: bool = True

    def __post_init__(self) -> None:
        keep(self, "parts", require_count("accumulate", "parts", self.parts))
        if not isinstance(self.by, str) or not self.by:
            raise UsageError(f"accumulate: by must be 'rows', 'sum' or the name of a metric but is {self.by!r}")

    @property
    def metric(self) -> str | None:
        """The name of the metric that weighs the parts, or None for ROWS and SUM."""
        return None if self.by in (ROWS, SUM) else self.by


def as_accumulate(value: int | Accumulate | None, options: Options) -> Accumulate | None:
    """Convert a number of parts or an `Accumulate` to an `Accumulate`; return None for one part.

    None stands for the parts of the options. Raises UsageError if both give another number.
    """
    if value is None:
        made = Accumulate(options.accumulate)
    else:
        made = value if isinstance(value, Accumulate) else Accumulate(value)
        require_one_meaning("accumulate", made.parts, options)
    return made if made.parts > 1 else None


def require_one_meaning(name: str, parts: int, options: Options) -> None:
    """Raise UsageError if the option accumulate gives another number of parts than the setting `name`."""
    if options.accumulate not in (1, parts):
        raise UsageError(
            f"{name} is {parts}, but the options have accumulate={options.accumulate}; give one of them, or the same "
            "number in both"
        )


class BatchPart(NamedTuple):
    """A part of a batch: its values on the interpreter and its number of rows."""

    refs: tuple[Any, ...]
    rows: int


class Summed(NamedTuple):
    """The combined results of all parts: loss, metrics, last state, gradient sums and total weight."""

    loss: Any
    metrics: dict[str, Any]
    state: Any
    sums: tuple[Any, ...]
    weight: Any


@final
class Rows:
    """A batch as arrays that can be cut along their first axis. Raises UsageError if it has no rows."""

    def __init__(self, running: Running, batch: tuple[Any, ...]):
        self._running = running
        self._arrays, self.structure = _arrays(running, batch)
        self.count = _rows(self._arrays)

    def part(self, start: int, stop: int) -> BatchPart:
        """Return rows `start` to `stop`, on the interpreter."""
        cut = unflatten(self.structure, [array[start:stop] for array in self._arrays])
        return BatchPart(self._running.batch(cut)[0], stop - start)

    def parts(self, count: int) -> list[BatchPart]:
        """Split all rows into `count` parts, or into one part per row if there are fewer rows."""
        count = min(count, self.count)
        return [self.part(*ends) for ends in pairwise([self.count * i // count for i in range(count + 1)])]


def _arrays(running: Running, batch: tuple[Any, ...]) -> tuple[list[Any], Structure]:
    held = running.held
    leaves, structure = flatten(lists_as_arrays(by_position(batch, running.loss, held.batch_starts, "the loss")))
    return [leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf) for leaf in leaves], structure


def _rows(arrays: Sequence[Any]) -> int:
    sizes = {array.shape[0] if array.ndim else None for array in arrays}
    if len(sizes) != 1 or None in sizes or 0 in sizes:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise UsageError(
            "accumulate cuts a batch along the rows of its arrays, which must be as many in each, but their shapes are "
            f"{shapes}; give an array of another kind to the loss in another way, or train without accumulate"
        )
    return int(sizes.pop() or 0)


def summed(
    running: Running, layout: StepLayout, parts: Sequence[BatchPart], by: str, joins: Mapping[str, str]
) -> Summed:
    """Return the sum of the gradients of all parts, computed on the interpreter. Parameters and state do not change.

    `joins` maps names of metrics to ROWS, SUM or COUNT; the other metrics are combined like the loss.
    """
    held, interpreter = running.held, running.held.interpreter
    values, state = held.values(), held.state
    total = sum(part.rows for part in parts)
    exact = interpreter.dtype.kind == "O"
    trained = [held.params[i] for i in layout.moved]
    sums: tuple[Any, ...] = tuple([interpreter.put(np.zeros(param.shape, param.dtype)) for param in trained])
    first = sum(layout.counts[:3])
    donated = dict.fromkeys(range(first, first + len(sums)), True)
    losses: list[Any] = []
    weights: list[Any] = []
    told: list[dict[str, Any]] = []
    for number, part in enumerate(parts):
        share = Fraction(1) if by == SUM else Fraction(part.rows, total)
        weight = np.asarray(share if exact else float(share))
        row = layout.pack(
            values, state, part.refs, (sums,), (interpreter.put(np.asarray(number)), interpreter.put(weight))
        )
        ran, outputs = running.execute(layout.part, layout, row, donated)
        ran.finish(())
        end = result_of(ran).num_leaves
        loss, metrics, tree = unflatten(result_of(ran), outputs[:end])
        sums, state = tuple(outputs[end + 1 :]), flatten(tree)[0]
        losses.append(held.host(loss))  # read before any update: it raises if an index was out of range
        weights.append(held.host(outputs[end]))
        told.append({name: held.host(value) for name, value in metrics.items()})
    divisor: Any = Fraction(1) if layout.weigh is None else sum(each[()] for each in weights)
    if not divisor > 0:
        what = f"the metric {by!r}" if isinstance(layout.weigh, str) else "what the loss of the rows is divided by"
        raise UsageError(f"accumulate: {what} is {float(divisor)} in all, so the batch has no mean by it")
    rows = [np.asarray(Fraction(part.rows)) for part in parts]
    once = [np.asarray(Fraction(1))] * len(parts), Fraction(1)
    weighed = {ROWS: (rows, Fraction(total)), SUM: once, COUNT: once}

    def metric(name: str) -> Any:
        how = joins.get(name, "")
        return _joined_metric([each[name] for each in told], *weighed.get(how, (weights, divisor)), mean=how == ROWS)

    return Summed(
        interpreter.put(_joined(losses, weights, divisor)),
        {name: interpreter.put(metric(name)) for name in told[0]},
        state,
        sums,
        interpreter.put(np.asarray(divisor if exact else float(divisor))),
    )


def _joined(values: Sequence[Any], weights: Sequence[Any], divisor: Any) -> Any:
    kind = np.asarray(values[0]).dtype
    wide = kind if kind.kind == "O" else np.dtype(np.float64)
    # a mean of no rows, 0/0, does not count; weights of both signs that add up to 0 make one that is infinite
    counting = [(weight, value) for weight, value in zip(weights, values) if weight or np.any(value == value)]
    total = sum(np.asarray(weight, wide) * np.asarray(value, wide) for weight, value in counting)
    return np.asarray(total / (divisor if kind.kind == "O" else float(divisor)), kind)


def _joined_metric(values: Sequence[Any], weights: Sequence[Any], divisor: Any, *, mean: bool) -> Any:
    """Add integer metrics, which are counts, but for a `mean`, which is the same in all parts; combine the others by
    their weights."""
    if np.asarray(values[0]).dtype.kind in "iub":
        return values[0] if mean else np.sum(np.asarray(values, np.int64), axis=0)
    if len({np.shape(value) for value in values}) > 1:
        raise UsageError("accumulate joins metrics of all parts of a batch, but a metric has another shape in each")
    return _joined(values, weights, divisor)


def apply_row(layout: StepLayout, values: Sequence[Any], moments: Any, numbers: Sequence[Any], done: Summed) -> Any:
    """Pack the inputs of `StepLayout.apply`."""
    return layout.pack(values, (), (), moments, (*numbers, *done.sums, done.weight))


def apply_donated(layout: StepLayout, alone: Sequence[bool], *, slots: bool) -> dict[int, bool]:
    """Return which inputs of `StepLayout.apply` its results may overwrite; see `StepLayout.donated`."""
    given = dict(zip(layout.moved, alone))
    first = layout.counts[0]
    return given | (dict.fromkeys(range(first, first + layout.counts[3]), True) if slots else {})
