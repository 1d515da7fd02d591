"""Sizes that stay names in the model: one model, run at several sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, transform
from opstage.ops.dims import maximum, minimum, ratio, rsqrt
from tests.conformance.harness import leaves
from tests.interop.onnx.runs import checked, run_session, session_of


class Case(NamedTuple):
    """A program, and the Specs of its arguments; names take the values of `sizes`, each of them in turn."""

    program: Callable[..., Any]
    specs: tuple[Spec, ...]
    sizes: tuple[dict[str, int], ...] = ({"B": 2}, {"B": 5})


def spec(shape: str, dtype: str | None = None, *where: str) -> Spec:
    return Spec(shape, dtype, where)


def shapes(ops, x):
    b, h, w = x.shape
    return (
        ops.reshape(x, shape=(b * h, w)),
        ops.reshape(x, shape=(h, b, w)),
        ops.reshape(x, shape=(b, 1, h, w)),
        ops.flatten(x),
        ops.flatten(x, start=1),
        ops.unsqueeze(ops.squeeze(ops.unsqueeze(x, axis=1)), axis=-1),
        ops.broadcast_to(ops.reduce_max(x, axis=0, keepdims=True), shape=x.shape),
        ops.broadcast_to(ops.sum(x), shape=(b, b + 1)),
        ops.stack([x, x], axis=1),
    )


def two_names(ops, x, y):
    (b, t, d), u = x.shape, y.shape[0]
    return (
        ops.reshape(x, shape=(b * t, d)),
        ops.reshape(ops.reshape(x, shape=(t * b, d)), shape=(b, t, d)),
        ops.reshape(x, shape=(b, d, t)),
        ops.full(shape=(b, t + u), value=1.5),
        ops.iota(shape=(t, u), axis=1),
        ops.iota(shape=(b, t), axis=0, dtype="float32"),
    )


def parts(ops, x):
    n = x.shape[0]
    half = n // 2
    return (
        ops.slice(x, axis=0, start=half, length=n - half),
        ops.slice(x, axis=0, start=0, length=(n + 1) // 2, step=2),
        ops.slice(x, axis=1, start=1, length=2),
        ops.pad(x, padding=[(n, half), (0, 0)], value=2.0),
        ops.pad(x, padding=[(1, 0), (2, 1)], interior=[2, 1]),
        ops.concat([x, x], axis=0),
    )


def clipped(ops, x):
    t = x.shape[0]
    window, whole = minimum(t, 4), maximum(t, 4)
    return (
        ops.slice(x, axis=0, start=t - window, length=window),
        ops.pad(x, padding=[(0, whole - t), (0, 0)]),
        ops.full(shape=(window, (whole + 1) // 2), value=ratio(1, window)),
    )


def means(ops, x, y):
    b = x.shape[0]
    return (
        ops.mse_loss(x, y),
        ops.reduce_mean(x, axis=0),
        ops.scale(x, c=rsqrt(b)),
        ops.scale(x, c=ratio(b + 1, b)),
        ops.scale(x, c=1 / (1 + rsqrt(b))),
        ops.full(shape=(), value=ratio(b, 3)),
        ops.batch_norm(x, None, None)[:3],
    )


def normalized(ops, x):
    return (
        ops.layer_norm(x, None, None),
        ops.rms_norm(x, None),
        ops.group_norm(x, None, None, groups=2),
        ops.batch_norm_eval(x, None, None, ops.full(shape=(4,), value=0.5), ops.full(shape=(4,), value=2.0)),
        ops.softmax(x, axis=0),
        ops.log_softmax(x),
        ops.argmax(x, axis=1),
    )


def attends(ops, q, k, v):
    return (ops.scaled_dot_product_attention(q, k, v, causal=True), ops.scaled_dot_product_attention(q, k, v))


def heads(ops, w, x):
    return ops.multi_head_attention(w, w, w, w, x, num_heads=2, causal=True)


def windows(ops, kernel, x):
    h = ops.max_pool(ops.conv(kernel, None, x, stride=2, padding=1), kernel=(2, 2), stride=(1, 1))
    return (
        h,
        ops.reshape(h, shape=(h.shape[0], -1)),
        ops.avg_pool(x, kernel=(2, 2)),
        ops.conv_transpose(kernel, None, h),
    )


def convolution_gradients(ops, kernel, x):
    def loss(ops, kernel, x):
        y = ops.conv(kernel, None, x, stride=2, padding=1, groups=2)
        pooled = ops.max_pool(y, kernel=(2, 2), padding=(1, 1))
        smooth = ops.avg_pool(ops.mul(y, y), kernel=(2, 2), padding=(1, 1), count_include_pad=False)
        return ops.add(ops.sum(pooled), ops.sum(smooth))

    return transform.vjp(ops, loss, kernel, x)[1](ops.const(1.0))


def losses(ops, logits, labels):
    return (
        ops.cross_entropy(logits, labels, label_smoothing=0.1),
        ops.cross_entropy(logits, labels, reduction="none", ignore_index=1),
    )


def indexing(ops, x, index):
    spread = ops.gather_rows(x, index, mode="zero")
    return (
        ops.gather_rows(x, ops.iota(shape=(x.shape[0],), axis=0)),
        spread,
        ops.scatter_add_row(x, spread, index, mode="zero"),
        ops.gather_row(x, index=0),
    )


def derived_size(ops, x):
    b = x.shape[0] // 2
    return ops.full(shape=(b, 2), value=3.0), ops.reshape(x, shape=(b, 6))


def loops(ops, w, x):
    """Over T entries, in both directions, with what was captured, without entries, and one loop in another."""

    def cell(ops, h, entry):
        h = ops.tanh(ops.add(ops.linear(w, None, h), entry))
        return h, (ops.sum(h), h)

    def outer(ops, total, entry):
        def inner(ops, c, _):
            return ops.add(c, ops.mul(entry, total)), None

        c, _ = ops.scan(inner, total, None, length=3)
        return c, None

    def turn(ops, h, _):
        return ops.mul(h, ops.full(shape=h.shape, value=1.5)), h

    t, b, d = x.shape
    start = ops.full(shape=(b, d), value=0.5)
    return (
        ops.scan(cell, start, x),
        ops.scan(cell, start, x, reverse=True),
        ops.scan(outer, start, x)[0],
        ops.scan(turn, start, None, length=t),
        ops.scan(turn, start, None, length=0),
    )


def loop_gradients(ops, w, x):
    def loss(ops, w, x):
        def cell(ops, h, entry):
            h = ops.tanh(ops.add(ops.linear(w, None, h), entry))
            return h, h

        h, ys = ops.scan(cell, ops.full(shape=x.shape[1:], value=0.5), x)
        return ops.add(ops.sum(h), ops.sum(ops.mul(ys, ys)))

    return transform.vjp(ops, loss, w, x)[1](ops.const(1.0))


BT = ({"B": 2, "T": 3}, {"B": 4, "T": 1}, {"B": 1, "T": 5})
BTS = ({"B": 2, "T": 3, "S": 4}, {"B": 1, "T": 5, "S": 2})
HW = ({"N": 2, "H": 6, "W": 7}, {"N": 1, "H": 9, "W": 5})
CASES = {
    "shapes": Case(shapes, (spec("B 3 4"),)),
    "two names": Case(two_names, (spec("B T 6"), spec("U")), ({"B": 2, "T": 3, "U": 4}, {"B": 3, "T": 1, "U": 2})),
    "parts": Case(parts, (spec("B 3"),)),
    "clipped": Case(clipped, (spec("T 3"),), ({"T": 2}, {"T": 4}, {"T": 7})),
    "means": Case(means, (spec("B 3", None, "B >= 2"), spec("B 3"))),
    "normalized": Case(normalized, (spec("B 4 D"),), ({"B": 2, "D": 3}, {"B": 3, "D": 5})),
    "attends": Case(attends, (spec("B T 4"), spec("B S 4"), spec("B S 5")), BTS),
    "heads": Case(heads, (spec("4 4"), spec("B T 4")), BT),
    "windows": Case(windows, (spec("4 3 3 3"), spec("N 3 H W", None, "H >= 5", "W >= 5")), HW),
    "convolution gradients": Case(convolution_gradients, (spec("4 1 3 3"), spec("N 2 7 8")), ({"N": 2}, {"N": 3})),
    "losses": Case(losses, (spec("B C"), spec("B", "int64")), ({"B": 2, "C": 3}, {"B": 5, "C": 4})),
    "indexing": Case(indexing, (spec("B 3"), spec("K", "int64")), ({"B": 2, "K": 4}, {"B": 3, "K": 6})),
    "derived size": Case(derived_size, (spec("2*B 3"),)),
    "loops": Case(loops, (spec("3 3"), spec("T B 3")), BT),
    "loop gradients": Case(loop_gradients, (spec("3 3"), spec("T B 3")), BT),
}  # fmt: skip


def arrays(case: Case, sizes: dict[str, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(sum(sizes.values()))
    made = []
    for given in case.specs:
        shape = tuple(int(eval(size, {}, sizes)) for size in given.shape.split())
        made.append(rng.integers(0, 3, shape) if given.dtype else rng.standard_normal(shape).astype(np.float32))
    return made


@pytest.mark.parametrize("name", CASES)
def test_one_model_for_every_size(name: str) -> None:
    case = CASES[name]
    options = Options(dtype="float32")
    graph = opstage.record(case.program, *case.specs, options=options)
    model = checked(graph)
    named = [[d.dim_param or d.dim_value for d in given.type.tensor_type.shape.dim] for given in model.graph.input]
    assert named == [[d if isinstance(d, int) else str(d) for d in type_.shape] for type_ in graph.input_types]
    session = session_of(model)
    for sizes in case.sizes:
        args = arrays(case, sizes)
        actual = run_session(session, graph, *args)
        expected = leaves(opstage.run(case.program, *args, options=options))
        assert len(actual) == len(expected)
        for path, a, e in zip(graph.output_names, actual, expected):
            assert (a.shape, a.dtype) == (e.shape, e.dtype), f"{path} at {sizes}"
            np.testing.assert_allclose(a, e, rtol=2e-5, atol=1e-5, err_msg=f"{path} at {sizes}")


def test_outputs_keep_the_names_of_sizes() -> None:
    graph = opstage.record(shapes, Spec("B 3 4"))
    model = checked(graph)
    first = model.graph.output[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in first] == ["3*B", 4]
