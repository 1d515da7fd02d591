"""Optimizers: values that say which state a parameter needs and how one step moves it.

An optimizer holds hyperparameters and no state. `init` declares the state (slots) of each parameter, `scalars` computes
on the host what changes from step to step, and `update` is a program over Ops for one parameter, so that the same
definition runs eagerly, in a compiled step and on a device. Formulas, defaults and argument names are those of
torch.optim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property
from typing import ClassVar, NamedTuple, TypeAlias, final

from typing_extensions import override

from ..interpreters.base_program import Identity
from ..ops.errors import UsageError
from ..ops.numbers import plain_sequence
from ..ops.primitive import R
from ..ops.protocol import Ops
from ..ops.types import DType, Shape, show_shape
from . import clip, schedule
from .hyperparameters import keep, require_count, require_fraction, require_nonnegative
from .schedule import Schedule

Rate: TypeAlias = "float | Schedule"


class Slot(NamedTuple):
    """A state tensor of one parameter, before it is made: `fill` everywhere."""

    shape: Shape
    dtype: DType
    fill: float


@dataclass(frozen=True)
class Optimizer(ABC):
    """What all optimizers share: a learning rate, a number or a `Schedule`."""

    lr: Rate

    def __post_init__(self) -> None:
        if not isinstance(self.lr, Schedule):
            keep(self, "lr", require_nonnegative(self.name, "lr", self.lr))

    @property
    def name(self) -> str:
        """The name by which users make it."""
        return type(self).__name__.lower()

    @property
    def state_name(self) -> str:
        """Whose state it goes on from: slots of an optimizer of another `state_name` have another meaning."""
        return self.name

    @cached_property
    def program_key(self) -> tuple[Hashable, ...]:
        """What tells two optimizers apart whose `update` is not one program: all but the learning rate.

        Of an optimizer of somebody else's nobody knows what its `update` reads: it is like itself alone.
        """
        if type(self).__module__ != __name__:
            return (Identity(self.update),)
        return (type(self), *((f.name, getattr(self, f.name)) for f in fields(self) if f.name != "lr"))

    def init(self, types: Sequence[tuple[Shape, DType]], names: Sequence[str] | None = None) -> list[tuple[Slot, ...]]:
        """The slots of each parameter, from its shape and dtype; `names` are for errors alone.

        Raises UsageError for a parameter that this optimizer cannot update.
        """
        labels = names if names is not None else [f"number {i}" for i in range(len(types))]
        return [self.slots(shape, dtype, label) for (shape, dtype), label in zip(types, labels, strict=True)]

    def scalars(self, t: int) -> dict[str, float]:
        """What step t, counted from 1, needs besides tensors: the learning rate, bias corrections."""
        require_count(self.name, "t", t)
        return {"lr": self.lr(t - 1) if isinstance(self.lr, Schedule) else self.lr}

    @abstractmethod
    def slots(self, shape: Shape, dtype: DType, label: str) -> tuple[Slot, ...]:
        """The slots of the parameter called `label`."""

    @abstractmethod
    def update(
        self, ops: Ops[R], p: R, g: R, slots: tuple[R, ...], scalars: Mapping[str, R], /
    ) -> tuple[R, tuple[R, ...]]:
        """One step of one parameter: its new value and slots. `scalars` are those of the step, as scalar refs."""


def _zeros(count: int, shape: Shape, dtype: DType) -> tuple[Slot, ...]:
    return (Slot(shape, dtype, 0.0),) * count


@final
@dataclass(frozen=True)
class Sgd(Optimizer):
    """Gradient descent, see sgd_update. PyTorch: torch.optim.SGD."""

    lr: Rate = 1e-3
    _: KW_ONLY
    weight_decay: float = 0.0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        keep(self, "weight_decay", require_nonnegative(self.name, "weight_decay", self.weight_decay))

    @override
    def slots(self, shape: Shape, dtype: DType, label: str) -> tuple[Slot, ...]:
        return ()

    @override
    def update(
        self, ops: Ops[R], p: R, g: R, slots: tuple[R, ...], scalars: Mapping[str, R], /
    ) -> tuple[R, tuple[R, ...]]:
        return ops.sgd_update(p, g, scalars["lr"], weight_decay=self.weight_decay), ()


@dataclass(frozen=True)
class _WithVelocity(Optimizer):
    """Gradient descent with a velocity, see momentum_update."""

    _looks_ahead: ClassVar[bool]

    lr: Rate = 1e-3
    _: KW_ONLY
    momentum: float = 0.9
    weight_decay: float = 0.0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        keep(self, "momentum", require_nonnegative(self.name, "momentum", self.momentum))
        keep(self, "weight_decay", require_nonnegative(self.name, "weight_decay", self.weight_decay))

    @override
    def slots(self, shape: Shape, dtype: DType, label: str) -> tuple[Slot, ...]:
        return _zeros(1, shape, dtype)

    @override
    def update(
        self, ops: Ops[R], p: R, g: R, slots: tuple[R, ...], scalars: Mapping[str, R], /
    ) -> tuple[R, tuple[R, ...]]:
        (velocity,) = slots
        p, velocity = ops.momentum_update(
            p,
            g,
            velocity,
            scalars["lr"],
            momentum=self.momentum,
            nesterov=self._looks_ahead,
            weight_decay=self.weight_decay,
        )
        return p, (velocity,)


@final
@dataclass(frozen=True)
class Momentum(_WithVelocity):
    """Gradient descent with momentum (Polyak 1964). PyTorch: torch.optim.SGD(momentum=0.9)."""

    _looks_ahead = False


@final
@dataclass(frozen=True)
class Nesterov(_WithVelocity):
    """Gradient descent with Nesterov's momentum (1983). PyTorch: torch.optim.SGD(momentum=0.9, nesterov=True)."""

    _looks_ahead = True


@final
@dataclass(frozen=True)
class Adagrad(Optimizer):
    """See adagrad_update; the rate of step t is lr/(1 + (t - 1)·lr_decay). PyTorch: torch.optim.Adagrad."""

    lr: Rate = 1e-2
    _: KW_ONLY
    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lr_decay", "weight_decay", "initial_accumulator_value", "eps"):
            keep(self, name, require_nonnegative(self.name, name, getattr(self, name)))

    @override
    def scalars(self, t: int) -> dict[str, float]:
        return {"lr": super().scalars(t)["lr"] / (1 + (t - 1) * self.lr_decay)}

    @override
    def slots(self, shape: Shape, dtype: DType, label: str) -> tuple[Slot, ...]:
        return (Slot(shape, dtype, self.initial_accumulator_value),)

    @override
    def update(
        self, ops: Ops[R], p: R, g: R, slots: tuple[R, ...], scalars: Mapping[str, R], /
    ) -> tuple[R, tuple[R, ...]]:
        (total,) = slots
        p, total = ops.adagrad_update(p, g, total, scalars["lr"], eps=self.eps, weight_decay=self.weight_decay)
        return p, (total,)


@final
@dataclass(frozen=True)
class Rmsprop(Optimizer):
    """See rmsprop_update. PyTorch: torch.optim.RMSprop, without its momentum and centred forms."""

    lr: Rate = 1e-2
    _: KW_ONLY
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        keep(self, "alpha", require_fraction(self.name, "alpha", self.alpha, closed=True))
        keep(self, "eps", require_nonnegative(self.name, "eps", self.eps))
        keep(self, "weight_decay", require_nonnegative(self.name, "weight_decay", self.weight_decay))

    @override
    def slots(self, shape: Shape, dtype: DType, label: str) -> tuple[Slot, ...]:
        return _zeros(1, shape, dtype)

    @override
    def update(
        self, ops: Ops[R], p: R, g: R, slots: tuple[R, ...], scalars: Mapping[str, R], /
    ) -> tuple[R, tuple[R, ...]]:
        (square,) = slots
        p, square = ops.rmsprop_update(
            p, g, square, scalars["lr"], alpha=self.alpha, eps=self.eps, weight_decay=self.weight_decay
        )
        return p, (square,)


@dataclass(frozen=True)
class _WithMoments(Optimizer):
    """Steps by running means of the gradient and of its square, corrected for their start at 0."""

    _decoupled: ClassVar[bool]

    lr: Rate = 1e-3
    _: KW_ONLY
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        betas = plain_sequence(self.betas)
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise UsageError(f"{self.name}: betas must be a pair such as (0.9, 0.999) but is {self.betas!r}")
        keep(self, "betas", tuple([require_fraction(self.name, f"betas[{i}]", b) for i, b in enumerate(betas)]))
        keep(self, "eps", require_nonnegative(self.name, "eps", self.eps))
        keep(self, "weight_decay", require_nonnegative(self.name, "weight_decay", self.weight_decay))

    @override
    def scalars(self, t: int) -> dict[str, float]:
        beta1, beta2 = self.betas
        return super().scalars(t) | {"c1": 1 - beta1**t, "c2": 1 - beta2**t}

    @override
    def slots(self, shape: Shape, dtype: DType, label: str) -> tuple[Slot, ...]:
        return _zeros(2, shape, dtype)

    @override
    def update(
        self, ops: Ops[R], p: R, g: R, slots: tuple[R, ...], scalars: Mapping[str, R], /
    ) -> tuple[R, tuple[R, ...]]:
        step = ops.adamw_update if self._decoupled else ops.adam_update
        (m, v), (beta1, beta2) = slots, self.betas
        p, m, v = step(
            p,
            g,
            m,
            v,
            scalars["lr"],
            scalars["c1"],
            scalars["c2"],
            beta1=beta1,
            beta2=beta2,
            eps=self.eps,
            weight_decay=self.weight_decay,
        )
        return p, (m, v)


@final
@dataclass(frozen=True)
class Adam(_WithMoments):
    """See adam_update; weight decay is part of the gradient. PyTorch: torch.optim.Adam."""

    _decoupled = False


@final
@dataclass(frozen=True)
class AdamW(_WithMoments):
    """See adamw_update; weight decay shrinks the parameter directly. PyTorch: torch.optim.AdamW."""

    _decoupled = True
    weight_decay: float = 1e-2


@final
@dataclass(frozen=True)
class Adadelta(Optimizer):
    """See adadelta_update. PyTorch: torch.optim.Adadelta."""

    lr: Rate = 1.0
    _: KW_ONLY
    rho: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0.0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        keep(self, "rho", require_fraction(self.name, "rho", self.rho, closed=True))
        keep(self, "eps", require_nonnegative(self.name, "eps", self.eps))
        keep(self, "weight_decay", require_nonnegative(self.name, "weight_decay", self.weight_decay))

    @override
    def slots(self, shape: Shape, dtype: DType, label: str) -> tuple[Slot, ...]:
        return _zeros(2, shape, dtype)

    @override
    def update(
        self, ops: Ops[R], p: R, g: R, slots: tuple[R, ...], scalars: Mapping[str, R], /
    ) -> tuple[R, tuple[R, ...]]:
        square, delta = slots
        p, square, delta = ops.adadelta_update(
            p, g, square, delta, scalars["lr"], rho=self.rho, eps=self.eps, weight_decay=self.weight_decay
        )
        return p, (square, delta)


_OTHERS = "others."


@final
@dataclass(frozen=True)
class Muon(Optimizer):
    """Orthogonalised momentum for matrices, see muon_update. PyTorch: torch.optim.Muon.

    `others` updates the parameters that are not matrices: `muon(others=adamw(3e-4))`. Without it such a parameter is an
    error.
    """

    lr: Rate = 1e-3
    _: KW_ONLY
    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    eps: float = 1e-7
    ns_steps: int = 5
    others: Optimizer | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        keep(self, "weight_decay", require_nonnegative(self.name, "weight_decay", self.weight_decay))
        keep(self, "momentum", require_fraction(self.name, "momentum", self.momentum))
        keep(self, "eps", require_nonnegative(self.name, "eps", self.eps))
        keep(self, "ns_steps", require_count(self.name, "ns_steps", self.ns_steps))
        if self.others is not None and (not isinstance(self.others, Optimizer) or isinstance(self.others, Muon)):
            raise UsageError(f"muon: others must be another optimizer, such as adamw(lr=3e-4), but is {self.others!r}")

    @property
    @override
    def state_name(self) -> str:
        return self.name if self.others is None else f"{self.name} with others={self.others.state_name}"

    @override
    def scalars(self, t: int) -> dict[str, float]:
        others = self.others.scalars(t) if self.others is not None else {}
        return super().scalars(t) | {_OTHERS + name: value for name, value in others.items()}

    @override
    def slots(self, shape: Shape, dtype: DType, label: str) -> tuple[Slot, ...]:
        if len(shape) == 2:
            return _zeros(1, shape, dtype)
        if self.others is None:
            raise UsageError(
                f"muon updates matrices, but parameter {label} is {show_shape(shape)}; give muon(…, others=adamw(…)) "
                "an optimizer for such parameters"
            )
        return self.others.slots(shape, dtype, label)

    @override
    def update(
        self, ops: Ops[R], p: R, g: R, slots: tuple[R, ...], scalars: Mapping[str, R], /
    ) -> tuple[R, tuple[R, ...]]:
        if len(p.shape) != 2 and self.others is not None:
            theirs = {name.removeprefix(_OTHERS): ref for name, ref in scalars.items() if name.startswith(_OTHERS)}
            return self.others.update(ops, p, g, slots, theirs)
        (buffer,) = slots
        p, buffer = ops.muon_update(
            p,
            g,
            buffer,
            scalars["lr"],
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            steps=self.ns_steps,
            eps=self.eps,
        )
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

__all__ = [
    "Optimizer",
    "Rate",
    "Schedule",
    "Slot",
    "adadelta",
    "adagrad",
    "adam",
    "adamw",
    "clip",
    "momentum",
    "muon",
    "nesterov",
    "rmsprop",
    "schedule",
    "sgd",
]
