"""Optimizers that divide the gradient by a root of past squares: Adagrad, RMSprop, Adadelta."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import final

from typing_extensions import override

from ..ops.primitive import R
from ..ops.protocol import Ops
from ..ops.tracebacks import made_by_users
from ..ops.types import DType, Shape
from .optimizer import Optimizer, Rate, Scalars, Slot, Slots, at_least_0, average, decayed, plus, share, times


@final
@made_by_users
@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011). PyTorch: torch.optim.Adagrad.

    g += weight_decay·p; total += g²; p -= lr·g/(√total + eps). The rate of step t is lr/(1 + (t - 1)·lr_decay).

    Raises:
        UsageError: a number out of bounds.
    """

    elementwise = True

    lr: Rate = 1e-2
    _: KW_ONLY
    lr_decay: float = at_least_0(0.0)
    weight_decay: float = at_least_0(0.0)
    initial_accumulator_value: float = at_least_0(0.0)
    eps: float = at_least_0(1e-10)

    @override
    def scalars(self, t: int) -> dict[str, float]:
        return {"lr": super().scalars(t)["lr"] / (1 + (t - 1) * self.lr_decay)}

    @override
    def slots(self, shape: Shape, dtype: DType, label: str) -> tuple[Slot, ...]:
        return (Slot(shape, dtype, self.initial_accumulator_value),)

    @override
    def update(self, ops: Ops[R], p: R, g: R, slots: Slots[R], scalars: Scalars[R], /) -> tuple[R, Slots[R]]:
        g = decayed(ops, p, g, self.weight_decay)
        total = ops.add(slots[0], ops.mul(g, g))
        step = ops.div(g, plus(ops, ops.sqrt(total), self.eps))
        return ops.sub(p, times(ops, step, scalars["lr"])), (total,)


@final
@made_by_users
@dataclass(frozen=True)
class Rmsprop(Optimizer):
    """RMSprop (Tieleman & Hinton 2012). PyTorch: torch.optim.RMSprop, without its momentum and centred forms.

    g += weight_decay·p; square = alpha·square + (1 - alpha)·g²; p -= lr·g/(√square + eps).

    Raises:
        UsageError: a number out of bounds.
    """

    elementwise = True

    kept = 1

    lr: Rate = 1e-2
    _: KW_ONLY
    alpha: float = share(0.99)
    eps: float = at_least_0(1e-8)
    weight_decay: float = at_least_0(0.0)

    @override
    def update(self, ops: Ops[R], p: R, g: R, slots: Slots[R], scalars: Scalars[R], /) -> tuple[R, Slots[R]]:
        g = decayed(ops, p, g, self.weight_decay)
        square = average(ops, slots[0], ops.mul(g, g), self.alpha)
        step = ops.div(g, plus(ops, ops.sqrt(square), self.eps))
        return ops.sub(p, times(ops, step, scalars["lr"])), (square,)


@final
@made_by_users
@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Adadelta (Zeiler 2012). PyTorch: torch.optim.Adadelta.

    g += weight_decay·p; square = rho·square + (1 - rho)·g²; step = √(delta + eps)/√(square + eps)·g;
    delta = rho·delta + (1 - rho)·step²; p -= lr·step.

    Raises:
        UsageError: a number out of bounds.
    """

    elementwise = True

    kept = 2

    lr: Rate = 1.0
    _: KW_ONLY
    rho: float = share(0.9)
    eps: float = at_least_0(1e-6)
    weight_decay: float = at_least_0(0.0)

    @override
    def update(self, ops: Ops[R], p: R, g: R, slots: Slots[R], scalars: Scalars[R], /) -> tuple[R, Slots[R]]:
        square, delta = slots
        g = decayed(ops, p, g, self.weight_decay)
        square = average(ops, square, ops.mul(g, g), self.rho)
        step = ops.mul(ops.div(ops.sqrt(plus(ops, delta, self.eps)), ops.sqrt(plus(ops, square, self.eps))), g)
        delta = average(ops, delta, ops.mul(step, step), self.rho)
        return ops.sub(p, times(ops, step, scalars["lr"])), (square, delta)
