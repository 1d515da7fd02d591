"""Learning-rate schedules: pure functions from a step, counted from 0, to a rate, in float64 on the host.

Pass a schedule as an optimizer's learning rate: `adamw(lr=schedule.cosine(1e-3, total_steps=1000))`. Its
value enters the compiled step as a scalar, so a schedule never recompiles anything. Formulas follow
torch.optim.lr_scheduler if it has the schedule.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import final

from typing_extensions import override

from ..ops.tracebacks import constructed_by_users
from .hyperparameters import (
    at_least_0,
    check_numbers,
    count,
    keep,
    number,
    require_choice,
    require_count,
    require_positive,
    share,
)

__all__ = [
    "Schedule",
    "constant",
    "cosine",
    "cyclic",
    "exponential",
    "linear_warmup",
    "one_cycle",
    "scaled",
    "step",
    "warmup_cosine",
]
__dir__ = __all__.copy


class Schedule(ABC):
    """A function `schedule(step)` that returns the learning rate of a step, counted from 0."""

    @abstractmethod
    def __call__(self, step: int) -> float: ...


class _OfNumbers(Schedule):
    """A schedule that comes with Opstage: a dataclass of numbers."""

    def __post_init__(self) -> None:
        check_numbers(self, _NAMES[type(self)])


def _cosine(start: float, end: float, done: float) -> float:
    """Go from start to end along half a cosine as `done` goes from 0 to 1."""
    return end + (start - end) / 2 * (1 + math.cos(math.pi * done))


def _powered(rate: float, gamma: float, times: int) -> float:
    """Return rate · gamma^times, infinite if that is beyond the range of a float."""
    try:
        return rate * gamma**times
    except OverflowError:
        return math.copysign(math.inf, rate) if rate else 0.0


def _line(start: float, end: float, done: float) -> float:
    return start + (end - start) * done


@final
@constructed_by_users
@dataclass(frozen=True)
class ConstantRate(_OfNumbers):
    """A constant rate: lr."""

    lr: float = at_least_0()

    def __call__(self, step: int) -> float:
        return self.lr


@final
@constructed_by_users
@dataclass(frozen=True)
class Step(_OfNumbers):
    """lr · gamma^⌊step/step_size⌋. PyTorch: StepLR."""

    lr: float = at_least_0()
    step_size: int = count()
    gamma: float = at_least_0(0.1)

    def __call__(self, step: int) -> float:
        return _powered(self.lr, self.gamma, step // self.step_size)


@final
@constructed_by_users
@dataclass(frozen=True)
class Exponential(_OfNumbers):
    """lr · gamma^step. PyTorch: ExponentialLR."""

    lr: float = at_least_0()
    gamma: float = at_least_0()

    def __call__(self, step: int) -> float:
        return _powered(self.lr, self.gamma, step)


@final
@constructed_by_users
@dataclass(frozen=True)
class Cosine(_OfNumbers):
    """eta_min + (lr - eta_min)·(1 + cos(π·step/total_steps))/2 (Loshchilov & Hutter 2017).

    As in PyTorch it rises again after `total_steps`. PyTorch: CosineAnnealingLR(T_max=total_steps).
    """

    lr: float = at_least_0()
    total_steps: int = count()
    eta_min: float = at_least_0(0.0)

    def __call__(self, step: int) -> float:
        return _cosine(self.lr, self.eta_min, step % (2 * self.total_steps) / self.total_steps)


@final
@constructed_by_users
@dataclass(frozen=True)
class LinearWarmup(_OfNumbers):
    """lr · (f + (1 - f)·min(step, warmup_steps)/warmup_steps), f = start_factor. PyTorch: LinearLR."""

    lr: float = at_least_0()
    warmup_steps: int = count()
    start_factor: float = share(1 / 3)

    def __call__(self, step: int) -> float:
        return self.lr * _line(self.start_factor, 1.0, min(step, self.warmup_steps) / self.warmup_steps)


@final
@constructed_by_users
@dataclass(frozen=True)
class WarmupCosine(_OfNumbers):
    """A linear rise to lr at step `warmup_steps`, then half a cosine down to eta_min, reached at `total_steps`.

    The rise is lr·(step + 1)/(warmup_steps + 1), so that the first step moves too. After that it stays eta_min.
    """

    lr: float = at_least_0()
    warmup_steps: int = number(partial(require_count, least=0))
    total_steps: int  # type: ignore[misc]  # it has no default either
    eta_min: float = at_least_0(0.0)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        least = self.warmup_steps + 1
        keep(self, "total_steps", require_count("warmup_cosine", "total_steps", self.total_steps, least=least))

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return self.lr * (step + 1) / (self.warmup_steps + 1)
        done = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        return _cosine(self.lr, self.eta_min, min(done, 1.0))


_CYCLIC_MODES = ("triangular", "triangular2", "exp_range")


@final
@constructed_by_users
@dataclass(frozen=True)
class Cyclic(_OfNumbers):
    """A triangular wave from base_lr to max_lr and back, repeated (Smith 2017). PyTorch: CyclicLR.

    The height of a cycle is constant ("triangular"), halves with each cycle ("triangular2"), or is multiplied by
    gamma^step ("exp_range"). `step_size_down` is `step_size_up` unless given.
    """

    base_lr: float = at_least_0()
    max_lr: float = at_least_0()
    step_size_up: int = count(2000)
    step_size_down: int | None = None
    mode: str = number(partial(require_choice, choices=_CYCLIC_MODES), "triangular")
    gamma: float = at_least_0(1.0)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_size_down is not None:
            keep(self, "step_size_down", require_count("cyclic", "step_size_down", self.step_size_down))

    def __call__(self, step: int) -> float:
        down = self.step_size_up if self.step_size_down is None else self.step_size_down
        cycle, within = divmod(step, self.step_size_up + down)
        rising = within <= self.step_size_up
        height = within / self.step_size_up if rising else (self.step_size_up + down - within) / down
        above = (self.max_lr - self.base_lr) * height
        if self.mode == "triangular2":
            above = _powered(above, 0.5, cycle)
        elif self.mode == "exp_range":
            above = _powered(above, self.gamma, step)
        return self.base_lr + above


_ANNEALINGS = {"cos": _cosine, "linear": _line}


@final
@constructed_by_users
@dataclass(frozen=True)
class OneCycle(_OfNumbers):
    """From max_lr/div_factor up to max_lr, then down to max_lr/div_factor/final_div_factor (Smith & Topin 2019).

    The rise takes the fraction `pct_start` of `total_steps`; with `three_phase` an equally long descent to the start
    value precedes the last one. After `total_steps` the rate stays at its last value. PyTorch: OneCycleLR.
    """

    max_lr: float = at_least_0()
    total_steps: int = count()
    pct_start: float = share(0.3)
    anneal_strategy: str = number(partial(require_choice, choices=_ANNEALINGS), "cos")
    div_factor: float = number(require_positive, 25.0)
    final_div_factor: float = number(require_positive, 1e4)
    three_phase: bool = False

    def __call__(self, step: int) -> float:
        first = self.max_lr / self.div_factor
        rates = [first, self.max_lr, *([first] if self.three_phase else []), first / self.final_div_factor]
        rise = self.pct_start * self.total_steps
        ends = [rise - 1, *([2 * rise - 2] if self.three_phase else []), self.total_steps - 1]
        begin = 0.0
        for start, end, until in zip(rates, rates[1:], ends):
            if step <= until:
                # PyTorch divides by 0 if a rise ends at the step at which it begins
                done = (step - begin) / (until - begin) if until > begin else 1.0
                return _ANNEALINGS[self.anneal_strategy](start, end, done)
            begin = until
        return rates[-1]


@final
@constructed_by_users
@dataclass(frozen=True)
class Scaled(_OfNumbers):
    """factor · schedule(step)."""

    schedule: Schedule
    factor: float = at_least_0()

    def __call__(self, step: int) -> float:
        return self.factor * self.schedule(step)


constant = ConstantRate
step = Step
exponential = Exponential
cosine = Cosine
linear_warmup = LinearWarmup
warmup_cosine = WarmupCosine
cyclic = Cyclic
one_cycle = OneCycle
scaled = Scaled

_NAMES = {
    value: name
    for name, value in list(globals().items())
    if name.islower() and isinstance(value, type) and issubclass(value, Schedule)
}
