"""Loops, concatenations and convolutions as the compiled executor does them, against the eager interpreter."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import optree
import pytest

import opstage
from opstage import Options
from opstage.derived import dropout
from opstage.interpreters.graph.passes.pipeline import run_passes, standard
from opstage.interpreters.graph.recorder import record
from opstage.ops.errors import RangeError
from opstage.ops.types import FLOAT64, TensorType
from opstage.transforms.scan import SCAN

rng = np.random.default_rng(0)


def both(program: Callable[..., Any], *args: Any, dtype: Any = "float64", rtol: float = 1e-12, **how: Any) -> None:
    """Values and gradients of a program on both backends."""
    eager, compiled = (
        optree.tree_leaves(opstage.value_and_grad(program, *args, options=Options(dtype=dtype, backend=backend), **how))
        for backend in ("eager", "compiled")
    )
    for a, b in zip(eager, compiled, strict=True):
        np.testing.assert_allclose(b, a, rtol=rtol, atol=rtol * (1 if dtype == "float64" else np.abs(a).max()))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_over_rows(reverse: bool) -> None:
    def program(ops: Any, p: Any, x: Any) -> Any:
        def turn(ops: Any, carry: Any, row: Any) -> Any:
            carry = ops.tanh(ops.add(ops.matmul(row, p["w"]), ops.matmul(carry, p["u"])))
            return carry, carry

        carry, ys = ops.scan(turn, ops.full(shape=(3, 5), value=0.0, dtype=x.dtype), x, reverse=reverse)
        return ops.add(ops.sum(ops.mul(ys, ys)), ops.sum(carry))

    both(program, {"w": rng.normal(size=(4, 5)), "u": rng.normal(size=(5, 5))}, rng.normal(size=(7, 3, 4)))


def test_a_loop_over_numbers() -> None:
    def program(ops: Any, p: Any, x: Any) -> Any:
        def turn(ops: Any, carry: Any, number: Any) -> Any:
            return ops.add(ops.mul(carry, p), number), ops.mul(carry, number)

        carry, ys = ops.scan(turn, ops.full(shape=(), value=0.5, dtype=x.dtype), x)
        return ops.add(carry, ops.sum(ys))

    both(program, np.float64(0.7), rng.normal(size=6))


def test_draws_of_a_loop_are_those_of_each_turn() -> None:
    def program(ops: Any, p: Any, x: Any) -> Any:
        def turn(ops: Any, carry: Any, row: Any) -> Any:
            mask = ops.bernoulli_mask(ops.const(0.5), shape=(3, 4))
            return ops.add(carry, ops.mul(ops.mul(row, mask), p)), None

        carry, _ = ops.scan(turn, ops.full(shape=(3, 4), value=0.0, dtype=x.dtype), x, reverse=True)
        return ops.sum(ops.mul(carry, carry))

    both(program, rng.normal(size=(3, 4)), rng.normal(size=(7, 3, 4)))


def test_a_part_of_a_concatenation_is_read_where_it_stands() -> None:
    def program(ops: Any, x: Any) -> Any:
        part = ops.sin(x)
        whole = ops.concat([ops.exp(x), part, x], axis=1)
        turned = ops.permute(ops.slice(part, axis=1, start=1, length=2), axes=(1, 0))
        chosen = ops.cast(ops.argmax(turned, axis=0), dtype="float64")  # an op of eager_cpu's, on a view of a part
        return ops.add(ops.sum(ops.mul(whole, whole)), ops.add(ops.sum(ops.exp(turned)), ops.sum(chosen)))

    both(program, rng.normal(size=(5, 4)))


# Loops of one iteration: the body alone -------------------------------------------------------------------------------


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
    assert np.isfinite(opstage.run(program, *arguments(length), options=COMPILED))
    both(program, *arguments(length), rtol=1e-13, wrt=(0, 1, 2))


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
    assert said[0] == said[1] and re.search(r"test_compiled_programs\.py:\d+", said[0])


# Convolutions, whose addresses are known only when they run -----------------------------------------------------------


CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "depthwise": ((2, 32, 9, 7), (32, 1, 3, 3), {"stride": 2, "padding": 1, "groups": 32}),
    "cell by cell": ((2, 32, 6, 6), (48, 32, 3, 3), {"padding": 1}),
    "three axes": ((2, 16, 4, 5, 6), (32, 16, 3, 3, 2), {"stride": (1, 2, 1), "padding": 1}),
    "channels": ((2, 16, 14, 14), (32, 16, 3, 3), {"padding": 1}),
    "windows": ((2, 3, 20, 20), (5, 3, 3, 3), {"padding": 1}),
    "columns": ((2, 3, 4, 5, 6), (5, 3, 3, 3, 2), {"padding": 1}),
    "one product": ((6, 32, 1, 1), (48, 32, 1, 1), {}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_is_what_runs_op_by_op(case: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]) -> None:
    shape, kernel_shape, how = case
    rng = np.random.default_rng(0)
    kernel, bias, x = (rng.standard_normal(s).astype(np.float32) for s in (kernel_shape, kernel_shape[:1], shape))

    def loss(ops: Any, params: Any) -> Any:
        y = ops.conv(params["kernel"], params["bias"], params["x"], **how)
        return ops.sum(y * y)

    both(loss, {"kernel": kernel, "bias": bias, "x": x}, dtype="float32", rtol=1e-4)
