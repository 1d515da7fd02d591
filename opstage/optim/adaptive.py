"""Optimizers that divide the gradient by a root of past squares: Adagrad, RMSprop, Adadelta."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import final

from typing_extensions import override

from ..ops.primitive import R
from ..ops.protocol import Ops
from ..ops.tracebacks import made_by_users
from ..ops.types import DType, Shape
from .optimizer import Optimizer, Rate, Scalars, Slot, Slots, at_least_0, share


@final
@made_by_users
@dataclass(frozen=True)
class Adagrad(Optimizer):
    """See adagrad_update; the rate of step t is lr/(1 + (t - 1)·lr_decay). PyTorch: torch.optim.Adagrad.

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
        (total,) = slots
        p, total = ops.adagrad_update(p, g, total, scalars["lr"], eps=self.eps, weight_decay=self.weight_decay)
        return p, (total,)


@final
@made_by_users
@dataclass(frozen=True)
class Rmsprop(Optimizer):
    """See rmsprop_update. PyTorch: torch.optim.RMSprop, without its momentum and centred forms.

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
        (square,) = slots
        p, square = ops.rmsprop_update(
            p, g, square, scalars["lr"], alpha=self.alpha, eps=self.eps, weight_decay=self.weight_decay
        )
        return p, (square,)


@final
@made_by_users
@dataclass(frozen=True)
class Adadelta(Optimizer):
    """See adadelta_update. PyTorch: torch.optim.Adadelta.

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
        p, square, delta = ops.adadelta_update(
            p, g, square, delta, scalars["lr"], rho=self.rho, eps=self.eps, weight_decay=self.weight_decay
        )
        return p, (square, delta)
