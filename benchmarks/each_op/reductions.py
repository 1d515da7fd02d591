"""Reductions, scans along an axis, and normalisations."""

from __future__ import annotations

from typing import Any

from benchmarks.each_op.row import Row, normal, row
from opstage import derived

X = normal(64, 128, 32)
MATRIX = normal(512, 512)
IMAGES = normal(8, 32, 32, 32)


def _along(axis: int) -> dict[str, Row]:
    return {
        f"sum, axis {axis}": row(lambda o, x: o.reduce_sum(x, axis=axis), lambda t, f, x: x.sum(axis), X),
        f"max, axis {axis}": row(lambda o, x: o.reduce_max(x, axis=axis), lambda t, f, x: x.amax(axis), X),
    }


def _hidden(o: Any, x: Any) -> Any:
    return o.select(o.less(x, 0.0), o.full(shape=x.shape, value=-1e9), x)


REDUCTIONS: dict[str, Row] = {
    **_along(0),
    **_along(1),
    **_along(2),
    "var": row(lambda o, x: derived.var(o, x, axis=-1), lambda t, f, x: x.var(-1), X),
    "prod": row(lambda o, x: o.reduce_prod(x, axis=-1), lambda t, f, x: x.prod(-1), X),
    "norm": row(lambda o, x: o.sqrt(o.reduce_sum(x * x, axis=-1)), lambda t, f, x: x.norm(dim=-1), MATRIX),
    "logsumexp": row(lambda o, x: derived.logsumexp(o, x, axis=-1), lambda t, f, x: x.logsumexp(-1), X),
    "softmax": row(lambda o, x: o.softmax(x), lambda t, f, x: f.softmax(x, -1), X),
    "softmax, axis 1": row(lambda o, x: o.softmax(x, axis=1), lambda t, f, x: f.softmax(x, 1), X),
    "log_softmax, axis 0": row(lambda o, x: o.log_softmax(x, axis=0), lambda t, f, x: f.log_softmax(x, 0), MATRIX),
    "masked softmax": row(
        lambda o, x: o.softmax(_hidden(o, x)), lambda t, f, x: x.masked_fill(x < 0, -1e9).softmax(-1), MATRIX
    ),
    "cumsum": row(lambda o, x: o.cumsum(x, axis=1), lambda t, f, x: x.cumsum(1), X),
    "cumprod": row(lambda o, x: o.cumprod(x, axis=-1), lambda t, f, x: x.cumprod(-1), X),
    "sort": row(lambda o, x: derived.sort(o, x)[0], lambda t, f, x: x.sort(-1)[0], X),
    "top_k": row(lambda o, x: derived.top_k(o, x, k=5)[0], lambda t, f, x: x.topk(5)[0], X),
    "layer_norm": row(
        lambda o, x, g, b: o.layer_norm(x, g, b),
        lambda t, f, x, g, b: f.layer_norm(x, (32,), g, b),
        X,
        normal(32),
        normal(32),
    ),
    "rms_norm": row(
        lambda o, x, g: o.rms_norm(x, g), lambda t, f, x, g: f.rms_norm(x, (32,), g, eps=1e-5), X, normal(32)
    ),
    "group_norm": row(
        lambda o, x, g, b: o.group_norm(x, g, b, groups=8),
        lambda t, f, x, g, b: f.group_norm(x, 8, g, b),
        IMAGES,
        normal(32),
        normal(32),
    ),
    "instance_norm": row(
        lambda o, x: derived.instance_norm(o, x, None, None), lambda t, f, x: f.instance_norm(x), IMAGES
    ),
    "batch_norm": row(
        lambda o, x, g, b: o.batch_norm(x, g, b)[0],
        lambda t, f, x, g, b: f.batch_norm(x, None, None, g, b, True),
        IMAGES,
        normal(32),
        normal(32),
    ),
}
