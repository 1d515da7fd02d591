"""Random programs of choices and loops: values and derivatives are those of Python's own, eager and compiled alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opstage
from opstage import Options
from tests.conformance.harness import assert_close
from tests.control.control_programs import Plain, Structural
from tests.searches import share

FLOAT64 = Options(dtype="float64")
LEAVES = ("x", "sin", "product", "captured", "constant", "scaled", "sums")


@st.composite
def programs(draw: Any, depth: int = 3) -> Any:
    """A tree of nodes: leaves, choices by the sign of a sum, switches, loops that halve, and sequences."""
    kinds = ["leaf"] if depth == 0 else ["leaf", "cond", "switch", "while", "then"]
    kind = draw(st.sampled_from(kinds))
    if kind == "leaf":
        return ("leaf", draw(st.sampled_from(LEAVES)))
    if kind == "switch":
        branches = draw(st.lists(programs(depth - 1), min_size=1, max_size=3))
        return ("switch", draw(st.integers(0, len(branches) - 1)), branches)
    if kind == "while":
        return ("while", draw(st.integers(0, 3)), draw(st.integers(0, 2)), draw(programs(depth - 1)))
    return (kind, draw(st.floats(-1.0, 1.0)), draw(programs(depth - 1)), draw(programs(depth - 1)))


def run(node: Any, ops: Any, flow: Any, x: Any, w: Any) -> Any:
    """A tensor of x's shape."""
    match node:
        case ("leaf", "x"):
            return x
        case ("leaf", "sin"):
            return ops.sin(x) + x
        case ("leaf", "product"):
            return x * w
        case ("leaf", "captured"):
            return w
        case ("leaf", "constant"):
            return ops.full(shape=x.shape, value=0.75)
        case ("leaf", "scaled"):
            return x * 0.5 - 0.25
        case ("leaf", "sums"):
            return x + ops.sum(w)
        case ("then", _, one, other):
            return run(other, ops, flow, run(one, ops, flow, x, w), w)
        case ("cond", bound, one, other):
            return flow.cond(
                ops,
                ops.sum(x) > bound,
                lambda ops, x: run(one, ops, flow, x, w),
                lambda ops, x: run(other, ops, flow, x, w),
                x,
            )
        case ("switch", index, branches):
            made = [lambda ops, x, node=node: run(node, ops, flow, x, w) for node in branches]
            return flow.switch(ops, ops.const(index, dtype="int64"), made, x)
        case ("while", times, slack, inner):

            def body(ops: Any, carry: Any) -> Any:
                return carry[0] + 1, run(inner, ops, flow, carry[1], w)

            start = (ops.const(0, dtype="int64"), x)
            return flow.while_loop(ops, lambda ops, c: c[0] < times, body, start, times + slack)[1]
    raise AssertionError(node)


NODES = {
    "node": programs(),
    "shape": st.sampled_from([(), (1,), (3,), (2, 2), (0,), (0, 2)]),
    "seed": st.integers(0, 9),
}


@settings(max_examples=15)
@given(**NODES)
def test_random_programs(node: Any, shape: tuple[int, ...], seed: int) -> None:
    agree(node, shape, seed)


@pytest.mark.slow
@pytest.mark.soak
@settings(max_examples=share(200))
@given(**NODES)
def test_many_more_random_programs(node: Any, shape: tuple[int, ...], seed: int) -> None:
    agree(node, shape, seed)


def agree(node: Any, shape: tuple[int, ...], seed: int) -> None:
    """Raise AssertionError where values or derivatives of a tree are not Python's."""
    rng = np.random.default_rng(seed)
    x, w, dx, dw = (rng.normal(size=shape) for _ in range(4))

    def scalar(flow: Any) -> Any:
        def program(ops: Any, x: Any, w: Any) -> Any:
            y = run(node, ops, flow, x, w)
            return ops.sum(ops.tanh(y) * y)

        return program

    expected = opstage.value_and_grad(scalar(Plain()), x, w, wrt=(0, 1), options=FLOAT64)
    second = opstage.hvp(scalar(Plain()), (x, w), (dx, dw), options=FLOAT64)
    _, tangent = opstage.jvp(scalar(Plain()), (x, w), (dx, dw), options=FLOAT64)
    for backend in ("eager", "compiled"):
        options = FLOAT64.replace(backend=backend)
        found = opstage.value_and_grad(scalar(Structural()), x, w, wrt=(0, 1), options=options)
        assert_close(found, expected, (1e-11, 1e-11), f"{backend} {node}")
        moved = opstage.jvp(scalar(Structural()), (x, w), (dx, dw), options=options)[1]
        assert_close(moved, tangent, (1e-11, 1e-11), f"{backend} {node}")
    found = opstage.hvp(scalar(Structural()), (x, w), (dx, dw), options=FLOAT64)
    assert_close(found, second, (1e-10, 1e-10), str(node))
