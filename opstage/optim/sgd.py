"""Gradient descent, plain and with a velocity."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, final

from typing_extensions import override

from ..ops.primitive import R
from ..ops.protocol import Ops
from ..ops.tracebacks import made_by_users
from .optimizer import Optimizer, Rate, Scalars, Slots, at_least_0


@final
@made_by_users
@dataclass(frozen=True)
class Sgd(Optimizer):
    """Gradient descent, see sgd_update. PyTorch: torch.optim.SGD.

    Raises:
        UsageError: a number out of bounds.
    """

    elementwise = True

    lr: Rate = 1e-3
    _: KW_ONLY
    weight_decay: float = at_least_0(0.0)

    @override
    def update(self, ops: Ops[R], p: R, g: R, slots: Slots[R], scalars: Scalars[R], /) -> tuple[R, Slots[R]]:
        return ops.sgd_update(p, g, scalars["lr"], weight_decay=self.weight_decay), ()


@dataclass(frozen=True)
class _WithVelocity(Optimizer):
    """Gradient descent with a velocity, see momentum_update."""

    elementwise = True

    kept = 1
    _looks_ahead: ClassVar[bool]

    lr: Rate = 1e-3
    _: KW_ONLY
    momentum: float = at_least_0(0.9)
    weight_decay: float = at_least_0(0.0)

    @override
    def update(self, ops: Ops[R], p: R, g: R, slots: Slots[R], scalars: Scalars[R], /) -> tuple[R, Slots[R]]:
        (velocity,) = slots
        static = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        p, velocity = ops.momentum_update(p, g, velocity, scalars["lr"], nesterov=self._looks_ahead, **static)
        return p, (velocity,)


@final
@made_by_users
@dataclass(frozen=True)
class Momentum(_WithVelocity):
    """Gradient descent with momentum (Polyak 1964). PyTorch: torch.optim.SGD(momentum=0.9).

    Raises:
        UsageError: a number out of bounds.
    """

    _looks_ahead = False


@final
@made_by_users
@dataclass(frozen=True)
class Nesterov(_WithVelocity):
    """Gradient descent with Nesterov's momentum (1983). PyTorch: torch.optim.SGD(momentum=0.9, nesterov=True).

    Raises:
        UsageError: a number out of bounds.
    """

    _looks_ahead = True
