"""Optimizer updates of one element. Their operations stand in the order of the decompositions, so the bits are theirs.

`a` beside a rate is 1 - rate, rounded once. A factory takes the square root if its formula has one; see the package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


def decayed() -> Function:
    """The gradient with the penalty ½·decay·p² in it."""

    def formula(p: Any, g: Any, decay: Any) -> Any:
        return g + p * decay

    return formula


def sgd() -> Function:
    def formula(p: Any, g: Any, lr: Any) -> Any:
        return p - g * lr

    return formula


def momentum() -> Function:
    def formula(p: Any, g: Any, velocity: Any, lr: Any, rate: Any) -> Any:
        velocity = velocity * rate + g
        return p - velocity * lr, velocity

    return formula


def nesterov() -> Function:
    def formula(p: Any, g: Any, velocity: Any, lr: Any, rate: Any) -> Any:
        velocity = velocity * rate + g
        return p - (g + velocity * rate) * lr, velocity

    return formula


def adagrad(sqrt: Function) -> Function:
    def formula(p: Any, g: Any, total: Any, lr: Any, eps: Any) -> Any:
        total = total + g * g
        return p - g / (sqrt(total) + eps) * lr, total

    return formula


def rmsprop(sqrt: Function) -> Function:
    def formula(p: Any, g: Any, square: Any, lr: Any, rate: Any, a: Any, eps: Any) -> Any:
        square = square * rate + (g * g) * a
        return p - g / (sqrt(square) + eps) * lr, square

    return formula


def adadelta(sqrt: Function) -> Function:
    def formula(p: Any, g: Any, square: Any, delta: Any, lr: Any, rate: Any, a: Any, eps: Any) -> Any:
        square = square * rate + (g * g) * a
        step = sqrt(delta + eps) / sqrt(square + eps) * g
        return p - step * lr, square, delta * rate + (step * step) * a

    return formula


def adam(sqrt: Function) -> Function:
    """With r = √c2: rate = lr·r/c1, floor = eps·r; `shrink` is 1, or AdamW's 1 - lr·weight_decay."""

    def formula(
        p: Any, g: Any, m: Any, v: Any, shrink: Any, rate: Any, floor: Any, beta1: Any, a1: Any, beta2: Any, a2: Any
    ) -> Any:
        m = m * beta1 + g * a1
        v = v * beta2 + (g * g) * a2
        return p * shrink - m / (sqrt(v) + floor) * rate, m, v

    return formula
