"""A loop as the source of a CPU kernel.

The source depends on the ops, the dtypes, which strides are 0 or 1, and whether a summed row is long. Sizes are
arguments. So similar clusters, in other layers of a model or for other batch sizes, share a kernel.
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
from ..loop import Accumulator, Local, LoopNest, LoopOperand, Pass, Place
from ..printing import LoopPrinter, indented
from ..schedule import Scheduling, schedule, side_by_side
from .accumulators import BLOCK, RUN, STRIDED_RUN, Accumulating, of_columns, of_row
from .memory import KernelMemory, ScopedElements
from .row_locals import LANES, RowLocals
from .texts import LoopSource
from .totals import parts_of_rows
from .words import Address, LoweredLoop


def cluster_loop(cluster: Cluster, equations: Sequence[Equation], stored: Collection[int]) -> LoweredLoop:
    """Return the kernel of a cluster that stores the values of the slots `stored`."""
    space = space_of(cluster, stored)
    how = Scheduling(lanes=side_by_side(cluster, equations, space), runs=(RUN, STRIDED_RUN))
    return _CpuPrinter(schedule(cluster, equations, space, how)).kernel()


@final
class _CpuPrinter(LoopPrinter):
    """Prints rows or single elements; for adjacent rows, lane l in an inner loop."""

    def __init__(self, loop: LoopNest):
        super().__init__(Constants())
        self.loop, self.extent, self.lanes = loop, loop.extent, loop.lanes
        self.memory = KernelMemory()
        self.row = RowLocals(self.memory, self.lanes)
        self.places: dict[Place, ScopedElements] = {}
        self.taking: dict[Accumulator, Accumulating] = {}
        *self.outer, self.inner = loop.space.sizes
        self.flat = not self.outer and self.extent is None
        self.count = "hi - lo" if self.flat else "n"

    def kernel(self) -> LoweredLoop:
        memory, head = self.memory, self.memory.head
        if not self.flat:
            head.append(f"n = {self.number(self.inner)}")
        turns = [*self.outer[:-1], -(-self.outer[-1] // LANES)] if self.lanes else self.outer
        body, places = self.coordinates("row", turns)
        if self.lanes:
            body.append(f"first = {places[-1]} * {LANES}")
            body.append(f"wide = min({LANES}, {self.number(self.outer[-1])} - first)")
            places[-1] = "first"
        for operand in self.loop.space.reads.values():
            self._place(operand, places, body, written=False)
        for operand in self.loop.space.writes.values():
            self._place(operand, places, body, written=True)
        rows, totals = math.prod(turns), []
        parts = parts_of_rows(rows, math.prod(self.outer) * self.inner)
        begin: list[str] = []
        for accumulator in self.loop.columns:
            assert self.extent is not None
            scratch, taking = of_columns(accumulator, self.extent, parts, memory, self.constants)
            begin += taking.begin
            totals.append((scratch, accumulator.slot))
            self.taking[accumulator] = taking
        columns = [*self.taking.values()]
        body += self._passes()
        if columns:
            body = self._in_parts(body, columns, begin, rows, parts)
        elif not self.flat:
            body = ["for row in range(lo, hi):", *indented(body)]
        lines = ["def kernel(lo, hi, worker, arguments):"]
        lines += indented([f"w = int64s(arguments, {len(memory.words)})", *head, *body])
        text = LoopSource(self.loop.name, "\n".join(self.constants.definitions), "\n".join(lines), memory.accesses)
        tasks = self.inner if self.flat else parts if columns else rows
        return LoweredLoop(text, tasks, tuple(memory.words), tuple(totals))

    def _in_parts(
        self, body: list[str], columns: Sequence[Accumulating], begin: list[str], rows: int, parts: int
    ) -> list[str]:
        """The loop over rows whose columns are summed, a task for each part of them."""
        total, count = self.memory.word(rows), self.memory.word(parts)
        for taking in columns:
            body += [f"if (row - start) % {BLOCK} == {BLOCK - 1}:", *indented(taking.end_run)]
        return [
            "for part in range(lo, hi):",
            f"    start, stop = {total} * part // {count}, {total} * (part + 1) // {count}",
            *indented(begin),
            "    for row in range(start, stop):",
            *indented(body, 2),
            *indented([line for taking in columns for line in taking.end]),
        ]

    def _place(self, operand: LoopOperand, places: Sequence[str], body: list[str], *, written: bool) -> None:
        """Print the address of an operand, per row in `body` or once for all rows, and register the access to its
        elements."""
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
        return self.row.get(local.name) if local.level is Level.ROW else super().get(local)

    @override
    def set(self, local: Local, value: str) -> str:
        if local.level is Level.ROW:
            return self.row.set(local.name, dtype_name(local.dtype), value)
        return super().set(local, value)

    @override
    def load(self, place: Place) -> str:
        return self.memory.load(self._elements(place))

    @override
    def store(self, place: Place, value: str) -> list[str]:
        return [self.memory.store(self._elements(place), value)]

    def _elements(self, place: Place) -> ScopedElements:
        if place not in self.places:  # a kept row
            assert self.extent is not None
            dtype, lanes = place.local.dtype, LANES if self.lanes else 1
            at = f"j * {LANES} + l" if self.lanes else "j"
            self.places[place] = self.memory.scratch(
                f"t{place.local.name}", dtype_name(dtype), self.extent * dtype.itemsize * lanes, at
            )
        return self.places[place]

    @override
    def noted(self, outside: str) -> list[str]:
        return [f"if {outside}:", f"    {self.memory.flagged()}"]

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
                runs = self.loop.run is not None
                taking = self.taking[accumulator] = of_row(accumulator, self.row, self.constants, runs=runs)
                before += taking.begin
            lines += self._each_lane(before)
            lines += self._elements_of(each)
            complete = [line for accumulator in each.row for line in self.taking[accumulator].end]
        return lines

    def _elements_of(self, each: Pass) -> list[str]:
        """Return the loop through a row's elements, in runs where sums are split into runs."""
        inside = self._each_lane(self.lines(each.inside))
        begin = [line for accumulator in each.row for line in self.taking[accumulator].begin_run]
        end = [line for accumulator in each.row for line in self.taking[accumulator].end_run]
        if not begin:
            return [f"for j in range({self.count}):", *indented(inside)] if inside else []
        return [
            f"for run in range(0, {self.count}, {self.loop.run}):",
            *indented(self._each_lane(begin)),
            f"    for j in range(run, min({self.count}, run + {self.loop.run})):",
            *indented(inside, 2),
            *indented(self._each_lane(end)),
        ]

    def _each_lane(self, lines: list[str]) -> list[str]:
        return ["for l in range(wide):", *indented(lines)] if self.lanes and lines else lines
