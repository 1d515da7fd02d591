"""The learning-rate range test (Smith 2017); the trainer is restored afterwards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any, final

from ..data import Batches, bind
from ..ops.errors import UsageError, brief
from ..ops.tracebacks import called_by_users
from ..optim import Optimizer
from ..optim.hyperparameters import require_count, require_positive
from ..optim.schedule import Schedule
from .trainer import ScalarTrainer

_SMOOTHING = 0.98
_DIVERGED = 4.0
_SHOWN = 20


@final
@dataclass(frozen=True)
class LrRange:
    """The result of a range test: rates, the loss at each step, and its bias-corrected exponential moving average.

    suggestion   the rate at which that average fell fastest, per log of the rate; None if it did not fall
    diverged     the rate at which it reached four times its minimum or was not finite; None if it never did
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    suggestion: float | None
    diverged: float | None

    def __repr__(self) -> str:
        span = f"{len(self.rates)} rates from {self.rates[0]:.3g} to {self.rates[-1]:.3g}" if self.rates else "no rates"
        return f"LrRange({span}, suggestion={self.suggestion}, diverged={self.diverged})"

    def __str__(self) -> str:
        every = max(1, math.ceil(len(self.rates) / _SHOWN))
        shown = sorted({*range(0, len(self.rates), every), len(self.rates) - 1})
        lines = [f"{'rate':>10}  {'loss':>10}  {'smoothed':>10}"]
        lines += [f"{self.rates[i]:>10.3g}  {self.losses[i]:>10.4g}  {self.smoothed[i]:>10.4g}" for i in shown]
        if self.diverged is not None:
            lines.append(f"the loss diverged at a rate of {self.diverged:.3g}")
        if self.suggestion is None:
            lines.append("the loss did not fall at any of these rates; try others")
        else:
            lines.append(f"suggested rate: {self.suggestion:.3g}, where the loss fell fastest")
        return "\n".join(lines)


@called_by_users
def lr_range_test(
    trainer: ScalarTrainer,
    optimizer: Optimizer,
    batches: Batches,
    *,
    start: float = 1e-6,
    end: float = 1.0,
    steps: int = 100,
) -> LrRange:
    """Train for up to `steps` steps at rates start·(end/start)^(i/(steps - 1)), i = 0, 1, …, and take all of it back.

    Rates of groups keep their ratios to that of `optimizer`. It ends where the smoothed loss is four times its least,
    or not finite. Parameters, the program's state, moments and the number of steps are what they were before, then.
    Source: Smith 2017, Cyclical Learning Rates. Raises UsageError for an optimizer whose rate is a schedule, or 0.

    Raises:
        UsageError: something other than a trainer; rates that are none.
    """
    if not isinstance(trainer, ScalarTrainer) or not isinstance(optimizer, Optimizer):
        raise UsageError(f"lr_range_test takes a trainer and an optimizer, not {brief(trainer)} and {brief(optimizer)}")
    start = float(require_positive("lr_range_test", "start", start))
    end = float(require_positive("lr_range_test", "end", end))
    steps = require_count("lr_range_test", "steps", steps, least=2)
    if end <= start:
        raise UsageError(f"lr_range_test: end must be above start, {start:g}, but is {end:g}")
    base: Any = optimizer.lr
    if isinstance(base, Schedule) or not base > 0:
        raise UsageError(f"lr_range_test takes an optimizer whose lr is a number above 0, but it is {base!r}")
    if not trainer.executes:
        raise UsageError("lr_range_test trains, but the trainer's backend computes no values")
    before = trainer.export()
    rates: list[float] = []
    losses: list[float] = []
    smoothed: list[float] = []
    average, diverged = 0.0, None
    try:
        state = trainer.init_optim(optimizer)
        for i, batch in zip(range(steps), _endless(bind(batches, trainer.batch_arguments, "the loss"))):
            rate = start * (end / start) ** (i / (steps - 1))
            loss = float(trainer.advance(optimizer.scaled(rate / float(base)), state, *batch).loss)
            average = _SMOOTHING * average + (1 - _SMOOTHING) * loss
            rates.append(rate)
            losses.append(loss)
            smoothed.append(average / (1 - _SMOOTHING ** (i + 1)))
            if not math.isfinite(loss) or smoothed[-1] > _DIVERGED * min(smoothed) > 0:
                diverged = rate
                break
    finally:
        trainer.restore(before)
    return LrRange(tuple(rates), tuple(losses), tuple(smoothed), _steepest(rates, smoothed), diverged)


def _steepest(rates: Sequence[float], smoothed: Sequence[float]) -> float | None:
    """Return the rate at which the smoothed loss falls fastest against the logarithm of the rate.

    Uses differences over a tenth of the steps, without the first tenth, where the average covers only a few batches.
    """
    finite = [value for value in smoothed if math.isfinite(value)]
    reach = max(1, len(finite) // 20)
    inner = range(reach + len(finite) // 10, len(finite) - reach)
    slopes = [(finite[i + reach] - finite[i - reach], rates[i]) for i in inner]
    slope, rate = min(slopes, default=(0.0, 0.0))
    return rate if slope < 0 else None


def _endless(batches: Batches) -> Iterator[Any]:
    for epoch in count():
        empty = True
        with closing(batches.epoch(epoch)) as each:
            for batch in each:
                empty = False
                yield batch
        if empty:
            raise UsageError("lr_range_test: argument batches: expected at least one batch, got none")
