"""A loop as the source of a CPU kernel.

The source depends on the ops, the dtypes, which strides are 0 or 1, and whether a summed row is long. Sizes are
arguments. So similar clusters, in other layers of a model or for other batch sizes, share a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, final

from typing_extensions import override

from ....ops.body import Equation
from ....ops.types import dtype_name
from ...native import access
from ..clusters import Cluster, Level
from ..formulas import ROW_SUM, Constants
from ..loop import Accumulator, Local, LoopNest, LoopOperand, Pass, Place, space_of
from ..schedule import LoopPrinter, Scheduling, from_memory, indented, schedule, side_by_side, to_memory
from .arguments import Address, ErrorFlag, LoopSource, LoweredLoop, Scratch, Word

# Words and memory accesses --------------------------------------------------------------------------------------------


class ScopedElements(NamedTuple):
    """Memory with an alias scope; the text `at` is the index of an element, relative to the address `name`_at."""

    name: str
    dtype: str
    scope: str
    at: str


@final
class KernelMemory:
    """The argument words of a kernel, and the memory that they point to.

    head        lines that run once before the loop and compute addresses
    accesses    the load and store functions of the source, see `LoopSource`
    """

    def __init__(self) -> None:
        self.words: list[Word] = []
        self.head: list[str] = []
        self._scopes = 0
        self._names: dict[str, tuple[str, str, str]] = {}

    @property
    def accesses(self) -> tuple[tuple[str, str, str, str], ...]:
        return tuple([(name, *of) for name, of in sorted(self._names.items())])

    def word(self, value: Word) -> str:
        self.words.append(value)
        return f"w[{len(self.words) - 1}]"

    def elements(self, name: str, dtype: str, at: str, *, written: bool) -> ScopedElements:
        """Return named memory; written memory gets its own alias scope."""
        if not written:
            return ScopedElements(name, dtype, access.READ, at)
        self._scopes += 1
        return ScopedElements(name, dtype, access.written(self._scopes - 1), at)

    def scratch(self, name: str, dtype: str, nbytes: int, at: str) -> ScopedElements:
        """Return scratch memory of the worker."""
        nbytes = rounded(nbytes)
        self.head.append(f"{name}_at = {self.word(Scratch(name, nbytes))} + worker * {self.word(nbytes)}")
        return self.elements(name, dtype, at, written=True)

    def load(self, elements: ScopedElements) -> str:
        """Return an expression that loads an element."""
        text = f"{self._access('load', elements)}({elements.name}_at, {elements.at})"
        return from_memory(text, mask=elements.dtype == "bool")

    def store(self, elements: ScopedElements, value: str) -> str:
        stored = to_memory(value, mask=elements.dtype == "bool")
        return f"{self._access('store', elements)}({elements.name}_at, {elements.at}, {stored})"

    def flagged(self) -> str:
        """Return a line that sets the error flag."""
        flag = self._access("store", self.elements("", "int64", "0", written=True))
        return f"{flag}({self.word(ErrorFlag())}, 0, 1)"

    def _access(self, kind: str, elements: ScopedElements) -> str:
        name = f"{kind}_{elements.dtype}_{elements.scope.replace(' ', '_')}"
        self._names[name] = (kind, elements.dtype, elements.scope)
        return name


def rounded(nbytes: int) -> int:
    """Round up to whole cache lines, so that workers do not share them."""
    return -(-nbytes // 64) * 64


# Row values -----------------------------------------------------------------------------------------------------------

LANES = 64
"""The number of rows processed side by side, if adjacent rows are adjacent in memory and a row's own elements are
not."""


@final
class RowLocals:
    """Row values as variables or, with `lanes`, as memory with one element per lane."""

    def __init__(self, memory: KernelMemory, lanes: bool):
        self._memory, self._lanes = memory, lanes
        self.places: dict[str, ScopedElements] = {}

    def get(self, name: str) -> str:
        return self._memory.load(self.places[name]) if self._lanes else name

    def set(self, name: str, dtype: str, value: str) -> str:
        """Return a line that assigns to a row value."""
        if not self._lanes:
            return f"{name} = {value}"
        if name not in self.places:
            self.places[name] = self._memory.scratch(f"{name}s", dtype, 8 * LANES, "l")
        return self._memory.store(self.places[name], value)


# Sums over rows in parts ----------------------------------------------------------------------------------------------

FEW = 1 << 13
"""Elements; a loop over fewer is not divided among the workers."""

_MOST, _ROWS = 16, 32
"""Parts at most, and the rows that are worth one of more than two: the sums of a part cost as much as a few rows."""


def parts_of_rows(rows: int, elements: int) -> int:
    """Return the number of parts of a sum over `rows`, of so many elements in all."""
    return 1 if elements < FEW else min(rows, _MOST, max(2, rows // _ROWS))


def total_loop(scratch: Scratch, out: Address, count: int, dtype: str) -> LoweredLoop:
    """Return a loop that adds the sums of the parts, in their order and in float64, into `count` elements at `out`."""
    text = f"""def kernel(lo, hi, worker, arguments):
    sums, out, parts, nbytes = int64s(arguments, 4)
    for j in range(lo, hi):
        total = 0.0 + load(sums, j)
        for part in range(1, parts):
            total = total + load(sums + part * nbytes, j)
        store(out, j, {dtype}(total))"""
    accesses = (("load", "load", dtype, access.READ), ("store", "store", dtype, access.written(0)))
    return LoweredLoop(
        LoopSource("total", "", text, accesses), count, (scratch, out, scratch.parts, scratch.nbytes), ()
    )


# Sums and maxima ------------------------------------------------------------------------------------------------------

BLOCK = 32
"""Rows per running sum of a column in its own dtype. The block sums are added in float64; otherwise a sum of n rows
would accumulate n rounding errors."""

RUN, STRIDED_RUN = 1024, 64
"""Elements of a row per vectorized running sum; the sums of runs are added in float64. Strided rows are not vectorized
and have a single running sum per run."""


class Accumulating(NamedTuple):
    """Lines that compute a sum or maximum.

    begin, end              before and after all elements
    begin_run, end_run      before and after each run or block
    add                     for one element
    """

    begin: list[str]
    begin_run: list[str]
    add: Callable[[str], list[str]]
    end_run: list[str]
    end: list[str]


def of_row(accumulator: Accumulator, row: RowLocals, constants: Constants, *, runs: bool) -> Accumulating:
    """Return the lines for a sum along a row, in `runs` or not, or for its maximum."""
    name, dtype = accumulator.local.name, accumulator.local.dtype
    kind = dtype_name(dtype)
    if accumulator.primitive is not ROW_SUM:
        return _greatest(name, kind, row)
    zero = constants(0, dtype)
    if not runs:
        begin = [row.set(name, kind, zero)]
        return Accumulating(begin, [], lambda value: [row.set(name, kind, f"add({row.get(name)}, {value})")], [], [])
    whole, run = f"s{name}", f"r{name}"
    return Accumulating(
        [row.set(whole, "float64", "0.0")],
        [row.set(run, kind, zero)],
        lambda value: [row.set(run, kind, f"add({row.get(run)}, {value})")],
        [row.set(whole, "float64", f"{row.get(whole)} + {row.get(run)}")],
        [row.set(name, kind, f"{kind}({row.get(whole)})")],
    )


def _greatest(name: str, kind: str, row: RowLocals) -> Accumulating:
    """Return the lines for a maximum, on integers ordered like floats (see `namespace.py`); nans are tracked
    separately."""
    order = "int32" if kind == "float32" else "int64"
    greatest, unknown = f"m{name}", f"b{name}"

    def add(value: str) -> list[str]:
        return [
            f"o{name} = ordered_{kind}({value})",
            row.set(greatest, order, f"o{name} if o{name} > {row.get(greatest)} else {row.get(greatest)}"),
            row.set(unknown, "int64", f"{row.get(unknown)} | int64({value} != {value})"),
        ]

    begin = [row.set(greatest, order, f"least_{kind}"), row.set(unknown, "int64", "int64(0)")]
    found = f"unordered_{kind}({row.get(greatest)}) if {row.get(unknown)} == 0 else nan_{kind}"
    return Accumulating(begin, [], add, [], [row.set(name, kind, found)])


def of_columns(
    accumulator: Accumulator, extent: int, parts: int, memory: KernelMemory, constants: Constants
) -> tuple[Scratch, Accumulating]:
    """Return the lines for a sum over rows: for each part of the rows, a row of block sums in its scratch, and a
    float64 row of totals."""
    name, dtype = accumulator.local.name, accumulator.local.dtype
    kind, zero = dtype_name(dtype), constants(0, dtype)
    nbytes = rounded(extent * dtype.itemsize)
    both = Scratch(f"c{name}", nbytes + rounded(extent * 8), parts)
    part = memory.elements(both.key, kind, "j", written=True)
    addresses = [
        f"c{name}_at = {memory.word(both)} + part * {memory.word(both.nbytes)}",
        f"d{name}_at = c{name}_at + {memory.word(nbytes)}",
    ]
    whole = memory.elements(f"d{name}", "float64", "j", written=True)
    total = f"({memory.load(whole)} + {memory.load(part)})"
    return both, Accumulating(
        addresses + _along([memory.store(part, zero), memory.store(whole, "0.0")]),
        [],
        lambda value: [memory.store(part, f"({memory.load(part)} + {value})")],
        _along([memory.store(whole, total), memory.store(part, zero)]),
        _along([memory.store(part, f"{kind}{total}")]),
    )


def _along(lines: list[str]) -> list[str]:
    return ["for j in range(n):", *indented(lines)]


# Kernels --------------------------------------------------------------------------------------------------------------


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
