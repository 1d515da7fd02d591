"""Checks that the loss of a batch follows from the losses of its parts: by one proof, or by comparison in each
batch."""

from __future__ import annotations

import math
from typing import NoReturn, final

import numpy as np

from ..ops.errors import OpstageError, UsageError
from ..ops.trees import unflatten
from ..ops.types import TensorType
from .accumulate import Accumulate, BatchPart, Rows
from .row_terms import DIVISOR, ROWS, SUM, Joining, Joinings
from .running import Running, result_of

_WHAT = {ROWS: "a mean over the rows", SUM: "a sum over the rows"}


@final
class Joinable:
    """Finds out how the loss of a batch combines those of its parts, once for batches of the same structure."""

    def __init__(self, running: Running, accumulate: Accumulate):
        self._running = running
        self._accumulate = accumulate
        self._joinings = Joinings()

    def require(self, rows: Rows, parts: list[BatchPart]) -> Joining:
        """Return how the loss of these rows combines those of its parts. Raises UsageError unless `Accumulate.by`
        agrees.

        Without a proof, the loss of the batch is compared with those of two of its parts, in evaluation form.
        """
        by, metric = self._accumulate.by, self._accumulate.metric
        layout = self._running.layout(rows.structure)
        held = self._running.held
        row = layout.pack(held.values(), held.state, parts[0].refs)
        types = [TensorType(ref.shape, ref.dtype) for ref in row]
        types[: len(held.params)] = [TensorType(param.shape, param.dtype) for param in held.params]
        first, last = sum(layout.counts[:2]), sum(layout.counts[:3])
        key = (layout.key, *[(type_.shape[1:], type_.dtype) for type_ in types[first:last]])
        forward, counts = layout.of_whole.forward, (*sorted({part.rows for part in parts}), rows.count)
        with self._joinings.proved(key, forward, types, slice(first, last), held.interpreter, counts) as (found, new):
            if self._accumulate.check:
                alike = (by, DIVISOR if by == ROWS else by)
                proved = metric in found.counts if metric is not None else found.loss in alike
                if not proved or (new and found.loss != DIVISOR):
                    self._see(rows, found, proved=proved)
                if metric is None and not proved and found.loss:
                    self._refuse(f"it is {_WHAT.get(found.loss, 'a mean over the rows that count')}", found.loss)
                self._require_metrics(found)
            return found

    def _require_metrics(self, found: Joining) -> None:
        """Raise UsageError for a metric of which it is known that it does not follow from those of the parts."""
        unknown = {**found.unknown, **dict.fromkeys(found.divisors, "it is divided by another sum than the loss is")}
        for name, why in unknown.items():
            if name != self._accumulate.metric:
                raise UsageError(
                    f"accumulate: the metric {name!r} of a batch does not follow from those of its parts: {why}; give "
                    "what it is computed of as metrics, such as sums and counts; check=False weighs it like the loss"
                )

    def _see(self, rows: Rows, found: Joining, *, proved: bool) -> None:
        """Compare the loss of some rows (if `proved`) or of all rows with the losses of two parts of them."""
        metric = self._accumulate.metric
        count = min(rows.count, max(3, rows.count // self._accumulate.parts)) if proved else rows.count
        if count < 2:
            return
        cut = max(1, count // 3)
        try:
            found_at = [self._loss(rows, *ends) for ends in ((0, count), (0, count, 1), (0, cut), (cut, count))]
        except OpstageError as error:
            if proved:
                return
            self._unknown(found, f"it cannot be compared with that of its parts: {str(error).splitlines()[0]}")
        seen = [each for each in found_at if each is not None and math.isfinite(each[0])]
        if len(seen) < len(found_at):
            return  # a missing metric or a loss that is not a number is reported elsewhere
        whole, again, *pieces = seen
        if whole != again:
            if not proved:
                self._unknown(found, "it draws at random, so it cannot be compared with that of its parts")
            return
        weights: dict[str, tuple[float, float]] = {ROWS: (cut, count - cut), SUM: (1.0, 1.0)}
        if metric is not None:
            weights[metric] = pieces[0][1], pieces[1][1]
        sums = {name: sum(w * loss for w, (loss, _) in zip(each, pieces)) for name, each in weights.items()}
        joined = {name: total / (1.0 if name == SUM else sum(weights[name]) or np.nan) for name, total in sums.items()}
        size = max(abs(whole[0]), abs(pieces[0][0]), abs(pieces[1][0]))
        near = 1e-3 if self._running.held.interpreter.dtype == np.float32 else 1e-9
        fits = {name: bool(abs(whole[0] - value) <= near * size) for name, value in joined.items()}
        if fits[self._accumulate.by]:
            return
        of_parts = f"of the first {cut} {pieces[0][0]:.6g}, of the others {pieces[1][0]:.6g}"
        figures = f"of {count} rows it is {whole[0]:.6g}, {of_parts}"
        other = next((name for name in (ROWS, SUM) if fits[name] and name != self._accumulate.by), "")
        self._refuse(figures, other)

    def _loss(self, rows: Rows, start: int, stop: int, step: int = 0) -> tuple[float, float] | None:
        """Return the loss of these rows in evaluation form, and the metric that weighs it; None if that is missing."""
        layout = self._running.layout(rows.structure, train=False)
        held, metric = self._running.held, self._accumulate.metric
        row = layout.pack(held.values(), held.state, rows.part(start, stop).refs)
        ran, outputs = self._running.execute(layout.forward, layout, row, step=step)
        loss, metrics = unflatten(result_of(ran), outputs)
        if metric is None:
            return float(held.host(loss)), 0.0
        return (float(held.host(loss)), float(held.host(metrics[metric]))) if metric in metrics else None

    def _refuse(self, seen: str, other: str) -> None:
        by = self._accumulate.by
        what = _WHAT.get(by, f"a mean weighed by the metric {by!r}")
        advice = (
            f"it is {_WHAT[other]}: accumulate=Accumulate({self._accumulate.parts}, by={other!r})"
            if other in _WHAT
            else "where targets are ignored or weighted, by= names the metric to divide by; check=False goes on anyway"
        )
        raise UsageError(
            f"accumulate: the loss of a batch is not {what} ({seen}), so its parts would give another gradient; "
            f"{advice}"
        )

    def _unknown(self, found: Joining, why: str) -> NoReturn:
        raise UsageError(
            f"accumulate: whether the loss of a batch follows from that of its parts is not known: {found.reason}, and "
            f"{why}; check=False goes on anyway"
        )
