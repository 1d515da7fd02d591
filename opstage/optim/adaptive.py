"""Optimizers with a rate for each number: Adam and AdamW by means of the gradient and of its square; Adagrad, RMSprop
and Adadelta, which divide the gradient by a root of past squares."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, final

from typing_extensions import override

from ..ops.primitive import R
from ..ops.protocol import Ops
from ..ops.tracebacks import constructed_by_users
from ..ops.types import DType, Shape
from .hyperparameters import at_least_0, number, pair, share
from .optimizer import Optimizer, Rate, Scalars, Slot, Slots, average, decayed, plus, shrunk, times


@dataclass(frozen=True)
class _WithMoments(Optimizer):
    """Updates by running means of the gradient and of its square, with bias correction.

    m = beta1·m + (1 - beta1)·g; v = beta2·v + (1 - beta2)·g²; p -= lr·(m/c1)/(√(v/c2) + eps), with the corrections
    c1 = 1 - beta1^t and c2 = 1 - beta2^t of step t.
    """

    elementwise = True

    num_slots = 2
    _decoupled: ClassVar[bool]

    lr: Rate = 1e-3
    _: KW_ONLY
    betas: tuple[float, float] = number(pair, (0.9, 0.999))
    eps: float = at_least_0(1e-8)
    weight_decay: float = at_least_0(0.0)

    @override
    def scalars(self, t: int) -> dict[str, float]:
        beta1, beta2 = self.betas
        return super().scalars(t) | {"c1": 1 - beta1**t, "c2": 1 - beta2**t}

    @override
    def scalar_ranges(self) -> dict[str, tuple[float, float]]:
        """Return ranges: the corrections grow to 1 from their first values."""
        first = self.scalars(1)
        return {name: (first[name], 1.0) for name in ("c1", "c2")}

    @override
    def update(self, ops: Ops[R], p: R, g: R, slots: Slots[R], scalars: Scalars[R], /) -> tuple[R, Slots[R]]:
        (m, v), (beta1, beta2), lr = slots, self.betas, scalars["lr"]
        if self._decoupled:
            p = shrunk(ops, p, lr, self.weight_decay)
        else:
            g = decayed(ops, p, g, self.weight_decay)
        m = average(ops, m, g, beta1)
        v = average(ops, v, ops.mul(g, g), beta2)
        # with r = √c2, (lr/c1)·m/(√v/r + eps) is (lr·r/c1)·m/(√v + eps·r), which costs one division per element
        root = ops.sqrt(scalars["c2"])
        rate = ops.div(ops.mul(lr, root), scalars["c1"])
        below = ops.add(ops.sqrt(v), ops.broadcast_to(ops.scale(root, c=self.eps), shape=v.shape))
        return ops.sub(p, times(ops, ops.div(m, below), rate)), (m, v)


@final
@constructed_by_users
@dataclass(frozen=True)
class Adam(_WithMoments):
    """Adam (Kingma & Ba 2015); weight decay is part of the gradient, g += weight_decay·p. PyTorch: torch.optim.Adam.

    Raises:
        UsageError: a number out of bounds.
    """

    _decoupled = False


@final
@constructed_by_users
@dataclass(frozen=True)
class AdamW(_WithMoments):
    """AdamW (Loshchilov & Hutter 2019); weight decay shrinks the parameter, p *= 1 - lr·weight_decay. PyTorch:
    torch.optim.AdamW.

    Raises:
        UsageError: a number out of bounds.
    """

    _decoupled = True
    weight_decay: float = at_least_0(1e-2)


@final
@constructed_by_users
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
@constructed_by_users
@dataclass(frozen=True)
class Rmsprop(Optimizer):
    """RMSprop (Tieleman & Hinton 2012). PyTorch: torch.optim.RMSprop, without its momentum and centred forms.

    g += weight_decay·p; square = alpha·square + (1 - alpha)·g²; p -= lr·g/(√square + eps).

    Raises:
        UsageError: a number out of bounds.
    """

    elementwise = True

    num_slots = 1

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
@constructed_by_users
@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Adadelta (Zeiler 2012). PyTorch: torch.optim.Adadelta.

    g += weight_decay·p; square = rho·square + (1 - rho)·g²; step = √(delta + eps)/√(square + eps)·g;
    delta = rho·delta + (1 - rho)·step²; p -= lr·step.

    Raises:
        UsageError: a number out of bounds.
    """

    elementwise = True

    num_slots = 2

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
