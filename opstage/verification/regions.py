"""Regions of a search by branch and bound, many at a time: boxes of inputs with phases of relus, and their bounds.

Bounds are computed twice. First the operands of all relus are bounded in the region. If that decides nothing, slopes of
lines below relus and prices of phases follow the gradient of the condition nearest to exclusion, with the operands'
bounds fixed. The bound is a program over Ops, so its gradient is one too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias, final

import numpy as np

from ..analysis.relaxations import region_bounds
from ..analysis.relaxations.interpreter import NotSeparate, PhaseArrays
from ..api import run, value_and_grad
from ..ops.transform import Box
from ..optim.adaptive import Adam
from ..options import Options
from . import outward

Network: TypeAlias = Callable[[Any, Any, Any], Any]
STEPS = 4
"""The number of steps of slopes and prices in a region."""
_OPTIMIZER = Adam(lr=0.2)
_OPTIONS = Options(dtype="float32")
_FLOAT32 = np.dtype(np.float32)


@final
@dataclass(frozen=True)
class Regions:
    """Regions in rows: the ends of their boxes, in float64, and the fields of `PhaseArrays` for each relu's element."""

    lower: Any
    upper: Any
    sign: Any
    least: Any
    most: Any
    slope: Any
    price: Any

    @staticmethod
    def whole(lower: Any, upper: Any, relus: int) -> Regions:
        """Return the region that covers a box."""
        row = np.zeros((1, relus), np.float32)
        return Regions(lower[None], upper[None], row, row - np.inf, row + np.inf, row, row)

    @staticmethod
    def concatenate(*parts: Regions) -> Regions:
        """Return the regions of several, one after the other."""
        columns = zip(*[part.columns() for part in parts])
        return Regions(*[np.concatenate(column) for column in columns])

    def columns(self) -> list[Any]:
        """Return all arrays, in the order of the fields."""
        return [getattr(self, field.name) for field in fields(self)]

    def rows(self, index: Any) -> Regions:
        """Return some of the regions, by a mask, numbers or a slice."""
        return Regions(*[column[index] for column in self.columns()])

    def __len__(self) -> int:
        return len(self.lower)

    def by_phase(self, chosen: Any) -> Regions:
        """Return both regions of each in which the operand of one relu's element has one sign."""
        each = np.arange(len(self))
        halves = []
        for phase in (1.0, -1.0):
            sign = self.sign.copy()
            sign[each, chosen] = phase
            halves.append(replace(self, sign=sign))
        return Regions.concatenate(*halves)

    def by_input(self, axis: Any, at: Any) -> Regions:
        """Return both halves of each, on either side of a number along one input."""
        each = np.arange(len(self))
        first, last = self.upper.copy(), self.lower.copy()
        first[each, axis] = at
        last[each, axis] = at
        return Regions.concatenate(replace(self, upper=first), replace(self, lower=last))


@final
class RegionBounds:
    """Lower bounds of linear conditions on a network's outputs, rows (K, outputs), in regions.

    relus   the number of elements of relus for one row of inputs; 0 if the network mixes rows as well
    """

    def __init__(self, network: Network, params: Any, inputs: int):
        self.params = params

        def sides(ops: Any, params: Any, rows: Any, x: Any) -> Any:
            y = network(ops, params, x)
            y = ops.broadcast_to(ops.reshape(y, shape=(x.shape[0], 1, -1)), shape=rows.shape)
            return ops.reduce_sum(ops.mul(rows, y), axis=2)

        # one function each for all calls, so that it is compiled once
        def bound(ops: Any, params: Any, rows: Any, x: Any, sign: Any, least: Any, most: Any) -> Any:
            arrays = PhaseArrays(sign, least, most)
            found, operands = region_bounds(ops, sides, arrays, int(sign.shape[0]), params, rows, x)
            return found.lower, operands.lower, operands.upper

        def with_slopes(ops: Any, free: Any, params: Any, rows: Any, x: Any, sign: Any) -> Any:
            arrays = PhaseArrays(sign, *free)
            return region_bounds(ops, sides, arrays, int(sign.shape[0]), params, rows, x)[0].lower

        def total(ops: Any, free: Any, params: Any, rows: Any, x: Any, sign: Any, chosen: Any) -> Any:
            lower = with_slopes(ops, free, params, rows, x, sign)
            nothing = ops.full(shape=lower.shape, value=0.0, dtype=lower.dtype)
            return ops.neg(ops.sum(ops.select(chosen, lower, nothing)))

        def operands(ops: Any, params: Any, x: Any) -> Any:
            return region_bounds(ops, network, None, 2, params, x)[1]

        self._bound, self._with_slopes, self._total = bound, with_slopes, total
        try:
            box = Box(np.zeros((2, inputs), np.float32), np.ones((2, inputs), np.float32))
            self.relus = int(run(operands, params, box, options=_OPTIONS).lower.shape[1])
        except NotSeparate:
            self.relus = 0

    def bound(self, rows: Any, regions: Regions, options: Options) -> tuple[Any, Regions]:
        """Return lower bounds (N, K), and the regions with the bounds of operands in them; inf for an empty region."""
        found, least, most = run(
            self._bound,
            self.params,
            _repeat(rows, len(regions)),
            _box(regions),
            regions.sign,
            regions.least,
            regions.most,
            options=options,
        )
        found = np.where((least > most).any(axis=1, keepdims=True), np.inf, np.asarray(found, np.float64))
        # when a line below is set for the first time, use the nearer one
        nearer = np.where(-least < most, np.float32(1), np.float32(0))
        slope = np.where(np.isinf(regions.least), nearer, regions.slope)
        return found, replace(regions, least=least, most=most, slope=slope)

    def improve(
        self, rows: Any, regions: Regions, nearest: Any, steps: int, options: Options
    ) -> tuple[Any, Any, Regions]:
        """Return lower bounds (N, K) with better slopes and prices, the gains of both phases of each element, and the
        regions.

        nearest   the condition of each region to exclude
        """
        every, box = _repeat(rows, len(regions)), _box(regions)
        chosen = np.arange(len(rows.lower if isinstance(rows, Box) else rows)) == nearest[:, None]
        free = [regions.least, regions.most, regions.slope, regions.price]
        slots = [np.zeros_like(regions.slope) for _ in range(4)]
        gradient = free
        for t in range(1, steps + 1):
            arguments = (free, self.params, every, box, regions.sign, chosen)
            _, gradient = value_and_grad(self._total, *arguments, options=options)
            gradient = [np.nan_to_num(each, posinf=0.0, neginf=0.0) for each in gradient]
            moved, slots = run(_take_step, free[2:], gradient[2:], slots, _OPTIMIZER.scalars(t), options=_OPTIONS)
            free = [*free[:2], *moved]
        found = np.asarray(
            run(self._with_slopes, free, self.params, every, box, regions.sign, options=options), np.float64
        )
        least, most, slope, price = free
        # how far the bound rises, to first order, if one end of an operand moves to 0
        undecided = (least < 0) & (most > 0)
        with np.errstate(invalid="ignore"):
            gains = np.maximum(gradient[0] * least, 0) + np.maximum(gradient[1] * most, 0)
            gains = np.where(undecided, np.nan_to_num(gains) + 1e-9 * np.minimum(1, np.minimum(-least, most)), 0.0)
        return found, gains, replace(regions, slope=slope, price=price)


def _take_step(ops: Any, free: Any, gradient: Any, slots: Any, scalars: Any) -> Any:
    """Return slopes and prices after a step of the optimizer, within their limits, and its state."""
    limits = (1.0, float("inf"))
    moved, kept = [], []
    for i, limit in enumerate(limits):
        new, state = _OPTIMIZER.update(ops, free[i], gradient[i], tuple(slots[2 * i : 2 * i + 2]), scalars)
        moved.append(ops.clamp(new, lo=0.0, hi=limit))
        kept += list(state)
    return moved, kept


def _box(regions: Regions) -> Box:
    found: Box = outward(Box(regions.lower, regions.upper), _FLOAT32, "x")
    return found


def _repeat(rows: Any, count: int) -> Any:
    """Return conditions (K, outputs), or boxes of them, for each region."""
    if isinstance(rows, Box):
        return Box(_repeat(rows.lower, count), _repeat(rows.upper, count))
    return np.repeat(rows[None], count, axis=0)
