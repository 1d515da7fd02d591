"""A loop of one iteration is its body in a compiled program: the same bits, and errors and draws where they were."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.derived import dropout
from opstage.interpreters.graph.passes.pipeline import run_passes, standard
from opstage.interpreters.graph.recorder import record
from opstage.ops.errors import RangeError
from opstage.ops.types import FLOAT64, TensorType
from opstage.transforms.scan import SCAN

EAGER, COMPILED = (Options(backend=backend, dtype="float64") for backend in ("eager", "compiled"))


def rnn(ops: Any, w: Any, h: Any, xs: Any) -> Any:
    def step(ops: Any, h: Any, x: Any) -> Any:
        new = ops.tanh(ops.add(ops.matmul(h, w), x))
        return new, (h, ops.exp(new))

    last, (before, after) = ops.scan(step, h, xs, reverse=True)
    return ops.add(ops.sum(ops.mul(last, last)), ops.add(ops.sum(before), ops.sum(after)))


def noisy(ops: Any, w: Any, h: Any, xs: Any) -> Any:
    def step(ops: Any, h: Any, x: Any) -> Any:
        inner, _ = ops.scan(lambda ops, c, _: (dropout(ops, c, 0.5, True), None), ops.mul(h, x), None, length=1)
        return ops.matmul(inner, w), None

    return ops.sum(ops.scan(step, h, xs)[0])


def arguments(length: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(5)
    return tuple(rng.standard_normal(shape) for shape in ((3, 3), (2, 3), (length, 2, 3)))


@pytest.mark.parametrize("program", [rnn, noisy])
@pytest.mark.parametrize("length", [1, 2])
def test_values_and_gradients_are_those_of_the_eager_loop(program: Callable[..., Any], length: int) -> None:
    args = arguments(length)
    for options in (EAGER, COMPILED):
        assert np.isfinite(opstage.run(program, *args, options=options))
    found, expected = (
        opstage.value_and_grad(program, *args, wrt=(0, 1, 2), options=options) for options in (COMPILED, EAGER)
    )
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-14)
    for a, b in zip(found[1], expected[1]):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(("length", "loops"), [(0, 1), (1, 0), (2, 1)])
def test_the_loop_is_gone(length: int, loops: int) -> None:
    types = [TensorType(np.shape(x), FLOAT64) for x in arguments(length)]
    graph = record(lambda ops, *x: (rnn(ops, *x),), types, FLOAT64, 0)
    body = run_passes(graph, standard(lambda *_: True), checked=True)[0].body
    assert [e.primitive for e in body.equations].count(SCAN) == loops


def test_an_index_out_of_range_is_said_at_its_line() -> None:
    def program(ops: Any, table: Any, at: Any) -> Any:
        def step(ops: Any, c: Any, i: Any) -> Any:
            return ops.add(c, ops.gather_vec(table, i)), None  # here

        return ops.scan(step, ops.full(shape=(2,), value=0.0), at)[0]

    said = []
    for options in (EAGER, COMPILED):
        with pytest.raises(RangeError) as caught:
            opstage.run(program, np.arange(3.0), np.array([[0, 7]]), options=options)
        said.append(str(caught.value))
    assert said[0] == said[1] and re.search(r"test_single_iterations\.py:\d+", said[0])
