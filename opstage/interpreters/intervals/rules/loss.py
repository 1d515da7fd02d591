"""Cross-entropy: it falls in the logit of the label and rises in every other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....ops.catalogue.loss import CROSS_ENTROPY, class_axis, is_label
from ....ops.dims import prod
from ....ops.primitive import Primitive, Static
from ..interpreter import Interval, Intervals
from ..rounding import eps_of, slack
from .elementwise import filled

Refs = tuple[Interval[Any], ...]


def _cross_entropy(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (logits, labels), ops = refs, bounds.inner
    if static["label_smoothing"] != 0:
        return bounds.decompose(CROSS_ENTROPY, refs, static)
    own = is_label(ops, logits.lower, labels.lower)
    worst, best = ops.select(own, logits.lower, logits.upper), ops.select(own, logits.upper, logits.lower)
    axis = class_axis(len(logits.shape))
    terms = int(logits.shape[axis]) + int(prod(labels.shape))
    losses = []
    for chosen in (best, worst):
        losses.append(ops.bind(CROSS_ENTROPY, (chosen, labels.lower), static)[0])
    count = 1 if static["reduction"] == "mean" else int(prod(labels.shape))
    sizes = [ops.add(ops.abs(loss), filled(ops, loss, float(count))) for loss in losses]
    lower = ops.maximum(ops.sub(losses[0], slack(ops, sizes[0], terms + 32)), 0.0)
    upper = ops.add(losses[1], slack(ops, sizes[1], terms + 32))
    peak = [ops.reduce_max(end, axis=axis, keepdims=True) for end in (logits.lower, logits.upper)]
    one = filled(ops, peak[0], 1.0)
    most = ops.scale(one, c=int(logits.shape[axis]) * (1 + 2 * terms * eps_of(logits.dtype)))
    return bounds.between(lower, upper), bounds.between(*peak), bounds.between(one, most)


RULES: dict[Primitive, Callable[..., Refs]] = {CROSS_ENTROPY: _cross_entropy}
