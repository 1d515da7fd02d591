"""Scans and concatenations as the compiled executor does them, against the eager interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optree
import pytest

import opstage
from opstage import Options

rng = np.random.default_rng(0)


def both(program: Callable[..., Any], *args: Any) -> None:
    eager, compiled = (
        opstage.value_and_grad(program, *args, options=Options(dtype="float64", backend=backend))
        for backend in ("eager", "compiled")
    )
    for a, b in zip(optree.tree_leaves(eager), optree.tree_leaves(compiled), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12)


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
