"""Attention with a bias as models have it: relative positions learned by T5, slopes of ALiBi, windows of Swin.

Beside the definition over all n·m scores in NumPy, and the gradients of the decomposition; large enough for several
blocks of weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.interpreters.eager_cpu.kernels import kernel_table
from opstage.interpreters.graph.recorder import record
from opstage.ops.attention import BIASED_ATTENTION, BIASED_ATTENTION_GRAD
from opstage.ops.elementwise import SCALE
from opstage.ops.types import FLOAT64, TensorType

BACKENDS = [Options(backend=backend, dtype="float64") for backend in ("eager", "compiled")]


def by_hand(q: Any, k: Any, v: Any, bias: Any) -> Any:
    scores = np.einsum("...nd,...md->...nm", q, k) / np.sqrt(q.shape[-1]) + bias
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isinf(top), 0, top))
    return np.einsum("...nm,...me->...ne", e / np.where(e.any(axis=-1, keepdims=True), e.sum(-1, keepdims=True), 1), v)


def heads(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(shape) for shape in shapes]


def parts(ops: Any, q: Any, k: Any, v: Any, bias: Any) -> Any:
    """The same attention, op by op."""
    scores = ops.bmm(ops.scale(q, c=q.shape[-1] ** -0.5), ops.permute(k, axes=(0, 1, 3, 2)))
    return ops.bmm(ops.softmax(ops.add(scores, ops.broadcast_to(bias, shape=scores.shape)), axis=-1), v)


@pytest.mark.parametrize("options", BACKENDS, ids=lambda o: o.backend)
@pytest.mark.parametrize("n", [9, 400])
def test_relative_positions_of_t5(options: Options, n: int) -> None:
    """A table of a number per distance and head, looked up for every pair: its gradient adds up over the pairs."""
    q, k, v = heads(*[(2, 3, n, 4)] * 3)
    table = np.random.default_rng(8).standard_normal((2 * n - 1, 3))
    distance = np.arange(n) - np.arange(n)[:, np.newaxis] + n - 1
    distance.flags.writeable = False

    def attended(ops: Any, table: Any, q: Any, k: Any, v: Any, fused: bool) -> Any:
        rows = ops.gather_rows(table, ops.const(distance.reshape(-1)))
        bias = ops.permute(ops.reshape(rows, shape=(n, n, 3)), axes=(2, 0, 1))
        if fused:
            return ops.scaled_dot_product_attention(q, k, v, None, bias)
        return parts(ops, q, k, v, bias)

    found = opstage.run(lambda ops, *x: attended(ops, *x, True), table, q, k, v, options=options)
    np.testing.assert_allclose(found, by_hand(q, k, v, table[distance].transpose(2, 0, 1)), rtol=1e-11, atol=1e-13)
    gradients = [
        opstage.value_and_grad(
            lambda ops, *x: ops.sum(ops.tanh(attended(ops, *x, fused))),
            *(table, q, k, v),
            wrt=(0, 1, 2, 3),
            options=options,
        )[1]
        for fused in (True, False)
    ]
    for one, other in zip(*gradients):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", BACKENDS, ids=lambda o: o.backend)
def test_slopes_of_alibi(options: Options) -> None:
    n, slopes = 300, np.array([0.5, 0.25])
    q, k, v = heads(*[(1, 2, n, 3)] * 3)
    bias = -slopes[:, np.newaxis, np.newaxis] * (np.arange(n)[:, np.newaxis] - np.arange(n))
    found = opstage.run(
        lambda ops, b, q, k, v: ops.scaled_dot_product_attention(q, k, v, None, b, causal=True),
        *(bias, q, k, v),
        options=options,
    )
    expected = by_hand(q, k, v, np.where(np.tri(n, dtype=bool), bias, -np.inf))
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("options", BACKENDS, ids=lambda o: o.backend)
def test_shifted_windows_of_swin(options: Options) -> None:
    """Windows are entries of the batch: -inf between cells of different regions, and a bias that all windows share."""
    windows, cells = 6, 16
    q, k, v = heads(*[(windows, 2, cells, 4)] * 3)
    region = np.random.default_rng(3).integers(0, 2, (windows, cells))
    apart = np.where(region[:, :, np.newaxis] == region[:, np.newaxis], 0.0, -np.inf)[:, np.newaxis]
    shared = np.random.default_rng(4).standard_normal((2, cells, cells))

    def program(ops: Any, shared: Any, apart: Any, q: Any, k: Any, v: Any) -> Any:
        shape = (windows, 2, cells, cells)
        bias = ops.add(ops.broadcast_to(shared, shape=shape), ops.broadcast_to(apart, shape=shape))
        return ops.scaled_dot_product_attention(q, k, v, None, bias)

    found = opstage.run(program, shared, apart, q, k, v, options=options)
    np.testing.assert_allclose(found, by_hand(q, k, v, shared + apart), rtol=1e-11, atol=1e-13)
    _, slope = opstage.value_and_grad(
        lambda ops, *x: ops.sum(program(ops, *x)), shared, apart, q, k, v, options=options
    )
    assert np.all(np.isfinite(slope)) and np.any(slope)


@pytest.mark.parametrize("options", BACKENDS, ids=lambda o: o.backend)
@pytest.mark.parametrize("causal", [False, True])
def test_a_query_that_a_bias_forbids_everything_gives_zeros_and_takes_no_gradient(
    options: Options, causal: bool
) -> None:
    q, k, v = heads((1, 1, 3, 2), (1, 1, 4, 2), (1, 1, 4, 2))
    bias = np.zeros((3, 4))
    bias[1] = -np.inf
    bias[2, 0] = np.nan

    def program(ops: Any, *x: Any) -> Any:
        return ops.scaled_dot_product_attention(*x[:3], None, x[3], causal=causal)

    found = opstage.run(program, q, k, v, bias, options=options)[0, 0]
    assert np.all(np.isfinite(found[0])) and np.all(found[1] == 0) and np.all(np.isnan(found[2]))
    bias[2, 0] = 0.0
    grads = opstage.value_and_grad(
        lambda ops, *x: ops.sum(ops.exp(program(ops, *x))), q, k, v, bias, wrt=(0, 1, 2, 3), options=options
    )[1]
    assert all(np.all(np.isfinite(each)) for each in grads)
    assert np.all(grads[0][0, 0, 1] == 0) and np.all(grads[3][1] == 0) and np.any(grads[3][2])


def test_it_stays_fused() -> None:
    def base(ops: Any, *x: Any) -> Any:
        q, k, v, b = x
        return (ops.scaled_dot_product_attention(q, k, v, None, b, scale=0.5),)

    shapes = [(2, 3, 5, 4)] * 3 + [(3, 5, 5)]
    graph = record(base, [TensorType(shape, FLOAT64) for shape in shapes], FLOAT64, 0)
    assert [e.primitive for e in graph.body.equations] == [SCALE, BIASED_ATTENTION]
    assert {BIASED_ATTENTION, BIASED_ATTENTION_GRAD} <= set(kernel_table("float64", True))


@pytest.mark.parametrize("backend", ["eager", "compiled", "shape_check"])
@pytest.mark.parametrize("value", ["2", None, (1,), np.ones(2)], ids=str)
@pytest.mark.parametrize("name", ["c", "exponent", "lo", "value", "negative_slope", "eps"])
def test_a_static_number_that_is_none_is_refused_before_it_runs(backend: str, value: Any, name: str) -> None:
    calls = {
        "c": lambda ops, x: ops.scale(x, c=value),
        "exponent": lambda ops, x: ops.pow(x, exponent=value),
        "lo": lambda ops, x: ops.clamp(x, lo=value, hi=3),
        "value": lambda ops, x: ops.full(shape=(2,), value=value),
        "negative_slope": lambda ops, x: ops.leaky_relu(x, negative_slope=value),
        "eps": lambda ops, x: ops.layer_norm(x, None, None, eps=value),
    }
    with pytest.raises(opstage.ops.errors.ShapeError, match=rf"{name} (must be a number but is|is a tensor)") as caught:
        opstage.run(calls[name], np.ones((2, 3)), options=Options(backend=backend))
    assert "test_biased_attention.py" in str(caught.value)
