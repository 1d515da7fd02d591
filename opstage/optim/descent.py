"""Gradient descent: plain (SGD), and with a velocity (momentum, Nesterov)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, final

from typing_extensions import override

from ..ops.primitive import R
from ..ops.protocol import Ops
from ..ops.tracebacks import constructed_by_users
from .hyperparameters import at_least_0
from .optimizer import Optimizer, Rate, Scalars, Slots, decayed, times


@final
@constructed_by_users
@dataclass(frozen=True)
class Sgd(Optimizer):
    """Gradient descent: p -= lr·(g + weight_decay·p). PyTorch: torch.optim.SGD.

    Raises:
        UsageError: a number out of bounds.
    """

    elementwise = True

    lr: Rate = 1e-3
    _: KW_ONLY
    weight_decay: float = at_least_0(0.0)

    @override
    def update(self, ops: Ops[R], p: R, g: R, slots: Slots[R], scalars: Scalars[R], /) -> tuple[R, Slots[R]]:
        return ops.sub(p, times(ops, decayed(ops, p, g, self.weight_decay), scalars["lr"])), ()


@dataclass(frozen=True)
class _WithVelocity(Optimizer):
    """Gradient descent with a velocity.

    g += weight_decay·p; velocity = momentum·velocity + g; p -= lr·velocity, or p -= lr·(g + momentum·velocity) if it
    looks ahead.
    """

    elementwise = True

    num_slots = 1
    _looks_ahead: ClassVar[bool]

    lr: Rate = 1e-3
    _: KW_ONLY
    momentum: float = at_least_0(0.9)
    weight_decay: float = at_least_0(0.0)

    @override
    def update(self, ops: Ops[R], p: R, g: R, slots: Slots[R], scalars: Scalars[R], /) -> tuple[R, Slots[R]]:
        g = decayed(ops, p, g, self.weight_decay)
        velocity = ops.add(ops.scale(slots[0], c=self.momentum), g)
        step = ops.add(g, ops.scale(velocity, c=self.momentum)) if self._looks_ahead else velocity
        return ops.sub(p, times(ops, step, scalars["lr"])), (velocity,)


@final
@constructed_by_users
@dataclass(frozen=True)
class Momentum(_WithVelocity):
    """Gradient descent with momentum (Polyak 1964). PyTorch: torch.optim.SGD(momentum=0.9).

    Raises:
        UsageError: a number out of bounds.
    """

    _looks_ahead = False


@final
@constructed_by_users
@dataclass(frozen=True)
class Nesterov(_WithVelocity):
    """Gradient descent with Nesterov's momentum (1983). PyTorch: torch.optim.SGD(momentum=0.9, nesterov=True).

    Raises:
        UsageError: a number out of bounds.
    """

    _looks_ahead = True
