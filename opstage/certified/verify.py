"""Branch and bound: whether any input of a property's boxes is a counterexample.

A box whose bounds exclude one condition of a counterexample holds none. Another box is split in two along the input to
which that condition is most sensitive, and each half is bounded again, many boxes at a time. In between points are
tried: one that meets all conditions in a run in float32 is a counterexample (Wang et al., Formal security analysis of
neural networks using symbolic intervals, USENIX Security 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal, TypeAlias, final

import numpy as np

from ..api import run, value_and_grad
from ..ops.box import Box
from ..ops.errors import OpstageError, UsageError
from ..options import Options
from .bounds import Method, bounds
from .vnnlib import UnsafeCase, VnnProperty

Outcome: TypeAlias = Literal["holds", "violated", "unknown"]
Network: TypeAlias = Callable[[Any, Any, Any], Any]
_AT_ONCE = 256
_STEPS = (*[0.2] * 5, *[0.1] * 5, *[0.04] * 5, *[0.01] * 5, *[0.003] * 5)
"""Of an attack: how far each goes along every side, in lengths of that side."""
_OPTIONS = Options(dtype="float32")


@final
@dataclass(frozen=True)
class Verification:
    """The answer, and how it was found.

    outcome   "holds": no input is a counterexample, in exact arithmetic and in a run in float32; "violated": this one
              is; "unknown": neither was found in time
    x, y      the counterexample, and the outputs of the run that confirmed it
    boxes     how many boxes were bounded
    seconds   how long it took
    """

    outcome: Outcome
    x: Any
    y: Any
    boxes: int
    seconds: float


def verify(
    network: Network,
    params: Any,
    unsafe: VnnProperty,
    *,
    timeout: float = 60.0,
    method: Method = "crown",
    confirm: Callable[[Any], Any] | None = None,
) -> Verification:
    """Whether `network(ops, params, x)`, of rows x (N, inputs) to rows (N, outputs), has a counterexample.

    confirm   another run of a single row x: a counterexample is one in that run as well
    """
    search = _Search(network, params, unsafe, monotonic() + timeout, method, confirm)
    begun = monotonic()
    found: tuple[Any, Any] | None = None
    outcome: Outcome = "holds"
    for case in unsafe.cases:
        outcome_of, found = search.case(case)
        if outcome_of == "violated":
            outcome = "violated"
            break
        if outcome_of == "unknown":
            outcome = "unknown"
            if monotonic() > search.deadline:
                break
    x, y = found if found is not None and outcome == "violated" else (None, None)
    return Verification(outcome, x, y, search.bounded, monotonic() - begun)


@final
class _Search:
    """The state of a search: what all cases share, and how many boxes have been bounded."""

    def __init__(
        self,
        network: Network,
        params: Any,
        unsafe: VnnProperty,
        deadline: float,
        method: Method,
        confirm: Callable[[Any], Any] | None,
    ):
        self.network, self.params, self.unsafe = network, params, unsafe
        self.deadline, self.method, self.confirm = deadline, method, confirm
        self.bounded = 0

        # one function each for all calls, so that it is compiled once
        def rows(ops: Any, params: Any, x: Any) -> Any:
            return network(ops, params, x)

        def sides(ops: Any, params: Any, rows: Any, x: Any) -> Any:
            return _combined(ops, rows, network(ops, params, x))

        self.rows, self.sides = rows, sides
        self.rng = np.random.default_rng(0)

    def case(self, case: UnsafeCase) -> tuple[Outcome, tuple[Any, Any] | None]:
        """The outcome for one box of inputs and its conditions."""
        if not len(case.rows):
            middle = (case.lower + case.upper) / 2
            confirmed = self.tried(case, middle[None])
            return ("violated", confirmed) if confirmed is not None else ("unknown", None)
        lower, upper = case.lower[None], case.upper[None]
        confirmed = self.tried(case, self.candidates(case, lower, upper, 256))
        while confirmed is None and len(lower):
            if monotonic() > self.deadline:
                return "unknown", None
            batch_lower, batch_upper = lower[-_AT_ONCE:], upper[-_AT_ONCE:]
            lower, upper = lower[:-_AT_ONCE], upper[:-_AT_ONCE]
            box = self.conditions(case, batch_lower, batch_upper)
            self.bounded += len(batch_lower)
            least = np.asarray(box.lower, np.float64)
            safe = least - case.limits > 1e-12 * np.abs(case.limits)
            left = ~safe.any(axis=1)
            batch_lower, batch_upper = batch_lower[left], batch_upper[left]
            if not len(batch_lower):
                continue
            confirmed = self.tried(case, self.candidates(case, batch_lower, batch_upper, 1))
            nearest = np.argmax(least[left] - case.limits, axis=1)
            halves = self.halved(case, batch_lower, batch_upper, nearest)
            if halves is None:
                return "unknown", None
            lower, upper = np.concatenate([lower, halves[0]]), np.concatenate([upper, halves[1]])
        return ("violated", confirmed) if confirmed is not None else ("holds", None)

    def conditions(self, case: UnsafeCase, lower: Any, upper: Any) -> Box:
        """Bounds of the left sides of the conditions; factors that float32 does not hold are boxes themselves."""
        rows: Any = case.rows.astype(np.float32)
        if (rows != case.rows).any():
            rows = Box(case.rows, case.rows)

        padded = _AT_ONCE if len(lower) > _AT_ONCE // 4 else len(lower)
        fill = [(0, padded - len(lower)), (0, 0)]
        box = Box(np.pad(lower, fill, mode="edge"), np.pad(upper, fill, mode="edge"))
        # what takes long runs compiled: that takes seconds at first, and a fraction of the time then
        often = padded == _AT_ONCE and self.bounded >= 4 * _AT_ONCE
        options = Options(dtype="float32", backend="compiled" if often else "eager")
        if isinstance(rows, Box):
            found = bounds(self.rows, self.params, box, method=self.method, options=options)
            found = bounds(_combined, rows, found, options=_OPTIONS)
        else:
            found = bounds(self.sides, self.params, rows, box, method=self.method, options=options)
        return Box(found.lower[: len(lower)], found.upper[: len(lower)])

    def halved(self, case: UnsafeCase, lower: Any, upper: Any, nearest: Any) -> tuple[Any, Any] | None:
        """Both halves of each box, along the input that moves its condition most; None where none can be halved."""
        middle = (lower + upper) / 2
        chosen = case.rows[nearest].astype(np.float32)

        def total(ops: Any, x: Any, params: Any, chosen: Any) -> Any:
            return ops.sum(ops.mul(chosen, self.network(ops, params, x)))

        _, slope = value_and_grad(total, middle.astype(np.float32), self.params, chosen, options=_OPTIONS)
        width = upper - lower
        moves = np.abs(np.nan_to_num(np.asarray(slope, np.float64))) * width
        moves = np.where(moves.max(axis=1, keepdims=True) > 0, moves, width)
        # a side far longer than the others is split in its turn, however flat the network is in the middle
        moves = np.maximum(moves, 1e-3 * moves.max(axis=1, keepdims=True) * width / width.max(axis=1, keepdims=True))
        axis = np.argmax(moves, axis=1)
        each = np.arange(len(lower))
        at = middle[each, axis].astype(np.float32).astype(np.float64)  # both halves are boxes in float32, without a gap
        if ((at <= lower[each, axis]) | (at >= upper[each, axis])).any():
            return None
        first, last = upper.copy(), lower.copy()
        first[each, axis] = at
        last[each, axis] = at
        return np.concatenate([lower, last]), np.concatenate([first, upper])

    def candidates(self, case: UnsafeCase, lower: Any, upper: Any, times: int) -> Any:
        """Points of the boxes: middles, random ones, and where steps down the conditions lead from them."""
        lower, upper = np.repeat(lower, times, axis=0), np.repeat(upper, times, axis=0)
        points = lower + (upper - lower) * (0.5 if times == 1 else self.rng.random(lower.shape))
        rows, limits = case.rows.astype(np.float32), case.limits.astype(np.float32)

        def worst(ops: Any, x: Any, params: Any) -> Any:
            sides = ops.linear(ops.const(rows), None, self.network(ops, params, x))
            apart = ops.sub(sides, ops.broadcast_to(ops.const(limits), shape=sides.shape))
            return ops.sum(ops.reduce_max(apart, axis=1))

        for share in _STEPS if times > 1 else (0.5,):
            _, slope = value_and_grad(worst, points.astype(np.float32), self.params, options=_OPTIONS)
            points = np.clip(points - share * (upper - lower) * np.sign(np.nan_to_num(slope)), lower, upper)
        return points

    def tried(self, case: UnsafeCase, points: Any) -> tuple[Any, Any] | None:
        """The first of the points that is a counterexample when it is run, with its outputs."""
        x = points.astype(np.float32)
        x = np.where(x < case.lower, np.nextafter(x, np.float32(np.inf)), x)
        x = np.where(x > case.upper, np.nextafter(x, np.float32(-np.inf)), x)
        inside = ((x >= case.lower) & (x <= case.upper)).all(axis=1)
        y = np.asarray(run(self.network, self.params, x, options=_OPTIONS))
        for i in np.flatnonzero(inside & _met(case, y)):
            alone = np.asarray(run(self.network, self.params, x[i : i + 1], options=_OPTIONS))
            runs = [alone, *([np.asarray(self.confirm(x[i : i + 1]))] if self.confirm is not None else [])]
            if all(each.shape == alone.shape and _met(case, each).all() for each in runs):
                return x[i], alone[0]
        return None


def _combined(ops: Any, rows: Any, y: Any) -> Any:
    """The left sides of conditions, of rows of outputs."""
    return ops.linear(rows, None, y)


def _met(case: UnsafeCase, y: Any) -> Any:
    """Which rows of outputs meet all conditions; nan meets none."""
    return (y.astype(np.float64) @ case.rows.T <= case.limits).all(axis=1)


def rows_of(model: Any) -> tuple[Network, int, int, Callable[[Any], Any]]:
    """A model of one input and one output as a network of rows: with it how long they are, and the shape of a sample.

    Raises UsageError for another model, and for one whose sizes but the first are open.
    """
    if len(model.inputs) != 1 or len(model.outputs) != 1 or model.state is not None:
        raise UsageError(
            f"a model that is verified has one input and one output, and no running statistics; this one takes "
            f"{', '.join(model.inputs) or 'nothing'} and gives {', '.join(model.outputs) or 'nothing'}"
        )
    ((name, spec),) = model.inputs.items()
    shape = spec.shape
    sizes = list(shape[1:])
    if not shape or any(not isinstance(size, int) for size in sizes):
        raise UsageError(f"the input {name} is {shape}: all sizes but the first must be numbers; give them by --fixed")
    count = int(np.prod(sizes)) if sizes else int(shape[0])
    single = not sizes
    one = tuple(sizes) if not single else ()

    def network(ops: Any, params: Any, x: Any) -> Any:
        given = ops.reshape(x, shape=(count,) if single else (x.shape[0], *one))
        (y,) = model(ops, params, given).values()
        return ops.reshape(y, shape=(x.shape[0], -1))

    def shaped(x: Any) -> Any:
        return np.asarray(x, np.float32).reshape((count,) if single else (len(x), *one))

    try:
        y = np.asarray(run(network, model.params, np.zeros((1, count), np.float32), options=_OPTIONS))
    except OpstageError as error:
        raise UsageError(f"the model does not run on one sample: {error}") from None
    return network, count, int(y.shape[1]), shaped
