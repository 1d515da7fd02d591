"""`Optimizer`: a value that says which state a parameter needs and how one step moves it.

An optimizer holds hyperparameters and no state. `init` declares the state (slots) of each parameter, `scalars` computes
on the host what changes from step to step, and `update` is a program over Ops for one parameter, so that the same
definition runs eagerly, in a compiled step and on a device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

from ..interpreters.base_program import Identity
from ..ops.errors import UsageError, nearest
from ..ops.numbers import plain_sequence
from ..ops.primitive import R
from ..ops.protocol import Ops
from ..ops.types import DType, Shape
from . import schedule
from .hyperparameters import keep, require_count, require_fraction, require_nonnegative
from .schedule import Schedule

Rate: TypeAlias = "float | Schedule"
Slots: TypeAlias = tuple[R, ...]
Scalars: TypeAlias = Mapping[str, R]


class Slot(NamedTuple):
    """A state tensor of one parameter, before it is made: `fill` everywhere."""

    shape: Shape
    dtype: DType
    fill: float


def number(check: Callable[[str, str, Any], Any], default: Any) -> Any:
    """A hyperparameter: `check(optimizer, name, value)` gives its value as it is kept, or raises a UsageError."""
    return field(default=default, metadata={_CHECK: check})


def pair(owner: str, name: str, value: Any) -> tuple[Any, ...]:
    """`value`, two numbers in [0, 1)."""
    betas = plain_sequence(value)
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise UsageError(f"{owner}: {name} must be a pair such as (0.9, 0.999) but is {value!r}")
    return tuple([require_fraction(owner, f"{name}[{i}]", b) for i, b in enumerate(betas)])


_CHECK = "check"
at_least_0 = partial(number, require_nonnegative)
share = partial(number, partial(require_fraction, closed=True))


def scaled_rate(rate: Rate, factor: float) -> Rate:
    """`factor` times a learning rate."""
    if factor == 1:
        return rate
    return schedule.scaled(rate, factor) if isinstance(rate, Schedule) else rate * factor


_PEAKS = ("lr", "max_lr")


def peak(rate: Rate) -> Any:
    """The number that a rate is made with, as it is named in tables; None where a schedule has no such one."""
    if not isinstance(rate, Schedule):
        return rate
    if isinstance(rate, schedule.Scaled):
        inner = peak(rate.schedule)
        return None if inner is None else inner * rate.factor
    return next((getattr(rate, name) for name in _PEAKS if hasattr(rate, name)), None)


def peaking(owner: str, rate: Rate, to: Any) -> Rate:
    """A schedule like `rate` whose peak is another; for a number, or where `to` is a schedule itself, `to`.

    Raises UsageError for a schedule that is not made with one peak, such as `cyclic`.
    """
    if isinstance(to, Schedule) or not isinstance(rate, Schedule):
        return to  # type: ignore[no-any-return]  # whoever takes it checks it
    names: list[str] = [f.name for f in fields(rate)] if is_dataclass(rate) else []
    name = next((name for name in _PEAKS if name in names), None)
    if name is None or "base_lr" in names:
        made = type(rate).__name__
        raise UsageError(f"{owner}: lr = {to!r} says nothing of the schedule {made}; give a schedule, or lr_scale")
    return replace(rate, **{name: to})  # type: ignore[type-var]  # it is a dataclass


@dataclass(frozen=True)
class Optimizer(ABC):
    """The base of optimizers: a learning rate, a number or a `Schedule`.

    kept    how many tensors, 0 everywhere at first, it keeps of each parameter; for others override `slots`
    elementwise   whether it moves each element by what it keeps of that alone, so that ranks of a mesh may share out
                  its state; see `opstage.training.sharding`
    """

    kept: ClassVar[int] = 0
    elementwise: ClassVar[bool] = False

    lr: Rate

    def __post_init__(self) -> None:
        if not isinstance(self.lr, Schedule):
            keep(self, "lr", require_nonnegative(self.name, "lr", self.lr))
        for each in fields(self):
            if _CHECK in each.metadata:
                keep(self, each.name, each.metadata[_CHECK](self.name, each.name, getattr(self, each.name)))

    @classmethod
    def of_all(cls, **numbers: Any) -> Optimizer:
        """One with these numbers, for parameters of every shape."""
        return cls(**numbers)

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
        """A key of the program that `update` is: all hyperparameters but the learning rate.

        What `update` of another package's optimizer reads is unknown: it is like itself alone.
        """
        if type(self).__module__ != f"{__package__}.optim":
            return (Identity(self.update),)
        return (type(self), *((f.name, getattr(self, f.name)) for f in fields(self) if f.name != "lr"))

    def having(self, **numbers: Any) -> Optimizer:
        """This optimizer with other numbers. Raises UsageError for one that it has not.

        A number for `lr` where the rate is a schedule gives that schedule, with this as its peak.
        """
        own = [f.name for f in fields(self) if f.init]
        for name in numbers:
            if name not in own:
                raise UsageError(f"{self.name} has no {name}{nearest(name, own)}; it has {', '.join(own)}")
        if "lr" in numbers:
            numbers["lr"] = peaking(self.name, self.lr, numbers["lr"])
        return replace(self, **numbers)

    def bound(self, places: Sequence[tuple[str, ...]]) -> Optimizer:
        """The optimizer of parameters at these places, the paths of each; this one, but for one of groups.

        Of a bound optimizer `at` and `scalars_at` say what moves each parameter.
        """
        return self

    def at(self, path: str) -> Optimizer:
        """The optimizer that moves the parameter whose first path this is."""
        return self

    def scalars_at(self, path: str, scalars: Mapping[str, Any]) -> Mapping[str, Any]:
        """Those of a step's scalars that are for that parameter, by the names that its optimizer calls them."""
        return scalars

    def mover(self, shape: Shape) -> Optimizer:
        """The optimizer that moves a parameter of that shape; another one where shapes decide it."""
        return self

    def scaled(self, factor: float) -> Optimizer:
        """This optimizer with `factor` times its learning rate, at every step of a schedule too.

        It goes on from the state of this one. One that keeps rates beside `lr` overrides it.
        """
        if factor == 1:
            return self
        try:
            return replace(self, lr=scaled_rate(self.lr, factor))
        except TypeError as error:  # a class of somebody's own, with another __init__
            raise UsageError(
                f"{self.name} cannot be made anew with another lr ({error}); define its `scaled`"
            ) from None

    def init(self, types: Sequence[tuple[Shape, DType]], names: Sequence[str] | None = None) -> list[tuple[Slot, ...]]:
        """The slots of each parameter, from its shape and dtype; `names` are for errors alone.

        Raises UsageError for a parameter that this optimizer cannot update.
        """
        labels = names if names is not None else [f"number {i}" for i in range(len(types))]
        return [self.slots(shape, dtype, label) for (shape, dtype), label in zip(types, labels, strict=True)]

    def scalars(self, t: int) -> dict[str, float]:
        """The scalars of step t, counted from 1: the learning rate, bias corrections."""
        require_count(self.name, "t", t)
        return {"lr": self.lr(t - 1) if isinstance(self.lr, Schedule) else self.lr}

    def slots(self, shape: Shape, dtype: DType, label: str) -> tuple[Slot, ...]:
        """The slots of the parameter called `label`."""
        return (Slot(shape, dtype, 0.0),) * self.kept

    @abstractmethod
    def update(self, ops: Ops[R], p: R, g: R, slots: Slots[R], scalars: Scalars[R], /) -> tuple[R, Slots[R]]:
        """One step of one parameter: its new value and slots. `scalars` are those of the step, as scalar refs."""
