"""Compare two interpreters: find the first op of the first training steps with results that differ beyond rounding."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ..interpreters.registry import backends
from ..ops.errors import SourceLine, UsageError, nearest
from ..options import DEVICES, Options, is_device, read_option
from ..training.step import UPDATE
from ..transforms.transparent import BoundOp, Trail
from .run_setup import Task, prepare
from .settings import Settings

Array = npt.NDArray[Any]
Phase: TypeAlias = Literal["forward", "gradient", "update"]

DIVERGENCE_TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
"""Relative to the largest magnitude in a result; cancellation within an op is allowed for separately."""


@final
@dataclass(frozen=True)
class Divergence:
    """The first difference of two interpreters. `values` are the elements at `index` of the op's output, one per side.

    isolated    whether the op differs on equal operands too; else the cause is something other than its operands
    """

    step: int
    phase: Phase
    op: str
    region: str
    ordinal: int
    source: SourceLine | None
    output: int
    index: tuple[int, ...]
    values: tuple[Any, Any]
    allowed: float
    isolated: bool

    def describe(self, names: tuple[str, str]) -> str:
        """Return a few lines of text: the op, its source line, both values."""
        belongs = {
            "forward": f"op {self.ordinal} of the program",
            "gradient": f"in the gradient of op {self.ordinal}",
            "update": "in the optimizer's update",
        }[self.phase]
        place = f" at {self.source}" if self.source else ""
        region = f" ({self.region})" if self.region else ""
        lines = [f"step {self.step}: {self.op}{place}{region}, {belongs}, differs"]
        if self.source and self.source.text:
            lines.append(f"    {self.source.text}")
        where = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        which = f"output {self.output}" if self.output else "its result"
        width = max(map(len, names))
        for name, value in zip(names, self.values):
            lines.append(f"  {name:<{width}}  {which}{where} = {value!r}")
        distance = abs(float(self.values[0]) - float(self.values[1]))
        lines.append(f"  they differ by {distance:.3g}; rounding explains {self.allowed:.3g}")
        if not self.isolated:
            lines.append("  on equal operands it agrees: the cause is something else that the op depends on")
        return "\n".join(lines)


@final
@dataclass(frozen=True)
class Comparison:
    """The result of a comparison. `amplified` counts ops that differ on their own operands but agree on equal ones.

    not_finite    the first step whose loss is nan or infinite on both sides; nothing after it was compared
    """

    names: tuple[str, str]
    steps: int
    ops: int
    unmatched: int
    amplified: int
    divergence: Divergence | None
    not_finite: int | None = None

    @property
    def agree(self) -> bool:
        """Return whether both sides computed the same finite numbers."""
        return self.divergence is None and self.not_finite is None

    def __str__(self) -> str:
        left, right = self.names
        counted = f"{self.ops:,} ops in {self.steps} training step{'s' if self.steps > 1 else ''}"
        if self.divergence is not None:
            return f"{left} and {right} part\n{self.divergence.describe(self.names)}"
        alone = f"; {self.unmatched} ops were run by one side alone" if self.unmatched else ""
        agree = f"{left} and {right} agree on the values and gradients of {counted}{alone}"
        if self.not_finite is None:
            return agree
        return (
            f"{agree}\nstep {self.not_finite}: the loss is not finite on either side, so nothing beyond it can be "
            "compared; --options.detect_anomaly true names the op"
        )


def compare(settings: Settings, sides: Sequence[str], *, steps: int = 3) -> Comparison:
    """Run the first `steps` training steps on both sides, each written as some of `backend:device:dtype:option=value`.

    An op differs if an element is off by more than rounding explains, on equal operands too. Only the first such op is
    reported, not its consequences or rounding errors that the program magnifies.
    """
    if len(sides) != 2 or not all(sides):
        raise UsageError(f"a comparison needs two sides, as in eager,eager:float64; got {','.join(sides)!r}")
    if steps < 1:
        raise UsageError(f"a comparison needs at least 1 step but got {steps}")
    left, right = (_Side(replace(settings, options=side_options(side, settings.options))) for side in sides)
    judge = _Comparator(left, right)
    names = sides[0], sides[1]
    count = unmatched = amplified = 0
    for number, (mine, theirs) in enumerate(zip(left.steps(steps), right.steps(steps)), start=1):
        pairs = list(_aligned(mine, theirs))
        unmatched += len(mine) + len(theirs) - 2 * len(pairs)
        for a, b in pairs:
            count += 1
            found = judge.compare(a, b)
            if found is None:
                continue
            difference, isolated = found
            if difference is None:
                amplified += 1
                continue
            divergence = _place(number, mine, a, difference, isolated=isolated)
            return Comparison(names, number, count, unmatched, amplified, divergence)
        if not (math.isfinite(left.loss) or math.isfinite(right.loss)):
            return Comparison(names, number, count, unmatched, amplified, None, number)
    return Comparison(names, steps, count, unmatched, amplified, None)


def side_options(side: str, options: Options) -> Options:
    """Return `options` changed as `side` says, e.g. `compiled`, `eager:float64`, `eager:seed=3`."""
    changes: dict[str, Any] = {}
    known = [*backends(), *DEVICES, "float32", "float64"]
    for word in re.split(r":(?!\d+(?::|$))", side):  # the colon of cuda:1 belongs to the device
        name, given, text = word.partition("=")
        if given:
            changes[name] = _option(side, name, text)
        elif is_device(word):
            changes["device"] = word
        elif word in ("float32", "float64"):
            changes["dtype"] = word
        elif word in known:
            changes["backend"] = word
        else:
            raise UsageError(
                f"{side!r}: {word!r} is not a backend, device or dtype{nearest(word, known)}; expected some of "
                f"{', '.join(known)}, joined by colons"
            )
    return options.replace(**changes)


def _option(side: str, name: str, text: str) -> Any:
    """Parse `name=text`, written as in the environment."""
    try:
        return read_option(name, text)
    except UsageError as error:
        raise UsageError(f"{side!r}: {error}") from None


@final
class _Side:
    """The trainer of one side, and the ops that it runs."""

    def __init__(self, settings: Settings):
        self.dtype = settings.options.dtype
        self.loss = 0.0  # of the previous step
        self.task: Task = prepare(settings)
        trails: list[Trail[Any]] = []

        def in_front(inner: Any) -> Trail[Any]:
            trails.append(Trail(inner))
            return trails[-1]

        if not self.task.trainer.in_front(in_front).executes:
            raise UsageError(f"backend {settings.options.backend!r} computes no values that could be compared")
        (self.trail,) = trails

    def host(self, ref: Any) -> Array:
        return np.asarray(self.trail.get(ref))

    def steps(self, count: int) -> Iterator[list[BoundOp]]:
        """Yield the ops of each training step."""
        task = self.task
        state = task.trainer.init_optim(task.optimizer)
        with closing(task.batches.epoch(0)) as batches:
            for _, batch in zip(range(count), batches):
                self.trail.steps = []
                result = task.trainer.train_step(task.optimizer, state, *batch)
                state, self.loss = result.state, float(result.loss)
                yield self.trail.steps


@final
@dataclass(frozen=True)
class _Difference:
    """Element `index` of output `output`: both values, and the difference that rounding allows."""

    output: int
    index: tuple[int, ...]
    values: tuple[Any, Any]
    allowed: float


@final
class _Comparator:
    """Decides whether rounding explains a difference, by the coarser of the two dtypes."""

    def __init__(self, left: _Side, right: _Side):
        self._left, self._right = left, right
        self._dtype = np.dtype(np.float32 if "float32" in (left.dtype, right.dtype) else np.float64)
        self._tolerance = DIVERGENCE_TOLERANCE[self._dtype.name]
        self._epsilon = float(np.finfo(self._dtype.name).eps)

    def compare(self, a: BoundOp, b: BoundOp) -> tuple[_Difference | None, bool] | None:
        """Return None if the results agree; else (the difference, whether equal operands show it), (None, …) if
        magnified.

        Both are run again on the operands of the left side, rounded to the coarser dtype. If the op agrees there, it
        has magnified a difference of its operands, unless its result is not reproducible.
        """
        mine = [self._left.host(operand) for operand in a.operands]
        found = self._difference(mine, a.outputs, b.outputs)
        if found is None:
            return None
        equal = [self._rounded(operand) for operand in mine]
        again = self._left.trail.again(a, equal), self._right.trail.again(b, equal)
        local = self._difference(equal, *again)
        if local is not None:
            return local, True
        for side, step in ((self._left, a), (self._right, b)):
            operands = [side.host(operand) for operand in step.operands]
            if self._difference(operands, side.trail.again(step, operands), step.outputs) is not None:
                return found, False
        return None, False

    def _rounded(self, operand: Array) -> Array:
        return operand.astype(self._dtype) if operand.dtype.kind == "f" else operand

    def _difference(
        self, operands: Sequence[Array], left: Sequence[Array], right: Sequence[Array]
    ) -> _Difference | None:
        floats = [operand for operand in operands if operand.dtype.kind == "f" and operand.size]
        largest = max((_magnitude(operand) for operand in floats), default=0.0)
        size = max((operand.size for operand in floats), default=1)
        cancelled = 4 * self._epsilon * math.sqrt(size) * largest
        for number, (x, y) in enumerate(zip(left, right)):
            allowed = self._tolerance * max(_magnitude(x), _magnitude(y)) + cancelled if x.dtype.kind in "fO" else 0.0
            distance = _distance(x, y)
            if distance.size and distance.max() > allowed:
                index = tuple(int(i) for i in np.unravel_index(int(distance.argmax()), distance.shape))
                return _Difference(number, index, (x[index].item(), y[index].item()), allowed)
        return None


def _distance(x: Array, y: Array) -> npt.NDArray[np.float64]:
    """Return |x - y| elementwise: 0 for equal values, also infinite ones, and inf if only one is finite."""
    a, b = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(all="ignore"):
        distance: npt.NDArray[np.float64] = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isfinite(distance), distance, np.inf))


def _magnitude(x: Array) -> float:
    values = np.abs(x.astype(np.float64))
    values = values[np.isfinite(values)]
    return float(values.max()) if values.size else 0.0


def _place(
    number: int, steps: Sequence[BoundOp], step: BoundOp, difference: _Difference, *, isolated: bool
) -> Divergence:
    """Return the divergence with its place in the user's program."""
    updates = [s.region.partition(".")[0] == UPDATE for s in steps]
    last_forward = max((i for i, s in enumerate(steps) if not s.serves and not updates[i]), default=-1)
    position = next(i for i, s in enumerate(steps) if s is step)
    phase: Phase = "update" if updates[position] else "gradient" if position > last_forward else "forward"
    # The first op of an ordinal is bound while the user's line is on the stack.
    source = next((s.source for s in steps if s.ordinal == step.ordinal), None) if phase != "update" else None
    return Divergence(
        number,
        phase,
        step.primitive.name,
        step.region,
        step.ordinal,
        source,
        difference.output,
        difference.index,
        difference.values,
        difference.allowed,
        isolated,
    )


def _aligned(left: Sequence[BoundOp], right: Sequence[BoundOp]) -> Iterator[tuple[BoundOp, BoundOp]]:
    """Yield pairs of the same op on both sides, in the order of `left`; ops that only one of them ran are skipped."""
    theirs = dict(zip(_keys(right), right))
    for key, step in zip(_keys(left), left):
        other = theirs.get(key)
        if other is not None and [o.shape for o in step.outputs] == [o.shape for o in other.outputs]:
            yield step, other


def _keys(steps: Sequence[BoundOp]) -> list[tuple[Any, ...]]:
    seen: Counter[tuple[Any, ...]] = Counter()
    keys = []
    for step in steps:
        key = (step.ordinal, step.serves, step.primitive.name)
        keys.append((*key, seen[key]))
        seen[key] += 1
    return keys
