"""Convolutions, pools, products of matrices and what is made of them, linear algebra."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.each_op.row import Argument, Row, normal, row
from opstage import derived

IMAGES = normal(8, 32, 32, 32)
HEADS = normal(4, 4, 128, 32)
SMALL = normal(4, 16, 32, 32)
BATCH = normal(64, 64, 64)
SQUARES = normal(64, 16, 16, diagonal=5.0)


def _conv(kernel: Argument, x: Argument, **how: Any) -> Row:
    name = f"conv{len(kernel.shape) - 2}d"
    return row(lambda o, k, x: o.conv(k, None, x, **how), lambda t, f, k, x: getattr(f, name)(x, k, **how), kernel, x)


CONVOLUTIONS: dict[str, Row] = {
    "conv 3x3": _conv(normal(32, 32, 3, 3), IMAGES, padding=1),
    "conv 1x1": _conv(normal(64, 32, 1, 1), IMAGES),
    "conv 1x1, stride 2": _conv(normal(64, 32, 1, 1), IMAGES, stride=2),
    "conv 7x7, stride 2": _conv(normal(64, 3, 7, 7), normal(4, 3, 96, 96), stride=2, padding=3),
    "conv of 4 groups": _conv(normal(32, 8, 3, 3), IMAGES, padding=1, groups=4),
    "depthwise 3x3": _conv(normal(32, 1, 3, 3), IMAGES, padding=1, groups=32),
    "conv of a line": _conv(normal(64, 32, 5), normal(8, 32, 512), padding=2),
    "depthwise of a line": _conv(normal(128, 1, 4), normal(8, 128, 256), padding=3, groups=128),
    "conv of a volume": _conv(normal(16, 8, 3, 3, 3), normal(2, 8, 16, 16, 16), padding=1),
    "conv_transpose": row(
        lambda o, k, x: o.conv_transpose(k, None, x, stride=2),
        lambda t, f, k, x: f.conv_transpose2d(x, k, stride=2),
        normal(32, 16, 2, 2),
        IMAGES,
    ),
    "unfold": row(
        lambda o, x: derived.unfold(o, x, kernel=(3, 3), padding=1), lambda t, f, x: f.unfold(x, 3, padding=1), SMALL
    ),
    "max_pool": row(lambda o, x: o.max_pool2d(x, kernel=2), lambda t, f, x: f.max_pool2d(x, 2), IMAGES),
    "max_pool 3x3, stride 2": row(
        lambda o, x: o.max_pool2d_pad(x, kernel=3, stride=2, padding=1),
        lambda t, f, x: f.max_pool2d(x, 3, 2, 1),
        IMAGES,
    ),
    "avg_pool": row(lambda o, x: o.avg_pool2d(x, kernel=2), lambda t, f, x: f.avg_pool2d(x, 2), IMAGES),
    "adaptive_avg_pool": row(
        lambda o, x: derived.adaptive_avg_pool(o, x, size=(7, 7)), lambda t, f, x: f.adaptive_avg_pool2d(x, 7), IMAGES
    ),
    "resize bilinear": row(
        lambda o, x: derived.resize(o, x, scale=2, axes=(2, 3)),
        lambda t, f, x: f.interpolate(x, scale_factor=2, mode="bilinear"),
        SMALL,
    ),
    "resize nearest": row(
        lambda o, x: derived.resize(
            o, x, scale=2, axes=(2, 3), mode="nearest", coordinates="asymmetric", rounding="floor"
        ),
        lambda t, f, x: f.interpolate(x, scale_factor=2),
        SMALL,
    ),
}

PRODUCTS: dict[str, Row] = {
    "matmul": row(lambda o, x, y: o.matmul(x, y), lambda t, f, x, y: x @ y, normal(256, 256), normal(256, 256)),
    "bmm": row(lambda o, x, y: o.bmm(x, y), lambda t, f, x, y: t.bmm(x, y), BATCH, BATCH),
    "einsum": row(
        lambda o, x, y: derived.einsum(o, "bhqd,bhkd->bhqk", x, y),
        lambda t, f, x, y: t.einsum("bhqd,bhkd->bhqk", x, y),
        HEADS,
        HEADS,
    ),
    "attention": row(
        lambda o, q, k, v: o.scaled_dot_product_attention(q, k, v),
        lambda t, f, q, k, v: f.scaled_dot_product_attention(q, k, v),
        HEADS,
        HEADS,
        HEADS,
    ),
    "attention, causal": row(
        lambda o, q, k, v: o.scaled_dot_product_attention(q, k, v, causal=True),
        lambda t, f, q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True),
        HEADS,
        HEADS,
        HEADS,
    ),
}


def _positive(o: Any, x: Any) -> Any:
    """Positive definite matrices of any."""
    return o.bmm(x, o.permute(x, axes=(0, 2, 1))) + o.const(np.eye(16, dtype=np.float32))


LINEAR_ALGEBRA: dict[str, Row] = {
    "slogdet": row(lambda o, x: o.slogdet(x)[1], lambda t, f, x: t.linalg.slogdet(x)[1], SQUARES),
    "cholesky": row(
        lambda o, x: o.cholesky(_positive(o, x)),
        lambda t, f, x: t.linalg.cholesky(x @ x.mT + t.eye(16)),
        normal(64, 16, 16),
    ),
    "solve": row(lambda o, x, y: o.solve(x, y), lambda t, f, x, y: t.linalg.solve(x, y), SQUARES, normal(64, 16, 4)),
}
