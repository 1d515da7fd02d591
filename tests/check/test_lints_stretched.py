"""Infix arithmetic that stretches both operands."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Spec, derived
from tests.check.linted import checked, found, specs, stands_at, stepped

RULE = "stretched-both"
OPERATORS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y,
    lambda x, y: x - y,
    lambda x, y: x * y,
    lambda x, y: x / y,
    lambda x, y: x < y,
    lambda x, y: x >= y,
    lambda x, y: x == y,
    lambda x, y: x != y,
]


@pytest.mark.parametrize("op", OPERATORS)
def test_every_operator(op: Callable[[Any, Any], Any]) -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        return op(x, y)

    (finding,) = checked(RULE, program, Spec("B"), Spec("B 1"))
    assert finding.severity == "warning"
    assert "both operands are stretched" in finding.reason
    assert checked(RULE, program, Spec("B"), Spec("B")) == []


def residual(ops: Any, params: Any, x: Any, y: Any) -> Any:
    guess = ops.linear(params["w"], None, x)
    off = guess - y  # the usual one
    return ops.reduce_mean(off * off)


def test_a_regression_whose_targets_lack_an_axis() -> None:
    (finding,) = stepped(RULE, residual, specs(w="1 8"), Spec("B 8"), Spec("B"))
    assert finding.reason == "both operands are stretched: (B, 1) and (B,) become (B, B)"
    assert finding.operands == ("the right is y (B,)",)
    assert finding.fix.startswith("give both one shape, (B,)")
    assert stands_at(finding, residual, "# the usual one")
    assert str(finding).splitlines()[2].strip() == "^" * len("guess - y")
    assert stepped(RULE, residual, specs(w="1 8"), Spec("B 8"), Spec("B 1")) == []


@pytest.mark.parametrize(
    ("x", "y"), [("B T", "T"), ("B T", "1"), ("B T", "B 1"), ("B 1", "B T"), ("1 T", "B T"), ("", "B T"), ("1", "1 1")]
)
def test_one_stretched_operand_is_what_broadcasting_is_for(x: str, y: str) -> None:
    assert checked(RULE, lambda ops, x, y: x + y, Spec(x), Spec(y)) == []


def test_a_number_is_no_operand_to_stretch() -> None:
    assert checked(RULE, lambda ops, x: 2 * x + 1.5 - x / 3, Spec("B T")) == []


def test_an_array_of_numpy_is_an_operand() -> None:
    (finding,) = checked(RULE, lambda ops, x: np.ones((4, 1), np.float32) * x, Spec("B"))
    assert finding.reason == "both operands are stretched: (B,) and (4, 1) become (4, B)"
    assert finding.fix == "write ops.broadcast_to where the larger shape is meant"


def test_said_by_broadcast_to_it_is_meant() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        shape = (y.shape[0], x.shape[0])
        wide = ops.broadcast_to(x, shape=shape) * ops.broadcast_to(y, shape=shape)
        return wide + ops.mul(ops.broadcast_to(x, shape=shape), ops.broadcast_to(y, shape=shape))

    assert checked(RULE, program, Spec("B"), Spec("A 1")) == []


@pytest.mark.parametrize(
    ("program", "silent"),
    [
        (lambda ops, x, y: ops.unsqueeze(x, axis=0) * ops.unsqueeze(y, axis=1), True),
        (lambda ops, x, y: ops.unsqueeze(x, axis=0) - ops.unsqueeze(x, axis=1), True),  # distances of pairs
        (lambda ops, x, y: x * ops.unsqueeze(y, axis=1), True),  # sizes that could never be one
        (lambda ops, x, y: x * (2 * ops.exp(ops.unsqueeze(y, axis=1)) + 1), True),
        (lambda ops, x, y: x - ops.unsqueeze(x, axis=1), False),
        (lambda ops, x, y: x * ops.reshape(y, shape=(y.shape[0], 1)), False),
    ],
)
def test_said_by_unsqueeze_it_is_meant(program: Callable[..., Any], silent: bool) -> None:
    assert (found(opstage.check(program, Spec("A"), Spec("B")), RULE) == []) is silent


def test_ops_that_broadcast_by_themselves_are_not_meant() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        return derived.einsum(ops, "i,j->ij", x, y), x @ y

    assert checked(RULE, program, Spec("N"), Spec("N")) == []


def test_at_a_call_there_is_no_operator() -> None:
    assert checked(RULE, lambda ops, x, y: operator.add(x, y), Spec("B"), Spec("B 1")) == []


def test_a_line_that_runs_often_is_one_finding() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        total = ops.full(shape=(), value=0.0)
        for _ in range(3):
            total = total + ops.sum(x * y)
        return total

    assert len(checked(RULE, program, Spec("B"), Spec("B 1"))) == 1


def test_in_a_loop() -> None:
    def program(ops: Any, xs: Any, y: Any) -> Any:
        def turn(ops: Any, carry: Any, x: Any) -> Any:
            return carry + ops.sum(x * y), None  # outer

        return ops.scan(turn, ops.full(shape=(), value=0.0), xs)[0]

    (finding,) = checked(RULE, program, Spec("T B"), Spec("B 1"))
    assert stands_at(finding, program, "# outer")


def test_a_shape_that_an_error_left_open_is_not_judged() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        return ops.sum(ops.matmul(x, x) + y)

    assert checked("shape", program, Spec("3 4"), Spec("B 1 1"))[0].op == "matmul"
