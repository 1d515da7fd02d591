"""Connectionist temporal classification: the likelihood of labels with unknown alignment."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .advanced_indexing import take_along_axis
from .loss import REDUCTIONS, reduced, require_reduction
from .primitive import R
from .recurrent import within
from .rule_helpers import equal_sizes, error, full_like, read_int, zeros
from .types import show_shape

if TYPE_CHECKING:
    from .protocol import Ops


def ctc_loss(
    ops: Ops[R],
    log_probs: R,
    targets: R,
    input_lengths: R,
    target_lengths: R,
    /,
    *,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> R:
    """Return -log of the summed probabilities of all alignments of a sequence's labels with its steps.

    log_probs        (T, B, C), log-probabilities over C classes, such as from `log_softmax`
    targets          (B, S) labels; those beyond a sequence's length are ignored
    input_lengths    (B,) integers from 0 to T; steps beyond are ignored
    target_lengths   (B,) integers from 0 to S
    blank            the class that separates labels, and is not a label itself
    reduction        "none" (B,), "sum", or "mean": each divided by its number of labels, or 1, then averaged
    zero_infinity    0 for labels without any alignment, such as more labels than steps; otherwise the loss is inf,
                     and its gradient 0

    An alignment has a label or blank at each step, with a blank between consecutive equal
    labels. Lengths and labels out of range raise when it runs. PyTorch: torch.nn.functional.ctc_loss.
    Source: Graves et al. 2006.

    Raises:
        DtypeError: an operand of another dtype.
        RangeError: an index out of range, when it runs.
        ShapeError: an invalid argument; input_lengths, log_probs, target_lengths, targets of another shape;
            operands that do not fit each other.
    """
    _require(ops, log_probs, targets, input_lengths, target_lengths, reduction)
    time, batch, classes = log_probs.shape
    blank = read_int(ops, "ctc_loss", "blank", blank, 0)
    if isinstance(classes, int) and blank >= classes:
        raise error(ops, "ctc_loss", f"blank is {blank}, which is none of {classes} classes")
    count = targets.shape[1]
    states = 2 * count + 1

    used = ops.permute(within(ops, "ctc_loss", "target_lengths", target_lengths, count, batch), axes=(1, 0))
    targets = ops.cast(targets, dtype="int64")
    labels = ops.select(used, targets, ops.full(shape=targets.shape, value=blank, dtype="int64"))
    extended = _insert_blanks(ops, labels, blank)  # blank, label, blank, label, …, blank
    entered = _may_skip(ops, extended, blank)

    there = within(ops, "ctc_loss", "input_lengths", input_lengths, time, batch)
    shape = (time, batch, states)
    everywhere = ops.broadcast_to(ops.unsqueeze(extended, axis=0), shape=shape)
    scores = take_along_axis(ops, log_probs, everywhere, axis=2)
    there = ops.unsqueeze(there, axis=2)
    scores = ops.select(ops.broadcast_to(there, shape=shape), scores, zeros(ops, scores))

    first = ops.equal(ops.iota(shape=(batch, states), axis=1), 0)  # before the first step: as if at a blank
    alpha = ops.select(first, zeros(ops, log_probs, first.shape), _none(ops, log_probs, first.shape))

    def step(ops: Any, alpha: Any, entry: Any) -> tuple[Any, None]:
        """Advance alpha, the log-probability of all paths to each state."""
        score, here = entry
        skipped = ops.select(entered, _shift(ops, alpha, 2), _none(ops, alpha, alpha.shape))
        found = ops.add(_log_sum(ops, [alpha, _shift(ops, alpha, 1), skipped]), score)
        return ops.select(ops.broadcast_to(here, shape=alpha.shape), found, alpha), None

    alpha, _ = ops.scan(step, alpha, (scores, there))

    last = ops.unsqueeze(ops.mul(ops.cast(target_lengths, dtype="int64"), 2), axis=1)
    some = ops.less(0, last)
    before = ops.select(some, ops.sub(last, 1), zeros(ops, last))
    ends = [take_along_axis(ops, alpha, each, axis=1) for each in (last, before)]
    ends[1] = ops.select(some, ends[1], _none(ops, ends[1], ends[1].shape))
    losses = ops.neg(ops.squeeze(_log_sum(ops, ends), axis=1))
    if zero_infinity:
        infinite = ops.equal(losses, ops.full(shape=(batch,), value=math.inf, dtype=losses.dtype))
        losses = ops.select(infinite, zeros(ops, losses), losses)
    if reduction == "mean":
        labelled = ops.cast(ops.maximum(ops.cast(target_lengths, dtype="int64"), 1), dtype=losses.dtype)
        losses = ops.div(losses, labelled)
    return reduced(ops, losses, reduction)


def _require(ops: Any, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, reduction: str) -> None:
    op = "ctc_loss"
    require_reduction(ops, op, reduction, REDUCTIONS)
    if len(log_probs.shape) != 3 or log_probs.dtype.kind != "f":
        what = f"{show_shape(log_probs.shape)} {log_probs.dtype}"
        raise error(ops, op, f"log_probs must be floats (time, batch, classes) but is {what}")
    if len(targets.shape) != 2 or targets.dtype.kind not in "iu":
        what = f"{show_shape(targets.shape)} {targets.dtype}"
        raise error(ops, op, f"targets must be integers (batch, labels) but is {what}")
    batch, other = log_probs.shape[1], targets.shape[0]
    equal_sizes(ops, op, batch, other, lambda: f"log_probs are of {batch} sequences, but targets of {other}")


def _insert_blanks(ops: Any, labels: Any, blank: int) -> Any:
    """Insert blanks around labels (B, S): (B, 2·S + 1)."""
    batch, count = labels.shape
    blanks = ops.full(shape=labels.shape, value=blank, dtype="int64")
    pairs = ops.reshape(ops.stack([blanks, labels], axis=2), shape=(batch, 2 * count))
    return ops.concat([pairs, ops.full(shape=(batch, 1), value=blank, dtype="int64")], axis=1)


def _may_skip(ops: Any, extended: Any, blank: int) -> Any:
    """Return the states reachable by skipping a blank: labels that differ from the previous label."""
    shape = extended.shape
    before = ops.slice(ops.pad(extended, padding=[(0, 0), (2, 0)], value=blank), axis=1, start=0, length=shape[1])
    label = ops.logical_not(ops.equal(extended, ops.full(shape=shape, value=blank, dtype="int64")))
    return ops.logical_and(label, ops.logical_not(ops.equal(extended, before)))


def _shift(ops: Any, alpha: Any, by: int) -> Any:
    """Return entry i - by at i, and -inf where it does not exist."""
    wider = ops.pad(alpha, padding=[(0, 0), (by, 0)], value=-math.inf)
    return ops.slice(wider, axis=1, start=0, length=alpha.shape[1])


def _none(ops: Any, x: Any, shape: Any) -> Any:
    return ops.full(shape=shape, value=-math.inf, dtype=x.dtype)


def _log_sum(ops: Any, xs: list[Any]) -> Any:
    """Return log Σ e^x, and -inf without a gradient where every x is -inf."""
    peak = xs[0]
    for x in xs[1:]:
        peak = ops.maximum(peak, x)
    peak = ops.detach(peak)
    none = ops.equal(peak, _none(ops, peak, peak.shape))
    shift = ops.select(none, zeros(ops, peak), peak)
    total = None
    for x in xs:
        part = ops.exp(ops.sub(x, shift))
        total = part if total is None else ops.add(total, part)
    total = ops.select(none, full_like(ops, shift, 1.0), total)
    return ops.select(none, _none(ops, shift, shift.shape), ops.add(ops.log(total), shift))
