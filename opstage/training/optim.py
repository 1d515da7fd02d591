"""The shipped optimizers, see `Optimizer`; formulas, defaults and argument names are those of torch.optim."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, ClassVar, final

from typing_extensions import override

from ..ops.errors import UsageError
from ..ops.primitive import R
from ..ops.protocol import Ops
from ..ops.tracebacks import made_by_users
from ..ops.types import DType, Shape, show_shape
from . import clip, schedule
from .groups import grouped
from .hyperparameters import require_count, require_fraction
from .optimizer import Optimizer, Rate, Scalars, Slot, Slots, at_least_0, number, pair, scaled_rate, share
from .schedule import Schedule


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


@dataclass(frozen=True)
class _WithMoments(Optimizer):
    """Updates by running means of the gradient and of its square, with bias correction."""

    elementwise = True

    kept = 2
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
        """The corrections grow to 1 from their first values."""
        first = self.scalars(1)
        return {name: (first[name], 1.0) for name in ("c1", "c2")}

    @override
    def update(self, ops: Ops[R], p: R, g: R, slots: Slots[R], scalars: Scalars[R], /) -> tuple[R, Slots[R]]:
        step = ops.adamw_update if self._decoupled else ops.adam_update
        (m, v), (beta1, beta2) = slots, self.betas
        rates = scalars["lr"], scalars["c1"], scalars["c2"]
        p, m, v = step(p, g, m, v, *rates, beta1=beta1, beta2=beta2, eps=self.eps, weight_decay=self.weight_decay)
        return p, (m, v)


@final
@made_by_users
@dataclass(frozen=True)
class Adam(_WithMoments):
    """See adam_update; weight decay is part of the gradient. PyTorch: torch.optim.Adam.

    Raises:
        UsageError: a number out of bounds.
    """

    _decoupled = False


@final
@made_by_users
@dataclass(frozen=True)
class AdamW(_WithMoments):
    """See adamw_update; weight decay shrinks the parameter directly. PyTorch: torch.optim.AdamW.

    Raises:
        UsageError: a number out of bounds.
    """

    _decoupled = True
    weight_decay: float = at_least_0(1e-2)


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


_OTHERS = "others."


@final
@made_by_users
@dataclass(frozen=True)
class Muon(Optimizer):
    """Orthogonalised momentum for matrices, see muon_update. PyTorch: torch.optim.Muon.

    `others` updates the parameters that are not matrices: `muon(others=adamw(3e-4))`. Without it such a parameter is an
    error.

    Raises:
        UsageError: a number out of bounds.
    """

    kept = 1

    lr: Rate = 1e-3
    _: KW_ONLY
    weight_decay: float = at_least_0(0.1)
    momentum: float = number(require_fraction, 0.95)
    nesterov: bool = True
    eps: float = at_least_0(1e-7)
    ns_steps: int = number(require_count, 5)
    others: Optimizer | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.others is not None and (not isinstance(self.others, Optimizer) or isinstance(self.others, Muon)):
            raise UsageError(f"muon: others must be another optimizer, such as adamw(lr=3e-4), but is {self.others!r}")

    @override
    def having(self, **numbers: Any) -> Optimizer:
        """Change the hyperparameters of all parameters: those of `others` too, if it has them."""
        if self.others is None or "others" in numbers:
            return super().having(**numbers)
        own, theirs = ({f.name for f in fields(each) if f.init} for each in (self, self.others))
        others = self.others.having(**{name: value for name, value in numbers.items() if name in theirs})
        mine = {name: value for name, value in numbers.items() if name in own or name not in theirs}
        return super().having(**mine, others=others)

    @override
    def mover(self, shape: Shape) -> Optimizer:
        return self if len(shape) == 2 or self.others is None else self.others

    @override
    def scaled(self, factor: float) -> Optimizer:
        others = None if self.others is None else self.others.scaled(factor)
        return replace(self, lr=scaled_rate(self.lr, factor), others=others)

    @classmethod
    @override
    def of_all(cls, **numbers: Any) -> Optimizer:
        """Return Muon for matrices and adamw for every other parameter, with the same rate and decay."""
        return cls(
            **numbers, others=AdamW(**{name: numbers[name] for name in ("lr", "weight_decay") if name in numbers})
        )

    @property
    @override
    def state_name(self) -> str:
        return self.name if self.others is None else f"{self.name} with others={self.others.state_name}"

    @override
    def scalars(self, t: int) -> dict[str, float]:
        others = self.others.step_scalars(t) if self.others is not None else {}
        return super().scalars(t) | {_OTHERS + name: value for name, value in others.items()}

    @override
    def scalar_ranges(self) -> dict[str, tuple[float, float]]:
        others = self.others.scalar_ranges() if self.others is not None else {}
        return {_OTHERS + name: ends for name, ends in others.items()}

    @override
    def slots(self, shape: Shape, dtype: DType, label: str) -> tuple[Slot, ...]:
        if len(shape) == 2:
            return super().slots(shape, dtype, label)
        if self.others is None:
            raise UsageError(
                f"muon updates matrices, but parameter {label} is {show_shape(shape)}; give muon(…, others=adamw(…)) "
                "an optimizer for such parameters"
            )
        return self.others.slots(shape, dtype, label)

    @override
    def update(self, ops: Ops[R], p: R, g: R, slots: Slots[R], scalars: Scalars[R], /) -> tuple[R, Slots[R]]:
        if len(p.shape) != 2 and self.others is not None:
            theirs = {name.removeprefix(_OTHERS): ref for name, ref in scalars.items() if name.startswith(_OTHERS)}
            return self.others.updater(ops, p, g, slots, theirs)
        (buffer,) = slots
        static = {"momentum": self.momentum, "weight_decay": self.weight_decay, "eps": self.eps}
        p, buffer = ops.muon_update(p, g, buffer, scalars["lr"], nesterov=self.nesterov, steps=self.ns_steps, **static)
        return p, (buffer,)


sgd = Sgd
momentum = Momentum
nesterov = Nesterov
adagrad = Adagrad
rmsprop = Rmsprop
adam = Adam
adamw = AdamW
adadelta = Adadelta
muon = Muon

SHIPPED: dict[str, type[Optimizer]] = {
    name: value
    for name, value in list(globals().items())
    if name.islower() and isinstance(value, type) and issubclass(value, Optimizer)
}
"""The optimizers by the names above, which configurations and the command line use too."""

__all__ = [  # type checkers read it, so the names of SHIPPED are written out
    "SHIPPED",
    "Optimizer",
    "Rate",
    "Schedule",
    "Slot",
    "adadelta",
    "adagrad",
    "adam",
    "adamw",
    "clip",
    "grouped",
    "momentum",
    "muon",
    "nesterov",
    "rmsprop",
    "schedule",
    "sgd",
]
