"""The updates of optimizers as ops, for tests of interpreters and kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opstage.optim import Optimizer, momentum, nesterov, sgd
from opstage.transforms.tracer import Composite


def update_op(optimizer: Optimizer, *operands: Any) -> Composite:
    """The op (p, g, *slots, *scalars) -> (new p, *new slots) for operands of these types."""
    made: Any = optimizer.updater
    found = made._traced(operands, tuple(optimizer.step_scalars(1)))
    assert isinstance(found, Composite)
    return found


def updated(optimizer: Optimizer, update: Callable[..., Any] | None = None) -> Callable[..., tuple[Any, ...]]:
    """A program (p, g, *slots, *scalars) -> (new p, *new slots) that calls `update`, by default that of a step."""
    names, update = list(optimizer.step_scalars(1)), update or optimizer.updater

    def program(ops: Any, p: Any, g: Any, *rest: Any) -> tuple[Any, ...]:
        slots = len(rest) - len(names)
        value, after = update(ops, p, g, rest[:slots], dict(zip(names, rest[slots:])))
        return (value, *after)

    return program


def sgd_update(ops: Any, p: Any, g: Any, lr: Any, **numbers: Any) -> Any:
    """The new p."""
    return sgd(**numbers).updater(ops, p, g, (), {"lr": lr})[0]


def momentum_update(ops: Any, p: Any, g: Any, velocity: Any, lr: Any, **numbers: Any) -> tuple[Any, Any]:
    """The new p and velocity; with `nesterov` of the optimizer of that name."""
    optimizer = (nesterov if numbers.pop("nesterov", False) else momentum)(**numbers)
    p, (velocity,) = optimizer.updater(ops, p, g, (velocity,), {"lr": lr})
    return p, velocity
