"""A loop as the text of a kernel for the CPU.

It depends on the ops, the dtypes and which strides are 0 or 1, not on sizes, which are arguments, but for whether
a row that is summed is long. So clusters that look alike, in the layers of a model or for another batch, share one
kernel.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import final

from typing_extensions import override

from ....ops.closed import Equation
from ....ops.types import dtype_name
from ..axes import space_of
from ..clusters import Cluster, Level
from ..formulas import Constants
from ..loop import Accumulator, IterationSpace, Local, LoopNest, LoopOperand, Pass, Place
from ..primitives import INDEX_CHECK, ROW_SUM
from ..printing import LoopPrinter, indented
from ..schedule import Scheduling, schedule
from .accumulators import BLOCK, RUN, STRIDED_RUN, Accumulating, of_columns, of_row
from .memory import KernelMemory, ScopedElements
from .texts import LoopSource
from .words import Address, LoweredLoop

_LANES = 64
"""Rows that are gone through side by side where their first elements are neighbours, and so on, but not their own."""


def cluster_loop(cluster: Cluster, equations: Sequence[Equation], stored: Collection[int]) -> LoweredLoop:
    """The kernel of a cluster that leaves the values of `stored` in memory."""
    space = space_of(cluster, stored)
    lanes = cluster.extent is not None and _side_by_side(space, cluster, equations)
    return _CpuPrinter(schedule(cluster, equations, space, Scheduling(lanes=lanes)), cluster.extent, lanes).kernel()


def _side_by_side(space: IterationSpace, cluster: Cluster, equations: Sequence[Equation]) -> bool:
    """Whether neighbouring rows have their elements beside one another, as those along an inner axis have."""
    if len(space.sizes) < 2 or space.sizes[-2] < 8 or Level.COLUMN in cluster.levels.values():
        return False
    if any(e.primitive is INDEX_CHECK for e in equations):
        return False
    along = [o.strides for o in space.operands if o.local.level is Level.ELEMENT]
    return all(s[-1] != 1 and s[-2] in (0, 1) for s in along) and any(s[-2] == 1 for s in along)


@final
class _RowLocals:
    """The values that a row has once: variables, or those of the rows in lanes in memory side by side."""

    def __init__(self, memory: KernelMemory, lanes: bool):
        self._memory, self._lanes = memory, lanes
        self.places: dict[str, ScopedElements] = {}

    def get(self, name: str) -> str:
        return self._memory.load(self.places[name]) if self._lanes else name

    def set(self, name: str, dtype: str, value: str) -> str:
        """A line that gives one its value."""
        if not self._lanes:
            return f"{name} = {value}"
        if name not in self.places:
            self.places[name] = self._memory.scratch(f"{name}s", dtype, 8 * _LANES, "l")
        return self._memory.store(self.places[name], value)


@final
class _CpuPrinter(LoopPrinter):
    """Prints rows of `extent` elements, or single elements if that is None; with `lanes` so many rows side by side,
    lane l of them in an inner loop.
    """

    def __init__(self, loop: LoopNest, extent: int | None, lanes: bool):
        super().__init__(Constants())
        self.loop, self.extent, self.lanes = loop, extent, lanes
        self.memory = KernelMemory()
        self.row = _RowLocals(self.memory, lanes)
        self.places: dict[Place, ScopedElements] = {}
        self.taking: dict[Accumulator, Accumulating] = {}
        *self.outer, self.inner = loop.space.sizes
        self.flat = not self.outer and extent is None
        self.count = "hi - lo" if self.flat else "n"
        read = [o.strides for o in loop.space.reads.values()]
        near = all((s[-1], s[-2] if lanes else 0) in ((0, 0), (1, 0)) for s in read)
        self.run = RUN if near else STRIDED_RUN

    def kernel(self) -> LoweredLoop:
        memory, head = self.memory, self.memory.head
        if not self.flat:
            head.append(f"n = {self.number(self.inner)}")
        turns = [*self.outer[:-1], -(-self.outer[-1] // _LANES)] if self.lanes else self.outer
        body, places = self.coordinates("row", turns)
        if self.lanes:
            body.append(f"first = {places[-1]} * {_LANES}")
            body.append(f"wide = min({_LANES}, {self.number(self.outer[-1])} - first)")
            places[-1] = "first"
        for operand in self.loop.space.reads.values():
            self._place(operand, places, body, written=False)
        for operand in self.loop.space.writes.values():
            self._place(operand, places, body, written=True)
        totals = []
        for accumulator in self.loop.columns:
            assert self.extent is not None
            scratch, taking = of_columns(accumulator, self.extent, memory, self.constants)
            head += taking.begin
            totals.append((scratch, accumulator.slot))
            self.taking[accumulator] = taking
        columns = [*self.taking.values()]
        body += self._passes()
        lines = ["def kernel(lo, hi, worker, arguments):"]
        lines += indented([f"w = int64s(arguments, {len(memory.words)})", *head])
        if self.flat:
            lines += indented(body)
        else:
            for taking in columns:
                body += [f"if (row - lo) % {BLOCK} == {BLOCK - 1}:", *indented(taking.end_run)]
            lines += indented(["for row in range(lo, hi):", *indented(body)])
            for taking in columns:
                lines += indented(taking.end)
        text = LoopSource(self.loop.name, "\n".join(self.constants.definitions), "\n".join(lines), memory.accesses)
        return LoweredLoop(text, self.inner if self.flat else math.prod(turns), tuple(memory.words), tuple(totals))

    def _place(self, operand: LoopOperand, places: Sequence[str], body: list[str], *, written: bool) -> None:
        """Say where an operand is: its address for a row in `body`, or once for all rows, and element j of row l."""
        (*along, step), name, dtype = operand.strides, operand.name, operand.local.dtype
        nbytes, word = dtype.itemsize, self.memory.word
        terms = [word(Address(operand.view.root, operand.view.offset * nbytes))]
        terms += [f"{place} * {word(s * nbytes)}" for place, s in zip(places, along) if s]
        if self.flat and step:
            terms.append(f"lo * {nbytes}" if step == 1 else f"lo * {word(step * nbytes)}")
        (body if len(terms) > 1 and not self.flat else self.memory.head).append(f"{name}_at = {' + '.join(terms)}")
        at = " + ".join(self.terms(("j", "l"), (step, along[-1] if self.lanes else 0))) or "0"
        found = self.memory.elements(name, dtype_name(dtype), at, written=written)
        self.places[operand] = self.row.places[name] = found

    # Statements -----------------------------------------------------------------------------------------------------

    @override
    def number(self, value: int) -> str:
        return self.memory.word(value)

    @override
    def divided(self, dividend: str, divisor: str) -> tuple[str, str]:
        return f"{dividend} // {divisor}", f"{dividend} % {divisor}"

    @override
    def get(self, local: Local) -> str:
        return local.name if local.level is Level.ELEMENT else self.row.get(local.name)

    @override
    def set(self, local: Local, value: str) -> str:
        if local.level is Level.ELEMENT:
            return f"{local.name} = {value}"
        return self.row.set(local.name, dtype_name(local.dtype), value)

    @override
    def load(self, place: Place) -> str:
        return self.memory.load(self._elements(place))

    @override
    def store(self, place: Place, value: str) -> list[str]:
        return [self.memory.store(self._elements(place), value)]

    def _elements(self, place: Place) -> ScopedElements:
        if place not in self.places:  # a row that is kept
            assert self.extent is not None
            dtype, lanes = place.local.dtype, _LANES if self.lanes else 1
            at = f"j * {_LANES} + l" if self.lanes else "j"
            self.places[place] = self.memory.scratch(
                f"t{place.local.name}", dtype_name(dtype), self.extent * dtype.itemsize * lanes, at
            )
        return self.places[place]

    @override
    def out_of_range(self, index: str, size: str) -> list[str]:
        return [f"if {index} < 0 or {index} >= {size}:", f"    {self.memory.flagged()}"]

    @override
    def accumulate(self, accumulator: Accumulator, value: str) -> list[str]:
        return self.taking[accumulator].add(value)

    # Passes ---------------------------------------------------------------------------------------------------------

    def _passes(self) -> list[str]:
        lines: list[str] = []
        complete: list[str] = []
        for each in self.loop.passes:
            before = [*complete, *self.lines(each.before)]
            for accumulator in each.row:
                runs = self._in_runs(accumulator)
                taking = self.taking[accumulator] = of_row(accumulator, self.row, self.constants, runs=runs)
                before += taking.begin
            lines += self._each_lane(before)
            lines += self._elements_of(each)
            complete = [line for accumulator in each.row for line in self.taking[accumulator].end]
        return lines

    def _in_runs(self, accumulator: Accumulator) -> bool:
        return accumulator.primitive is ROW_SUM and self.extent is not None and self.extent > 2 * self.run

    def _elements_of(self, each: Pass) -> list[str]:
        """The loop through a row's elements, in runs where sums are taken in runs."""
        inside = self._each_lane(self.lines(each.inside))
        begin = [line for accumulator in each.row for line in self.taking[accumulator].begin_run]
        end = [line for accumulator in each.row for line in self.taking[accumulator].end_run]
        if not begin:
            return [f"for j in range({self.count}):", *indented(inside)] if inside else []
        return [
            f"for run in range(0, {self.count}, {self.run}):",
            *indented(self._each_lane(begin)),
            f"    for j in range(run, min({self.count}, run + {self.run})):",
            *indented(inside, 2),
            *indented(self._each_lane(end)),
        ]

    def _each_lane(self, lines: list[str]) -> list[str]:
        return ["for l in range(wide):", *indented(lines)] if self.lanes and lines else lines
