"""Elementwise runs of loop bodies: what is put together computes the same, in the order that effects have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.compiler.codegen import composites as runs
from opstage.interpreters.eager_cpu import interpreter
from opstage.ops.body import Body

LENGTH = 40


def _gates(ops: Any, h: Any, x: Any) -> Any:
    """Views of one operand, in two runs with a product between them."""
    z = ops.add(x, ops.matmul(h, ops.const(np.eye(6, dtype=np.float32) * 0.5)))
    left, right = ops.slice(z, axis=1, start=0, length=3), ops.slice(z, axis=1, start=3, length=3)
    gate = ops.mul(ops.sigmoid(left), ops.tanh(right))
    return ops.add(ops.scale(h, c=0.5), ops.concat([gate, ops.neg(gate)], axis=1)), z


def _padded(ops: Any, h: Any, x: Any) -> Any:
    inner = ops.slice(ops.tanh(x), axis=1, start=1, length=4)
    h = ops.add(ops.scale(h, c=-0.0), ops.pad(inner, padding=((0, 0), (1, 1)), value=2.0))
    return h, ops.permute(ops.mul(h, h), axes=(1, 0))


def _constants(ops: Any, h: Any, x: Any) -> Any:
    one = ops.full(shape=h.shape, value=1.0)
    return ops.select(ops.less(h, one), ops.add(h, ops.mul(x, one)), ops.sub(h, one)), one


def _carry_only_viewed(ops: Any, h: Any, x: Any) -> Any:
    turned = ops.reshape(ops.permute(h, axes=(1, 0)), shape=h.shape)
    return ops.add(turned, ops.mul(x, x)), ops.reshape(h, shape=(24,))


BODIES = (_gates, _padded, _constants, _carry_only_viewed)


def _program(body: Any) -> Any:
    def loss(ops: Any, h: Any, xs: Any) -> Any:
        h, ys = ops.scan(lambda ops, h, x: body(ops, h, x), h, xs)
        return ops.add(ops.sum(ops.mul(h, h)), ops.sum(ops.sin(ys)))

    return loss


def _data() -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    return rng.standard_normal((4, 6)).astype(np.float32), rng.standard_normal((LENGTH, 4, 6)).astype(np.float32)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_a_loop_in_runs_computes_what_its_ops_do(body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    h, xs = _data()

    def found() -> Any:
        return opstage.value_and_grad(_program(body), h, xs, wrt=(0, 1), options=Options())

    value, gradients = found()
    monkeypatch.setattr(interpreter, "_LONG", LENGTH + 1)
    apart, apart_gradients = found()
    np.testing.assert_allclose(value, apart, rtol=1e-6)
    for a, b in zip(gradients, apart_gradients):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("length", [0, 1, interpreter._LONG - 1, interpreter._LONG])
def test_whether_a_loop_is_in_runs_depends_on_its_length(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Body] = []
    monkeypatch.setattr(interpreter, "in_runs", lambda body, has_kernel: asked.append(body) or body)
    h, xs = _data()
    opstage.run(_program(_gates), h, xs[:length])
    assert bool(asked) == (length >= interpreter._LONG)


def test_a_kernel_serves_every_trace_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_COMPOSITES", {})
    h, xs = _data()
    opstage.run(_program(_gates), h, xs)
    known = dict(runs._COMPOSITES)
    assert known
    opstage.run(_program(_gates), h, xs)
    assert known == runs._COMPOSITES


def test_zeros_of_either_sign_are_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    _, xs = _data()

    def scaled(c: float) -> Any:
        return lambda ops, h, x: (ops.add(ops.scale(h, c=c), ops.neg(ops.abs(ops.scale(x, c=0.0)))), x)

    for c in (0.0, -0.0):
        first = np.full((4, 6), 1.0, np.float32)
        # after an odd number of iterations, since -0.0 times -0.0 is 0.0
        out = opstage.run(lambda ops, h, xs, c=c: ops.scan(scaled(c), h, xs)[0], first, xs[: LENGTH - 1])
        assert np.signbit(np.asarray(out)).all() == np.signbit(c), c


def test_effects_keep_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    def body(ops: Any, h: Any, x: Any) -> Any:
        h = ops.tanh(ops.add(h, x))
        opstage.debug.show(ops, h, "first")
        h = ops.mul(h, ops.add(h, h))
        opstage.debug.show(ops, h, "second")
        return h, ops.scale(h, c=2.0)

    h, xs = _data()
    opstage.run(_program(body), h, xs)
    said = [line.split()[0] for line in capsys.readouterr().err.splitlines() if "first" in line or "second" in line]
    assert len(said) == 2 * LENGTH
    assert said == [said[0], said[1]] * LENGTH
