"""Elementwise ops, losses, and ops that move elements."""

from __future__ import annotations

from benchmarks.each_op.row import Row, normal, row, whole
from opstage import derived

X = normal(64, 128, 32)
MATRIX = normal(512, 512)
IMAGES = normal(8, 32, 32, 32)
EDGE = ((0, 0), (0, 0), (1, 1), (1, 1))

ELEMENTWISE: dict[str, Row] = {
    "select": row(lambda o, x, y: o.select(o.less(x, y), x, y), lambda t, f, x, y: t.where(x < y, x, y), X, X),
    "clamp": row(lambda o, x: o.clamp(x, lo=-1, hi=1), lambda t, f, x: x.clamp(-1, 1), X),
    "maximum": row(lambda o, x, y: o.maximum(x, y), lambda t, f, x, y: t.maximum(x, y), X, X),
    "pow 3": row(lambda o, x: o.pow(x, exponent=3), lambda t, f, x: x**3, X),
    "power 1.5 of exp": row(lambda o, x: o.power(o.exp(x), 1.5), lambda t, f, x: x.exp() ** 1.5, X),
    "div": row(lambda o, x, y: x / (o.abs(y) + 1.0), lambda t, f, x, y: x / (y.abs() + 1), X, X),
    "add a row": row(lambda o, x, b: x + b, lambda t, f, x, b: x + b, X, normal(32)),
    "mul by a column": row(lambda o, x, b: x * b, lambda t, f, x, b: x * b, X, normal(64, 1, 32)),
    "1 - x": row(lambda o, x: 1.0 - x, lambda t, f, x: 1 - x, X),
    "a blend squared": row(
        lambda o, x, y: (x * 0.9 + y * 0.1) * (x * 0.9 + y * 0.1), lambda t, f, x, y: (x * 0.9 + y * 0.1) ** 2, X, X
    ),
    "permute, mul": row(
        lambda o, x, y: o.permute(x, axes=(2, 0, 1)) * y,
        lambda t, f, x, y: x.permute(2, 0, 1) * y,
        X,
        normal(32, 64, 128),
    ),
    "dropout": row(lambda o, x: derived.dropout(o, x, 0.5, True), lambda t, f, x: f.dropout(x, 0.5), X, is_random=True),
    "l1 distances": row(
        lambda o, x, y: o.reduce_sum(o.abs(o.unsqueeze(x, axis=1) - o.unsqueeze(y, axis=0)), axis=-1),
        lambda t, f, x, y: (x[:, None] - y[None]).abs().sum(-1),
        normal(128, 32),
        normal(128, 32),
    ),
}

LOSSES: dict[str, Row] = {
    "cross_entropy": row(
        lambda o, x, y: o.cross_entropy(x, y),
        lambda t, f, x, y: f.cross_entropy(x, y),
        normal(1024, 256),
        whole(256, 1024),
    ),
    "cross_entropy smoothed": row(
        lambda o, x, y: o.cross_entropy(x, y, label_smoothing=0.1),
        lambda t, f, x, y: f.cross_entropy(x, y, label_smoothing=0.1),
        normal(1024, 256),
        whole(256, 1024),
    ),
    "binary cross_entropy": row(
        lambda o, x, y: derived.binary_cross_entropy_with_logits(o, x, o.sigmoid(y)),
        lambda t, f, x, y: f.binary_cross_entropy_with_logits(x, y.sigmoid()),
        MATRIX,
        MATRIX,
    ),
    "huber": row(lambda o, x, y: derived.huber(o, x, y), lambda t, f, x, y: f.huber_loss(x, y), MATRIX, MATRIX),
    "mse": row(lambda o, x, y: o.mse_loss(x, y), lambda t, f, x, y: f.mse_loss(x, y), MATRIX, MATRIX),
    "l1": row(lambda o, x, y: o.reduce_mean(o.abs(x - y)), lambda t, f, x, y: f.l1_loss(x, y), MATRIX, MATRIX),
    "kl of softmaxes": row(
        lambda o, x, y: derived.kl_div(o, o.log_softmax(x), o.softmax(y)),
        lambda t, f, x, y: f.kl_div(f.log_softmax(x, -1), f.softmax(y, -1)),
        MATRIX,
        MATRIX,
    ),
    "cosine_similarity": row(
        lambda o, x, y: derived.cosine_similarity(o, x, y), lambda t, f, x, y: f.cosine_similarity(x, y), MATRIX, MATRIX
    ),
}

MOVES: dict[str, Row] = {
    "concat": row(
        lambda o, x, y: o.concat([x, y], axis=1), lambda t, f, x, y: t.cat([x, y], 1), X, normal(64, 100, 32)
    ),
    "stack": row(lambda o, x, y: o.stack([x, y], axis=0), lambda t, f, x, y: t.stack([x, y]), X, X),
    "flip": row(lambda o, x: derived.flip(o, x, axis=1), lambda t, f, x: x.flip(1), X),
    "roll": row(lambda o, x: derived.roll(o, x, shift=3, axis=1), lambda t, f, x: x.roll(3, 1), X),
    "pad": row(lambda o, x: o.pad(x, padding=EDGE), lambda t, f, x: f.pad(x, (1, 1, 1, 1)), IMAGES),
    "pad, reflected": row(
        lambda o, x: derived.pad(o, x, padding=EDGE, mode="reflect"),
        lambda t, f, x: f.pad(x, (1, 1, 1, 1), mode="reflect"),
        IMAGES,
    ),
    "every second": row(lambda o, x: x[:, ::2], lambda t, f, x: x[:, ::2], X),
    "slices, concat": row(
        lambda o, x: o.concat([o.slice(x, axis=1, start=16 * j, length=16) for j in range(7, -1, -1)], axis=1),
        lambda t, f, x: t.cat([x[:, 16 * j : 16 * j + 16] for j in range(7, -1, -1)], 1),
        X,
    ),
    "tril": row(lambda o, x: derived.tril(o, x), lambda t, f, x: x.tril(), MATRIX),
    "embedding": row(
        lambda o, table, i: o.gather_rows(table, i),
        lambda t, f, table, i: f.embedding(i, table),
        normal(5000, 64),
        whole(5000, 64, 64),
    ),
    "take_along_axis": row(
        lambda o, x, i: derived.take_along_axis(o, x, i, axis=1),
        lambda t, f, x, i: x.gather(1, i),
        MATRIX,
        whole(512, 512, 64),
    ),
    "take rows": row(lambda o, x, i: derived.take(o, x, i, axis=0), lambda t, f, x, i: x[i], MATRIX, whole(512, 700)),
    "take columns": row(
        lambda o, x, i: derived.take(o, x, i, axis=1), lambda t, f, x, i: x[:, i], MATRIX, whole(512, 300)
    ),
    "segment_sum": row(
        lambda o, x, i: derived.segment_sum(o, x, i, count=100),
        lambda t, f, x, i: t.zeros(100, 512).index_add(0, i, x),
        MATRIX,
        whole(100, 512),
    ),
    "index_add": row(
        lambda o, x, v, i: derived.index_add(o, x, i, v, axis=0),
        lambda t, f, x, v, i: x.index_add(0, i, v),
        MATRIX,
        normal(300, 512),
        whole(512, 300),
    ),
}
