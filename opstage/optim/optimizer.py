"""`Optimizer`: a value that declares the state of a parameter and how one step updates it.

An optimizer holds hyperparameters and no state. `init` declares the state (slots) of each parameter, `scalars` computes
on the host what changes from step to step, and `update` is a program over Ops for one parameter, so that the same
definition runs eagerly, in a compiled step and on a device.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, TypeAlias, final

from typing_extensions import deprecated

from ..compiler.codegen.composites import Expander
from ..ops.errors import UsageError, nearest
from ..ops.primitive import NO_STATIC, R
from ..ops.protocol import Ops, is_ours
from ..ops.types import DType, Shape
from ..transforms.base_program import Identity
from ..transforms.fused_call import ref_types, traced_program
from ..transforms.interpreter import on_refs
from ..transforms.tracer import Composite
from . import schedule as schedule
from .hyperparameters import check_numbers, keep, require_count, require_nonnegative
from .schedule import Schedule

Rate: TypeAlias = "float | Schedule"
Slots: TypeAlias = tuple[R, ...]
Scalars: TypeAlias = Mapping[str, R]
Updater: TypeAlias = "Callable[[Any, Any, Any, tuple[Any, ...], Mapping[str, Any]], tuple[Any, Sequence[Any]]]"
"""`Optimizer.update`: (ops, p, g, slots, scalars) -> (new p, new slots)."""


class Slot(NamedTuple):
    """A state tensor of one parameter before allocation: `fill` everywhere."""

    shape: Shape
    dtype: DType
    fill: float


def scaled_rate(rate: Rate, factor: float) -> Rate:
    """Return a learning rate multiplied by `factor`."""
    if factor == 1:
        return rate
    return schedule.scaled(rate, factor) if isinstance(rate, Schedule) else rate * factor


_PEAKS = ("lr", "max_lr")


def peak(rate: Rate) -> Any:
    """Return the peak of a rate, as shown in tables, or None for a schedule without a single peak."""
    if not isinstance(rate, Schedule):
        return rate
    if isinstance(rate, schedule.Scaled):
        inner = peak(rate.schedule)
        return None if inner is None else inner * rate.factor
    return next((getattr(rate, name) for name in _PEAKS if hasattr(rate, name)), None)


def peaking(owner: str, rate: Rate, to: Any) -> Rate:
    """Return the schedule `rate` with its peak replaced by `to`, or `to` itself if either `rate` is a number or `to` a
    schedule.

    Raises UsageError for a schedule without a single peak, such as `cyclic`.
    """
    if isinstance(to, Schedule) or not isinstance(rate, Schedule):
        return to  # type: ignore[no-any-return]  # checked by the constructor
    names: list[str] = [f.name for f in fields(rate)] if is_dataclass(rate) else []
    name = next((name for name in _PEAKS if name in names), None)
    if name is None or "base_lr" in names:
        made = type(rate).__name__
        raise UsageError(f"{owner}: lr = {to!r} does not change the schedule {made}; give a schedule, or lr_scale")
    return replace(rate, **{name: to})  # type: ignore[type-var]  # it is a dataclass


@dataclass(frozen=True)
class Optimizer(ABC):
    """The base of optimizers: a learning rate, a number or a `Schedule`.

    num_slots     the number of zero-initialised slots per parameter; to initialise otherwise override `slots`
    elementwise   whether the update of an element depends on slots of that element alone, so that its state can be
    sharded; see `training.sharding`
    """

    num_slots: ClassVar[int] = 0
    elementwise: ClassVar[bool] = False

    lr: Rate

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kept" in vars(cls):
            warnings.warn(f"{cls.__name__}.kept is now num_slots", DeprecationWarning, stacklevel=3)
            cls.num_slots = vars(cls)["kept"]

    @property
    @deprecated("Optimizer.kept is now num_slots")
    def kept(self) -> int:
        """Return `num_slots`, under its name of the last release."""
        return self.num_slots

    def __post_init__(self) -> None:
        if not isinstance(self.lr, Schedule):
            keep(self, "lr", require_nonnegative(self.name, "lr", self.lr))
        check_numbers(self, self.name)

    @classmethod
    def of_all(cls, **numbers: Any) -> Optimizer:
        """Return an optimizer with these hyperparameters for parameters of every shape."""
        return cls(**numbers)

    @property
    def name(self) -> str:
        """Return the name under which users construct it."""
        return type(self).__name__.lower()

    @property
    def state_name(self) -> str:
        """Return the kind of its state; states of another `state_name` are not compatible."""
        return self.name

    @cached_property
    def program_key(self) -> tuple[Hashable, ...]:
        """Return a cache key for `update` as a program: all hyperparameters but the learning rate.

        What `update` reads in an optimizer of another package is unknown, so its key is its identity.
        """
        if not self._is_shipped:
            return (Identity(self.update),)
        return (type(self), *((f.name, getattr(self, f.name)) for f in fields(self) if f.name != "lr"))

    @property
    def updater(self) -> Updater:
        """`update` as a step calls it: one op, if the optimizer is Opstage's; one of another package gets refs with
        operators on every interpreter."""
        update = self.update
        if self._is_shipped:
            return self._as_op
        return update if is_ours(update) else lambda ops, *trees: on_refs(ops, update, *trees)

    @cached_property
    def _as_op(self) -> UpdateOp:
        return UpdateOp(self)

    @property
    def _is_shipped(self) -> bool:
        """Return whether its update reads nothing but its hyperparameters and operands."""
        return type(self).__module__.rpartition(".")[0] == __package__

    def having(self, **numbers: Any) -> Optimizer:
        """Return this optimizer with other hyperparameters. Raises UsageError for an unknown one.

        If the rate is a schedule, a number for `lr` becomes its peak.
        """
        own = [f.name for f in fields(self) if f.init]
        for name in numbers:
            if name not in own:
                raise UsageError(f"{self.name} has no {name}{nearest(name, own)}; it has {', '.join(own)}")
        if "lr" in numbers:
            numbers["lr"] = peaking(self.name, self.lr, numbers["lr"])
        return replace(self, **numbers)

    def bound(self, places: Sequence[tuple[str, ...]]) -> Optimizer:
        """Bind to parameters, given the paths of each. Return self unless the optimizer has groups.

        On a bound optimizer `at` and `scalars_at` return what updates each parameter.
        """
        return self

    def at(self, path: str) -> Optimizer:
        """Return the optimizer of the parameter with this first path."""
        return self

    def scalars_at(self, path: str, scalars: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the step's scalars for that parameter, under the names that its optimizer uses."""
        return scalars

    def mover(self, shape: Shape) -> Optimizer:
        """Return the optimizer for parameters of this shape, if that depends on the shape."""
        return self

    def scaled(self, factor: float) -> Optimizer:
        """Return this optimizer with its learning rate multiplied by `factor`, at every step of a schedule too.

        The state stays compatible. Override this in an optimizer with rates other than `lr`.
        """
        if factor == 1:
            return self
        try:
            return replace(self, lr=scaled_rate(self.lr, factor))
        except TypeError as error:  # a custom class with another __init__
            raise UsageError(f"{self.name} cannot be created with another lr ({error}); define its `scaled`") from None

    def init(self, types: Sequence[tuple[Shape, DType]], names: Sequence[str] | None = None) -> list[tuple[Slot, ...]]:
        """Return the slots of each parameter, from its shape and dtype; `names` are used in errors only.

        Raises UsageError for a parameter that this optimizer cannot update.
        """
        labels = names if names is not None else [f"number {i}" for i in range(len(types))]
        return [self.slots(shape, dtype, label) for (shape, dtype), label in zip(types, labels, strict=True)]

    def scalars(self, t: int) -> dict[str, float]:
        """Return the scalars of step t, counted from 1: the learning rate, bias corrections; those of a subclass."""
        if type(t) is not int or t < 1:
            t = require_count(self.name, "t", t)
        lr = self.lr
        return {"lr": lr if type(lr) is float else lr(t - 1) if isinstance(lr, Schedule) else lr}

    def step_scalars(self, t: int) -> dict[str, float]:
        """Return `scalars(t)`, with the learning rate if a subclass returns only its own scalars."""
        found = self.scalars(t)
        return found if "lr" in found else {**Optimizer.scalars(self, t), **found}

    def scalar_ranges(self) -> Mapping[str, tuple[float, float]]:
        """Return for scalars by their names between which numbers they are at every step, where that is known."""
        return {}

    def slots(self, shape: Shape, dtype: DType, label: str) -> tuple[Slot, ...]:
        """Return the slots of the parameter called `label`."""
        return (Slot(shape, dtype, 0.0),) * self.num_slots

    @abstractmethod
    def update(self, ops: Ops[R], p: R, g: R, slots: Slots[R], scalars: Scalars[R], /) -> tuple[R, Slots[R]]:
        """Compute one step of one parameter: its new value and slots. `scalars` are those of the step, as scalar
        refs."""


@final
class UpdateOp:
    """An optimizer's update as one op, `adam_update`: its program is traced once for operands of each type.

    An interpreter computes the op by one kernel, or op by op, in the order of the program: both have the same bits.
    """

    __slots__ = ("_optimizer", "_known")

    def __init__(self, optimizer: Optimizer):
        self._optimizer = optimizer
        self._known: dict[Hashable, Composite | None] = {}

    def __call__(
        self, ops: Any, p: Any, g: Any, slots: tuple[Any, ...], scalars: Mapping[str, Any], /
    ) -> tuple[Any, Sequence[Any]]:
        refs = (p, g, *slots, *scalars.values())
        key = (*map(_SHAPE, refs), *map(_DTYPE, refs), *scalars)
        if key not in self._known:
            self._known[key] = self._traced(refs, tuple(scalars))
        composite = self._known[key]
        if composite is None:  # an error, or one op
            return self._in_dtype(p.dtype).update(ops, p, g, slots, scalars)
        cursor = ops.cursor
        if not cursor.quiet:
            cursor.ordinal += 1
        value, *after = ops.bind(composite, refs, NO_STATIC)
        return value, after

    def __reduce__(self) -> tuple[Any, ...]:
        return UpdateOp, (self._optimizer,)

    def _traced(self, refs: tuple[Any, ...], names: tuple[str, ...]) -> Composite | None:
        optimizer, end = self._in_dtype(refs[0].dtype), len(refs) - len(names)

        def program(ops: Any, refs: Sequence[Any]) -> tuple[Sequence[Any], None]:
            value, after = optimizer.update(ops, refs[0], refs[1], tuple(refs[2:end]), dict(zip(names, refs[end:])))
            return (value, *after), None

        numbers = [repr(getattr(optimizer, f.name)) for f in fields(optimizer) if f.name != "lr"]
        key = (type(optimizer), names, *numbers)
        name, types = f"{optimizer.name}_update", ref_types(refs)
        found = traced_program(_shapes(), key, name, program, types)
        if found is None:
            return None
        composite = found.composite
        if optimizer.elementwise and composite.elements is None:
            two = tuple([type_._replace(shape=(2,)) if i < end else type_ for i, type_ in enumerate(types)])
            elements = traced_program(_shapes(), key, name, program, two)
            composite.elements = None if elements is None else elements.composite.body
        return composite

    def _in_dtype(self, dtype: DType) -> Optimizer:
        """Return the optimizer with numbers that are fractions only if tensors are."""
        optimizer = self._optimizer
        if dtype.kind == "O":
            return optimizer
        given = {f.name: getattr(optimizer, f.name) for f in fields(optimizer) if f.init}
        numbers = {name: _as_float(value) for name, value in given.items()}
        return replace(optimizer, **{name: value for name, value in numbers.items() if value is not given[name]})


def _shapes() -> Expander:
    """Return an interpreter that knows types alone: what an update binds does not depend on where it runs."""
    return Expander(lambda *op: True, loops=False)


_SHAPE, _DTYPE = attrgetter("shape"), attrgetter("dtype")


def _as_float(value: Any) -> Any:
    if type(value) is tuple and Fraction in map(type, value):
        return tuple(map(_as_float, value))
    return float(value) if type(value) is Fraction else value


# Parts of updates -----------------------------------------------------------------------------------------------------
#
# Scalars are combined before they are applied to a tensor. The order of operations decides the bits.


def times(ops: Ops[R], x: R, scalar: R) -> R:
    """Return scalar · x for a scalar operand."""
    return ops.mul(x, ops.broadcast_to(scalar, shape=x.shape))


def plus(ops: Ops[R], x: R, number: float) -> R:
    """Return x + number."""
    return ops.add(x, ops.full(shape=x.shape, value=number, dtype=x.dtype))


def average(ops: Ops[R], before: R, x: R, rate: float) -> R:
    """Return rate · before + (1 - rate) · x."""
    return ops.add(ops.scale(before, c=rate), ops.scale(x, c=1 - rate))


def decayed(ops: Ops[R], p: R, g: R, weight_decay: float) -> R:
    """Return the gradient with that of the penalty ½·weight_decay·p² added."""
    return ops.add(g, ops.scale(p, c=weight_decay)) if weight_decay else g


def shrunk(ops: Ops[R], p: R, lr: R, weight_decay: float) -> R:
    """Return (1 - lr·weight_decay) · p: decoupled weight decay (Loshchilov & Hutter 2019)."""
    if not weight_decay:
        return p
    one = ops.full(shape=(), value=1.0, dtype=p.dtype)
    return times(ops, p, ops.sub(one, ops.scale(lr, c=weight_decay)))
