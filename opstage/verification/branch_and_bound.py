"""Branch and bound: a search for a counterexample in a property's boxes, or a proof that there is none.

A box whose bounds exclude one condition of a counterexample contains none. Any other box is split in two, along the
input to which that condition is most sensitive, or by the sign of a relu's operand. Each half is bounded again, many at
a time. Between these passes points are tried: one that meets all conditions in a run in float32 is a counterexample
(Wang et al., Formal security analysis of neural networks using symbolic intervals, USENIX Security 2018).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Literal, TypeAlias, final

import numpy as np

from ..api import check, run, value_and_grad
from ..ops.body import Body, Equation
from ..ops.dims import DimExpr, DimFloat
from ..ops.errors import OpstageError, UsageError
from ..ops.logic import IOTA
from ..ops.spec import Spec
from ..ops.transform import Box
from ..options import Options
from . import Method, bounds, outward
from .regions import STEPS, Network, RegionBounds, Regions
from .vnnlib import UnsafeCase, VnnProperty

Outcome: TypeAlias = Literal["holds", "violated", "unknown"]
Splits: TypeAlias = Literal["auto", "phases", "inputs"]
SPLITS = ("auto", "phases", "inputs")
_AT_ONCE = 256
_NUMBERS = 1 << 20
"""The most elements of relus that are bounded at once."""
_FEW_INPUTS = 8
"""Up to this number of inputs "auto" splits along inputs: a region costs several boxes, and saves fewer."""
_OPEN = 2
"""With few inputs a region is split by a phase only if at most this many times its inputs are open.

Halves of a box close more phases.
"""
_STEPS = (*[0.2] * 5, *[0.1] * 5, *[0.04] * 5, *[0.01] * 5, *[0.003] * 5)
"""The step sizes of an attack, in lengths of each side."""
_OPTIONS = Options(dtype="float32")


@final
@dataclass(frozen=True)
class Verification:
    """The answer of a search.

    outcome   "holds": no input is a counterexample, in exact arithmetic and in a run in float32; "violated": this one
              is;
              "unknown": neither was found in time
    x, y      the counterexample, and the outputs of the run that confirmed it
    boxes     the number of boxes, or regions of them, that were bounded
    seconds   the duration of the search
    proved    the number of the property's cases that are proved to have no counterexample
    cases     the number of the property's cases
    left      the number of undecided regions of the case in which the search stopped
    """

    outcome: Outcome
    x: Any
    y: Any
    boxes: int
    seconds: float
    proved: int = 0
    cases: int = 0
    left: int = 0


@final
class SearchInterrupted(KeyboardInterrupt):
    """Ctrl-C during a search. `found` is the result until then: "unknown", and the proved cases."""

    def __init__(self, found: Verification):
        super().__init__("the search was interrupted")
        self.found = found


def verify(
    network: Network,
    params: Any,
    unsafe: VnnProperty,
    *,
    timeout: float = 60.0,
    method: Method = "crown",
    confirm: Callable[[Any], Any] | None = None,
    splits: Splits = "auto",
    max_boxes: int | None = None,
    most_boxes: int | None = None,
) -> Verification:
    """Search for a counterexample of `network(ops, params, x)`, from rows x (N, inputs) to rows (N, outputs), in
    float32.

    timeout      seconds after which the search stops
    method       of the bounds, see `bounds`
    confirm      another run of a single row x: a counterexample must be one in that run as well
    splits       "inputs": split boxes along inputs; "phases": by the signs of relus' operands too, for `method`
                 "crown";
                 "auto": "phases" if there are more than a few inputs
    max_boxes    the largest number of boxes or regions to bound; the outcome is "unknown" beyond it
    most_boxes   the former name of `max_boxes`, deprecated

    Without a timeout every run bounds the same regions, for any number of threads.

    Raises:
        UsageError: `splits` is not one of these, or `max_boxes` is below 1.
        SearchInterrupted: Ctrl-C; a KeyboardInterrupt with the result until then.
    """
    if splits not in SPLITS:
        raise UsageError(f"verify: argument splits: expected one of {', '.join(map(repr, SPLITS))}, got {splits!r}")
    if most_boxes is not None:
        warnings.warn("verify: argument most_boxes is now max_boxes. Rename it.", DeprecationWarning, stacklevel=2)
        max_boxes = most_boxes if max_boxes is None else max_boxes
    if max_boxes is not None and max_boxes < 1:
        raise UsageError(f"verify: argument max_boxes: expected at least 1, got {max_boxes}")
    begun = monotonic()
    limit = 1 << 62 if max_boxes is None else max_boxes
    search = _Search(network, params, unsafe, begun + timeout, method, confirm, splits, limit)
    found: tuple[Any, Any] | None = None
    outcome: Outcome = "holds"
    proved = 0

    def verification(outcome: Outcome) -> Verification:
        x, y = found if found is not None and outcome == "violated" else (None, None)
        seconds = monotonic() - begun
        return Verification(outcome, x, y, search.bounded, seconds, proved, len(unsafe.cases), search.left)

    try:
        for case in unsafe.cases:
            outcome_of, found = search.case(case)
            if outcome_of == "violated":
                outcome = "violated"
                break
            proved += outcome_of == "holds"
            if outcome_of == "unknown":
                outcome = "unknown"
                if monotonic() > search.deadline or search.bounded >= limit:
                    break
    except KeyboardInterrupt:
        raise SearchInterrupted(verification("unknown")) from None
    return verification(outcome)


@final
class _Search:
    """The state of a search: what all cases share, and the number of boxes that were bounded."""

    def __init__(
        self,
        network: Network,
        params: Any,
        unsafe: VnnProperty,
        deadline: float,
        method: Method,
        confirm: Callable[[Any], Any] | None,
        splits: Splits,
        max_boxes: int,
    ):
        self.network, self.params, self.unsafe = network, params, unsafe
        self.deadline, self.method, self.confirm = deadline, method, confirm
        self.bounded, self.max_boxes = 0, max_boxes
        self.left = 0
        self.relus = 0
        if splits == "auto":
            splits = "phases" if unsafe.inputs > _FEW_INPUTS else "inputs"
        if method == "crown" and splits == "phases":
            self.region_bounds = RegionBounds(network, params, unsafe.inputs)
            self.relus = self.region_bounds.relus
        self.at_once = max(1, min(_AT_ONCE, _NUMBERS // max(self.relus, 1)))

        # one function each for all calls, so that it is compiled once
        def rows(ops: Any, params: Any, x: Any) -> Any:
            return network(ops, params, x)

        def sides(ops: Any, params: Any, rows: Any, x: Any) -> Any:
            return _left_sides(ops, rows, network(ops, params, x))

        self.rows, self.sides = rows, sides
        self.rng = np.random.default_rng(0)

    def case(self, case: UnsafeCase) -> tuple[Outcome, tuple[Any, Any] | None]:
        """Return the outcome for one box of inputs and its conditions."""
        if not len(case.rows):
            middle = (case.lower + case.upper) / 2
            confirmed = self.confirmed_point(case, middle[None])
            return ("violated", confirmed) if confirmed is not None else ("unknown", None)
        regions = Regions.whole(case.lower, case.upper, self.relus)
        confirmed = self.confirmed_point(case, self.candidates(case, regions.lower, regions.upper, 256))
        while True:
            self.left = len(regions)
            if confirmed is not None or not len(regions):
                break
            count = min(self.at_once, self.max_boxes - self.bounded)
            if count <= 0 or monotonic() > self.deadline:
                return "unknown", None
            batch, regions = regions.rows(slice(-count, None)), regions.rows(slice(None, -count))
            options = self.options(len(batch))
            batch, nearest, gains = self.undecided(case, batch, options)
            if not len(batch):
                continue
            confirmed = self.confirmed_point(case, self.candidates(case, batch.lower, batch.upper, 1))
            halves = self.halved(case, batch, nearest, gains)
            if halves is None:
                return "unknown", None
            regions = Regions.concatenate(regions, halves)
        return ("violated", confirmed) if confirmed is not None else ("holds", None)

    def options(self, count: int) -> Options:
        """Return the options of a batch. A long search runs compiled, which costs seconds once."""
        often = count == self.at_once and self.bounded >= 4 * self.at_once
        return Options(dtype="float32", backend="compiled" if often else "eager")

    def undecided(self, case: UnsafeCase, batch: Regions, options: Options) -> tuple[Regions, Any, Any]:
        """Return the regions that may contain a counterexample, the condition of each that is nearest to exclusion, and
        gains.

        The gains estimate how far a split by each phase raises the bound.
        """
        rows: Any = case.rows.astype(np.float32)
        if (rows != case.rows).any():
            rows = outward(Box(case.rows, case.rows), np.dtype(np.float32), "a condition")

        def left(least: Any) -> Any:
            return ~(least - case.limits > 1e-12 * np.abs(case.limits)).any(axis=1)

        self.bounded += len(batch)
        if self.relus:
            least, batch = self.region_bounds.bound(rows, batch, options)
        else:
            least = self.conditions(rows, batch, options)
        kept = left(least)
        batch, nearest = batch.rows(kept), np.argmax(least[kept] - case.limits, axis=1)
        gains = np.zeros(batch.sign.shape)
        if self.relus and len(batch) and monotonic() < self.deadline:
            options = options if kept.all() else _OPTIONS
            least, gains, batch = self.region_bounds.improve(rows, batch, nearest, STEPS, options)
            kept = left(least)
            batch, nearest, gains = batch.rows(kept), nearest[kept], gains[kept]
        return batch, nearest, gains

    def conditions(self, rows: Any, batch: Regions, options: Options) -> Any:
        """Return lower bounds of the left sides of the conditions, over whole boxes."""
        box = Box(batch.lower, batch.upper)
        if isinstance(rows, Box):
            found = bounds(self.rows, self.params, box, method=self.method, options=options)
            found = bounds(_left_sides, rows, found, options=_OPTIONS)
        else:
            found = bounds(self.sides, self.params, rows, box, method=self.method, options=options)
        return np.asarray(found.lower, np.float64)

    def halved(self, case: UnsafeCase, batch: Regions, nearest: Any, gains: Any) -> Regions | None:
        """Return both halves of each region, by phase or by input; None if one cannot be split."""
        phases = self.by_phase(batch, gains)
        parts = []
        if phases.any():
            parts.append(batch.rows(phases).by_phase(np.argmax(gains[phases], axis=1)))
        if not phases.all():
            rest = batch.rows(~phases)
            axis, at = self.cut(case, rest, nearest[~phases])
            each = np.arange(len(rest))
            if ((at <= rest.lower[each, axis]) | (at >= rest.upper[each, axis])).any():
                return None
            parts.append(rest.by_input(axis, at))
        return Regions.concatenate(*parts)

    def by_phase(self, batch: Regions, gains: Any) -> Any:
        """Return which regions to split by a phase."""
        still_open, inputs = (gains > 0).sum(axis=1), batch.lower.shape[1]
        return (still_open > 0) & ((inputs > _FEW_INPUTS) | (still_open <= _OPEN * inputs))

    def cut(self, case: UnsafeCase, batch: Regions, nearest: Any) -> tuple[Any, Any]:
        """Return the input that moves the condition of each region most, and the number in its middle."""
        lower, upper = batch.lower, batch.upper
        middle = (lower + upper) / 2
        chosen = case.rows[nearest].astype(np.float32)

        def total(ops: Any, x: Any, params: Any, chosen: Any) -> Any:
            return ops.sum(ops.mul(chosen, self.network(ops, params, x)))

        _, slope = value_and_grad(total, middle.astype(np.float32), self.params, chosen, options=_OPTIONS)
        width = upper - lower
        moves = np.abs(np.nan_to_num(np.asarray(slope, np.float64))) * width
        moves = np.where(moves.max(axis=1, keepdims=True) > 0, moves, width)
        # a side far longer than the others is split eventually, however flat the network is in the middle
        moves = np.maximum(moves, 1e-3 * moves.max(axis=1, keepdims=True) * width / width.max(axis=1, keepdims=True))
        axis = np.argmax(moves, axis=1)
        # in float32, so that both halves are boxes there without a gap
        return axis, middle[np.arange(len(lower)), axis].astype(np.float32).astype(np.float64)

    def candidates(self, case: UnsafeCase, lower: Any, upper: Any, times: int) -> Any:
        """Return points of the boxes: middles, random ones, and where steps down the conditions lead from them."""
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

    def confirmed_point(self, case: UnsafeCase, points: Any) -> tuple[Any, Any] | None:
        """Return the first point that is a counterexample in a run, with its outputs; None without one."""
        x = points.astype(np.float32)
        x = np.where(_beyond(case, x)[0], np.nextafter(x, np.float32(np.inf)), x)
        x = np.where(_beyond(case, x)[1], np.nextafter(x, np.float32(-np.inf)), x)
        inside = ~np.any(_beyond(case, x), axis=(0, 2))
        y = np.asarray(run(self.network, self.params, x, options=_OPTIONS))
        for i in np.flatnonzero(inside & _meets(case, y)):
            alone = np.asarray(run(self.network, self.params, x[i : i + 1], options=_OPTIONS))
            runs = [alone, *([np.asarray(self.confirm(x[i : i + 1]))] if self.confirm is not None else [])]
            if all(each.shape == alone.shape and _meets(case, each).all() for each in runs):
                return x[i], alone[0]
        return None


def _left_sides(ops: Any, rows: Any, y: Any) -> Any:
    """Return the left sides of conditions, given rows of outputs."""
    return ops.linear(rows, None, y)


def _beyond(case: UnsafeCase, x: Any) -> tuple[Any, Any]:
    """Return which numbers of points are below the box, and which are above."""
    below, above = case.open_lower & (x == case.lower), case.open_upper & (x == case.upper)
    return (x < case.lower) | below, (x > case.upper) | above


def _meets(case: UnsafeCase, y: Any) -> Any:
    """Return which rows of outputs meet all conditions; nan meets none."""
    sides = y.astype(np.float64) @ case.rows.T
    return np.where(case.strict, sides < case.limits, sides <= case.limits).all(axis=1)


def as_row_network(model: Any) -> tuple[Network, int, int, Callable[[Any], Any]]:
    """Return a model of one input and one output as a network of rows, its row sizes, and the shape of a sample.

    The first size of the input is open, or 1, or the only one: that of a single sample. Rows run together if that is
    proved to give what each gives alone, and otherwise one after the other.

    Raises:
        UsageError: the model has another form, or does not run on one sample.
    """
    if len(model.inputs) != 1 or len(model.outputs) != 1 or model.state is not None:
        raise UsageError(
            f"verify: expected a model with one input, one output and no running statistics, got inputs "
            f"{', '.join(model.inputs) or 'none'} and outputs {', '.join(model.outputs) or 'none'}. Select one of "
            "several outputs with --output, in Python onnx.load(outputs=[…])."
        )
    ((name, spec),) = model.inputs.items()
    shape = spec.shape
    single = len(shape) == 1 and isinstance(shape[0], int)
    sizes = list(shape) if single else list(shape[1:])
    batched = single or (bool(shape) and (not isinstance(shape[0], int) or shape[0] == 1))
    if not batched or any(not isinstance(size, int) for size in sizes):
        raise UsageError(
            f"verify: input {name}: expected a first size that is 1 or open, and numbers for all others, got {shape}. "
            "Set them with --fixed."
        )
    count = int(np.prod(sizes))
    if not single and shape[0] == 1:
        model = replace(model, inputs={name: Spec(("N", *sizes), spec.dtype)})

    def sampled(x: Any) -> tuple[Any, ...]:
        return tuple(sizes) if single else (x.shape[0], *sizes)

    def together(ops: Any, params: Any, x: Any) -> Any:
        (y,) = model(ops, params, ops.reshape(x, shape=sampled(x))).values()
        return ops.reshape(y, shape=(x.shape[0], -1))

    def one_by_one(ops: Any, params: Any, x: Any) -> Any:
        rows = ops.split(x, sizes=(1,) * int(x.shape[0]))
        return ops.concat([together(ops, params, row) for row in rows], axis=0)

    network = together if not single and _acts_on_rows(together, model.params, count) else one_by_one

    def shaped(x: Any) -> Any:
        return np.asarray(x, np.float32).reshape(sampled(x))

    try:
        y = np.asarray(run(network, model.params, np.zeros((1, count), np.float32), options=_OPTIONS))
    except OpstageError as error:
        raise UsageError(f"the model does not run on one sample: {error}") from None
    return network, count, int(y.shape[1]), shaped


def _acts_on_rows(network: Network, params: Any, count: int) -> bool:
    """Return whether a network is proved to do the same to each of any number of rows.

    A row of the result then reads that row alone, and depends neither on the row's number nor on the number of rows.
    """
    report = check(network, params, Spec(("N", count)), claims=["independent:N"], options=_OPTIONS)
    return report.ok and not report.conditions and not any(map(_counts, report.program.body.equations))


def _counts(equation: Equation) -> bool:
    if equation.primitive is IOTA or equation.primitive.effects or isinstance(equation.static.get("value"), DimExpr):
        return True
    return any(isinstance(value, (Body, DimFloat)) for value in equation.static.values())
