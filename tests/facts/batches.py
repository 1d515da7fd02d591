"""Programs over batches as people write them, each beside a twin whose samples see each other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from opstage import Spec, derived, transform
from tests.facts.decoders import D, Program, Twins, full
from tests.facts.recurrences import along, lstm_step, nothing

ROWS = Spec(("B", D), where=("B >= 2",))
SERIES = Spec(("B", "T", D), where=("B >= 2", "T >= 2"))
IMAGES = Spec(("B", 2, 6, 6), where=("B >= 2",))
LABELS = Spec(("B",), dtype="int64", range=(0, D - 1))
RNG = np.random.default_rng(5)
WEIGHT = RNG.standard_normal((D, D)).astype("f4")
FILTER = RNG.standard_normal((2, 2, 3, 3)).astype("f4")


def wide(ops: Any, x: Any, like: Any) -> Any:
    return ops.broadcast_to(x, shape=like.shape)


def unit(ops: Any, x: Any) -> Any:
    return x / wide(ops, ops.sqrt(ops.reduce_sum(x * x, axis=1, keepdims=True) + 1e-6), x)


def contrast(across: bool, ops: Any, x: Any, y: Any) -> Any:
    """The loss of each pair; or of each against all others of the batch."""
    a, b = unit(ops, x), unit(ops, y)
    own = ops.reduce_sum(a * b, axis=1)
    if not across:
        return ops.softplus(-own)
    return own - derived.logsumexp(ops, a @ ops.permute(b, axes=(1, 0)), axis=1)


def normed(batch: bool, ops: Any, x: Any) -> Any:
    h = ops.conv(ops.const(FILTER), None, x, padding=1)
    return ops.batch_norm(h, None, None)[0] if batch else ops.group_norm(h, None, None, groups=2)


def clipped(whole: bool, ops: Any, x: Any) -> Any:
    """Rows no longer than 1; or all of them by the length of the longest."""
    norm = ops.sqrt(ops.reduce_sum(x * x, axis=1, keepdims=True) + 1e-6)
    if whole:
        norm = wide(ops, ops.reduce_max(norm, axis=0, keepdims=True), norm)
    return x / wide(ops, ops.maximum(norm, 1.0), x)


def mixed(by: int, ops: Any, x: Any) -> Any:
    return 0.7 * x + 0.3 * (derived.roll(ops, x, shift=by, axis=0) if by else ops.tanh(x))


def turned(wrong: bool, ops: Any, x: Any) -> Any:
    """(B, T, D) to (T, B, D) and back; by reshapes in place of turns."""
    if wrong:
        h = ops.reshape(x, shape=(x.shape[1], x.shape[0], D))
        return ops.permute(ops.tanh(h), axes=(1, 0, 2))
    return ops.permute(ops.tanh(ops.permute(x, axes=(1, 0, 2))), axes=(1, 0, 2))


def recurrent(over_samples: bool, ops: Any, x: Any) -> Any:
    if not over_samples:
        return along(lstm_step, lambda ops, x: (nothing(ops, x), nothing(ops, x)))(ops, x)
    zero = ops.full(shape=(x.shape[1], D), value=0.0)
    return ops.scan(lstm_step, (zero, zero), x)[1]


def attending(over_samples: bool, ops: Any, x: Any) -> Any:
    h = ops.permute(x, axes=(1, 0, 2)) if over_samples else x
    h = ops.scaled_dot_product_attention(h, h, h)
    return ops.permute(h, axes=(1, 0, 2)) if over_samples else h


def diagonal(own: bool, ops: Any, x: Any) -> Any:
    """Row i of a Gram matrix at column i, by an identity; or the sum of the row."""
    gram = x @ ops.permute(x, axes=(1, 0))
    n = x.shape[0]
    same = ops.equal(ops.iota(shape=(n, n), axis=0), ops.iota(shape=(n, n), axis=1))
    kept = ops.select(same, gram, full(ops, gram, 0.0)) if own else gram
    return ops.reduce_sum(kept, axis=1)


def picked(sorts: bool, ops: Any, x: Any, y: Any) -> Any:
    """The logit of one's own label; or of that of the rank of the sample."""
    hot = derived.one_hot(ops, y, classes=D)
    chosen = ops.reduce_sum(x * ops.cast(hot, dtype="float32"), axis=1)
    return derived.sort(ops, chosen, axis=0)[0] if sorts else chosen


def gradients(shared: bool, ops: Any, x: Any) -> Any:
    """Gradients of a sum of losses in the inputs; of a loss of the mean of the logits."""

    def loss(ops: Any, x: Any) -> Any:
        h = ops.tanh(x @ ops.const(WEIGHT))
        return ops.sum(ops.reduce_mean(h, axis=0) ** 2) if shared else ops.sum(h * h)

    return transform.grad(ops, loss, x)


def routed(capacity: bool, ops: Any, x: Any) -> Any:
    """The best expert's number; or that, for the first two of the batch that it has."""
    best = wide(ops, ops.reduce_max(x, axis=1, keepdims=True), x)
    chosen = ops.cast(ops.equal(x, best), dtype="float32")
    if capacity:
        before = ops.cumsum(chosen, axis=0, exclusive=True)
        chosen = ops.select(ops.less(before, full(ops, before, 2.0)), chosen, full(ops, chosen, 0.0))
    return chosen * x


def pooled(pools_samples: bool, ops: Any, x: Any) -> Any:
    h = ops.reshape(x, shape=(1, x.shape[0], D)) if pools_samples else ops.reshape(x, shape=(x.shape[0], 1, D))
    return (
        ops.reshape(ops.conv(ops.const(np.ones((1, 1, 3), "f4")), None, h, padding=1), shape=x.shape)
        if not (pools_samples)
        else x - wide(ops, ops.reduce_max(h, axis=1), x)
    )


def whitened(batch: bool, ops: Any, x: Any) -> Any:
    """Features turned by a matrix; by the root of the batch's own covariance."""
    if not batch:
        return x @ ops.const(WEIGHT)
    eye = ops.const(np.eye(D, dtype="f4"))
    cov = ops.permute(x, axes=(1, 0)) @ x + eye
    return x @ ops.cholesky(cov)


def calibrated(batch: bool, ops: Any, x: Any) -> Any:
    """Inputs in 8 bits, by a scale for each row; or for the batch."""
    most = ops.reduce_max(ops.abs(x), axis=(0, 1) if batch else 1, keepdims=True)
    scale = wide(ops, ops.maximum(most, 1e-6), x) / 127.0
    return ops.round(x / scale) * scale


def logits_of_images(mean: bool, ops: Any, x: Any) -> Any:
    h = ops.relu(ops.conv(ops.const(FILTER), None, x, padding=1))
    h = ops.max_pool(h, kernel=(2, 2), stride=(2, 2))
    h = ops.flatten(h, start=1)
    return h - wide(ops, ops.reduce_mean(h, axis=0, keepdims=True), h) if mean else h


def energy(across: bool, ops: Any, x: Any) -> Any:
    """-log of a normal density of a row; of a kernel density from the batch."""
    square = ops.reduce_sum(x * x, axis=1)
    if not across:
        return 0.5 * square + 0.5 * D * math.log(2 * math.pi)
    n = x.shape[0]
    gram = x @ ops.permute(x, axes=(1, 0))
    rows = ops.broadcast_to(ops.unsqueeze(square, axis=1), shape=(n, n))
    columns = ops.broadcast_to(ops.unsqueeze(square, axis=0), shape=(n, n))
    return -derived.logsumexp(ops, 2.0 * gram - rows - columns, axis=1)


def _b(program: Program, right: Any, leaky: Any, *specs: Spec) -> Twins:
    return Twins.of(program, right, leaky, "independent:B", specs or (ROWS,))


BATCHES: dict[str, Twins] = {
    "pairs": _b(contrast, False, True, ROWS, ROWS),
    "a mean taken off": _b(lambda axis, ops, x: x - wide(ops, ops.reduce_mean(x, axis=axis, keepdims=True), x), 1, 0),
    "norms": _b(normed, False, True, IMAGES),
    "lengths": _b(clipped, False, True),
    "mixup": _b(mixed, 0, 1),
    "turned axes": _b(turned, False, True, SERIES),
    "an lstm": _b(recurrent, False, True, SERIES),
    "attention": _b(attending, False, True, SERIES),
    "a diagonal": _b(diagonal, True, False),
    "labels": _b(picked, False, True, ROWS, LABELS),
    "gradients": _b(gradients, False, True),
    "a softmax": _b(lambda axis, ops, x: ops.softmax(x, axis=axis), 1, 0),
    "experts": _b(routed, False, True),
    "a filter": _b(pooled, False, True),
    "whitening": _b(whitened, False, True),
    "8 bits": _b(calibrated, False, True),
    "images": _b(logits_of_images, False, True, IMAGES),
    "densities": _b(energy, False, True),
}
